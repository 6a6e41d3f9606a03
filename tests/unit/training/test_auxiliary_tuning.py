"""Training the auxiliary model: gains are what the engine gives when it is asked window by window, scores are
those that the selector serves, and choices by them are compared fairly."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cluster.training.auxiliary import AuxiliaryTask
from cluster.training.examples import invented_examples
from cluster.training.task import TrainedModel
from services.ingestion.config import IngestionConfig
from services.training.auxiliary.ceiling import best_tokens
from services.training.auxiliary.contexts import ModelReading, SelectionContext
from services.training.auxiliary.counterfactual import Counterfactuals, Forced, ForcedOutcome, PassSize
from services.training.auxiliary.judge import (
    ATTENTION,
    CEILING,
    RANDOM,
    STORED,
    JudgedChoice,
    JudgedChoices,
    compare,
    judge,
)
from services.training.auxiliary.kept import KeptLabels
from services.training.auxiliary.labeller import Labeller
from services.training.auxiliary.labels import LabelledContext, SelectionLabels
from services.training.auxiliary.settings import AuxiliarySettings, Target
from services.training.auxiliary.trainee import AuxiliaryTrainee, SelectionLesson
from services.training.loop import TrainingLoop
from services.training.twin_request import Ids, PlacedChunk
from services.training.workers import Alone
from shared.engine import wrap_model
from shared.engine.model.model import LoadedModel
from shared.engine_config import EngineConfig
from shared.errors import ConfigError, ContextTooLong
from shared.generation.asked import GenerateRequest, SamplingParams
from shared.generation.modes import Recompute, ReuseMode
from shared.kv_types import KvContext
from shared.prompt import PromptTokenizer
from shared.selection.auxiliary import load_auxiliary
from shared.selection.grouping import num_asked
from shared.selection.selector import Selector
from shared.selection.spans import SpanTokenizer
from tests.engine_runs import Prompts, engine_of, run
from tests.oracles import FAMILIES, VOCAB, greedy, tiny_model

pytestmark = pytest.mark.usefixtures("one_thread")

DEMO = Path(__file__).parents[3] / "cluster" / "demo_assets" / "model"
PREFIX = (5, 9, 200, 31)
TINY = AuxiliarySettings(updates=4, warmup=1, contexts_per_update=2, answer_tokens=3, pair_windows=3)


@lru_cache
def primary(family: str = "qwen2") -> LoadedModel:
    return wrap_model(tiny_model(family), pack=False)


def ids_of(rng: random.Random, count: int) -> Ids:
    return tuple(rng.randrange(3, VOCAB) for _ in range(count))


def reading_of(seed: int, lens: list[int]) -> ModelReading:
    """Every other chunk stands behind a header."""
    rng = random.Random(seed)
    chunks = (PlacedChunk(ids_of(rng, n), (ids_of(rng, 3),) if i % 2 else ()) for i, n in enumerate(lens))
    return ModelReading(tuple(chunks), (ids_of(rng, 6), ids_of(rng, 2)))


def context_of(seed: int) -> SelectionContext:
    """Windows of eight tokens that both models read as one."""
    reading = reading_of(seed, [12, 16])
    windows = (range(8), range(8, 12), range(12, 20), range(20, 28))
    return SelectionContext(
        f"context {seed}", reading, reading, tuple(map(tuple, windows)), tuple(map(len, windows))
    )


def asked_of_the_engine(family: str, reading: ModelReading, forced: Forced, answer: Ids) -> float:
    """The answer's log-probability, by a request for each of its tokens."""
    engine = engine_of(family)
    prompts, chunks, links = Prompts(engine), [], []
    for placed in reading.chunks:
        parent_id = ""
        for ids in (*placed.chain, placed.token_ids):
            links.append(prompts.chunk(PREFIX, ids, parent_id))
            parent_id = links[-1].chunk_id
        chunks.append(links[-1])
    question = reading.questions[forced.question]
    total = 0.0
    for nth, token in enumerate(answer):
        request = GenerateRequest(
            "r", PREFIX, tuple(chunks), (question + answer[:nth],), reuse=ReuseMode.TOKENS,
            recompute=Recompute(tokens=forced.recomputed), links=tuple(links),
            sampling=SamplingParams(max_tokens=1, watch_ids=(token,)),
        )  # fmt: skip
        (told,) = run(engine, request)
        total += told.tokens()[0].watched[0]
    return total


