"""Rounds of fuzzing, until the time is over or something is found. What a round sends follows from its number
and the seed alone, so that a finding can be looked at again."""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import random
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from services.ingestion.config import ParsingConfig
from services.ingestion.formats.reading import ParserSettings
from services.ingestion.parsing.processes import ParserProcesses
from shared.errors import KvquiltError
from tests.fuzz.calls import Case, Ended, make, methods
from tests.fuzz.files import Files
from tests.fuzz.messages import Known, Messages
from tests.fuzz.targets import Target, resident_bytes

AT_ONCE = 4
MAY_GROW_BYTES = 500 << 20
_PROBE_ROUNDS, _PLANT_ROUNDS, _WARM_ROUNDS = 10, 50, 20
_METADATA = (
    ("authorization", "Bearer "),
    ("authorization", "Bearer kvq_000000000000_nobody"),
    ("authorization", "Basic YTpi"),
    ("kvquilt-principal", "x" * 1000),
    ("kvquilt-principal", "e30.e30"),
    ("traceparent", "00-" + "0" * 32 + "-" + "0" * 16 + "-01"),
    ("traceparent", "~" * 500),
    ("x-forwarded-client-cert", 'Subject="CN=admin"'),
    ("x-kvquilt-terminator", "kvq_000000000000_nobody"),
    ("x-kvquilt-tenant", "victim"),
)


@dataclass
class Findings:
    """``told``: how often each parser, or RPC, ended how. ``wrong``: what must not be; ``cases``: the calls
    of that round, to be made again."""

    rounds: int = 0
    told: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    cases: list[Case] = field(default_factory=list)


def fuzz_files(seconds: float, seed: int) -> Findings:
    """Every parser, in processes as the service has them. A document that cannot be read says why; one that
    is too slow or too large would have to be much larger than these."""
    findings, parsers = Findings(), ParserProcesses(ParsingConfig())
    ends_s = time.monotonic() + seconds
    while time.monotonic() < ends_s and not findings.wrong:
        document = Files(random.Random(f"{seed}-{findings.rounds}")).document()
        ending, outcome = Path(document.document_id).suffix, "read"
        try:
            parsers(document, ParserSettings(), lambda: None).text.encode()
        except KvquiltError as error:
            outcome = error.code
            if error.code != "DOCUMENT_UNREADABLE" or "reading the document took" in error.detail:
                findings.wrong.append(f"round {findings.rounds}: {document.document_id}: {error.detail}")
        except Exception:
            findings.wrong.append(f"round {findings.rounds}: {traceback.format_exc()}")
        findings.told[f"{ending}: {outcome}"] += 1
        findings.rounds += 1
    parsers.close()
    return findings


async def fuzz_calls(target: Target, seconds: float, seed: int, most_rounds: float = math.inf) -> Findings:
    """Every RPC that callers reach, ``AT_ONCE`` calls to a round. Each ends in time, with a status that
    callers may get; what anybody might ask is answered afterwards, and memory comes back."""
    findings, known, before = Findings(), await target.plant(), _Memory(target)
    ends_s = time.monotonic() + seconds
    with _tracebacks() as logged:
        while time.monotonic() < ends_s and findings.rounds < most_rounds and not findings.wrong:
            at, number = findings.rounds, findings.rounds * AT_ONCE
            findings.cases = [case_of(seed, number + i, target, known) for i in range(AT_ONCE)]
            await _round(target, findings, logged)
            findings.rounds += 1
            if not findings.wrong and at % _PROBE_ROUNDS == _PROBE_ROUNDS - 1:
                known = await _still_works(
                    target, known, findings, plants=at % _PLANT_ROUNDS == _PLANT_ROUNDS - 1
                )
            if findings.rounds == _WARM_ROUNDS:
                before = _Memory(target)
    if not findings.wrong:
        await _still_works(target, known, findings, True)
        findings.wrong += before.grown()
    return findings


async def make_again(target: Target, cases: Sequence[Case]) -> Findings:
    """Those of a round that found something."""
    findings = Findings(cases=list(cases))
    await target.plant()
    with _tracebacks() as logged:
        await _round(target, findings, logged)
    if not findings.wrong:
        await _still_works(target, Known(), findings, False)
    return findings


def case_of(seed: int, number: int, target: Target, known: Known) -> Case:
    """Follows from both numbers, and from what is known. As many calls as there are RPCs are one of each."""
    shuffled, name = sorted(methods()), f"{seed}-{number}"
    random.Random(f"{seed}/{number // len(shuffled)}").shuffle(shuffled)
    rpc, rng = shuffled[number % len(shuffled)], random.Random(name)
    callers = list(target.callers)
    caller = callers[0] if rng.random() < 0.5 else rng.choice(callers)
    payloads = Messages(rng, known).payloads(methods()[rpc])
    metadata = tuple(rng.sample(_METADATA, rng.choice((1, 1, 2)))) if rng.random() < 0.1 else ()
    leaves_after_s = rng.choice((0.0, 0.01, 0.1, 0.5)) if rng.random() < 0.1 else None
    return Case(name, rpc, caller, tuple(payloads), metadata, leaves_after_s)


async def _round(target: Target, findings: Findings, logged: list[str]) -> None:
    ended = await asyncio.gather(*(_made(target, case) for case in findings.cases))
    for case, end in zip(findings.cases, ended, strict=True):
        findings.told[f"{case.rpc}: {end.status}"] += 1
        if end.wrong:
            findings.wrong.append(f"{end.wrong}\n{case}")
    if logged:
        findings.wrong.append("\n".join(["a service logged:", *logged, *map(str, findings.cases)]))


async def _made(target: Target, case: Case) -> Ended:
    secrets = target.secrets.get(case.caller, ())
    return await make(target.channel, case, target.callers[case.caller], secrets)


async def _still_works(target: Target, known: Known, findings: Findings, plants: bool) -> Known:
    try:
        await target.probe()
        return await target.plant() if plants else known
    except Exception:
        sent = "\n".join(map(str, findings.cases))
        findings.wrong.append(f"then what anybody asks failed: {traceback.format_exc()}\n{sent}")
        return known


class _Memory:
    """That the target's processes hold now."""

    def __init__(self, target: Target) -> None:
        self._pids = target.pids
        self._held = self._now()

    def grown(self) -> list[str]:
        """Those that hold much more, or are gone."""
        gc.collect()
        now = self._now()
        told = {name: (before, now[name]) for name, before in self._held.items()}
        return [
            f"{name} (process {self._pids[name]}) holds {after >> 20} MiB, and held {before >> 20}"
            for name, (before, after) in told.items()
            if not after or after - before > MAY_GROW_BYTES
        ]

    def _now(self) -> dict[str, int]:
        return {name: resident_bytes(pid) for name, pid in self._pids.items()}


@contextmanager
def _tracebacks() -> Iterator[list[str]]:
    """What services of this process log with a traceback: nothing that is sent should surprise them."""
    found: list[str] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.exc_info and not record.name.startswith("grpc"):  # whose status tells the caller
                found.append(logging.Formatter().format(record))

    kept = Kept(logging.WARNING)
    logging.getLogger().addHandler(kept)
    try:
        yield found
    finally:
        logging.getLogger().removeHandler(kept)
