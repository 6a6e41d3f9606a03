"""Fine-tuning on labelled answers: the loss is that of stock `transformers` over what is served, mixtures are
exact, a stopped run goes on to the same model, and a LoRA is in the weights that are written."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AutoModelForCausalLM

from services.training.loop import TrainingLoop
from services.training.mixture import LessonKind, Mixture
from services.training.sft.samples import Said, SftSample
from services.training.sft.settings import SftSettings
from services.training.sft.trainee import SftModel, SftTrainee
from services.training.trainee import HeldOutLoss
from services.training.twin_request import PlacedChunk
from shared.engine import load_model, wrap_model
from shared.errors import ConfigError
from shared.generation.modes import ReuseMode
from shared.kv_types import KvContext
from tests.oracles import ORACLES, VOCAB, Chained, as_dtype, tiny_model

pytestmark = pytest.mark.usefixtures("one_thread")

PREFIX = (5, 9, 200, 31)
TINY = SftSettings(
    updates=4, warmup=1, contexts_per_update=6, contexts_per_pass=4, lr=1e-3, held_out=0.2,
    evaluate_every=2, checkpoint_every=2,
)  # fmt: skip
LORA = dataclasses.replace(TINY, rank=4, alpha=8.0, lr=5e-3)
MODES = (ReuseMode.FULL, ReuseMode.REORDERED, ReuseMode.COMPOSITE)


def ids(rng: random.Random, length: int) -> tuple[int, ...]:
    return tuple(rng.randrange(3, VOCAB) for _ in range(length))


@lru_cache
def samples(count: int = 10) -> tuple[SftSample, ...]:
    """Every other one of three chunks, some behind a chain, the others conversations."""
    rng = random.Random(0)
    found = []
    for number in range(count):
        if number % 2:
            said = Said(ids(rng, 30), ((8, 12), (20, 29)))
            found.append(SftSample(f"conversation {number}", (), (), (said,)))
            continue
        first, second = ids(rng, 9), ids(rng, 7)
        chunks = PlacedChunk(second, (first,)), PlacedChunk(ids(rng, 11)), PlacedChunk(first)
        branches = tuple(Said.answered(ids(rng, 5), ids(rng, length)) for length in (3, 6))
        found.append(SftSample(f"context {number}", PREFIX, chunks, branches))
    return tuple(found)


def kinds() -> list[LessonKind[SftSample]]:
    return [LessonKind("qa", 2.0, samples()[::2], "file"), LessonKind("dialogue", 1.0, samples()[1::2])]


def trainee(settings: SftSettings = TINY, dtype: torch.dtype = torch.float32, source: str = "") -> SftTrainee:
    model = wrap_model(as_dtype(tiny_model("qwen2"), dtype), pack=False)
    return SftTrainee(SftModel(model, source, KvContext.NONE, "tiny", ("qa: all",)), settings)


def loop_at(out: Path, settings: SftSettings = TINY, **changed: Any) -> TrainingLoop[SftSample]:
    source = out.parent / "base"
    source.mkdir(exist_ok=True)
    learning = changed.pop("trainee", None) or trainee(settings, source=str(source), **changed)
    return TrainingLoop(learning, Mixture(kinds(), settings), settings, out, print)


def trained(out: Path, *stops: int, settings: SftSettings = TINY, **changed: Any) -> TrainingLoop[SftSample]:
    """In as many runs as there are stops."""
    for stop in stops:
        loop = loop_at(out, settings, **changed)
        loop.resume()
        loop.train(lambda found: None, lambda: loop.update >= stop)  # noqa: B023
    return loop


def stock_loss(model: Any, sample: SftSample, reuse: ReuseMode) -> Tensor:
    losses = []
    for said in sample.branches:
        for begin, end in said.learned:
            answer = said.token_ids[begin:end]
            chunks = [Chained.of(one.token_ids, one.chain) for one in sample.chunks]
            logits = ORACLES[reuse.value](model, sample.prefix_ids, chunks, said.token_ids[:begin], answer)
            losses.append(F.cross_entropy(logits, torch.tensor(answer), reduction="sum"))
    return torch.stack(losses).sum()


class TestTheLoss:
    @pytest.mark.parametrize("reuse", MODES)
    def test_is_the_cross_entropy_of_answers_over_what_is_served(self, reuse: ReuseMode) -> None:
        learning = trainee(dataclasses.replace(TINY, reuse=reuse))
        stock = tiny_model("qwen2")
        some = samples()[:4]
        if reuse is ReuseMode.COMPOSITE:  # of isolated chunks, as the paper has it
            bare = [tuple(PlacedChunk(chunk.token_ids) for chunk in sample.chunks) for sample in some]
            some = tuple(dataclasses.replace(one, chunks=c) for one, c in zip(some, bare, strict=True))
        theirs = torch.stack([stock_loss(stock, sample, reuse) for sample in some]).sum()
        torch.testing.assert_close(learning.loss(some), theirs, atol=1e-3, rtol=0)
        tally = learning.evaluate(some)
        assert tally.loss == pytest.approx(theirs.item(), rel=1e-5)
        assert tally.num_tokens == 2 * (9 + 13)

    def test_and_its_gradients_are_those_of_stock_transformers(self) -> None:
        """Under ``full``, of a conversation and of a context with a question."""
        learning, stock = trainee(dataclasses.replace(TINY, reuse=ReuseMode.FULL)), tiny_model("qwen2")
        stock.requires_grad_(True)
        whole = []
        for sample in (samples()[1], samples()[0]):
            said = sample.branches[0]
            context = [*sample.prefix_ids, *(i for chunk in sample.chunks for i in chunk.token_ids)]
            row, labels = [*context, *said.token_ids], [-100] * (len(context) + len(said.token_ids))
            for begin, end in said.learned:
                for place in range(len(context) + begin, len(context) + end):
                    labels[place] = row[place]
            told = stock(input_ids=torch.tensor([row]), labels=torch.tensor([labels]))
            whole.append(told.loss * sum(end - begin for begin, end in said.learned))
        torch.stack(whole).sum().backward()
        alone = dataclasses.replace(samples()[0], branches=samples()[0].branches[:1])
        learning.loss([samples()[1], alone]).backward()
        theirs = dict(stock.named_parameters())
        for name, ours in learning.state().items():
            torch.testing.assert_close(ours.grad, theirs[name].grad, atol=2e-4, rtol=1e-3)

    def test_does_not_depend_on_what_is_computed_again(self) -> None:
        kept, again = trainee(), trainee(dataclasses.replace(TINY, recompute_activations=True))
        losses = [one.loss(samples()) for one in (kept, again)]
        assert losses[0] == losses[1]
        for loss in losses:
            loss.backward()
        for name, master in kept.state().items():
            assert torch.equal(master.grad, again.state()[name].grad)  # type: ignore[arg-type]

    def test_of_many_predictions_is_the_same_in_parts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        whole = trainee().loss(samples())
        monkeypatch.setattr("services.training.sft.trainee._AT_ONCE", 5)
        torch.testing.assert_close(trainee().loss(samples()), whole)


PAPER_SHARES = {"qa": 50.0, "dialogue": 25.0, "reasoning": 10.0, "code": 10.0, "others": 5.0}


class TestMixtures:
    def of(self, shares: dict[str, float], each: int = 40) -> Mixture[SftSample]:
        one = Said((3, 4, 5), ((1, 3),))
        made = [
            LessonKind(name, share, [SftSample(f"{name} {i}", (), (), (one,)) for i in range(each)])
            for name, share in shares.items()
        ]
        return Mixture(made, TINY)

    def counts(self, drawn: Iterator[SftSample]) -> Counter[str]:
        return Counter(sample.name.split()[0] for sample in drawn)

    def test_whole_shares_of_an_update_are_exact_in_every_one(self) -> None:
        mixture = self.of(PAPER_SHARES)
        for update in (0, 1, 7):
            assert self.counts(mixture.drawn(update, 20)) == {
                "qa": 10, "dialogue": 5, "reasoning": 2, "code": 2, "others": 1,
            }  # fmt: skip

    def test_other_shares_are_never_a_sample_away(self) -> None:
        mixture, taken = self.of(PAPER_SHARES), Counter[str]()
        for update in range(6):
            taken += self.counts(mixture.drawn(update, 256))
            for name, share in PAPER_SHARES.items():
                assert abs(taken[name] - share / 100 * 256 * (update + 1)) < 1

    def test_an_update_depends_on_the_seed_and_its_number_alone(self) -> None:
        one, other = self.of(PAPER_SHARES), self.of(PAPER_SHARES)
        late = list(other.drawn(5, 16))
        for update in range(5):
            list(one.drawn(update, 16))
        assert list(one.drawn(5, 16)) == late
        made = Mixture(self.of(PAPER_SHARES)._kinds, dataclasses.replace(TINY, seed=1))
        assert list(made.drawn(5, 16)) != late

    def test_every_sample_comes_once_per_epoch_and_none_that_is_held_out(self) -> None:
        mixture = self.of({"qa": 3.0, "code": 1.0}, each=10)
        held_out = {sample.name for sample in mixture.held_out}
        assert Counter(name.split()[0] for name in held_out) == {"qa": 2, "code": 2}
        drawn = [sample.name for update in range(8) for sample in mixture.drawn(update, 4)]
        assert not held_out.intersection(drawn)
        of_qa = [name for name in drawn if name.startswith("qa")]
        assert sorted(of_qa[:8]) == sorted(of_qa[8:16]) == sorted(set(of_qa))
        assert of_qa[:8] != of_qa[8:16]

    def test_tells_shares_and_sources(self) -> None:
        assert Mixture(kinds(), TINY).told() == (
            "qa: 66.67 % of the samples, 5 there (file)",
            "dialogue: 33.33 % of the samples, 5 there",
        )

    @pytest.mark.parametrize(
        ("kind", "told"),
        [
            (LessonKind("code", 0.0, samples()), "code: the share must be above 0, got 0"),
            (LessonKind("code", float("nan"), samples()), "code: the share must be above 0, got nan"),
            (LessonKind("code", 1.0, samples()[:1]), "code: it takes two samples at least"),
        ],
    )
    def test_refuses_by_kind(self, kind: LessonKind[SftSample], told: str) -> None:
        with pytest.raises(ConfigError, match=f"^mix: {told}"):
            Mixture([*kinds(), kind], TINY)


class TestTraining:
    @pytest.mark.parametrize("settings", [TINY, LORA])
    def test_learns_the_answers(self, settings: SftSettings, tmp_path: Path) -> None:
        longer = dataclasses.replace(settings, updates=24, held_out=0.0, evaluate_every=99)
        loop = trained(tmp_path / "out", 24, settings=longer)
        assert sum(loop.losses[-4:]) < 0.7 * sum(loop.losses[:4])

    @pytest.mark.parametrize(
        ("settings", "dtype"),
        [(TINY, torch.float32), (TINY, torch.bfloat16), (LORA, torch.float32), (LORA, torch.bfloat16)],
    )
    def test_a_stopped_run_goes_on_to_the_same_model(
        self, settings: SftSettings, dtype: torch.dtype, tmp_path: Path
    ) -> None:
        once = trained(tmp_path / "once", 4, settings=settings, dtype=dtype)
        parts = trained(tmp_path / "parts", 1, 3, 4, settings=settings, dtype=dtype)
        assert parts.losses == once.losses
        for name, master in once.trainee.state().items():
            assert torch.equal(parts.trainee.state()[name], master)
        files = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("once", "parts")]
        assert files[0] == files[1]

    def test_a_killed_run_goes_on_from_its_last_checkpoint(self, tmp_path: Path) -> None:
        class Killed(BaseException):
            pass

        def kill(found: HeldOutLoss | None) -> None:
            if loop.update == 3:
                raise Killed

        loop = loop_at(tmp_path / "killed")
        with pytest.raises(Killed):
            loop.train(kill, lambda: False)
        resumed = trained(tmp_path / "killed", 4)
        assert resumed.losses == trained(tmp_path / "once", 4).losses

    def test_another_mixture_or_context_is_refused(self, tmp_path: Path) -> None:
        trained(tmp_path / "out", 2)
        settings = dataclasses.replace(TINY, reuse=ReuseMode.FULL)
        with pytest.raises(ConfigError, match="made with reuse 'reordered', not 'full'"):
            loop_at(tmp_path / "out", settings).resume()
        other = trainee()
        other._tuned = dataclasses.replace(other._tuned, mixture=("qa: half",))
        with pytest.raises(ConfigError, match="made with mixture"):
            loop_at(tmp_path / "out", trainee=other).resume()

    def test_small_steps_of_bfloat16_weights_add_up_in_float32(self) -> None:
        learning = trainee(dtype=torch.bfloat16)
        masters = learning.state()
        assert {master.dtype for master in masters.values()} == {torch.float32}
        learning.loss(samples()[:2]).backward()
        for name, weight in learning._model.hf_model.named_parameters():
            assert weight.grad is None, "handed on"
            assert weight.dtype == torch.bfloat16
            assert masters[name].grad is not None
        weight = learning._model.hf_model.model.layers[0].mlp.up_proj.weight
        master = masters["model.layers.0.mlp.up_proj.weight"]
        before = weight.clone()
        for _ in range(64):
            with torch.no_grad():
                master.add_(before.float().abs(), alpha=2**-13)
            learning._weights.apply()
        assert (weight != before).any()
        assert torch.equal(weight, master.to(torch.bfloat16))

    def test_memory_that_runs_out_is_first_saved_by_computing_again(self, tmp_path: Path) -> None:
        said: list[str] = []
        loop = loop_at(tmp_path / "out")
        loop._say = said.append
        learning = loop.trainee
        assert isinstance(learning, SftTrainee)
        loss = learning.loss

        def scarce(lessons: Sequence[SftSample]) -> Tensor:
            if not learning._recompute or len(lessons) > 2:
                head = learning._model.hf_model.lm_head.weight
                head.grad = torch.ones_like(head)  # of what was broken off
                raise MemoryError
            return loss(lessons)

        learning.loss = scarce  # type: ignore[method-assign]
        found = loop.train_update()
        assert said[0] == "out of memory: from here on more is computed again, and less kept"
        assert said[1:] == ["out of memory: from here on 2 contexts in a pass, not 4"]
        assert found == pytest.approx(loop_at(tmp_path / "other").train_update(), rel=1e-5)


class TestMergedLora:
    def test_begins_as_the_model_and_changes_its_targets_alone(self, tmp_path: Path) -> None:
        settings = dataclasses.replace(LORA, targets=("q_proj", "down_proj"))
        learning, stock = trainee(settings, source=str(tmp_path)), tiny_model("qwen2")
        learning._weights.apply()
        for name, weight in learning._model.hf_model.named_parameters():
            assert torch.equal(weight, dict(stock.named_parameters())[name])
        loop = loop_at(tmp_path / "out", settings, trainee=learning)
        loop.train(lambda found: None, lambda: False)
        changed = {
            name
            for name, weight in learning._model.hf_model.named_parameters()
            if not torch.equal(weight, dict(stock.named_parameters())[name])
        }
        assert {name.split(".")[-2] for name in changed} == {"q_proj", "down_proj"}

    def test_gradients_are_those_of_a_product_beside_the_weight(self) -> None:
        learning, stock = trainee(LORA), tiny_model("qwen2")
        state = learning.state()
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for master in state.values():
                master.copy_(0.1 * torch.randn(master.shape, generator=generator))
        sample = samples()[1]
        learning.loss([sample]).backward()
        a, b = (state[f"1.mlp.up_proj.{half}"].detach().clone().requires_grad_() for half in "AB")
        for name in {key.rpartition(".")[0] for key in state}:
            layer, _, path = name.partition(".")
            module = stock.model.layers[int(layer)].get_submodule(path)
            pair = (a, b) if name == "1.mlp.up_proj" else (state[f"{name}.A"], state[f"{name}.B"])
            module.register_forward_hook(
                lambda _, args, out, pair=pair: out + LORA.alpha / LORA.rank * args[0] @ pair[0].T @ pair[1].T
            )
        (said,) = sample.branches
        labels = torch.full((1, len(said.token_ids)), -100)
        for begin, end in said.learned:
            labels[0, begin:end] = torch.tensor(said.token_ids[begin:end])
        told = stock(input_ids=torch.tensor([said.token_ids]), labels=labels)
        (told.loss * sample.num_tokens).backward()
        for ours, theirs in ((state["1.mlp.up_proj.A"], a), (state["1.mlp.up_proj.B"], b)):
            torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-3, rtol=1e-3)

    def test_refuses_targets_that_are_not_there(self) -> None:
        with pytest.raises(ConfigError, match=r"targets: .*'c_attn'"):
            trainee(dataclasses.replace(LORA, targets=("c_attn",)))


class TestWhatIsWritten:
    @pytest.mark.parametrize("settings", [TINY, LORA])
    def test_serves_in_the_type_of_the_base_under_another_fingerprint(
        self, settings: SftSettings, tmp_path: Path
    ) -> None:
        loop = trained(tmp_path / "out", 4, settings=settings, dtype=torch.bfloat16)
        assert loop.best is not None
        served = load_model(str(tmp_path / "out"), pack=False)
        assert served.spec.dtype == torch.bfloat16
        stock = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto")
        learning = loop.trainee
        assert isinstance(learning, SftTrainee)
        learning.load(loop.best.state)
        learning._weights.apply()
        for name, weight in learning._model.hf_model.named_parameters():
            assert torch.equal(weight, dict(stock.named_parameters())[name])
        card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
        base = wrap_model(as_dtype(tiny_model("qwen2"), torch.bfloat16), pack=False).fingerprint
        assert served.fingerprint != base
        assert f"fingerprint is `{served.fingerprint}`, the base model's `{base}`" in card
        assert "ingest them again" in card
        assert "kvquilt" not in (tmp_path / "out" / "config.json").read_text(encoding="utf-8")

    def test_is_the_best_and_training_goes_on_as_it_was(self, tmp_path: Path) -> None:
        loop = trained(tmp_path / "out", 2)
        now = {name: x.detach().clone() for name, x in loop.trainee.state().items()}
        best = {name: x + 1 for name, x in now.items()}
        loop.trainee.write(tmp_path / "out", best, {"reuse": "full", "rank": "0"})
        assert all(torch.equal(x, now[name]) for name, x in loop.trainee.state().items())
        written = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
        assert all(torch.equal(x, best[name]) for name, x in written.named_parameters())
        assert "naive twin" in (tmp_path / "out" / "README.md").read_text(encoding="utf-8")

    def test_comes_with_what_the_base_brings(self, tmp_path: Path) -> None:
        base = tmp_path / "base"
        (base / "auxiliary").mkdir(parents=True)
        (base / "logs").mkdir()
        for name in (
            *("tokenizer.json", "chat_template.jinja", "kvquilt.json", "LICENSE"),
            *("model-00001.safetensors", "conversion.json", "auxiliary/config.json", "logs/one"),
        ):
            (base / name).write_text(name)
        (base / "quilt.yaml").write_text("selector:\n  model: auxiliary\n")
        loop_at(tmp_path / "out").save()
        made = {path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*")}
        assert made == {
            *("tokenizer.json", "chat_template.jinja", "quilt.yaml", "kvquilt.json", "LICENSE", "auxiliary"),
            *("auxiliary/config.json", "config.json", "generation_config.json", "model.safetensors"),
            *("README.md", "checkpoint.pt", "losses.jsonl"),
        }
        assert "model: auxiliary" in (tmp_path / "out" / "quilt.yaml").read_text()


def test_float16_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"generator\.engine\.dtype: gradients of float16 vanish"):
        trainee(dtype=torch.float16)


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("rank", -1, "rank: must be at least 0"),
        ("alpha", 0.0, "alpha: must be above 0"),
        ("contexts_per_update", 0, "contexts_per_update: must be at least 1"),
        ("reuse", ReuseMode.EPIC, "reuse: a model is trained under reordered, composite or full"),
        ("reuse", ReuseMode.APE, "reuse: a model is trained under"),
    ],
)
def test_settings_out_of_range_are_named(name: str, value: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=f"^{told}"):
        dataclasses.replace(TINY, **{name: value})


def test_positions_count_the_longest_of_request_and_chains() -> None:
    sample = samples()[0]
    assert sample.num_positions(ReuseMode.FULL) == len(PREFIX) + 27 + 10
    long = dataclasses.replace(sample, chunks=(PlacedChunk((7,) * 5, ((8,) * 90,)),))
    assert long.num_positions(ReuseMode.REORDERED) == len(PREFIX) + 95
    assert long.num_positions(ReuseMode.FULL) == len(PREFIX) + 5 + 10
