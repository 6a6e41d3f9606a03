"""Training an adapter by self-distillation or on labelled answers: the same seed gives the same losses, a
stopped run goes on to the same weights, and what is trained serves."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from services.training.adapter.settings import AdapterSettings, AdapterTarget
from services.training.adapter.trainee import AdapterTrainee, Pupil
from services.training.distillation.kept import Kept
from services.training.distillation.lessons import AskedContext, DistilledLesson, Taught
from services.training.distillation.teacher import Teacher, TeacherPasses
from services.training.fitting import Fitting
from services.training.loop import TrainingLoop
from services.training.trainee import HeldOutLoss
from services.training.twin_request import PlacedChunk
from shared.engine import Engine, wrap_model
from shared.engine.model.lora_files import read_adapter
from shared.engine.model.model import LoadedModel
from shared.errors import ConfigError, ContextTooLong
from shared.generation.asked import GenerateRequest, SamplingParams
from shared.generation.modes import ReuseMode
from shared.kv_types import KvContext
from tests.engine_runs import Prompts, run
from tests.oracles import VOCAB, full, greedy, tiny_model
from tests.out_of_memory import CPU_IS_FULL, Scarce

pytestmark = pytest.mark.usefixtures("one_thread")

Loop = TrainingLoop[DistilledLesson]
PREFIX = (5, 9, 200, 31)
TINY = AdapterSettings(
    updates=6, warmup=1, contexts_per_update=2, rank=4, alpha=8.0, lr=5e-3, answer_tokens=4, top_k=16,
    checkpoint_every=2,
)  # fmt: skip


@lru_cache
def model() -> LoadedModel:
    return wrap_model(tiny_model("qwen2"), pack=False)


@lru_cache
def contexts(count: int = 6) -> tuple[AskedContext, ...]:
    """Of two chunks each out of a block of three."""
    rng = random.Random(0)

    def ids(length: int) -> tuple[int, ...]:
        return tuple(rng.randrange(3, VOCAB) for _ in range(length))

    found = []
    for number in range(count):
        header, *block = ids(3), ids(12), ids(9), ids(15)
        chunks = (PlacedChunk(block[2], (header, *block[:2])), PlacedChunk(block[0], (header,)))
        found.append(AskedContext(f"context {number}", chunks, tuple(block), (ids(6), ids(4))))
    return tuple(found)


def taught(directory: Path, settings: AdapterSettings = TINY) -> tuple[list[DistilledLesson], Kept]:
    kept = Kept.at(directory / "kept", model().fingerprint, PREFIX)
    teacher = Teacher(model(), PREFIX, settings, kept)
    return teacher.lessons(contexts(), lambda done, of: None), kept


def labelled(out: Path, settings: AdapterSettings) -> Loop:
    """Over nothing that was kept: keys and values are computed where they are needed."""
    rng = random.Random(1)
    lessons = []
    for context in contexts():
        answers = [tuple(rng.randrange(3, VOCAB) for _ in range(3)) for _ in context.questions]
        known = tuple(Taught.certain(answer, model().spec.device) for answer in answers)
        lessons.append(DistilledLesson(context, known))
    kept = Kept.at(out.parent / "kept", model().fingerprint, PREFIX)
    trainee = AdapterTrainee(Pupil(model(), PREFIX, KvContext.DOCUMENT, "tiny"), settings, kept)
    return TrainingLoop(trainee, lessons, settings, out, lambda line: None)


def trainer_at(out: Path, settings: AdapterSettings = TINY, **changed: Any) -> Loop:
    lessons, kept = taught(out.parent, settings)
    said = changed.pop("said", [])
    pupil = Pupil(model(), PREFIX, KvContext.DOCUMENT, "tiny")
    trainee = AdapterTrainee(pupil, settings, kept)
    return TrainingLoop(trainee, changed.pop("lessons", lessons), settings, out, said.append)


def trained(out: Path, *stops: int, settings: AdapterSettings = TINY) -> Loop:
    """In as many runs as there are stops."""
    for stop in stops:
        trainer = trainer_at(out, settings)
        trainer.resume()
        trainer.train(lambda found: None, lambda: trainer.update >= stop)  # noqa: B023
    return trainer


class TestTeacher:
    def test_answers_are_greedy_full_over_whole_blocks(self, tmp_path: Path) -> None:
        lessons, _ = taught(tmp_path)
        stock = tiny_model("qwen2")
        for lesson in lessons[:2]:
            for question, one in zip(lesson.context.questions, lesson.taught, strict=True):
                of = (PREFIX, lesson.context.blocks, question)
                assert list(one.answer) == greedy(stock, "full", *of, len(one.answer))
                theirs = full(stock, *of, one.answer).log_softmax(-1)
                torch.testing.assert_close(one.logprobs_AK, theirs.topk(16).values, atol=1e-4, rtol=0)

    def test_what_was_computed_once_is_read(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        first, kept = taught(tmp_path)
        files = {path: path.stat().st_mtime_ns for path in kept.directory.iterdir()}
        assert len(files) == 3 * len(contexts())
        again, _ = taught(tmp_path)
        assert {path: path.stat().st_mtime_ns for path in kept.directory.iterdir()} == files
        assert _bits(first) == _bits(again)

    def test_what_was_cut_short_is_computed_again(self, tmp_path: Path) -> None:
        first, kept = taught(tmp_path)
        whole = trainer_at(tmp_path / "out").train_update()
        for path in kept.directory.iterdir():
            path.write_bytes(path.read_bytes()[:-9])
        assert _bits(taught(tmp_path)[0]) == _bits(first)
        assert trainer_at(tmp_path / "out").train_update() == whole

    def test_another_model_or_prefix_has_files_of_its_own(self, tmp_path: Path) -> None:
        _, kept = taught(tmp_path)
        for other in (
            Kept.at(kept.directory, "other", PREFIX),
            Kept.at(kept.directory, model().fingerprint, ()),
        ):
            assert not other.has_segment(contexts()[0].chunks[0])
            assert other.taught(contexts()[0], TINY) is None

    def test_out_of_memory_makes_passes_smaller_and_what_it_says_is_that_of_smaller_ones(
        self, tmp_path: Path
    ) -> None:
        """Prefix and blocks of a context have 40 tokens, its questions 6 and 4, an answer up to 4."""
        said: list[str] = []

        def too_much(rows: int) -> bool:
            return not said or rows > 49

        scarce = cast(LoadedModel, Scarce(model(), too_much, lambda: RuntimeError(CPU_IS_FULL)))
        passes = TeacherPasses.telling(said.append)
        kept = Kept.at(tmp_path / "scarce", "tiny", PREFIX)
        ours = Teacher(scarce, PREFIX, TINY, kept, passes=passes).lessons(contexts(), lambda done, of: None)
        assert (passes.contexts.most, passes.questions.most) == (3, 1)
        found = [passes.contexts.most, passes.questions.most, passes.chunks.most]
        small = TeacherPasses(*(Fitting("", most) for most in found))
        kept = Kept.at(tmp_path / "small", "tiny", PREFIX)
        theirs = Teacher(model(), PREFIX, TINY, kept, passes=small).lessons(contexts(), lambda done, of: None)
        assert _bits(ours) == _bits(theirs)

    def test_a_context_that_does_not_fit_is_named(self, tmp_path: Path) -> None:
        small = wrap_model(tiny_model("qwen2", max_position_embeddings=40), pack=False)
        kept = Kept.at(tmp_path, small.fingerprint, PREFIX)
        with pytest.raises(ContextTooLong, match=r"^context 0: "):
            Teacher(small, PREFIX, TINY, kept).lessons(contexts(), lambda done, of: None)


class TestDivergence:
    def test_of_the_same_logits_is_nothing_and_of_all_tokens_that_of_torch(self) -> None:
        generator = torch.Generator().manual_seed(0)
        ours, theirs = torch.randn(5, 30, generator=generator), torch.randn(5, 30, generator=generator)
        for top_k in (4, 30, 99):
            one = Taught.of((1,) * 5, theirs, top_k)
            torch.testing.assert_close(one.divergence(theirs), torch.zeros(5), atol=1e-5, rtol=0)
            assert one.agreement(theirs).all()
        whole = torch.nn.functional.kl_div(
            ours.log_softmax(-1), theirs.log_softmax(-1), log_target=True, reduction="none"
        ).sum(-1)
        torch.testing.assert_close(one.divergence(ours), whole)
        part = Taught.of((1,) * 5, theirs, 4).divergence(ours)
        assert ((part > 0) & (part < whole)).all()

    def test_from_a_labelled_answer_is_its_cross_entropy(self) -> None:
        logits_AV = torch.randn(3, 30, generator=torch.Generator().manual_seed(0)).requires_grad_()
        answer = (4, 29, 4)
        one = Taught.certain(answer, torch.device("cpu"))
        theirs = torch.nn.functional.cross_entropy(logits_AV, torch.tensor(answer), reduction="none")
        ours = one.divergence(logits_AV)
        torch.testing.assert_close(ours, theirs)
        gradients = [torch.autograd.grad(x.sum(), logits_AV)[0] for x in (ours, theirs)]
        torch.testing.assert_close(*gradients)
        likeliest = [int(token == logits_AV[i].argmax()) for i, token in enumerate(answer)]
        assert one.agreement(logits_AV).tolist() == likeliest


class TestTraining:
    def test_brings_the_pupil_nearer_to_the_teacher(self, tmp_path: Path) -> None:
        settings = dataclasses.replace(TINY, updates=40, held_out=0.0)
        trainer = trainer_at(tmp_path / "out", settings)
        trainer.train(lambda found: None, lambda: False)
        assert sum(trainer.losses[-5:]) < 0.6 * sum(trainer.losses[:5])

    def test_begins_as_the_model_without_it(self, tmp_path: Path) -> None:
        trainer = trainer_at(tmp_path / "out")
        before = trainer.evaluate()
        trainer.trainee.load({k: 0 * x for k, x in trainer.trainee.state().items()})
        assert trainer.evaluate() == before

    def test_the_same_seed_gives_the_same_losses(self, tmp_path: Path) -> None:
        one, other = trained(tmp_path / "one", 6), trained(tmp_path / "other", 6)
        third = trained(tmp_path / "third", 6, settings=dataclasses.replace(TINY, seed=1))
        assert one.losses == other.losses != third.losses
        assert (tmp_path / "one" / "losses.jsonl").read_text() == (
            tmp_path / "other" / "losses.jsonl"
        ).read_text()

    def test_a_stopped_run_goes_on_to_the_same_weights(self, tmp_path: Path) -> None:
        at_once, in_parts = trained(tmp_path / "once", 6), trained(tmp_path / "parts", 1, 3, 6)
        ours, theirs = in_parts.trainee.state(), at_once.trainee.state()
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
        assert in_parts.losses == at_once.losses
        assert in_parts.before == at_once.before
        files = [(tmp_path / name / "adapter_model.safetensors").read_bytes() for name in ("once", "parts")]
        assert files[0] == files[1]

    def test_a_killed_run_goes_on_from_its_last_checkpoint(self, tmp_path: Path) -> None:
        class Killed(BaseException):
            pass

        def kill(found: HeldOutLoss | None) -> None:
            if trainer.update == 5:
                raise Killed

        trainer = trainer_at(tmp_path / "killed")
        with pytest.raises(Killed):
            trainer.train(kill, lambda: False)
        resumed = trainer_at(tmp_path / "killed")
        assert resumed.resume()
        assert resumed.update == 4
        resumed.train(lambda found: None, lambda: False)
        assert resumed.losses == trained(tmp_path / "once", 6).losses

    def test_a_checkpoint_of_other_settings_or_data_is_refused(self, tmp_path: Path) -> None:
        trained(tmp_path / "out", 2)
        with pytest.raises(ConfigError, match="made with rank '4', not '8'"):
            trainer_at(tmp_path / "out", dataclasses.replace(TINY, rank=8)).resume()
        with pytest.raises(ConfigError, match="made with data"):
            trainer_at(tmp_path / "out", lessons=taught(tmp_path)[0][:4]).resume()
        (tmp_path / "out" / "checkpoint.pt").write_bytes(b"nothing")
        with pytest.raises(ConfigError, match="no checkpoint"):
            trainer_at(tmp_path / "out").resume()

    def test_linear_layers_that_are_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"targets: .*'c_attn'; it has down_proj, gate_proj"):
            trainer_at(tmp_path / "out", dataclasses.replace(TINY, targets=("c_attn",)))
        narrow = trainer_at(tmp_path / "out", dataclasses.replace(TINY, targets=("q_proj", "v_proj")))
        assert {name.split(".")[2] for name in narrow.trainee.state()} == {"q_proj", "v_proj"}


class TestLabelledAnswers:
    def test_are_learned(self, tmp_path: Path) -> None:
        settings = dataclasses.replace(TINY, target=AdapterTarget.ANSWERS, updates=40, held_out=0.0)
        trainer = labelled(tmp_path / "out", settings)
        assert trainer.trainee.measure == "cross-entropy"
        trainer.train(lambda found: None, lambda: False)
        assert sum(trainer.losses[-5:]) < 0.6 * sum(trainer.losses[:5])

    def test_a_stopped_run_goes_on_to_the_same_weights(self, tmp_path: Path) -> None:
        settings = dataclasses.replace(TINY, target=AdapterTarget.ANSWERS)
        for name, stops in (("once", (6,)), ("parts", (1, 3, 6))):
            for stop in stops:
                trainer = labelled(tmp_path / name, settings)
                trainer.resume()
                trainer.train(lambda found: None, lambda: trainer.update >= stop)  # noqa: B023
        files = [(tmp_path / name / "adapter_model.safetensors").read_bytes() for name in ("once", "parts")]
        assert files[0] == files[1]
        with pytest.raises(ConfigError, match="made with target 'answers', not 'teacher'"):
            trainer_at(tmp_path / "once", TINY).resume()


class TestTheBest:
    def test_is_what_is_written_whatever_comes_after_it(self, tmp_path: Path) -> None:
        settings = dataclasses.replace(TINY, evaluate_every=2)
        trainer = trainer_at(tmp_path / "out", settings)
        trainer.train(lambda found: None, lambda: trainer.update >= 2)
        trainer.trainee.load({name: x + 1 for name, x in trainer.trainee.state().items()})
        trainer.save()
        resumed = trainer_at(tmp_path / "out", settings)
        resumed.resume()
        resumed.train(lambda found: None, lambda: False)
        assert trainer.best is not None
        assert resumed.best is not None
        assert resumed.best.update == 2
        assert resumed.best.evaluation == trainer.best.evaluation != resumed.evaluate()
        written = read_adapter(tmp_path / "out", "out")
        assert written.facts.recipe["update"] == "2"
        for site, pair in written.pairs.items():
            assert torch.equal(pair.b_Or, trainer.best.state[f"{site.layer}.{site.path}.B"])


class TestWhatIsTrainedServes:
    def test_the_engine_computes_with_it_what_it_was_trained_on(self, tmp_path: Path) -> None:
        """The mean divergence of the engine's log-probabilities, with the adapter read from its files, is
        what the evaluation says."""
        trainer = trained(tmp_path / "qa", 6)
        adapter = read_adapter(tmp_path / "qa", "qa")
        assert adapter.facts.kv_context is KvContext.DOCUMENT
        engine = Engine(wrap_model(tiny_model("qwen2")), adapters=[adapter])
        prompts, apart = Prompts(engine), []
        for lesson in trainer.held_out:
            chunks, links = [], []
            for placed in lesson.context.chunks:
                parent_id = ""
                for ids in (*placed.chain, placed.token_ids):
                    links.append(prompts.chunk(PREFIX, ids, parent_id))
                    parent_id = links[-1].chunk_id
                chunks.append(links[-1])
            for question, one in zip(lesson.context.questions, lesson.taught, strict=True):
                for step in range(len(one.answer)):
                    request = GenerateRequest(
                        "r", PREFIX, tuple(chunks), (question + one.answer[:step],),
                        sampling=SamplingParams(max_tokens=1, watch_ids=tuple(range(VOCAB))),
                        reuse=ReuseMode.REORDERED, links=tuple(links), adapter="qa",
                    )  # fmt: skip
                    (told,) = run(engine, request)
                    logits_1V = torch.tensor([told.tokens()[0].watched])
                    forced = Taught(
                        one.answer[step : step + 1], one.top_AK[step : step + 1],
                        one.logprobs_AK[step : step + 1], one.rest_A[step : step + 1],
                    )  # fmt: skip
                    apart.append(float(forced.divergence(logits_1V)))
        assert sum(apart) / len(apart) == pytest.approx(trainer.evaluate().loss, rel=1e-3)
        assert trainer.evaluate() != trainer.before


@pytest.mark.parametrize(
    ("name", "value"),
    [("updates", 0), ("lr", float("nan")), ("alpha", 0.0), ("held_out", 1.0), ("warmup", -1)],
)
def test_settings_out_of_range_are_named(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"^{name}: must be"):
        AdapterSettings(**{name: value})  # type: ignore[arg-type]


def test_settings_of_a_mode_that_computes_everything_are_refused() -> None:
    for reuse in (ReuseMode.FULL, ReuseMode.APE, ReuseMode.EPIC):
        with pytest.raises(ConfigError, match="reuse: "):
            AdapterSettings(reuse=reuse)


def test_losses_are_a_line_per_update(tmp_path: Path) -> None:
    trainer = trained(tmp_path / "out", 6)
    lines = [json.loads(line) for line in (tmp_path / "out" / "losses.jsonl").read_text().splitlines()]
    assert lines == [{"update": i + 1, "loss": loss} for i, loss in enumerate(trainer.losses)]


def _bits(lessons: Sequence[DistilledLesson]) -> list[object]:
    return [
        (one.answer, one.top_AK.tolist(), one.logprobs_AK.tolist(), one.rest_A.tolist())
        for lesson in lessons
        for one in lesson.taught
    ]