class TestCounterfactuals:
    @settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(
        family=st.sampled_from(FAMILIES),
        lens=st.lists(st.integers(1, 20), min_size=1, max_size=4),
        seed=st.integers(0, 99),
        max_rows=st.sampled_from([1, 60, 4096]),
    )
    def test_are_what_the_engine_gives_one_by_one(
        self, family: str, lens: list[int], seed: int, max_rows: int
    ) -> None:
        reading, rng = reading_of(seed, lens), random.Random(seed)
        answers = [ids_of(rng, 3), ids_of(rng, 1)]
        tokens = range(sum(lens))
        some = [tuple(sorted(rng.sample(tokens, rng.randint(0, len(tokens))))) for _ in range(2)]
        wanted = [Forced(i, one) for i in (1, 0) for one in ((), *some, tuple(tokens))]
        asking = Counterfactuals(primary(family), PREFIX, reading, answers, PassSize(max_rows))
        for forced, outcome in zip(wanted, asking.outcomes(wanted), strict=True):
            theirs = asked_of_the_engine(family, reading, forced, answers[forced.question])
            assert outcome.logprob == pytest.approx(theirs, abs=1e-3)

    def test_an_answer_is_exact_if_it_is_what_would_be_answered(self) -> None:
        reading = reading_of(3, [9, 14])
        chunks = [chunk.token_ids for chunk in reading.chunks]
        answer = tuple(greedy(tiny_model("qwen2"), "full", PREFIX, chunks, reading.questions[0], 4))
        other = (*answer[:-1], (answer[-1] + 1) % VOCAB)
        everything = tuple(range(23))
        twice = replace(reading, questions=2 * reading.questions[:1])
        asking = Counterfactuals(primary(), PREFIX, twice, [answer, other], PassSize(99))
        exact = [one.exact for one in asking.outcomes([Forced(0, everything), Forced(1, everything)])]
        assert exact == [True, False]

    def test_out_of_memory_makes_passes_smaller_and_says_so(self) -> None:
        said: list[str] = []
        reading, limit = reading_of(5, [9, 14]), 80
        wanted = [Forced(i % 2, tuple(range(n))) for i, n in enumerate((3, 0, 9, 23, 1))]
        ample = Counterfactuals(primary(), PREFIX, reading, [(4, 5), (6,)], PassSize(400))

        class Scarce(Counterfactuals):
            def _run(self, some: Sequence[Forced]) -> list[ForcedOutcome]:
                if len(some) * max(map(self._num_rows, some)) > limit:
                    torch.empty(10**14)  # numbers, which no machine has room for
                return super()._run(some)

        scarce = Scarce(primary(), PREFIX, reading, [(4, 5), (6,)], PassSize(400, said.append))
        for ours, theirs in zip(scarce.outcomes(wanted), ample.outcomes(wanted), strict=True):
            assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-4)
        rows = "out of memory: from here on at most {} rows in a pass over branches"
        assert said == [rows.format(200), rows.format(100)]
        limit = 5
        with pytest.raises(ConfigError, match="out of memory with one branch"):
            scarce.outcomes(wanted)

    def test_a_context_that_does_not_fit_is_refused(self) -> None:
        small = wrap_model(tiny_model("qwen2", max_position_embeddings=40), pack=False)
        with pytest.raises(ContextTooLong, match="take 42 positions, the model has 40"):
            Counterfactuals(small, PREFIX, reading_of(0, [30]), [(1, 2, 3), (1,)], PassSize(99))


