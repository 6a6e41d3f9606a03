"""Beams, thoughts and margins as callers of the Generation service see them, over gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import pre_tokenizers

from services.generator.serving import Generator
from shared.clients.decoding import Beams, Choice, Chosen, Decoding, Margin, Margins, MarginToken
from shared.clients.generation import BranchDone, GeneratedToken, GenerationDone, GenerationEvent, Piece, Reuse, Sampling
from shared.engine import Beams as EngineBeams
from shared.engine import EarlyStopping
from shared.errors import InvalidRequest
from tests.beam_oracle import beam_search
from tests.generation_server import Served, context, save_byte_tokenizer, serving
from tests.oracles import ORACLES, tiny_model

PREFIX, CHUNKS, QUESTION = (5, 6, 7), [(9, 10, 11, 12), (13, 14, 15)], (20, 21, 22)


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def talking(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "talking"
    tiny_model("qwen2", seed=5, vocab_size=300).save_pretrained(path)
    save_byte_tokenizer(path)
    return path


async def generate(
    served: Served,
    chunks: Sequence[Piece],
    questions: Sequence[Piece],
    decoding: Decoding,
    prefix: Piece | None = PREFIX,
    **sampling: Any,
) -> list[GenerationEvent]:
    chosen = Sampling(**{"max_tokens": 5, "ignore_eos": True} | sampling)
    stream = served.client.generate(context(), chunks, questions, "reordered", chosen, prefix, decoding)
    async with aclosing(stream):
        return [event async for event in stream]


def ids(events: Sequence[GenerationEvent], question: int = 0, sample: int = 0) -> tuple[int, ...]:
    return tuple(e.token_id for e in events if isinstance(e, GeneratedToken) and (e.question, e.sample) == (question, sample))


async def test_the_best_beams_of_the_textbook_with_their_scores(talking: Path) -> None:
    model = tiny_model("qwen2", seed=5, vocab_size=300)
    beams = EngineBeams(4, 0.5, EarlyStopping.NEVER)
    found = beam_search(
        lambda tokens: ORACLES["reordered"](model, PREFIX, CHUNKS, QUESTION, [*tokens, 0])[-1], beams, max_tokens=5, eos_ids=()
    )
    async with serving(talking, kv_store="") as served:
        events = await generate(served, CHUNKS, [QUESTION], Decoding(beams=Beams(4, 0.5, "never")), n=3)
    ends = {e.sample: e for e in events if isinstance(e, BranchDone)}
    assert sorted(ends) == [0, 1, 2]
    for rank in range(3):
        assert (ids(events, 0, rank), ends[rank].score) == (found.answers[rank][0], pytest.approx(found.answers[rank][1], abs=1e-4))


async def test_one_thought_of_each_question_is_chosen(talking: Path) -> None:
    async with serving(talking, kv_store="") as served:
        decoding = Decoding(choose=Choice("mean-logprob"))
        events = await generate(served, ["The river rises."], ["What?", "Why?"], decoding, None, n=3, temperature=0.8, seed=2)
        chosen = {e.question: e for e in events if isinstance(e, Chosen)}
        for question in range(2):
            scores = [e.score for e in events if isinstance(e, BranchDone) and e.question == question]
            ends = {e.sample: e.score for e in events if isinstance(e, BranchDone) and e.question == question}
            assert ends[chosen[question].sample] == max(scores)
        majority = Decoding(choose=Choice("majority"))
        events = await generate(served, [], ["What?"], majority, None, n=3, temperature=0.8, seed=2, max_tokens=1)
        assert [e.votes >= 1 for e in events if isinstance(e, Chosen)] == [True]
        assert isinstance(events[-1], GenerationDone)


@pytest.mark.parametrize(
    ("decoding", "sampling", "field"),
    [
        (Decoding(beams=Beams(0)), {}, r"beams\.width"),
        (Decoding(beams=Beams(2, 99.0)), {}, r"beams\.length_penalty"),
        (Decoding(beams=Beams(2)), {"n": 3}, r"sampling\.n"),
        (Decoding(beams=Beams(2)), {"temperature": 1.0}, r"sampling\.temperature"),
        (Decoding(choose=Choice("majority")), {"temperature": 1.0}, r"sampling\.n"),
        (Decoding(beams=Beams(2), choose=Choice("majority")), {}, "choose"),
    ],
)
async def test_bad_input_names_the_field(talking: Path, decoding: Decoding, sampling: dict[str, Any], field: str) -> None:
    async with serving(talking, kv_store="") as served:
        with pytest.raises(InvalidRequest, match=field):
            await generate(served, CHUNKS, [QUESTION], decoding, **sampling)


def encode(text: str) -> tuple[int, ...]:
    """As the byte tokenizer of ``save_byte_tokenizer`` does."""
    order = {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    return tuple(order[c] for c in pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)[0][0])


class TestMargins:
    """Every stage against the stock model, teacher-forced on what was generated."""

    TEXTS = ("The river rises.", "Bread is brown.", "Ships are old.")
    QUESTION = "What rises?"

    @pytest.mark.parametrize("reuse", ["reordered", "full"])
    async def test_margins_judgements_and_answer_are_those_of_the_stock_model(self, talking: Path, reuse: Reuse) -> None:
        margins = Margins("Note on {question}", "Is “{margin}” of help for {question}", " ja", " jein", max_tokens=6)
        async with serving(talking, kv_store="") as served:
            model = await served.client.describe(context())
            stream = served.client.generate(
                context(), self.TEXTS, [self.QUESTION], reuse, Sampling(4, ignore_eos=True), None, Decoding(margins=margins)
            )
            async with aclosing(stream):
                events = [event async for event in stream]
            assert isinstance(served.generator, Generator)
            decode = served.generator.tokenizer.decode  # type: ignore[union-attr]
        stock = tiny_model("qwen2", seed=5, vocab_size=300)

        def ask(text: str) -> tuple[int, ...]:
            return encode(model.question_template.replace("{question}", text))

        def oracle(chunks: Sequence[tuple[int, ...]], question: tuple[int, ...], generated: Sequence[int]) -> torch.Tensor:
            return ORACLES[reuse](stock, model.prefix_ids, chunks, question, generated)

        chunks = [encode(model.chunk_template.replace("{text}", text)) for text in self.TEXTS]
        notes = {e.chunk: e for e in events if isinstance(e, Margin)}
        assert sorted(notes) == [0, 1, 2]
        for i, note in notes.items():
            written = [e for e in events if isinstance(e, MarginToken) and e.chunk == i]
            ids_ = [e.token_id for e in written]
            assert ids_ == oracle([chunks[i]], ask("Note on What rises?"), ids_).argmax(-1).tolist()
            assert note.text == decode([t for t in ids_ if t not in model.eos_ids])
            judged = (*ask(f"Is “{note.text.strip()}” of help for What rises?"), *encode(" j"))
            logprobs = oracle([chunks[i]], judged, [0])[0].log_softmax(-1)
            yes, no = logprobs[encode("a")[0]].item(), logprobs[encode("e")[0]].item()
            assert (note.yes_logprob, note.no_logprob) == (pytest.approx(yes, abs=1e-4), pytest.approx(no, abs=1e-4))
            assert note.kept == (yes > no)
        kept = [encode(model.chunk_template.replace("{text}", notes[i].text.strip())) for i in range(3) if notes[i].kept]
        answer = ids(events)
        final = (*(t for note in kept for t in note), *ask(self.QUESTION))
        assert list(answer) == oracle(chunks, final, answer).argmax(-1).tolist()
        assert [type(e) for e in events].index(GeneratedToken) > max(i for i, e in enumerate(events) if isinstance(e, Margin))
        usage = events[-1].usage  # type: ignore[union-attr]
        assert usage.prompt_tokens == usage.reused_tokens + usage.recomputed_tokens
        assert usage.generated_tokens == 4 + 3 + sum(isinstance(e, MarginToken) for e in events), "answer, judgements, margins"

    async def test_kept_and_left_out_margins_both_occur_and_only_kept_ones_are_seen(self, talking: Path) -> None:
        """The same with yes and no exchanged: what was kept is left out, and the answer's prompt is as long as it says."""
        async with serving(talking, kv_store="") as served:
            told = []
            for yes, no in ((" a", " e"), (" e", " a")):
                margins = Margins(yes=yes, no=no, max_tokens=5)
                told.append(await generate(served, self.TEXTS, [self.QUESTION], Decoding(margins=margins), None))
        one, other = ([e for e in events if isinstance(e, Margin)] for events in told)
        assert {m.chunk: m.kept for m in one} == {m.chunk: not m.kept for m in other}
        assert {m.chunk: m.text for m in one} == {m.chunk: m.text for m in other}

    async def test_beams_and_thoughts_apply_to_the_answer(self, talking: Path) -> None:
        async with serving(talking, kv_store="") as served:
            decoding = Decoding(beams=Beams(3), margins=Margins(max_tokens=2))
            events = await generate(served, self.TEXTS, [self.QUESTION], decoding, None, n=3)
        assert sorted(e.sample for e in events if isinstance(e, BranchDone)) == [0, 1, 2]

    async def test_a_caller_that_leaves_stops_all_margins(self, talking: Path) -> None:
        async with serving(talking, kv_store="") as served:
            sampling = Sampling(500, ignore_eos=True)
            decoding = Decoding(margins=Margins(max_tokens=500))
            stream = served.client.generate(context(), self.TEXTS, [self.QUESTION], "reordered", sampling, None, decoding)
            async with aclosing(stream):
                async for _ in stream:
                    break
            assert isinstance(served.generator, Generator)
            while served.generator.facts()["running_requests"] != "0":
                await asyncio.sleep(0.01)
            assert served.generator.facts()["private_bytes"] == "0"

    @pytest.mark.parametrize(
        ("margins", "chunks", "questions", "field"),
        [
            (Margins(), ["x"], ["a", "b"], "one question"),
            (Margins(), ["x"], [(5, 6)], "one question, as text"),
            (Margins(), [], ["a"], "no chunks"),
            (Margins(instruction="note"), ["x"], ["a"], r"decoding\.margins\.instruction: must contain {question}"),
            (Margins(relevance="note"), ["x"], ["a"], r"decoding\.margins\.relevance: must contain {margin}"),
            (Margins(yes=" y", no=" yes"), ["x"], ["a"], r"decoding\.margins\.yes, no"),
            (Margins(max_tokens=10_000), ["x"], ["a"], r"decoding\.margins\.max_tokens"),
        ],
    )
    async def test_bad_input_names_the_field(
        self, talking: Path, margins: Margins, chunks: list[Piece], questions: list[Piece], field: str
    ) -> None:
        async with serving(talking, kv_store="") as served:
            with pytest.raises(InvalidRequest, match=field):
                await generate(served, chunks, questions, Decoding(margins=margins), None)
