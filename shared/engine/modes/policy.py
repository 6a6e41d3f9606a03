"""Finds and applies the policy of a mode: what it does beyond placing what is stored, in a module of its
name."""

from __future__ import annotations

import functools
import importlib

from shared.engine.jobs.context import ContextJob
from shared.engine.kv.branch import Branch, Tempering
from shared.generation.asked import GenerateRequest
from shared.generation.modes import ReuseMode
from shared.generation.told import SelectedEvent


class Policy:
    """As it stands, that of a mode that only places; a mode's own has in ``POLICY`` one that differs."""

    def choose(self, request: GenerateRequest, num_layers: int) -> tuple[int, ...] | None:
        """Returns the tokens of the context that are computed anew, in ascending order, if that is known
        without looking at anything; None: ``survey`` looks."""
        return ()

    def survey(self, job: ContextJob) -> Branch | None:
        """Plants what looks (``Survey``). Returns the branch on which all else grows; None: the survey plants
        a branch for its question when it ends."""
        raise NotImplementedError

    def tempering(self, request: GenerateRequest) -> Tempering | None:
        """Says how what hangs on the context weighs its chunks, if not by ordinary attention."""
        return None


@functools.cache
def policy_of(mode: ReuseMode) -> Policy:
    if not mode.has_policy:
        return Policy()
    policy: Policy = importlib.import_module(f"shared.engine.modes.{mode.value}").POLICY
    return policy


def prepare(job: ContextJob) -> Policy:
    """Lets the mode say what it knows before anything is computed, once."""
    request = job.request
    policy = policy_of(request.reuse)
    job.tempering = policy.tempering(request)
    if request.reuse.recomputes and job.selected is None:
        job.selected = policy.choose(request, job.host.spec.num_layers)
        if job.selected is not None:
            _tell(job, job.selected)
    return policy


def _tell(job: ContextJob, selected: tuple[int, ...]) -> None:
    """Once for all questions, unless each has a list of its own."""
    sets = job.request.recompute.sets
    if len(sets) == 1:
        job.emit(SelectedEvent(selected))
        return
    for index, tokens in enumerate(sets):
        job.emit(SelectedEvent(tokens, index))
