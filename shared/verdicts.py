"""Reads and keeps the verdicts on one model: a file holds one for each prefix, encoding, adapter and
setting of ``kv_context`` that was evaluated.

The file is a list of verdicts, the newest first; one verdict alone, as an object, is read as well.
Torch-free.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from shared.config import load
from shared.errors import ConfigError
from shared.kv_types import KvContext
from shared.verdict import FORM, MadeWith, Verdict
from shared.whole_files import replacing


def read_verdicts(path: Path) -> tuple[Verdict, ...]:
    """
    Raises:
        ConfigError: there is no such file, or it holds something else; names the verdict and the field.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        values = None
    if not isinstance(values, list) or not values:
        return (Verdict.read(path),)  # which says what is wrong with it
    for number, value in enumerate(values, 1):
        if not isinstance(value, dict):
            raise ConfigError(f"{path.name}: number {number}: expected an object, got {value!r}")
    return tuple(
        load(Verdict, value, f"{path.name}: number {number}: ") for number, value in enumerate(values, 1)
    )


def keep_verdict(path: Path, verdict: Verdict) -> None:
    """Writes it in place of the one that was made for the same model, prefix, encoding, ``kv_context`` and
    adapter, and leaves the others.

    Raises:
        ConfigError: the file holds something else, or cannot be written.
    """
    others = read_verdicts(path) if path.exists() else ()
    _write(path, [verdict, *(other for other in others if other.made_for != verdict.made_for)])


def suspend_verdict(path: Path, verdict_id: str, reason: str) -> bool:
    """Writes into the verdict why it is not obeyed any longer; False: the file does not hold it now.

    Raises:
        ConfigError: as ``keep_verdict``.
    """
    verdicts = read_verdicts(path) if path.exists() else ()
    if all(verdict.id != verdict_id for verdict in verdicts):
        return False
    _write(path, suspended(verdicts, verdict_id, reason))
    return True


def suspended(verdicts: Iterable[Verdict], verdict_id: str, reason: str) -> tuple[Verdict, ...]:
    """All of them, the one with this identity suspended. One that is suspended keeps its first reason."""
    return tuple(
        replace(verdict, suspended=verdict.suspended or reason) if verdict.id == verdict_id else verdict
        for verdict in verdicts
    )


def _write(path: Path, verdicts: Iterable[Verdict]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write((json.dumps([asdict(one) for one in verdicts], indent=2) + "\n").encode())
    except OSError as error:
        raise ConfigError(
            f"verdict: {path} cannot be written: {error.strerror or error}; name another file, and that in "
            "generator.verdict"
        ) from error


def choose(
    verdicts: Sequence[Verdict], served: MadeWith, conditioned: bool | None = None
) -> tuple[Verdict | None, str]:
    """The newest that holds, or what the one was not made for that is nearest to it. ``conditioned``: see
    ``Verdict.misfits``."""
    misfits: list[tuple[str, ...]] = [verdict.misfits(served, conditioned) for verdict in verdicts]
    fitting = next((v for v, misfit in zip(verdicts, misfits, strict=True) if not misfit), None)
    return fitting, "" if fitting or not misfits else ", ".join(sorted(misfits, key=len)[0])


def told(verdicts: Sequence[Verdict]) -> str:
    """For an operator: the mode, with its ratio, for each setting of ``kv_context``; the newest of each."""
    newest = {verdict.kv_context: verdict for verdict in reversed(verdicts)}
    return ", ".join(
        f"{_mode_of(verdict)} ({context}{', suspended' if verdict.suspended else ''})"
        for context, verdict in sorted(newest.items())
    )


def status_of(verdicts: Sequence[Verdict], served: MadeWith) -> str:
    """For an operator: the verdict that mode ``auto`` obeys over KV as it is configured, or why there is
    none; and those on KV that is computed behind something else."""
    if not verdicts:
        return "none"
    context = served.kv_context or KvContext.NONE
    holding = [v for v in verdicts if not v.misfits(served, v.kv_context is not KvContext.NONE)]
    verdict, why = choose(verdicts, served, context is not KvContext.NONE)
    parts = []
    if verdict is None:
        parts.append(f"expired: it was made for another {why}; run `kvquilt gate`")
    elif verdict.suspended:
        parts.append(
            f"{_mode_of(verdict)} ({verdict.kv_context}) is suspended by shadow: "
            f"{verdict.suspended}; run `kvquilt gate`"
        )
    elif verdict.form < FORM:
        parts.append(
            f"{_mode_of(verdict)} ({verdict.kv_context}; of an older form, which does not name its tokenizer "
            "and selector: run `kvquilt gate`)"
        )
    else:
        parts.append(f"{_mode_of(verdict)} ({verdict.kv_context})")
    others = [v for v in holding if v.kv_context is not (verdict.kv_context if verdict else None)]
    return ", ".join([*parts, *filter(None, [told(others)])])


def state_of(verdicts: Sequence[Verdict], served: MadeWith) -> str:
    """For a metric: ``in_force`` if mode ``auto`` obeys a verdict over KV as it is configured, or why it
    obeys none: ``none`` was made, it is ``suspended``, or ``expired``."""
    if not verdicts:
        return "none"
    context = served.kv_context or KvContext.NONE
    verdict, _ = choose(verdicts, served, context is not KvContext.NONE)
    if verdict is None:
        return "expired"
    return "suspended" if verdict.suspended else "in_force"


def _mode_of(verdict: Verdict) -> str:
    return f"{verdict.mode}{'' if verdict.ratio is None else f' {verdict.ratio:g}'}"
