"""Settles the mode that a request really runs in: the one it names, the configured one, or what the model's
verdict says."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from services.generator.config import GeneratorConfig
from shared.errors import ConfigError, FailedPrecondition, InvalidRequest, NotFound
from shared.generation.modes import Ape, Recompute, ReuseMode
from shared.generation.orders import NO_ADAPTER, Auto, Reuse
from shared.generation.selection import Grouping, Reading
from shared.generation.told import ObeyedVerdict
from shared.identity import TokenIds, ids_hash
from shared.kv_types import KvContext
from shared.verdict import VERDICT_FILE, MadeWith, Verdict
from shared.verdicts import choose, state_of, status_of, suspend_verdict, suspended

log = logging.getLogger(__name__)

_NO_SELECTOR = "none"
"""In place of a fingerprint: no auxiliary model that a verdict was made with is there."""
_Found = tuple[Verdict | None, str]
"""The verdict that holds, or None and what speaks against those that there are."""


@dataclass(frozen=True, slots=True)
class Reusing:
    """A settled ``Reuse``. ``adapter`` empty: the model alone. ``note``: why it is not what was asked for, or
    what speaks against that. ``auxiliary``: fingerprint of the selector's model that the verdict was made
    with; empty: any will do. ``verdict``: the one that is obeyed."""

    mode: ReuseMode
    recompute: Recompute
    ape: Ape
    grouping: Grouping
    reading: Reading
    adapter: str = ""
    note: str = ""
    auxiliary: str = ""
    verdict: ObeyedVerdict | None = None


class Modes:
    """``model``: fingerprint. ``verdicts``: the newest first. ``has_selector``: whether anybody can choose
    for ``cacheclip``. ``tokenizer``: hash. ``adapters``: by name, their identities."""

    def __init__(
        self,
        config: GeneratorConfig,
        model: str,
        verdicts: Sequence[Verdict],
        has_selector: bool,
        tokenizer: str = "",
        adapters: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._config = config
        self._adapters = adapters
        self._verdicts = tuple(verdicts)
        self._has_selector = has_selector
        self._served = MadeWith(
            model,
            "",
            config.kv_encoding,
            config.kv_context,
            tokenizer,
            grouping=config.selector.grouping.value,
            reading=config.selector.reading.value,
            adapter=self._identity(config.adapter),
        )

    def _identity(self, adapter: str) -> str:
        """Empty: the model alone."""
        return "" if adapter in ("", NO_ADAPTER) else self._adapters.get(adapter, adapter)

    def status(self, prefix_ids: TokenIds, auxiliary: str = "") -> str:
        """The verdict on the model as it is served, or what has changed since, for an operator.
        ``auxiliary``: fingerprint of the selector's model, where it is known."""
        return status_of(self._verdicts, self._now_served(prefix_ids, auxiliary))

    def state(self, prefix_ids: TokenIds, auxiliary: str = "") -> str:
        """The same in one word: see ``shared.verdicts.state_of``."""
        return state_of(self._verdicts, self._now_served(prefix_ids, auxiliary))

    def _now_served(self, prefix_ids: TokenIds, auxiliary: str) -> MadeWith:
        known = auxiliary if self._has_selector else _NO_SELECTOR
        return replace(self._served, prefix=ids_hash(prefix_ids), auxiliary=known)

    def suspend(self, verdict_id: str, reason: str) -> bool:
        """Mode ``auto`` no longer obeys it. Returns whether that is written down, to outlive this process.

        Raises:
            NotFound: no such verdict is known here.
        """
        if all(verdict.id != verdict_id for verdict in self._verdicts):
            raise NotFound(f"verdict: none with the identity {verdict_id[:64]!r} is served here")
        self._verdicts = suspended(self._verdicts, verdict_id, reason)
        log.warning("mode auto is full: the verdict is suspended by shadow: %s", reason)
        try:
            return suspend_verdict(self._config.verdict_file, verdict_id, reason)
        except ConfigError as error:
            log.warning("the verdict is obeyed again at the next start: %s", error.detail)
            return False

    @property
    def adapters(self) -> str:
        """Their names, for an operator."""
        named, own = ", ".join(sorted(self._config.engine.adapters)), self._config.adapter
        return f"{named} (default {own})" if own else named or "none"

    @property
    def asks_for_auxiliary(self) -> bool:
        """A verdict depends on the selector's model."""
        return any(verdict.auxiliary and verdict.mode.deferred for verdict in self._verdicts)

    def settle(
        self,
        order: Reuse,
        prefix_ids: TokenIds,
        has_question: bool = True,
        conditioned: bool | None = None,
        kv_context: KvContext | None = None,
    ) -> Reusing:
        """``conditioned``: whether chunks of the request are computed behind others of their documents; None:
        it has none. ``kv_context``: the setting that all of them were made under; None: nobody told.

        Raises:
            InvalidRequest: an option that the mode does not go by; names the field.
            FailedPrecondition: ``cacheclip`` without a selector.
        """
        found = self._verdict(order, prefix_ids, conditioned, kv_context)
        reusing = self._settled(order, has_question, found)
        adapter = order.adapter or self._config.adapter
        if adapter == NO_ADAPTER:
            return reusing
        if order.adapter and not reusing.mode.row.stored:
            without = f"{reusing.mode.value} is computed by the model alone, without adapter {adapter}"
            reusing = replace(reusing, note="; ".join(filter(None, (reusing.note, without))))
        return replace(reusing, adapter=adapter)

    def _settled(self, order: Reuse, has_question: bool, found: _Found) -> Reusing:
        """But for the adapter."""
        mode = order.mode or self._config.reuse
        if isinstance(mode, Auto):
            return self._by_verdict(order, has_question, found)
        if not mode.deferred:
            for name, value in (("grouping", order.grouping), ("reading", order.reading)):
                if value is not None:
                    raise InvalidRequest(
                        f"recompute.{name}: mode {mode.value} asks no selector; leave it out"
                    )
        elif has_question and not self._has_selector:
            raise FailedPrecondition(
                f"reuse: {mode.value} needs a selector, and this generator has none; "
                "name its application in generator.selector.application, or choose another mode"
            )
        reusing = self._reusing(mode, order, order.recompute)
        return replace(reusing, note=_warning(reusing, found[0]))

    def _by_verdict(self, order: Reuse, has_question: bool, found: _Found) -> Reusing:
        if (order.recompute, order.ape, order.grouping, order.reading) != (Recompute(), Ape(), None, None):
            raise InvalidRequest(
                "recompute, ape: mode auto goes by the model's verdict; leave them out, or name a mode"
            )
        verdict, why = found
        if verdict is not None:
            why = self._why_not(verdict.mode, has_question)
        if verdict is None or why:
            return replace(self._reusing(ReuseMode.FULL, order, Recompute()), note=f"auto is full: {why}")
        auxiliary = verdict.auxiliary if verdict.mode.deferred else ""
        reusing = self._reusing(verdict.mode, order, Recompute(verdict.ratio))
        obeyed = ObeyedVerdict(verdict.id, verdict.agreement)
        return replace(reusing, auxiliary=auxiliary, verdict=obeyed)

    def _verdict(
        self,
        order: Reuse,
        prefix_ids: TokenIds,
        conditioned: bool | None,
        kv_context: KvContext | None,
    ) -> _Found:
        """The one that holds for such requests, or why there is none."""
        if not self._verdicts:
            return None, f"the model has no verdict ({VERDICT_FILE})"
        adapter = self._identity(order.adapter or self._config.adapter)
        served = replace(self._served, prefix=ids_hash(prefix_ids), adapter=adapter)
        if conditioned is not None and kv_context is not None:
            served = replace(served, kv_context=kv_context)
            conditioned = kv_context is not KvContext.NONE
        verdict, misfit = choose(self._verdicts, served, conditioned)
        if verdict is not None and verdict.suspended:
            return None, f"the verdict is suspended by shadow: {verdict.suspended}"
        return verdict, f"the verdict was made for another {misfit}" if misfit else ""

    def _why_not(self, mode: ReuseMode, has_question: bool) -> str:
        """Empty: the verdict's mode can be had."""
        if not has_question and mode.needs_question:
            return (
                f"the verdict's mode, {mode.value}, goes by the question, and a forest is opened without one"
            )
        if mode.deferred and not self._has_selector:
            return (
                f"the verdict's mode, {mode.value}, needs a selector, and "
                "generator.selector.application names none"
            )
        return ""

    def _reusing(self, mode: ReuseMode, order: Reuse, recompute: Recompute) -> Reusing:
        selector = self._config.selector
        return Reusing(
            mode, recompute, order.ape, order.grouping or selector.grouping, order.reading or selector.reading
        )


def _warning(reusing: Reusing, verdict: Verdict | None) -> str:
    """Of recomputing against the verdict."""
    mode = reusing.mode
    if verdict is None or verdict.recompute or not mode.recomputes or reusing.recompute.ratio == 0:
        return ""
    return (
        f"{mode.value} recomputes against the model's verdict: a recomputed token loses what its chunk "
        f"knows of its document; {verdict.mode.value} is advised"
    )