def labelled(directory: Path, count: int = 4, settings: AuxiliarySettings = TINY) -> list[LabelledContext]:
    contexts = [context_of(seed) for seed in range(count)]
    return labeller(directory, settings).label(contexts, lambda done, of: None)


def labeller(directory: Path, settings: AuxiliarySettings = TINY) -> Labeller:
    kept = KeptLabels.at(directory / "kept", primary().fingerprint, PREFIX)
    return Labeller(primary(), PREFIX, settings, kept, PassSize(settings.rows_per_pass))


class TestLabels:
    def test_are_gains_of_the_answer_that_the_whole_context_gives(self, tmp_path: Path) -> None:
        for one in labelled(tmp_path, 2):
            reading, windows = one.context.primary, one.context.windows
            chunks = [chunk.token_ids for chunk in reading.chunks]
            for question, labels in enumerate(one.labels):
                answer, theirs = labels.answer, reading.questions[question]
                assert list(answer) == greedy(
                    tiny_model("qwen2"), "full", PREFIX, chunks, theirs, len(answer)
                )
                stored = asked_of_the_engine("qwen2", reading, Forced(question), answer)
                assert labels.stored == pytest.approx(stored, abs=1e-3)
                for tokens, gain in (
                    (windows[2], labels.gain_W[2]),
                    (one.context.tokens_of(labels.pairs_N2[0].tolist()), labels.pair_gain_N[0]),
                    (tuple(range(28)), labels.computed - labels.stored),
                ):
                    told = asked_of_the_engine("qwen2", reading, Forced(question, tokens), answer)
                    assert gain == pytest.approx(told - stored, abs=2e-3)
                assert len(labels.pairs_N2) == 3

    def test_what_was_measured_once_is_read(self, tmp_path: Path) -> None:
        first = labelled(tmp_path)
        files = {path: path.stat().st_mtime_ns for path in (tmp_path / "kept").iterdir()}
        again = labelled(tmp_path)
        assert {path: path.stat().st_mtime_ns for path in (tmp_path / "kept").iterdir()} == files
        assert len(files) == 4
        assert told(first) == told(again)
        for path in files:
            path.write_bytes(path.read_bytes()[:-9])
        assert told(labelled(tmp_path)) == told(first)
        labelled(tmp_path, settings=replace(TINY, pair_windows=2))
        assert len(list((tmp_path / "kept").iterdir())) == 8

    def test_several_workers_measure_a_share_each(self, tmp_path: Path) -> None:
        @dataclass
        class Worker(Alone):
            rank: int
            count: int = 2

            def wait_for_all(self) -> None:
                kept.append(len(list((tmp_path / "kept").iterdir())))

        contexts, kept, shares = [context_of(seed) for seed in range(5)], list[int](), list[int]()
        alone = told(labelled(tmp_path / "alone", 5))
        for rank in (0, 1):
            found = labeller(tmp_path).label(contexts, lambda done, of: shares.append(of), Worker(rank))
            assert told(found) == alone
        assert set(shares) == {2, 3}
        assert kept == [3, 5]

    def test_a_window_is_worth_the_most_that_it_adds(self) -> None:
        labels = SelectionLabels(
            (1,), -5.0, 0.0, np.array([0.1, 2.0, -1.0, 0.0]), np.array([[0, 2], [1, 3]]),
            np.array([4.0, 1.5]), np.zeros(4),
        )  # fmt: skip
        np.testing.assert_allclose(labels.worth_W, [4.0, 2.0, 3.9, 0.0])
        alone = replace(labels, pairs_N2=np.zeros((0, 2), np.int64), pair_gain_N=np.zeros(0))
        np.testing.assert_allclose(alone.worth_W, [0.1, 2.0, 0.0, 0.0])

    def test_a_context_that_does_not_fit_is_named(self, tmp_path: Path) -> None:
        small = wrap_model(tiny_model("qwen2", max_position_embeddings=36), pack=False)
        kept = KeptLabels.at(tmp_path, small.fingerprint, PREFIX)
        with pytest.raises(ContextTooLong, match=r"^context 7: with a question and its answer it takes 41"):
            Labeller(small, PREFIX, TINY, kept, PassSize(99)).label([context_of(7)], lambda done, of: None)


