"""A trial before it is asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cluster.gate.ingested import Ingested
from cluster.gate.modes import Over
from cluster.gate.selections import Selections
from cluster.gate.tasks import DocumentLayout, Task, TaskKind, blocks_of
from cluster.gate.trials import Trial
from shared.generation.asked import Chunk


@dataclass(frozen=True, slots=True)
class Prepared:
    """One trial as it was ingested, in every layout, and which tokens are worth recomputing."""

    trial: Trial
    tasks: Mapping[TaskKind, Sequence[Task]]
    ingested: Mapping[DocumentLayout, Ingested]
    selections: Selections | None

    def chunks(self, task: Task, over: Over) -> tuple[Chunk, ...]:
        if over is Over.NOTHING:
            return ()
        placed = task.placed if over is Over.PLACED else blocks_of(self.trial, task.placed)
        return tuple(self.ingested[task.kind.layout].chunks[i] for i in placed)
