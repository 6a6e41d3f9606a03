"""A stack keeps its promises while its processes are killed and hang under questions and writes."""

from __future__ import annotations

import random

import pytest

from load_tests.cluster_soak.__main__ import printed_table
from load_tests.cluster_soak.fault import ASKS, WRITES
from load_tests.cluster_soak.faults import faults_of
from load_tests.cluster_soak.soak import COLLECTION as WRITTEN
from load_tests.cluster_soak.soak import Soak
from load_tests.cluster_soak.surroundings import Surroundings
from shared.clients.doors import ingest_client
from shared.request import RequestContext
from tests.e2e.conftest import COLLECTION
from tests.e2e.stack import Stack

pytestmark = pytest.mark.e2e
SECONDS, EVERY_S = 60.0, 15.0


async def test_faults_lose_nothing_and_end_in_errors_that_can_be_retried(stack: Stack) -> None:
    """Each of which faults strike, the seed says; `python -m load_tests.cluster_soak` has them all."""
    rng = random.Random(7)
    faults = faults_of(stack.processes, Surroundings(), rng, frozenset(stack.state.services))
    assert {"generator killed", "agent killed", "proxy killed", "three at once killed"} <= {
        f.name for f in faults
    }
    soak = Soak(stack.target, COLLECTION, stack.processes, EVERY_S, num_askers=3, num_writers=2, seed=7)
    ledger, checked = await soak.run(SECONDS, faults, print)
    print(printed_table(ledger), *checked, sep="\n")
    assert len(ledger.struck) >= 2
    assert all(struck.recovery_s.keys() == {ASKS, WRITES} for struck in ledger.struck)
    assert ledger.succeeded[ASKS] > 10
    assert ledger.succeeded[WRITES] > 5
    async with ingest_client(stack.target) as client:
        await client.delete(RequestContext.create(), WRITTEN, everything=True)