def told(labelled_contexts: list[LabelledContext]) -> list[object]:
    return [
        (x.answer, x.stored, x.computed, x.gain_W.tolist(), x.pair_gain_N.tolist(), x.attended_W.tolist())
        for one in labelled_contexts
        for x in one.labels
    ]


class TestCeiling:
    def test_is_a_greedy_climb(self, tmp_path: Path) -> None:
        """Beside a slow twin that asks for one set of windows at a time."""
        for one in labelled(tmp_path):
            asking = labeller(tmp_path).counterfactuals(one)
            for num_tokens in (0, 8, 17):
                found = best_tokens(asking, one.context, one.labels, num_tokens)
                assert found == [slow_ceiling(asking, one, q, num_tokens) for q in range(2)]
        assert best_tokens(asking, one.context, one.labels, 0) == [(), ()]

    def test_never_is_worse_than_a_window_or_nothing(self, tmp_path: Path) -> None:
        for one in labelled(tmp_path):
            asking = labeller(tmp_path).counterfactuals(one)
            found = best_tokens(asking, one.context, one.labels, 9)
            outcomes = asking.outcomes([Forced(q, tokens) for q, tokens in enumerate(found)])
            for labels, tokens, outcome in zip(one.labels, found, outcomes, strict=True):
                assert len(tokens) < 9 + 8
                assert outcome.logprob - labels.stored >= max(0.0, labels.gain_W.max()) - 2e-2


def slow_ceiling(asking: Counterfactuals, one: LabelledContext, question: int, num_tokens: int) -> Ids:
    context, labels = one.context, one.labels[question]

    def gain(windows: tuple[int, ...]) -> float:
        (outcome,) = asking.outcomes([Forced(question, context.tokens_of(windows))])
        return outcome.logprob - labels.stored

    best: tuple[int, ...] = ()
    first = [(window,) for window in range(4)] if num_tokens else []
    pairs = [(one, other) for one, other in labels.pairs_N2.tolist()] if num_tokens else []
    for tried in (first, pairs):
        further = max(tried, key=gain, default=best)
        best = further if gain(further) >= gain(best) + 1e-2 else best
    while best and len(context.tokens_of(best)) < num_tokens:
        further = max(((*best, w) for w in range(4) if w not in best), key=gain, default=best)
        if gain(further) < gain(best) + 1e-2:
            break
        best = further
    return context.tokens_of(best)


def demo_task(directory: Path, kv_context: KvContext = KvContext.NONE) -> AuxiliaryTask:
    served = TrainedModel(IngestionConfig(str(DEMO), 96, kv_context), num_questions=2, num_chunks=4)
    settings = replace(TINY, evaluate_every=2, answer_tokens=16)
    return AuxiliaryTask(served, str(DEMO / "auxiliary"), settings, directory)


