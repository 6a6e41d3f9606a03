"""Asks a running stack and writes to it while faults strike, and checks afterwards that it kept its
promises."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass

from cluster.local.demo import shipped_questions
from load_tests.benchmark import Violation
from load_tests.cluster_soak.fault import ASKS, WRITES, Fault
from load_tests.cluster_soak.ledger import FaultLedger
from load_tests.cluster_soak.workers import Asker, SoakCaller, Writer, answer_of, work
from load_tests.servers.stack_processes import ProcessUse, StackProcesses, grown
from shared.clients.doors import ingest_client, rag_client, retrieval_client, store_client
from shared.clients.rag import RagClient
from shared.request import RequestContext

RECOVERY_S = 120.0
"""Within which everything must work again."""
COLLECTION = "soak"
_CALM_S = 3.0
_NUM_QUESTIONS = 6
_VERIFY_MS = 300_000
_GROWTH: dict[str, tuple[Callable[[ProcessUse], int], float, int]] = {
    "threads": (lambda held: held.threads, 1.25, 32),
    "open files": (lambda held: held.files, 1.25, 64),
    "memory": (lambda held: held.memory_bytes, 1.5, 256 << 20),
}
"""What processes that live all the time may hold at the end: so many times what they held before, and so
much more."""


@dataclass(frozen=True, slots=True)
class Soak:
    """``target``: where the stack answers. ``collection``: of documents that are there and that the demo's
    questions are about. ``every_s``: from a strike to the next one, or longer until everything works
    again."""

    target: str
    collection: str
    processes: StackProcesses
    every_s: float
    num_askers: int
    num_writers: int
    seed: int = 0

    async def run(
        self, seconds: float, faults: Sequence[Fault], told: Callable[[str], None]
    ) -> tuple[FaultLedger, list[str]]:
        """What callers were told, and in words what else was checked.

        Raises:
            Violation: a promise was broken.
            KvquiltError: the stack does not work to begin with.
        """
        rng = random.Random(self.seed)
        ledger = FaultLedger({ASKS: self.num_askers, WRITES: self.num_writers})
        async with AsyncExitStack() as clients:
            rag = await clients.enter_async_context(rag_client(self.target))
            ingest = await clients.enter_async_context(ingest_client(self.target))
            retrieval = await clients.enter_async_context(retrieval_client(self.target))
            expected = await _answers(rag, self.collection)
            askers = [
                Asker(n, rag, self.collection, expected, random.Random(rng.random()))
                for n in range(self.num_askers)
            ]
            writers = [
                Writer(n, ingest, retrieval, COLLECTION, random.Random(rng.random()))
                for n in range(self.num_writers)
            ]
            workers: list[SoakCaller] = [*askers, *writers]
            over = asyncio.Event()
            try:
                async with asyncio.TaskGroup() as group:
                    for worker in workers:
                        group.create_task(work(worker, ledger, over.is_set))
                    before = await self._strike(seconds, faults, rng, ledger, told)
                    over.set()
            except BaseExceptionGroup as failures:
                raise failures.exceptions[0] from None
            await asyncio.sleep(_CALM_S)
            checked = [_flat(name, before, self.processes.held()) for name in _GROWTH]
            kept = sum([await writer.check() for writer in writers])
            checked.append(f"{kept} documents acknowledged at the end, all there, and found by what they say")
        return ledger, [*checked, await self._verified()]

    async def _strike(
        self,
        seconds: float,
        faults: Sequence[Fault],
        rng: random.Random,
        ledger: FaultLedger,
        told: Callable[[str], None],
    ) -> dict[int, ProcessUse]:
        """Returns what the processes held before the first fault. Every fault strikes once before one strikes
        again."""
        await asyncio.sleep(_CALM_S)
        before = self.processes.held()
        ends_s = ledger.now() + seconds
        left: list[Fault] = []
        while not ledger.struck or ledger.now() + self.every_s <= ends_s:
            left = left or rng.sample(faults, len(faults))
            fault, began_s = left.pop(), ledger.now()
            told(fault.name)
            ledger.strike(fault.name, fault.told)
            await fault.strike()
            await _recovered(fault, ledger)
            await asyncio.sleep(max(0.0, min(began_s + self.every_s, ends_s) - ledger.now()))
        return before

    async def _verified(self) -> str:
        async with store_client(self.target) as store:
            num_copies = 0
            async with aclosing(store.verify(RequestContext.create(deadline_ms=_VERIFY_MS))) as progress:
                async for now in progress:
                    if now.damaged or now.missing_chunk_ids or now.damaged_records:
                        raise Violation(f"the scrub found damage: {now}")
                    num_copies = now.num_copies
        return f"{num_copies} copies of chunks read and verified"


async def _recovered(fault: Fault, ledger: FaultLedger) -> None:
    try:
        async with asyncio.timeout(RECOVERY_S):
            while not ledger.recovered:
                await asyncio.sleep(0.1)
    except TimeoutError:
        well = ledger.struck[-1].recovery_s or "nobody"
        raise Violation(f"{fault.name}: after {RECOVERY_S:g} s only these were well again: {well}") from None


async def _answers(rag: RagClient, collection: str) -> dict[str, str]:
    questions = [q.question for q in shipped_questions()][:_NUM_QUESTIONS]
    return {question: await answer_of(rag, collection, question) for question in questions}


def _flat(name: str, before: dict[int, ProcessUse], after: dict[int, ProcessUse]) -> str:
    of, times, more = _GROWTH[name]
    old, new = grown(before, after, of)
    told = f"{name} of the processes that lived all the time: {old} before, {new} after"
    if new > old * times + more:
        raise Violation(f"{told}; that is a leak")
    return told
