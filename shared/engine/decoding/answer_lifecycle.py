"""The life of generate requests once their chunks are placed: questions are computed, answers grow on them,
and end.

What a new token means depends on what was asked for: an answer of its own (``Answer``: samples, thoughts), or
a candidate among those of all beams (``Beam``), which wait for each other.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from shared.engine.decoding.beams import BeamSearch, Hypothesis, Running
from shared.engine.decoding.choice import Thought, choose
from shared.engine.decoding.forest import fork, plant, plant_on
from shared.engine.decoding.sampling import Sampled, sample
from shared.engine.decoding.text import Decode, TextStream
from shared.engine.decoding.tree import compact
from shared.engine.jobs.answers import Answer, Beam, BeamGroup, GenerateJob
from shared.engine.jobs.context import Grower, Question, Survey
from shared.engine.jobs.job import Computed
from shared.engine.kv.segment import Branch
from shared.engine.model.rope import Rotation
from shared.engine.model.spec import ModelSpec
from shared.engine.modes.policy import prepare
from shared.engine_config import EngineConfig
from shared.generation.told import BranchDoneEvent, FinishReason, TokenEvent

_BEAM_CAPACITY = 16


class Answering:
    """Every method runs between passes, on the engine's thread. A job with ``num_open`` 0 is complete."""

    def __init__(self, spec: ModelSpec, config: EngineConfig, decode: Decode | None) -> None:
        self._spec = spec
        self._may_join = not config.batch_invariant
        self._decode = decode
        self._rotation = Rotation(spec.rope, spec.device)

    def start(self, job: GenerateJob) -> None:
        policy = prepare(job, self._spec.num_layers)
        job.num_open = len(job.request.questions) * job.request.sampling.n
        if job.selected is not None or not job.request.reuse.recomputes:
            plant(job, self._spec, self._may_join)
        elif (base := policy.survey(job, self._spec, self._rotation)) is not None:
            plant_on(job, base, self._spec)

    def on_computed(self, job: GenerateJob, owner: Grower, computed: Computed) -> None:
        """Nothing of ``owner`` is pending any more."""
        logits_V = computed.logits_V
        match owner:
            case Survey():
                job.questions.remove(owner)
                owner.end(job, self._spec)
            case Question():
                job.questions.remove(owner)  # who grows on it keeps it
                if owner.index is not None and logits_V is not None:
                    self._answer(job, owner.index, owner.branch, logits_V)
            case Answer():
                assert computed.chosen is not None
                self._next_token(job, owner, computed.chosen)
            case Beam():
                assert logits_V is not None
                owner.logprobs_V = torch.log_softmax(logits_V, -1)
                self._advance(job, owner.group)

    def _answer(self, job: GenerateJob, index: int, branch: Branch, logits_V: torch.Tensor) -> None:
        job.clock.tick_first_token()
        if job.request.beams is None:
            answers = fork(job, index, branch, self._spec, self._decode)
            draws = [answer.draw() for answer in answers]
            drawn = sample(logits_V.expand(len(draws), -1), draws)
            for answer, chosen in zip(answers, drawn, strict=True):
                self._next_token(job, answer, chosen)
            return
        sampling = job.request.sampling
        eos_ids = frozenset[int]() if sampling.ignore_eos else self._spec.eos_ids
        search = BeamSearch(job.request.beams, sampling.limit, eos_ids, sampling.top_logprobs)
        root = Branch(self._spec, (), branch.end, parent=branch, capacity=_BEAM_CAPACITY)
        group = BeamGroup(index, search)
        job.answers.append(Beam(group, root, torch.log_softmax(logits_V, -1)))
        self._advance(job, group)

    # --- samples and thoughts ------------------------------------------------------------------------------

    def _next_token(self, job: GenerateJob, answer: Answer, chosen: Sampled) -> None:
        params = job.request.sampling
        ended = chosen.token_id in self._spec.eos_ids and not params.ignore_eos
        # the end mark is no text, whatever the tokenizer makes of it
        text = "" if ended else answer.text.push(chosen.token_id)
        answer.add(text, chosen.logprob)
        job.generated += 1
        told = chosen.token_id, text, chosen.logprob, chosen.top_logprobs, chosen.watched
        job.emit(TokenEvent(answer.question, answer.sample, *told))
        if ended or answer.text.stopped:
            self._end_answer(job, answer, FinishReason.STOP)
        elif answer.num_generated >= params.limit:
            self._end_answer(job, answer, FinishReason.LENGTH)
        else:
            answer.branch.pending.append(chosen.token_id)

    def _end_answer(self, job: GenerateJob, answer: Answer, reason: FinishReason) -> None:
        rest = answer.text.finish()
        if answer.text.stopped:
            reason = FinishReason.STOP
        job.emit(
            BranchDoneEvent(answer.question, answer.sample, reason, rest, answer.num_generated, answer.score),
        )
        job.answers.remove(answer)
        job.num_open -= 1
        if job.request.choose is not None:
            thoughts = job.thoughts[answer.question]
            thoughts[answer.sample] = Thought(answer.whole_text + rest, answer.score)
            if len(thoughts) == job.request.sampling.n:
                job.emit(
                    choose(answer.question, [thoughts[i] for i in range(len(thoughts))], job.request.choose),
                )

    # --- beams ---------------------------------------------------------------------------------------------

    def _advance(self, job: GenerateJob, group: BeamGroup) -> None:
        """All beams of a question have their logits: the next ones grow on them, the others end, and with
        them their KV."""
        beams = job.beams(group)
        logprobs = [beam.logprobs_V for beam in beams if beam.logprobs_V is not None]
        if len(logprobs) < len(beams):
            return
        job.generated += len(beams)
        running = group.search.advance(logprobs)
        grown = self._grown(group, [beam.branch for beam in beams], running)
        job.answers = [*(answer for answer in job.answers if answer not in beams), *grown]
        compact(beam.branch for beam in grown)
        if not running:
            self._end_beams(job, group)

    def _grown(self, group: BeamGroup, branches: Sequence[Branch], running: Sequence[Running]) -> list[Beam]:
        """The first to go on from a branch continues it; the others are forks that see it up to here."""
        taken: set[int] = set()
        beams = []
        for one in running:
            parent = branches[one.parent]
            branch = parent.fork(self._spec, capacity=_BEAM_CAPACITY) if one.parent in taken else parent
            taken.add(one.parent)
            beams.append(Beam(group, branch))
        # after all forks, which end where nothing is pending yet
        for beam, one in zip(beams, running, strict=True):
            beam.branch.pending.append(one.steps[-1].token_id)
        return beams

    def _end_beams(self, job: GenerateJob, group: BeamGroup) -> None:
        for rank, hypothesis in enumerate(group.search.hypotheses[: job.request.sampling.n]):
            self._tell(job, group.question, rank, hypothesis)
        job.num_open -= job.request.sampling.n

    def _tell(self, job: GenerateJob, question: int, rank: int, hypothesis: Hypothesis) -> None:
        stream = TextStream(self._decode, ())
        for index, step in enumerate(hypothesis.steps):
            is_mark = hypothesis.ended and index == len(hypothesis.steps) - 1
            text = "" if is_mark else stream.push(step.token_id)
            job.emit(TokenEvent(question, rank, step.token_id, text, step.logprob, step.top_logprobs))
        reason = FinishReason.STOP if hypothesis.ended else FinishReason.LENGTH
        job.emit(
            BranchDoneEvent(question, rank, reason, stream.finish(), len(hypothesis.steps), hypothesis.score),
        )