class TestWhatIsTrainedServes:
    @pytest.mark.parametrize("kv_context", list(KvContext))
    def test_windows_are_chosen_as_the_selector_chooses_them(
        self, kv_context: KvContext, tmp_path: Path
    ) -> None:
        """Whatever chunks stand behind in their documents; in float32, in which they train."""
        prompts = PromptTokenizer.of_model(str(DEMO))
        assert prompts is not None
        auxiliary = load_auxiliary(str(DEMO / "auxiliary"), EngineConfig(dtype="float32"))
        selector = Selector(auxiliary, SpanTokenizer(prompts, "demo"))
        trainee = AuxiliaryTrainee(str(DEMO / "auxiliary"), auxiliary.prompts, "")
        task = demo_task(tmp_path, kv_context)
        for example in invented_examples(1, 2, apart=1.0):
            context = task.contexts([example])[1]
            paired = [selector.pair(prompts.decode(chunk.token_ids)) for chunk in context.primary.chunks]
            assert context == SelectionContext.of(example.name, context.primary, context.auxiliary, paired)
            segments = [
                auxiliary.scorer.encode([chunk.token_ids], encoded(auxiliary.scorer, chunk.chain))[0]
                for chunk in context.auxiliary.chunks
            ]
            for question, scores_W in enumerate(trainee.window_scores(context)):
                ranked = np.argsort(-scores_W, kind="stable").tolist()
                for ratio in (0.1, 0.3):
                    chosen = selector.select(paired, segments, example.questions[2 + question], ratio).chosen
                    ours = context.within(ranked, num_asked(ratio, context.num_tokens))
                    assert ours == tuple(np.flatnonzero(np.concatenate(chosen)).tolist())

    def test_a_trained_one_is_a_model_directory(self, tmp_path: Path) -> None:
        loop = demo_task(tmp_path).loop(
            invented_examples(0, 1, apart=1.0), lambda done, of: None, lambda line: None
        )
        loop.train(lambda found: None, lambda: False)
        assert loop.losses[-1] != loop.losses[0]
        served = load_auxiliary(str(loop.out), EngineConfig(dtype="float32"))
        assert served.prompts.hash == load_auxiliary(str(DEMO / "auxiliary")).prompts.hash
        assert loop.best is not None
        for name, x in served.scorer.model.hf_model.named_parameters():  # type: ignore[attr-defined]
            assert torch.equal(x, loop.best.state[name].bfloat16().float())
        settings = json.loads((loop.out / "config.json").read_text())
        assert settings["dtype"] == "bfloat16"


def encoded(scorer: object, chain: tuple[Ids, ...]) -> list[object]:
    segments: list[object] = []
    for ids in chain:
        segments += scorer.encode([ids], segments)  # type: ignore[attr-defined]
    return segments


