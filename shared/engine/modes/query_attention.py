"""``query_attention``: those tokens that a question attends to most when it is put to the chunks as they are
stored. Every question chooses for itself."""

from __future__ import annotations

from dataclasses import dataclass

from shared.engine.decoding.forest import placed_context, together
from shared.engine.jobs.context import ContextJob, Question, Survey
from shared.engine.kv.branch import Branch
from shared.engine.modes.attention_probe import AttentionProbe
from shared.engine.modes.policy import Policy
from shared.engine.modes.token_selection import best, num_selected
from shared.generation.asked import GenerateRequest, total_len
from shared.generation.told import SelectedEvent


@dataclass(slots=True, eq=False)
class AttentionSurvey(Survey):
    """A question on its way over the context as it is stored. Then its branch is forgotten."""

    index: int
    probe: AttentionProbe

    def end(self, job: ContextJob) -> None:
        num_tokens = total_len(job.request.chunks)
        scores = self.probe.weights(num_tokens)
        tokens = best(scores, num_selected(job.request.recompute.ratio, num_tokens))
        job.selected = tuple(sorted({*tokens, *(job.selected or ())}))
        job.emit(SelectedEvent(tokens, self.index, tuple(scores)))
        branch = together(placed_context(job, tokens), job.request.questions[self.index], job.host.spec)
        job.questions.append(Question(self.index, branch))


class ByAttention(Policy):
    def choose(self, request: GenerateRequest, num_layers: int) -> tuple[int, ...] | None:
        num_tokens = total_len(request.chunks)
        count = num_selected(request.recompute.ratio, num_tokens)
        return tuple(range(count)) if count in (0, num_tokens) else None

    def survey(self, job: ContextJob) -> None:
        base = placed_context(job, ())
        for index, question in enumerate(job.request.questions):
            branch = Branch(job.host.spec, question, base.end, base.placements)
            branch.probe = probe = AttentionProbe(job.host.rotation)
            job.questions.append(AttentionSurvey(branch, index, probe))


POLICY = ByAttention()
