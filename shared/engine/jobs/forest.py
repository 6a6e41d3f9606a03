"""A live forest, and its branches."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch

from shared.engine.decoding.sampling import Draw
from shared.engine.decoding.text import TextStream
from shared.engine.jobs.context import ContextJob, Grower
from shared.engine.jobs.job import Computed
from shared.engine.kv.segment import Branch, Placement
from shared.engine.scheduler import Demand
from shared.generation.asked import SamplingParams
from shared.generation.forest import Command
from shared.generation.told import Usage


@dataclass(slots=True)
class Growth:
    """How a branch of a live forest grows at present."""

    params: SamplingParams
    text: TextStream
    num_tokens: int = 0


@dataclass(slots=True, eq=False)
class ForestNode(Grower):
    """A branch of a live forest: all its tokens behind the context. ``logits_V``: behind the last one, once
    it is computed.
    ``num_exact``: so many of its tokens have exact KV, a merge placed that of the next one as it was; None:
    all have.
    """

    branch_id: int
    branch: Branch
    tokens: list[int]
    logits_V: torch.Tensor | None = None
    growth: Growth | None = None
    num_exact: int | None = None

    def draw(self) -> Draw | None:
        return None if self.growth is None else Draw(self.growth.params, self.branch_id, len(self.tokens))

    def append(self, token_ids: Sequence[int]) -> None:
        self.tokens += token_ids
        self.branch.pending += token_ids
        self.logits_V = None


class Explorer(Protocol):
    """``shared.engine.decoding.exploration``."""

    def start(self, job: ForestJob) -> None: ...
    def obey(self, job: ForestJob) -> None: ...
    def on_computed(self, job: ForestJob, owner: Grower, computed: Computed) -> None: ...


@dataclass(slots=True, eq=False)
class ForestJob(ContextJob):
    """``context``: its placements, ``base``: under ``full`` the branch that holds the chunks instead,
    ``origin``: position of its branches' first token; ``commands``: not obeyed yet, ``num_commands`` were."""

    lead: Explorer = field(kw_only=True)
    context: tuple[Placement, ...] = ()
    base: Branch | None = None
    origin: int = 0
    nodes: dict[int, ForestNode] = field(default_factory=dict)
    commands: deque[Command] = field(default_factory=deque)
    num_commands: int = 0
    num_given: int = 0
    closing: bool = False

    def start(self) -> None:
        self.lead.start(self)

    def on_computed(self, owner: Grower, computed: Computed) -> None:
        self.lead.on_computed(self, owner, computed)

    def command(self, command: Command) -> None:
        self.commands.append(command)

    def obey(self) -> None:
        self.lead.obey(self)

    @property
    def growing(self) -> Sequence[ForestNode]:
        return list(self.nodes.values())

    def leaves(self) -> Iterable[Branch]:
        bases = [self.base] if self.base is not None else []
        return [*bases, *(node.branch for node in self.nodes.values())]

    @property
    def arriving(self) -> bool:
        """It waits until its chunks are whole: nobody knows when it will be told to do something."""
        return False

    @property
    def idle(self) -> bool:
        return self.started and not self.commands and not self.questions and not self._num_busy

    @property
    def _num_busy(self) -> int:
        return sum(bool(node.branch.pending) or node.growth is not None for node in self.nodes.values())

    def demand(self) -> Demand:
        """At least one branch, whatever it is told next."""
        return Demand(max(self._num_busy, 1), ContextJob.demand(self).private_bytes)

    def usage(self) -> Usage:
        """Tokens that it was given count as prompt."""
        usage = ContextJob.usage(self)
        prompt, recomputed = usage.prompt_tokens + self.num_given, usage.recomputed_tokens + self.num_given
        return replace(usage, prompt_tokens=prompt, recomputed_tokens=recomputed)