class TestTraining:
    def loop(self, directory: Path, out: str, **changed: object) -> TrainingLoop[SelectionLesson]:
        lessons = [SelectionLesson.of(one, Target.ATTENTION) for one in labelled(directory)]
        auxiliary, prompts = str(DEMO / "auxiliary"), PromptTokenizer.of_model(str(DEMO / "auxiliary"))
        assert prompts is not None
        trainee = AuxiliaryTrainee(auxiliary, prompts, primary().fingerprint)
        tiny = replace(TINY, target=Target.ATTENTION, **changed)  # type: ignore[arg-type]
        return TrainingLoop(trainee, lessons, tiny, directory / out, lambda line: None)

    def trained(
        self, directory: Path, out: str, *stops: int, **changed: object
    ) -> TrainingLoop[SelectionLesson]:
        for stop in stops:
            loop = self.loop(directory, out, **changed)
            loop.resume()
            loop.train(lambda found: None, lambda: loop.update >= stop)  # noqa: B023
        return loop

    def test_a_stopped_run_goes_on_to_the_same_weights(self, tmp_path: Path) -> None:
        once, parts = self.trained(tmp_path, "once", 9), self.trained(tmp_path, "parts", 1, 3, 9)
        assert parts.losses == once.losses
        ours, theirs = parts.trainee.state(), once.trainee.state()
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
        files = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("once", "parts")]
        assert files[0] == files[1]

    def test_brings_scores_nearer_to_what_they_shall_be(self, tmp_path: Path) -> None:
        loop = self.trained(tmp_path, "out", 30, updates=30, lr=2e-3)
        assert sum(loop.losses[-3:]) < 0.98 * sum(loop.losses[:3])

    def test_labels_of_another_primary_are_refused(self, tmp_path: Path) -> None:
        self.trained(tmp_path, "out", 1)
        other = self.loop(tmp_path, "out")
        other.trainee._made_of["primary"] = "another"  # type: ignore[attr-defined]
        with pytest.raises(ConfigError, match="made with primary"):
            other.resume()

    def test_no_auxiliary_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="--auxiliary: the model's settings name none"):
            AuxiliaryTask(TrainedModel(IngestionConfig(str(DEMO))), "", TINY, tmp_path)

    def test_a_question_teaches_only_if_something_is_worth_computing(self) -> None:
        def lesson(gains: list[float], target: Target) -> SelectionLesson:
            labels = SelectionLabels(
                (1,), -1.0, 0.0, np.array(gains), np.zeros((0, 2), np.int64), np.zeros(0),
                np.array([1.0, 1.0, 2.0, 0.0]),
            )  # fmt: skip
            return SelectionLesson.of(LabelledContext(context_of(0), (labels,)), target)

        assert lesson([0.04, 0.0, -3.0, 0.01], Target.GAIN).shares == (None,)
        assert lesson([0.04, 0.0, -3.0, 0.01], Target.GAIN).num_tokens == 0
        (shares,) = lesson([3.0, 0.0, -3.0, 1.0], Target.GAIN).shares
        assert shares is not None
        np.testing.assert_allclose(shares, [0.75, 0, 0, 0.25])
        (shares,) = lesson([0.0] * 4, Target.ATTENTION).shares
        assert shares is not None
        np.testing.assert_allclose(shares, [0.25, 0.25, 0.5, 0])

    @pytest.mark.parametrize(("name", "value"), [("pair_windows", -1), ("rows_per_pass", 0), ("lr", 0.0)])
    def test_settings_out_of_range_are_named(self, name: str, value: float) -> None:
        with pytest.raises(ConfigError, match=f"^{name}: must be"):
            AuxiliarySettings(**{name: value})  # type: ignore[arg-type]


class TestJudge:
    def test_every_choice_gets_the_same_tokens(self, tmp_path: Path) -> None:
        some = labelled(tmp_path)
        last = {"last": lambda context: [np.arange(4.0)] * 2}
        judged = judge(some, labeller(tmp_path).counterfactuals, last, 0.4, 0, lambda done, of: None)
        assert list(judged.by_choice) == [STORED, RANDOM, "last", ATTENTION, CEILING]
        assert judged.contexts == [0, 0, 1, 1, 2, 2, 3, 3]
        labels = [x for one in some for x in one.labels]
        for number, (stored, chosen) in enumerate(
            zip(judged.by_choice[STORED], judged.by_choice["last"], strict=True)
        ):
            assert (stored.share, chosen.share) == (0.0, 16 / 28)
            assert stored.logprob == pytest.approx(labels[number].stored, abs=1e-4)
        for choice in (RANDOM, "last", ATTENTION, STORED):
            assert judged.logprobs(CEILING).sum() >= judged.logprobs(choice).sum() - 1e-2
            assert judged.share(CEILING) <= 16 / 28
        again = judge(some, labeller(tmp_path).counterfactuals, last, 0.4, 0, lambda done, of: None)
        assert again.by_choice == judged.by_choice

    def test_the_share_of_the_gap_that_is_closed(self) -> None:
        def judged(right: int) -> list[JudgedChoice]:
            return [JudgedChoice(i % 10 < right, float(i % 10 < right), 0.2) for i in range(200)]

        choices = {"ours": judged(6), "theirs": judged(4), CEILING: judged(8)}
        found = compare(JudgedChoices(choices, [i // 5 for i in range(200)]), "ours", "theirs")
        assert found.closed.value == pytest.approx(0.5)
        assert found.closed.low <= 0.5 <= found.closed.high
        assert found.p == 2 * 0.5**40
        assert found.logprob_p == 1e-4
