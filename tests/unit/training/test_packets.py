"""Training soft-token packets: loss and gradients are those of stock transformers, a stopped run goes on to
the same vectors, and what is trained serves."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from services.training.distillation.kept import Kept
from services.training.distillation.lessons import AskedContext, DistilledLesson, Taught
from services.training.distillation.teacher import Teacher
from services.training.loop import TrainingLoop
from services.training.mixture import LessonKind, Mixture
from services.training.packets.settings import PacketSettings
from services.training.packets.trainee import PacketPupil, PacketTrainee
from services.training.twin_request import PlacedChunk
from shared.engine import Engine, wrap_model
from shared.engine.model.model import LoadedModel
from shared.engine.model.packets import read_packets
from shared.errors import ConfigError
from shared.generation.asked import GenerateRequest, SamplingParams
from shared.generation.modes import ReuseMode
from shared.packets import PacketIds
from tests.engine_runs import Prompts, run
from tests.oracles import VOCAB, tiny_model

pytestmark = pytest.mark.usefixtures("one_thread")

PREFIX = (5, 9, 200, 31)
IDS = PacketIds(VOCAB, 2, 1)
TINY = PacketSettings(
    updates=6, contexts_per_update=2, lr=1e-2, num_header=2, num_trailer=1, answer_tokens=4, top_k=VOCAB,
    checkpoint_every=2, evaluate_every=3,
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
        block = ids(12), ids(9), ids(15)
        chunks = PlacedChunk(block[2]), PlacedChunk(block[0])
        found.append(AskedContext(f"context {number}", chunks, block, (ids(6), ids(4))))
    return tuple(found)


@pytest.fixture(scope="module")
def lessons(tmp_path_factory: pytest.TempPathFactory) -> list[DistilledLesson]:
    kept = Kept.at(tmp_path_factory.mktemp("teacher"), "tiny", PREFIX)
    found = Teacher(model(), PREFIX, TINY, kept, keeps_kv=False).lessons(contexts(), lambda done, of: None)
    assert len(list(kept.directory.iterdir())) == len(contexts()), "no keys and values are kept"
    return found


def trainee(settings: PacketSettings = TINY, **pupil: Any) -> PacketTrainee:
    return PacketTrainee(PacketPupil(model(), PREFIX, **pupil), settings)


def trained(
    out: Path,
    lessons: list[DistilledLesson] | Mixture[DistilledLesson],
    *stops: int,
    settings: PacketSettings = TINY,
) -> TrainingLoop[DistilledLesson]:
    """In as many runs as there are stops."""
    for stop in stops:
        loop = TrainingLoop(trainee(settings), lessons, settings, out, lambda line: None)
        loop.resume()
        loop.train(lambda found: None, lambda: loop.update >= stop)  # noqa: B023
    return loop


def stock_loss(lesson: DistilledLesson, vectors_PE: Tensor) -> Tensor:
    """Of ``composite``, by one stock forward per question over embeddings: a block-diagonal causal mask, and
    every chunk right behind the prefix."""
    stock = tiny_model("qwen2").requires_grad_(False)
    embed = stock.get_input_embeddings()
    chunks = [IDS.around(chunk.token_ids) for chunk in lesson.context.chunks]
    loss = torch.zeros(())
    for question, taught in zip(lesson.context.questions, lesson.taught, strict=True):
        tail = question + taught.answer[:-1]
        runs = [PREFIX, *chunks, tail]
        ids = torch.tensor([token for one in runs for token in one])
        begins = [0, *(len(PREFIX) for _ in chunks), len(PREFIX) + sum(map(len, chunks))]
        positions = [begin + i for begin, one in zip(begins, runs, strict=True) for i in range(len(one))]
        owner = torch.tensor([i for i, one in enumerate(runs) for _ in one])
        sees = (owner[:, None] == owner[None]) | (owner[None] == 0) | (owner[:, None] == len(runs) - 1)
        sees &= torch.ones(len(ids), len(ids), dtype=torch.bool).tril()
        rows = [
            vectors_PE[token - VOCAB] if token >= VOCAB else embed(torch.tensor(token))
            for token in ids.tolist()
        ]
        logits = stock(
            inputs_embeds=torch.stack(rows)[None],
            attention_mask=torch.zeros(sees.shape).masked_fill(~sees, torch.finfo().min)[None, None],
            position_ids=torch.tensor([positions]),
            use_cache=False,
        ).logits[0]
        loss = loss + taught.divergence(logits[-len(taught.answer) :]).sum()
    return loss


class TestGradients:
    def test_loss_and_gradients_are_those_of_stock_embeddings(self, lessons: list[DistilledLesson]) -> None:
        ours = trainee(replace(TINY, reuse=ReuseMode.COMPOSITE))
        (vectors_PE,) = ours.parameters()
        theirs_PE = vectors_PE.detach().clone().requires_grad_()
        loss, expected = ours.loss(lessons[:2]), sum(stock_loss(one, theirs_PE) for one in lessons[:2])
        assert isinstance(expected, Tensor)
        loss.backward()
        expected.backward()
        torch.testing.assert_close(loss, expected, rtol=1e-4, atol=1e-4)
        assert theirs_PE.grad is not None
        torch.testing.assert_close(vectors_PE.grad, theirs_PE.grad, rtol=1e-3, atol=1e-5)
        assert all(row.abs().max() > 0 for row in theirs_PE.grad)
        assert model().soft_PE is None, "the teacher shares the model"

    def test_of_a_chunk_that_is_given_twice(self, lessons: list[DistilledLesson]) -> None:
        """It is computed once, and both places count."""
        first = lessons[0]
        twice = replace(first, context=replace(first.context, chunks=first.context.chunks[:1] * 2))
        ours = trainee()
        (vectors_PE,) = ours.parameters()
        ours.loss([twice]).backward()
        assert vectors_PE.grad is not None
        step = 1e-2
        for place in ((0, 3), (2, 40)):
            losses = []
            for sign in (1, -1):
                moved = trainee()
                with torch.no_grad():
                    next(moved.parameters())[place] += sign * step
                losses.append(moved.loss([twice]).item())
            slope = (losses[0] - losses[1]) / (2 * step)
            assert float(vectors_PE.grad[place]) == pytest.approx(slope, rel=0.05, abs=2e-3)


class TestTraining:
    def test_brings_the_pupil_nearer_to_the_teacher(
        self, tmp_path: Path, lessons: list[DistilledLesson]
    ) -> None:
        settings = replace(TINY, updates=40, contexts_per_update=5, lr=0.1)
        loop = trained(tmp_path, lessons, 40, settings=settings)
        assert sum(loop.losses[-5:]) < 0.85 * sum(loop.losses[:5])

    def test_what_it_is_compared_with_is_the_model_without_packets(
        self, tmp_path: Path, lessons: list[DistilledLesson]
    ) -> None:
        one = trained(tmp_path / "one", lessons, 3)
        other = trained(tmp_path / "other", lessons, 3, settings=replace(TINY, begin_with="anything"))
        assert one.before == other.before
        (left_out,) = one.held_out
        engine, apart = Engine(wrap_model(tiny_model("qwen2"))), []
        for question, taught in zip(left_out.context.questions, left_out.taught, strict=True):
            chunks = [chunk.token_ids for chunk in left_out.context.chunks]
            apart += divergences(engine, chunks, question, taught)
        assert one.before is not None
        assert one.before.loss == pytest.approx(sum(apart) / len(apart), rel=1e-3)

    def test_the_same_seed_gives_the_same_losses(
        self, tmp_path: Path, lessons: list[DistilledLesson]
    ) -> None:
        one, other = (trained(tmp_path / name, lessons, 4) for name in ("one", "other"))
        third = trained(tmp_path / "third", lessons, 4, settings=replace(TINY, seed=1))
        assert one.losses == other.losses != third.losses

    def test_a_stopped_run_goes_on_to_the_same_vectors(
        self, tmp_path: Path, lessons: list[DistilledLesson]
    ) -> None:
        at_once = trained(tmp_path / "once", lessons, 6)
        in_parts = trained(tmp_path / "parts", lessons, 0, 1, 4, 6)
        assert in_parts.losses == at_once.losses
        assert in_parts.before == at_once.before
        files = [(tmp_path / name / "packets.safetensors").read_bytes() for name in ("once", "parts")]
        assert files[0] == files[1]

    def test_of_a_mixture_a_stopped_run_goes_on_to_the_same_vectors(
        self, tmp_path: Path, lessons: list[DistilledLesson]
    ) -> None:
        def mixture(share: float = 2.0) -> Mixture[DistilledLesson]:
            kinds = [LessonKind("wiki", share, lessons[:3]), LessonKind("rules", 1.0, lessons[3:])]
            return Mixture(kinds, TINY)

        at_once = trained(tmp_path / "once", mixture(), 6)
        in_parts = trained(tmp_path / "parts", mixture(), 0, 1, 4, 6)
        assert in_parts.losses == at_once.losses
        files = [(tmp_path / name / "packets.safetensors").read_bytes() for name in ("once", "parts")]
        assert files[0] == files[1]
        assert len(at_once.held_out) == 2, "one of each kind"
        assert at_once.before == in_parts.before, "the losses of kinds are in the checkpoint"
        assert trained(tmp_path / "other", mixture(0.5), 6).losses != at_once.losses

    def test_they_begin_as_embedded_tokens(self) -> None:
        weight = model().hf_model.get_input_embeddings().weight
        (given,) = trainee(begin_ids=(7, 8)).parameters()
        assert torch.equal(given, weight[torch.tensor([7, 8, 7])])
        (one,), (same,), (other,) = (trainee(replace(TINY, seed=seed)).parameters() for seed in (0, 0, 1))
        assert torch.equal(one, same)
        assert not torch.equal(one, other)


class TestWhatIsTrainedServes:
    def test_the_engine_computes_with_them_what_they_were_trained_on(
        self, tmp_path: Path, lessons: list[DistilledLesson]
    ) -> None:
        loop = trained(tmp_path, lessons, 6)
        served, apart = wrap_model(tiny_model("qwen2")), []
        packets = read_packets(tmp_path)
        assert packets.facts.recipe["update"] == str(loop.best.update if loop.best else 0)
        served.place_packets(packets)
        engine = Engine(served)
        for lesson in loop.held_out:
            chunks = [IDS.around(chunk.token_ids) for chunk in lesson.context.chunks]
            for question, taught in zip(lesson.context.questions, lesson.taught, strict=True):
                apart += divergences(engine, chunks, question, taught)
        assert loop.best is not None
        assert loop.best.evaluation.loss == pytest.approx(sum(apart) / len(apart), rel=1e-3)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"num_header": -1}, "num_header: must be at least 0, got -1"),
        ({"num_header": 0, "num_trailer": 0}, "num_header: there must be a vector"),
        ({"reuse": ReuseMode.EPIC}, "reuse: "),
        ({"lr": float("nan")}, "lr: must be above 0"),
    ],
)
def test_settings_out_of_range_are_named(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{message}"):
        replace(TINY, **changed)


def divergences(
    engine: Engine, chunks: list[tuple[int, ...]], question: tuple[int, ...], taught: Taught
) -> list[float]:
    """Of the engine's log-probabilities in front of every token of an answer."""
    prompts, found = Prompts(engine), []
    for step in range(len(taught.answer)):
        request = GenerateRequest(
            "r", PREFIX, tuple(prompts.chunk(PREFIX, ids) for ids in chunks),
            (question + taught.answer[:step],), reuse=ReuseMode.REORDERED,
            sampling=SamplingParams(max_tokens=1, watch_ids=tuple(range(VOCAB))),
        )  # fmt: skip
        (told,) = run(engine, request)
        at = slice(step, step + 1)
        forced = Taught(taught.answer[at], taught.top_AK[at], taught.logprobs_AK[at], taught.rest_A[at])
        found.append(float(forced.divergence(torch.tensor([told.tokens()[0].watched]))))
    return found
