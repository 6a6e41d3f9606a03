"""``cacheblend``: from layer to layer fewer of those tokens whose keys and values differ most from the stored
ones (``blender``)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from shared.engine.attention import Backend
from shared.engine.decoding.forest import placed_context
from shared.engine.jobs.context import ContextJob, Survey
from shared.engine.jobs.job import OwnPass
from shared.engine.kv.arrival import Patience
from shared.engine.kv.branch import Branch, Placement
from shared.engine.kv.exclusion import Excluded
from shared.engine.model.adapting import AdapterWeights
from shared.engine.model.model import LoadedModel
from shared.engine.modes.blender import Blend, Blender
from shared.engine.modes.policy import Policy
from shared.engine.modes.token_selection import num_selected
from shared.generation.asked import GenerateRequest, total_len
from shared.generation.told import SelectedEvent


@dataclass(slots=True, eq=False)
class BlendSurvey(Survey):
    """All tokens of the context, of which fewer and fewer are computed from layer to layer. ``placed``: where
    each chunk is stored; what is computed of it is excluded there, the rest in the branch. ``adapter``: what
    it is computed with. ``blend``: what became of it."""

    placed: tuple[Placement, ...]
    ratio: float | None
    adapter: AdapterWeights | None
    blend: Blend | None = None

    @property
    def own_pass(self) -> OwnPass:
        return self._run

    def _run(self, model: LoadedModel, backend: Backend, patience: Patience) -> None:
        rotation = model.spec.rotation()
        blender = Blender(model, backend, rotation, self.branch, self.placed, patience, self.adapter)
        self.blend = blender.run(self.ratio)

    def end(self, job: ContextJob) -> None:
        assert self.blend is not None
        job.num_blended, job.selected = self.blend.num_tokens, self.blend.tokens
        job.emit(SelectedEvent(job.selected, scores=self.blend.deviations, layers=self.blend.layers))


class Blended(Policy):
    def choose(self, request: GenerateRequest, num_layers: int) -> tuple[int, ...] | None:
        num_tokens = total_len(request.chunks)
        count = num_selected(request.recompute.ratio, num_tokens)
        if count in (0, num_tokens):
            return tuple(range(count))
        return tuple(range(num_tokens)) if num_layers <= 2 else None  # it computes all of them in two

    def survey(self, job: ContextJob) -> Branch:
        """The whole context as a branch of its own, behind what is stored of it."""
        spec, base, start = job.host.spec, placed_context(job, ()), len(job.request.prefix_ids)
        ids = tuple(t for chunk in job.request.chunks for t in chunk.token_ids)
        num_before = len(base.placements) - len(job.request.chunks)
        placed = tuple(
            replace(p, excluded=Excluded.none(spec.num_layers, p.num_tokens, spec.device))
            for p in base.placements[num_before:]
        )
        branch = Branch(spec, ids, start, (*base.placements[:num_before], *placed))
        branch.excluded = Excluded.none(spec.num_layers, len(ids), spec.device)
        job.questions.append(BlendSurvey(branch, placed, job.request.recompute.ratio, job.adapter))
        return branch


POLICY = Blended()
