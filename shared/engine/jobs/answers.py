"""A request of questions, from the moment in which its chunks are placed: questions are computed, answers
grow on them, and end.

What a new token means depends on what was asked for: an answer of its own (``Answer``: samples, thoughts), or
a candidate among those of all beams (``Beam``), which wait for each other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from shared.engine.decoding.beams import BeamSearch, Continuation, Hypothesis
from shared.engine.decoding.choice import Thought, choose
from shared.engine.decoding.drafting import Drafter
from shared.engine.decoding.draws import Draw, Ranked, RowOutcome, Sampled, Wanted
from shared.engine.decoding.forest import plant, plant_on
from shared.engine.decoding.grammar import GrammarState
from shared.engine.decoding.text import Growth, TextStream
from shared.engine.decoding.tree import compact
from shared.engine.jobs.context import ContextJob, Grower, Question, Survey
from shared.engine.jobs.job import Computed
from shared.engine.jobs.turn import ConversationTurn
from shared.engine.kv.branch import Branch
from shared.engine.modes.policy import prepare
from shared.generation.asked import Beams
from shared.generation.told import BranchDoneEvent, FinishReason, TokenEvent

_BEAM_CAPACITY = 16
_ANSWER_CAPACITY = 64


@dataclass(slots=True, eq=False)
class Answer(Grower):
    """One sample: the private branch of its generated tokens."""

    question: int
    sample: int
    branch: Branch
    growth: Growth
    whole_text: str = ""
    total_logprob: float = 0.0

    @property
    def score(self) -> float:
        """Mean log-probability of its tokens."""
        return self.total_logprob / self.growth.num_tokens

    @property
    def wanted(self) -> Wanted:
        growth = self.growth
        return Wanted((Draw(growth.params, self.sample, growth.num_tokens, growth.grammar),))

    @property
    def drafter(self) -> Drafter | None:
        return self.growth.drafter


@dataclass(slots=True, eq=False)
class Beam(Grower):
    """One running beam: a branch on that of the beam it came from. ``ranked``: its next tokens, once they are
    known."""

    group: BeamGroup
    branch: Branch
    ranked: Ranked = ()

    @property
    def wanted(self) -> Wanted:
        return Wanted(num_ranked=self.group.search.num_ranked)


@dataclass(slots=True, eq=False)
class BeamGroup:
    """The search of one question. It does not know its beams: they know it, and die with their KV when nobody
    else does."""

    question: int
    search: BeamSearch


@dataclass(slots=True, eq=False)
class GenerateJob(ContextJob):
    """``answers`` grow, ``thoughts`` are complete (question → sample → thought); ``num_open`` answers are to
    come. ``grammar``: where every answer begins.

    Raises:
        KvquiltError: see ``Grammars.of``.
    """

    answers: list[Answer | Beam] = field(default_factory=list)
    thoughts: defaultdict[int, dict[int, Thought]] = field(default_factory=lambda: defaultdict(dict))
    grammar: GrammarState | None = field(init=False)

    def __post_init__(self) -> None:
        self.grammar = self.host.grammar(self.request.sampling)

    def start(self) -> None:
        policy = prepare(self)
        self.turn = self._begun_turn()
        self.num_open = len(self.request.questions) * self.request.sampling.n
        if self.selected is not None or not self.request.reuse.recomputes:
            plant(self)
        elif (base := policy.survey(self)) is not None:
            plant_on(self, base)

    def on_computed(self, owner: Grower, computed: Computed) -> None:
        outcome = computed.outcome
        match owner:
            case Survey():
                self.questions.remove(owner)
                owner.end(self)
                self.clock.tick_recomputed()
            case Question():
                self.questions.remove(owner)  # who grows on it keeps it
                if owner.index is None:
                    self.clock.tick_recomputed()
                else:
                    self._answer(owner.index, owner.branch, outcome)
            case Answer():
                self._next_token(owner, outcome.sampled[0])
            case Beam():
                owner.ranked = outcome.ranked
                self._advance(owner.group)

    @property
    def growing(self) -> Sequence[Answer | Beam]:
        return self.answers

    def _begun_turn(self) -> ConversationTurn | None:
        """None: nothing is kept. Neither is it where each question has its own tokens of the context computed
        anew: the next one has others."""
        request, row, kept = self.request, self.request.reuse.row, self.host.conversations
        if not request.conversation or request.idle or request.recompute.by_question or not kept.keeps:
            return None
        chunk_ids = [chunk.chunk_id for chunk in request.chunks]
        seen: list[object] = [request.asked_by, request.prefix_ids, row.stored, tuple(chunk_ids)]
        if row.stored:
            entries = [self.entries[chunk.chunk_id] for chunk in request.chunks]
            placed = [(entry.key, entry.segment and entry.segment.encoding) for entry in entries]
            adapter = request.adapter if self.adapter is not None else ""
            seen += [placed, row.offsets.name, self.tempering, self.selected or (), adapter]
            chunk_ids += [entry.stored_key for entry in entries]
        return ConversationTurn(kept, request.tenant, tuple(seen), frozenset(chunk_ids))

    def wanted(self, owner: Grower) -> Wanted:
        """A question's first tokens are drawn with the others of its pass."""
        if not isinstance(owner, Question):
            return owner.wanted
        if owner.index is None:
            return Wanted()
        if self.request.beams is not None:
            return Wanted(num_ranked=self._search(self.request.beams).num_ranked)
        params = self.request.sampling
        return Wanted(tuple(Draw(params, nth, 0, self.grammar) for nth in range(params.n)))

    def _search(self, beams: Beams) -> BeamSearch:
        params = self.request.sampling
        return BeamSearch(beams, params.limit, self.host.eos_ids(params), params.top_logprobs)

    def _answer(self, index: int, parent: Branch, outcome: RowOutcome) -> None:
        """The question's last token was just computed: answers are branches on it."""
        params, beams = self.request.sampling, self.request.beams
        self.clock.tick_first_token(index)
        if beams is None:
            capacity = min(params.limit, _ANSWER_CAPACITY)
            question = self.request.questions[index]
            answers = [
                Answer(index, nth, parent.child(capacity), self.growth(params, question, grammar))
                for nth, grammar in enumerate(self._grammars(params.n))
            ]
            self.answers += answers
            for answer, chosen in zip(answers, outcome.sampled, strict=True):
                self._next_token(answer, chosen)
            return
        group = BeamGroup(index, self._search(beams))
        self.answers.append(Beam(group, parent.child(_BEAM_CAPACITY), outcome.ranked))
        self._advance(group)

    def _grammars(self, count: int) -> Iterator[GrammarState | None]:
        return (None if self.grammar is None else self.grammar.copy() for _ in range(count))

    # --- samples and thoughts ------------------------------------------------------------------------------

    def _next_token(self, answer: Answer, chosen: Sampled) -> None:
        text, reason = answer.growth.add(chosen.token_id)
        answer.whole_text += text
        answer.total_logprob += chosen.logprob
        self.generated += 1
        told = chosen.token_id, text, chosen.logprob, chosen.top_logprobs, chosen.watched
        self.emit(TokenEvent(answer.question, answer.sample, *told))
        if reason is None:
            answer.branch.pending.append(chosen.token_id)
        else:
            self._end_answer(answer, reason)

    def _end_answer(self, answer: Answer, reason: FinishReason) -> None:
        question, choice, num_tokens = answer.question, self.request.choose, answer.growth.num_tokens
        rest, reason = answer.growth.finish(reason)
        self.emit(BranchDoneEvent(question, answer.sample, reason, rest, num_tokens, answer.score))
        self.clock.tick_answered(question, num_tokens)
        self.answers.remove(answer)
        self.num_open -= 1
        if choice is not None:
            thoughts = self.thoughts[question]
            thoughts[answer.sample] = Thought(answer.whole_text + rest, answer.score)
            if len(thoughts) == self.request.sampling.n:
                self.emit(choose(question, [thoughts[i] for i in range(len(thoughts))], choice))

    # --- beams ---------------------------------------------------------------------------------------------

    def _advance(self, group: BeamGroup) -> None:
        """All beams of a question have their logits: the next ones grow on them, the others end, and with
        them their KV."""
        # in the order of group.search.running
        beams = [answer for answer in self.answers if isinstance(answer, Beam) and answer.group is group]
        if not all(beam.ranked for beam in beams):
            return
        self.generated += len(beams)
        running = group.search.advance([beam.ranked for beam in beams])
        grown = self._grown(group, [beam.branch for beam in beams], running)
        self.answers = [*(answer for answer in self.answers if answer not in beams), *grown]
        compact(beam.branch for beam in grown)
        if not running:
            for rank, hypothesis in enumerate(group.search.hypotheses[: self.request.sampling.n]):
                self._tell(group.question, rank, hypothesis)
            self.num_open -= self.request.sampling.n

    def _grown(
        self, group: BeamGroup, branches: Sequence[Branch], running: Sequence[Continuation]
    ) -> list[Beam]:
        """The first to go on from a branch continues it; the others are forks that see it up to here."""
        taken: set[int] = set()
        beams = []
        for one in running:
            parent = branches[one.parent]
            branch = parent.fork(capacity=_BEAM_CAPACITY) if one.parent in taken else parent
            taken.add(one.parent)
            beams.append(Beam(group, branch))
        # after all forks, which end where nothing is pending yet
        for beam, one in zip(beams, running, strict=True):
            beam.branch.pending.append(one.steps[-1].token_id)
        return beams

    def _tell(self, question: int, rank: int, hypothesis: Hypothesis) -> None:
        stream = TextStream(self.host.decode, ())
        for index, step in enumerate(hypothesis.steps):
            is_mark = hypothesis.ended and index == len(hypothesis.steps) - 1
            text = "" if is_mark else stream.push(step.token_id)
            self.emit(TokenEvent(question, rank, step.token_id, text, step.logprob, step.top_logprobs))
        reason, num_tokens = FinishReason.LENGTH, len(hypothesis.steps)
        if hypothesis.ended:
            reason = FinishReason.STOP
        self.emit(BranchDoneEvent(question, rank, reason, stream.finish(), num_tokens, hypothesis.score))
        self.clock.tick_answered(question, num_tokens)
