"""Every reuse mode over gRPC is what the engine makes of it: same tokens, same numbers, same counts."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from services.generator.service import Generator
from shared import engine as e
from shared.engine.model.lora_files import write_adapter
from shared.errors import ConfigError, FailedPrecondition, InvalidRequest, KvquiltError, NotFound
from shared.generation.asked import Chunk, Decoding, GenerateRequest, Margins, SamplingParams
from shared.generation.forest import Grow, Start
from shared.generation.modes import Ape, Recompute, ReuseMode
from shared.generation.orders import ForestOrder
from shared.generation.pieces import Conditioned
from shared.generation.told import DoneEvent, GenerationEvent, GrownEvent, SelectedEvent, TextSpan, TokenEvent
from shared.identity import chunk_identity, ids_hash
from shared.kv_types import KvContext
from shared.verdict import Verdict
from tests.generation_server import Served, context, order_of, reuse_of, save_byte_tokenizer, serving
from tests.lora_adapters import random_adapter
from tests.oracles import VOCAB, tiny_model

pytestmark = pytest.mark.usefixtures("one_thread")

Ids = tuple[int, ...]
MAX_TOKENS = 4
TEXTS = ("Orla Venn built the bridge.", "It stands in Tambach, über dem Fluß 🌉.", "Market day is Monday.")
QUESTION = "Who built it?"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """plain has no tokenizer, talking has one."""
    root = tmp_path_factory.mktemp("models")
    tiny_model("qwen2").save_pretrained(root / "plain")
    tiny_model("qwen2", seed=5, vocab_size=300).save_pretrained(root / "talking")
    save_byte_tokenizer(root / "talking")
    return root


@pytest.fixture(scope="module")
def engine(models: Path) -> Iterator[e.Engine]:
    engine = e.Engine(e.load_model(str(models / "plain")))
    yield engine
    engine.shut_down()


def some_ids(draw: random.Random, num_tokens: int) -> Ids:
    return tuple(draw.randrange(3, VOCAB) for _ in range(num_tokens))


async def generate(
    served: Served, chunks: Sequence[Any], questions: Sequence[Any], **options: Any
) -> list[GenerationEvent]:
    sampling = SamplingParams(max_tokens=MAX_TOKENS, ignore_eos=True)
    async with aclosing(
        served.client.generate(context(), order_of(chunks, questions, sampling=sampling, **options))
    ) as stream:
        return [event async for event in stream]


def end_of(events: Sequence[GenerationEvent]) -> DoneEvent:
    assert isinstance(events[-1], DoneEvent)
    return events[-1]


def selections_of(events: Sequence[GenerationEvent]) -> list[SelectedEvent]:
    return [event for event in events if isinstance(event, SelectedEvent)]


def tokens_of(events: Sequence[Any], kind: type) -> list[tuple[int, int]]:
    return [(event.question, event.token_id) for event in events if isinstance(event, kind)]


OPTIONS: dict[str, list[tuple[Recompute, Ape]]] = {
    "full": [(Recompute(), Ape())],
    "reordered": [(Recompute(), Ape())],
    "composite": [(Recompute(), Ape())],
    "tokens": [(Recompute(tokens=(0, 7, 8, 30)), Ape()), (Recompute(), Ape())],
    "epic": [(Recompute(), Ape()), (Recompute(0.7), Ape()), (Recompute(0.0), Ape())],
    "random": [(Recompute(0.3, seed=2**63 + 1), Ape()), (Recompute(1.0), Ape())],
    "query_attention": [(Recompute(0.3), Ape())],
    "cacheblend": [(Recompute(0.3), Ape()), (Recompute(0.1), Ape())],
    "ape": [(Recompute(), Ape()), (Recompute(), Ape(0.5, 1.5)), (Recompute(), Ape(scale=0.7))],
}
CASES = [(mode, *options) for mode, variants in OPTIONS.items() for options in variants]


@pytest.mark.parametrize(
    ("mode", "recompute", "ape"), CASES, ids=lambda value: value if isinstance(value, str) else ""
)
async def test_an_answer_over_the_wire_is_the_engines(
    models: Path, engine: e.Engine, mode: str, recompute: Recompute, ape: Ape
) -> None:
    draw = random.Random(f"{mode} {recompute} {ape}")
    async with serving(models / "plain", kv_store="") as served:
        for num_questions, prefix_len in ((1, 5), (2, 0)):
            prefix = some_ids(draw, prefix_len)
            chunks = [some_ids(draw, n) for n in (20, 1, draw.randrange(10, 40))]
            questions = [some_ids(draw, draw.randrange(1, 12)) for _ in range(num_questions)]
            events = await generate(
                served,
                chunks,
                questions,
                reuse=mode,
                prefix=prefix,
                recompute=recompute,
                ape=ape,
                explain=True,
            )
            request = GenerateRequest(
                request_id="r",
                prefix_ids=prefix,
                chunks=tuple(
                    Chunk(chunk_identity("default", engine.model.fingerprint, prefix, chunk), chunk)
                    for chunk in chunks
                ),
                questions=tuple(questions),
                reuse=ReuseMode(mode),
                sampling=SamplingParams(max_tokens=MAX_TOKENS, ignore_eos=True),
                recompute=recompute,
                ape=ape,
            )
            theirs = list(engine.generate(request))
            assert tokens_of(events, TokenEvent) == tokens_of(theirs, TokenEvent)
            logprobs = [event.logprob for event in theirs if isinstance(event, TokenEvent)]
            assert [event.logprob for event in events if isinstance(event, TokenEvent)] == pytest.approx(
                logprobs, abs=1e-5
            )
            chosen = [event for event in theirs if isinstance(event, SelectedEvent)]
            told = selections_of(events)
            assert [(s.tokens, s.question, s.layers) for s in told] == [
                (s.tokens, s.question, s.layers) for s in chosen
            ]
            assert [s.scores for s in told] == [pytest.approx(s.scores, rel=1e-4, abs=1e-6) for s in chosen]
            assert not any(spans for s in told for spans in s.chunks), (
                "without a tokenizer nothing is known of text"
            )
            usage, done = end_of(events).usage, theirs[-1]
            assert isinstance(done, DoneEvent)
            assert usage.reuse == mode
            assert usage.note == ""
            assert usage.selected_tokens == done.usage.selected_tokens
            assert usage.recomputed_tokens == usage.prompt_tokens - usage.reused_tokens


async def test_scores_and_spans_are_told_to_those_who_ask_for_an_explanation(models: Path) -> None:
    async with serving(models / "talking", kv_store="") as served:
        silent = await generate(served, TEXTS, [QUESTION], reuse="query_attention")
        (told,) = selections_of(
            await generate(served, TEXTS, [QUESTION], reuse="query_attention", explain=True)
        )
    assert selections_of(silent) == [replace(told, scores=(), chunks=())]
    assert len(told.scores) == sum(len(f"{text}\n\n".encode()) for text in TEXTS)
    assert len(told.chunks) == len(TEXTS)
    for text, spans in zip(TEXTS, told.chunks, strict=True):
        assert all(0 <= s.start < s.end <= len(text) and s.score > 0 for s in spans)
        assert all(a.end < b.start for a, b in pairwise(spans)), "neighbours are one span"


async def test_spans_are_the_characters_of_the_listed_tokens(models: Path) -> None:
    text = TEXTS[1]
    before = text.index("🌉")
    first = len(TEXTS[0].encode()) + len("\n\n")
    one_byte = first + len(text[:before].encode()) + 1  # the second of the four bytes of the bridge
    async with serving(models / "talking", kv_store="") as served:
        asked = {
            "reuse": "tokens",
            "recompute": Recompute(tokens=(0, 1, 2, 5, first - 1, one_byte)),
            "explain": True,
        }
        (told,) = selections_of(await generate(served, TEXTS[:2], [QUESTION], **asked))
    assert told.chunks == ((TextSpan(0, 3), TextSpan(5, 6)), (TextSpan(before, before + 1),)), (
        "the template is nobody's text"
    )


async def test_without_a_prefix_none_stands_in_front_of_the_chunks(models: Path) -> None:
    async with serving(models / "talking", kv_store="") as served:
        usual = end_of(await generate(served, TEXTS, [QUESTION], reuse="epic"))
        without = end_of(await generate(served, TEXTS, [QUESTION], reuse="epic", prefix=()))
        description = await served.client.describe(context())
    assert usual.usage.prompt_tokens - without.usage.prompt_tokens == len(description.prefix_ids) > 0
    assert usual.usage.selected_tokens == without.usage.selected_tokens > 0
    assert set(usual.chunk_ids).isdisjoint(without.chunk_ids)


async def test_a_live_forest_tells_what_it_computes_anew(models: Path) -> None:
    async def commands() -> Any:
        yield Start(0, QUESTION)
        yield Grow(0, SamplingParams(max_tokens=MAX_TOKENS, ignore_eos=True))

    async with serving(models / "talking", kv_store="") as served:
        recompute = Recompute(tokens=(3, 40))
        asked = {"reuse": "tokens", "recompute": recompute}
        opened = ForestOrder(TEXTS, reuse=reuse_of("tokens", recompute=recompute))
        async with aclosing(served.forests.explore(context(), opened, commands())) as stream:
            events = [event async for event in stream]
        alone = await generate(served, TEXTS, [QUESTION], **asked)
        by_question = ForestOrder(TEXTS, reuse=reuse_of("cacheclip"))
        with pytest.raises(InvalidRequest, match="reuse: cacheclip goes by the question"):
            [_ async for _ in served.forests.explore(context(), by_question, commands())]
    assert [event.tokens for event in events if isinstance(event, SelectedEvent)] == [(3, 40)]
    grown = [event.token_id for event in events if isinstance(event, GrownEvent)]
    assert grown == [token for _, token in tokens_of(alone, TokenEvent)]
    assert isinstance(events[-1], DoneEvent)
    assert (events[-1].usage.reuse, events[-1].usage.selected_tokens) == ("tokens", 2)


class TestAuto:
    """The verdict is obeyed where it holds; elsewhere the answer is full, and says why."""

    @staticmethod
    async def verdict_of(served: Served, **changes: Any) -> Verdict:
        model = await served.client.describe(context())
        fitting = Verdict(
            ReuseMode.EPIC, 0.01, model.fingerprint, ids_hash(model.prefix_ids), model.kv_encoding, 0.3
        )
        return replace(fitting, **changes)

    async def ask(self, models: Path, path: Path | str, **options: Any) -> list[GenerationEvent]:
        async with serving(models / "talking", kv_store="", verdict=str(path)) as served:
            return await generate(served, TEXTS, [QUESTION], reuse="auto", **options)

    async def test_a_verdict_that_fits_is_obeyed(self, models: Path, tmp_path: Path) -> None:
        async with serving(models / "talking", kv_store="") as served:
            (await self.verdict_of(served)).write(tmp_path / "verdict.json")
            by_name = await generate(served, TEXTS, [QUESTION], reuse="epic", recompute=Recompute(0.3))
        auto = await self.ask(models, tmp_path / "verdict.json")
        assert tokens_of(auto, TokenEvent) == tokens_of(by_name, TokenEvent)
        assert replace(end_of(auto).usage, verdict=None) == end_of(by_name).usage
        assert (end_of(auto).usage.reuse, end_of(auto).usage.note) == ("epic", "")

    @pytest.mark.parametrize(
        ("changes", "note"),
        [
            ({"model": "f" * 32}, "auto is full: the verdict was made for another model"),
            ({"prefix": "0" * 32}, "auto is full: the verdict was made for another prefix"),
            ({"encoding": "int8"}, "auto is full: the verdict was made for another encoding"),
            ({"mode": ReuseMode.CACHECLIP}, "auto is full: the verdict's mode, cacheclip, needs a selector"),
        ],
    )
    async def test_one_that_does_not_is_not_and_the_usage_says_why(
        self, models: Path, tmp_path: Path, changes: dict[str, Any], note: str
    ) -> None:
        async with serving(models / "talking", kv_store="") as served:
            (await self.verdict_of(served, **changes)).write(tmp_path / "verdict.json")
            full = await generate(served, TEXTS, [QUESTION], reuse="full")
        auto = await self.ask(models, tmp_path / "verdict.json")
        assert tokens_of(auto, TokenEvent) == tokens_of(full, TokenEvent)
        assert end_of(auto).usage.reuse == "full"
        assert end_of(auto).usage.note.startswith(note)

    async def test_one_of_chunks_that_know_their_documents_is_obeyed_over_these_alone(
        self, models: Path, tmp_path: Path
    ) -> None:
        """And who recomputes against it is answered, and told."""
        path = tmp_path / "verdict.json"
        changes = {"mode": ReuseMode.REORDERED, "ratio": None, "recompute": False}
        async with serving(models / "talking", kv_store="") as served:
            (await self.verdict_of(served, kv_context=KvContext.DOCUMENT, **changes)).write(path)
        chained = [Conditioned(TEXTS[1], context=TEXTS[:1]), TEXTS[0]]
        async with serving(models / "talking", kv_store="", verdict=str(path)) as served:
            auto = end_of(await generate(served, chained, [QUESTION], reuse="auto")).usage
            alone = end_of(await generate(served, TEXTS, [QUESTION], reuse="auto")).usage
            of_titles = end_of(
                await generate(served, chained, [QUESTION], reuse="auto", kv_context=KvContext.HEADER)
            ).usage
            anew = end_of(
                await generate(served, chained, [QUESTION], reuse="epic", recompute=Recompute(0.3))
            ).usage
        assert (auto.reuse, auto.note) == ("reordered", "")
        for usage in (alone, of_titles):
            assert (usage.reuse, usage.note) == (
                "full",
                "auto is full: the verdict was made for another kv_context",
            )
        assert anew.reuse == "epic"
        assert anew.selected_tokens
        assert anew.note.startswith("epic recomputes against the model's verdict")

    async def test_without_one_it_is_full_and_with_another_prefix_too(
        self, models: Path, tmp_path: Path
    ) -> None:
        usage = end_of(await self.ask(models, "")).usage
        assert (usage.reuse, usage.note) == (
            "full",
            "auto is full: the model has no verdict (quilt.verdict.json)",
        )
        async with serving(models / "talking", kv_store="") as served:
            (await self.verdict_of(served)).write(tmp_path / "verdict.json")
        other = end_of(await self.ask(models, tmp_path / "verdict.json", prefix="Read this.")).usage
        assert (other.reuse, other.note) == ("full", "auto is full: the verdict was made for another prefix")

    async def test_one_that_is_suspended_is_obeyed_neither_now_nor_after_a_new_start(
        self, models: Path, tmp_path: Path
    ) -> None:
        path = tmp_path / "verdict.json"
        async with serving(models / "talking", kv_store="") as served:
            (await self.verdict_of(served)).write(path)
        async with serving(models / "talking", kv_store="", verdict=str(path)) as served:
            verdict = end_of(await generate(served, TEXTS, [QUESTION], reuse="auto")).usage.verdict
            with pytest.raises(NotFound, match="verdict: none with the identity 'other' is served here"):
                await served.client.suspend(context(), "other", "agreement 50 %")
            assert verdict is not None
            assert await served.client.suspend(context(), verdict.id, "agreement 50 %")
            now = end_of(await generate(served, TEXTS, [QUESTION], reuse="auto")).usage
            status = (await served.client.health(context())).facts["verdict"]
        then = end_of(await self.ask(models, path)).usage
        for usage in (now, then):
            assert (usage.reuse, usage.verdict) == ("full", None)
            assert usage.note == "auto is full: the verdict is suspended by shadow: agreement 50 %"
        assert status.endswith("epic 0.3 (none, suspended)")

    async def test_what_nobody_waits_for_is_answered_behind_what_somebody_does(self, models: Path) -> None:
        async with serving(models / "talking", kv_store="") as served:
            assert isinstance(served.generator, Generator)
            with served.generator.idle.taken():
                idle = asyncio.create_task(generate(served, TEXTS, [QUESTION], reuse="full", idle=True))
                waited_for = await generate(served, TEXTS, [QUESTION], reuse="full")
                assert not idle.done()
            assert tokens_of(await idle, TokenEvent) == tokens_of(waited_for, TokenEvent)
            with pytest.raises(InvalidRequest, match="idle: margins are not written in idle time"):
                await generate(served, TEXTS, [QUESTION], decoding=Decoding(margins=Margins()), idle=True)

    async def test_the_model_may_bring_its_verdict_along(self, models: Path, tmp_path: Path) -> None:
        model = tmp_path / "model"
        tiny_model("qwen2", seed=5, vocab_size=300).save_pretrained(model)
        save_byte_tokenizer(model)
        async with serving(model, kv_store="") as served:
            (await self.verdict_of(served)).write(model / "quilt.verdict.json")
        async with serving(model, kv_store="", reuse="auto") as served:
            events = await generate(served, TEXTS, [QUESTION])
        assert end_of(events).usage.reuse == "epic"

    @pytest.mark.parametrize(
        ("written", "says"),
        [
            ("{", "verdict.json: cannot be read as JSON"),
            ("[]", "verdict.json: expected an object"),
            ('{"mode": "epic"}', "verdict.json: tolerance: a value is required"),
            (None, "verdict.json: there is no such file"),
        ],
    )
    async def test_a_broken_one_is_an_error_at_the_start(
        self, models: Path, tmp_path: Path, written: str | None, says: str
    ) -> None:
        if written is not None:
            (tmp_path / "verdict.json").write_text(written, encoding="utf-8")
        async with serving(models / "talking", kv_store="", verdict=str(tmp_path / "verdict.json")) as served:
            assert isinstance(served.generator, ConfigError)
            assert says in served.generator.detail
            assert says in (await served.client.health(context())).detail


async def test_cacheclip_without_a_selector_is_refused_with_the_name_of_the_setting(models: Path) -> None:
    async with serving(models / "talking", kv_store="") as served:
        with pytest.raises(FailedPrecondition, match=r"generator\.selector\.application"):
            await generate(served, TEXTS, [QUESTION], reuse="cacheclip")


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """One of ``talking``."""
    directory = tmp_path_factory.mktemp("adapters") / "qa"
    write_adapter(random_adapter(tiny_model("qwen2", seed=5, vocab_size=300)), directory)
    return {"qa": str(directory)}


class TestAdapters:
    """Of ``generator.engine.adapters``, asked for by name."""

    async def test_a_request_goes_with_the_one_it_names(self, models: Path, adapters: dict[str, str]) -> None:
        async def commands() -> Any:
            yield Start(0, QUESTION)
            yield Grow(0, SamplingParams(max_tokens=MAX_TOKENS, ignore_eos=True))

        engine = e.Engine(e.load_model(str(models / "talking")), e.EngineConfig(adapters=adapters))
        async with serving(models / "talking", kv_store="", engine={"adapters": adapters}) as served:
            assert isinstance(served.generator, Generator)
            assert served.generator.facts()["adapters"] == "qa"
            plain, adapted = [await generate(served, TEXTS, [QUESTION], adapter=name) for name in ("", "qa")]
            full, with_full = [
                await generate(served, TEXTS, [QUESTION], reuse="full", adapter=name) for name in ("", "qa")
            ]
            noted = await generate(
                served, TEXTS, [QUESTION], adapter="qa", decoding=Decoding(margins=Margins(max_tokens=2))
            )
            opened = ForestOrder(TEXTS, reuse=reuse_of("reordered", adapter="qa"))
            async with aclosing(served.forests.explore(context(), opened, commands())) as stream:
                explored = [event async for event in stream]
            with pytest.raises(InvalidRequest, match="adapter: there is no 'law'; there are qa"):
                await generate(served, TEXTS, [QUESTION], adapter="law")
            prompts = served.generator.prompts
            request = GenerateRequest(
                "r",
                prompts.default_prefix_ids,
                tuple(
                    Chunk(chunk_id, ids)
                    for chunk_id, ids in zip(end_of(plain).chunk_ids, prompts.chunks(TEXTS), strict=True)
                ),
                prompts.questions([QUESTION]),
                sampling=SamplingParams(max_tokens=MAX_TOKENS, ignore_eos=True),
                adapter="qa",
            )
        expected = [event.token_id for event in engine.generate(request) if isinstance(event, TokenEvent)]
        engine.shut_down()
        assert [token for _, token in tokens_of(adapted, TokenEvent)] == expected
        assert expected != [token for _, token in tokens_of(plain, TokenEvent)]
        assert end_of(adapted).chunk_ids == end_of(plain).chunk_ids
        assert [end_of(one).usage.adapter for one in (plain, adapted, full, with_full)] == ["", "qa", "", ""]
        assert tokens_of(with_full, TokenEvent) == tokens_of(full, TokenEvent)
        assert end_of(with_full).usage.note == "full is computed by the model alone, without adapter qa"
        assert end_of(noted).usage.adapter == "qa"
        assert [event.token_id for event in explored if isinstance(event, GrownEvent)] == expected
        assert isinstance(explored[-1], DoneEvent)
        assert explored[-1].usage.adapter == "qa"

    async def test_one_may_be_the_default(self, models: Path, adapters: dict[str, str]) -> None:
        settings: dict[str, Any] = {"adapter": "qa", "engine": {"adapters": adapters}}
        async with serving(models / "talking", kv_store="", **settings) as served:
            assert isinstance(served.generator, Generator)
            assert served.generator.facts()["adapters"] == "qa (default qa)"
            used = [
                end_of(await generate(served, TEXTS, [QUESTION], adapter=name)).usage
                for name in ("", "qa", "none")
            ]
            full = end_of(await generate(served, TEXTS, [QUESTION], reuse="full")).usage
        assert [(usage.adapter, usage.note) for usage in (*used, full)] == [
            ("qa", ""), ("qa", ""), ("", ""), ("", ""),
        ]  # fmt: skip

    @pytest.mark.parametrize(
        ("spoil", "said"),
        [
            (lambda path: path.joinpath("adapter_config.json").unlink(), "adapter_config.json: is not there"),
            (lambda path: path.joinpath("adapter_model.safetensors").write_bytes(b"0" * 40), "truncated"),
            (
                lambda path: write_adapter(random_adapter(tiny_model("phi3", vocab_size=300)), path),
                "target_modules: the model has no",
            ),
        ],
    )
    async def test_one_that_cannot_be_served_is_told_by_health(
        self, models: Path, adapters: dict[str, str], tmp_path: Path, spoil: Any, said: str
    ) -> None:
        shutil.copytree(adapters["qa"], tmp_path / "qa")
        spoil(tmp_path / "qa")
        named = {"adapters": {"qa": str(tmp_path / "qa")}}
        async with serving(models / "talking", kv_store="", engine=named) as served:
            assert isinstance(served.generator, KvquiltError)
            with pytest.raises(KvquiltError, match=said) as error:
                await generate(served, TEXTS, [QUESTION])
        assert error.value.detail.startswith("adapter 'qa': ")
