"""Asks the engine: every case in every arm, cases of one task together.

`full` is asked first; the others are told which tokens it finds likeliest, so that their distributions can be
compared. Chunks that are stored in the product are computed before anything is timed, and stay resident.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count

import numpy as np
import transformers

from cluster.evaluation.answers import TOP, EvalAnswer, Told, graded
from cluster.evaluation.arithmetic import shape_of
from cluster.evaluation.arms import FULL, EvalArm
from cluster.evaluation.cases import EvalCase, EvalTask
from cluster.evaluation.preparing import CasePreparer, PreparedCase, positions_of, prompts_of
from cluster.gate.answering import Models
from cluster.gate.modes import ClipSetting
from cluster.gate.selections import Selections
from shared.engine import Engine, EngineConfig, load_model
from shared.engine.kv.memory import DeviceMemory
from shared.engine_config import GIB
from shared.errors import InvalidRequest
from shared.generation.asked import GenerateRequest, SamplingParams
from shared.generation.modes import Recompute, ReuseMode
from shared.generation.told import DoneEvent, Event, SelectedEvent, TokenEvent
from shared.kv_types import KvContext
from shared.measuring.asking import AskedTogether
from shared.measuring.paired import divergence


@dataclass(frozen=True, slots=True)
class BenchSize:
    """Limits on how much is asked at once. ``contexts``: at most; fewer, if their KV would take more than a
    quarter of ``resident_bytes``."""

    branches: int
    contexts: int
    step_tokens: int
    resident_bytes: int


ON_CPU = BenchSize(128, 16, 4096, GIB)
ON_GPU = BenchSize(256, 128, 16384, 16 * GIB)


def gpu_size(free_bytes: int) -> BenchSize:
    """Leaves room for answers, and for others that use the GPU."""
    return replace(ON_GPU, resident_bytes=max(1, min(ON_GPU.resident_bytes, free_bytes // 4)))


class EvalBench:
    """``contexts``: kinds of stored KV. ``positions``: of a prompt and its answer; 0: as many as the model
    has. ``retrieve``: see ``CasePreparer``."""

    def __init__(
        self, models: Models, contexts: Sequence[KvContext], positions: int = 0, retrieve: int = 0
    ) -> None:
        """
        Raises:
            ConfigError, InvalidRequest, ModelUnsupported: one of the models cannot be used; says why.
        """
        transformers.utils.logging.disable_progress_bar()
        self.prompts = prompts_of(models)
        model = load_model(
            models.primary,
            dtype=models.dtype,
            device=models.device,
            packets=models.ingestion.prompt.packets,
            weights=models.weights,
        )
        model.end_also_at(self.prompts.end_ids)
        spec = model.spec
        self.positions = positions_of(positions, spec.sight)
        self._preparer = CasePreparer(
            models, self.prompts, contexts, self.positions, spec.vocab_size, model.fingerprint, retrieve
        )
        self.cutter = self._preparer.cutter
        size = gpu_size(DeviceMemory(model.spec.device).free_bytes()) if models.on_gpu else ON_CPU
        many = EngineConfig(
            max_running_branches=size.branches,
            max_step_tokens=size.step_tokens,
            max_waiting=10**6,
            resident_bytes=size.resident_bytes,
            adapters=dict(models.adapters),
        )
        self._engine = Engine(model, many, decode=self.prompts.decode)
        room = size.resident_bytes // 4 // (spec.kv_bytes_per_token * self.positions)
        self.contexts_at_once = min(size.contexts, max(1, room))
        self._shape = shape_of(model.hf_model.config)
        spans = self._preparer.spans
        self._selections = Selections.of_models(models.auxiliary, spans) if models.auxiliary else None
        self._names, self._stop = count(), models.stop

    @property
    def fingerprints(self) -> Mapping[str, str]:
        """Of the models: answers of others are not to be mixed with theirs."""
        return {
            "primary": self._engine.model.fingerprint,
            "auxiliary": self._selections.fingerprint if self._selections else "",
        }

    def close(self) -> None:
        self._engine.shut_down()

    def ask(
        self, task: EvalTask, cases: Sequence[EvalCase], arms: Sequence[EvalArm]
    ) -> list[list[EvalAnswer]]:
        """Of each case its answers in all of ``arms``, `full` among them.

        Raises:
            KvquiltError: a request failed.
        """
        asked = [self._preparer.prepare(task, case) for case in cases]
        self._warm(asked, arms)
        top = SamplingParams(max_tokens=task.max_tokens, top_logprobs=TOP, stop=self._stop)
        full, full_s = self._run([self._request(one, FULL, top) for one in asked])
        likeliest = [dict(told.first.top_logprobs) for told in full]
        watching = [
            SamplingParams(max_tokens=task.max_tokens, watch_ids=tuple(sorted(tokens)), stop=self._stop)
            for tokens in likeliest
        ]
        found: list[list[EvalAnswer]] = [[] for _ in asked]
        for arm in arms:
            if arm == FULL:
                replies, seconds, seen = full, full_s, likeliest
            else:
                watched = zip(asked, watching, strict=True)
                replies, seconds = self._run([self._request(one, arm, how) for one, how in watched])
                seen = [
                    dict(zip(how.watch_ids, told.first.watched, strict=True))
                    for how, told in zip(watching, replies, strict=True)
                ]
            for i, (one, told) in enumerate(zip(asked, replies, strict=True)):
                kl = divergence(likeliest[i], seen[i])
                found[i].append(graded(task, one, arm, told, kl, seconds / len(asked), self._shape))
        return found

    def _warm(self, asked: Sequence[PreparedCase], arms: Sequence[EvalArm]) -> None:
        """Computes the chunks as they would be stored."""
        once = SamplingParams(max_tokens=1)
        for context in dict.fromkeys(arm.context for arm in arms if arm.context is not None):
            reordered = EvalArm(ReuseMode.REORDERED, context)
            self._run([self._request(one, reordered, once) for one in asked if one.retrieved])

    def _request(self, one: PreparedCase, arm: EvalArm, sampling: SamplingParams) -> GenerateRequest:
        ingested = one.ingested_as(arm)
        mode, recompute = arm.mode or ReuseMode.FULL, Recompute(arm.ratio)
        if mode.deferred:
            mode, recompute = ReuseMode.TOKENS, self._selected(one, arm)
        return GenerateRequest(
            f"{next(self._names)}",
            self.prompts.prefix_ids,
            tuple(ingested.chunks[i] for i in one.placed(arm)),
            (one.question_ids,),
            reuse=mode,
            recompute=recompute,
            sampling=sampling,
            links=ingested.links if arm.context else (),
            adapter=arm.adapter,
        )

    def _selected(self, one: PreparedCase, arm: EvalArm) -> Recompute:
        if self._selections is None or arm.ratio is None:
            raise InvalidRequest(
                f"--modes: {arm.mode} needs an auxiliary model; name one by selector.model in --config"
            )
        chosen = self._selections.select(
            one.ingested_as(arm), one.retrieved, one.case.question, arm.ratio, ClipSetting()
        )
        return Recompute(tokens=tuple(np.flatnonzero(np.concatenate(chosen.chosen)).tolist()))

    def _run(self, requests: Sequence[GenerateRequest]) -> tuple[list[Told], float]:
        """Returns what each was answered, and the seconds that all of them took."""
        began = time.monotonic()
        together = AskedTogether(self._engine, requests)
        together.run()
        seconds = time.monotonic() - began
        return [self._told(events) for events in together.events], seconds

    def _told(self, events: Sequence[Event]) -> Told:
        tokens = [event for event in events if isinstance(event, TokenEvent)]
        ends = self._engine.model.spec.eos_ids
        text = self.prompts.decode([token.token_id for token in tokens if token.token_id not in ends])
        selection = next((e for e in events if isinstance(e, SelectedEvent)), SelectedEvent(()))
        done = events[-1]
        assert isinstance(done, DoneEvent)
        return Told(text.strip(), tokens[0], selection, done.usage)
