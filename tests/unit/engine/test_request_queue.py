"""Requests wait, run and pause by what they need and whether they have anything to do. Without a model."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from shared.admission.priority import MOST_OVERTAKEN
from shared.engine.admission_control import AdmissionControl
from shared.engine.endings import Endings
from shared.engine.jobs.context import ContextJob, Grower
from shared.engine.jobs.host import Host
from shared.engine.jobs.job import Computed
from shared.engine.jobs.prefill import PrefillJob
from shared.engine.kv.branch import Branch
from shared.engine.request_queue import RequestQueue
from shared.engine.scheduler import Demand, Scheduler
from shared.engine_config import EngineConfig
from shared.generation.asked import Chunk, GenerateRequest, PrefillRequest

NOBODY = cast(Host, None)  # whoever needs what it is told to asks no engine


@dataclass(slots=True, eq=False)
class Wanting(ContextJob):
    """Needs as much as it is told to."""

    private_bytes: int = 10
    rests: bool = field(default=False)
    grown: list[Branch] = field(default_factory=list)

    def start(self) -> None: ...

    def on_computed(self, owner: Grower, computed: Computed) -> None: ...

    @property
    def growing(self) -> list[Grower]:
        return []

    def branches(self) -> list[Branch]:
        return self.grown

    @property
    def idle(self) -> bool:
        return self.rests

    def demand(self) -> Demand:
        return Demand(1, self.private_bytes)


def wanting(name: str, private_bytes: int = 10, rests: bool = False, tenant: str = "") -> Wanting:
    request = GenerateRequest(name, (), (), ((1,),), tenant=tenant)
    return Wanting(request, lambda _: None, private_bytes=private_bytes, rests=rests, host=NOBODY)


def prefill(name: str, tenant: str = "") -> PrefillJob:
    request = PrefillRequest(name, (), (Chunk("c", (1,)),), tenant=tenant)
    return PrefillJob(request, lambda _: None, on_computed=lambda *_: None)


@pytest.fixture
def requests() -> RequestQueue:
    """Room for 30 bytes and 4 branches."""
    return RequestQueue(Scheduler(EngineConfig(private_bytes=30, max_running_branches=4)))


def added(requests: RequestQueue, *jobs: Wanting) -> tuple[Wanting, ...]:
    for job in jobs:
        requests.add(job)
    return jobs


def admit_all(requests: RequestQueue) -> list[str]:
    names = []
    while job := requests.admit_next():
        names.append(job.request.request_id)
        requests.check_invariants()
    return names


def test_the_oldest_is_admitted_first_and_those_without_room_wait(requests: RequestQueue) -> None:
    added(requests, *(wanting(name) for name in "abcd"))
    assert admit_all(requests) == ["a", "b", "c"]
    assert [job.request.request_id for job in requests.waiting] == ["d"]


def test_nobody_overtakes_the_oldest_that_waits_for_room(requests: RequestQueue) -> None:
    added(requests, wanting("a", 20), wanting("large", 20), wanting("small", 1))
    assert admit_all(requests) == ["a"]


def test_a_tenant_with_many_does_not_stand_in_front_of_one_with_few(requests: RequestQueue) -> None:
    added(requests, *(wanting(f"a{i}", tenant="a") for i in range(4)), wanting("b0", tenant="b"))
    assert admit_all(requests) == ["a0", "b0", "a1"]
    requests.remove(next(job for job in requests.running if job.request.tenant == "b"))
    added(requests, wanting("c0", tenant="c"))
    assert admit_all(requests) == ["c0"]


def test_a_tenant_that_prefills_much_does_not_stand_in_front_of_others(requests: RequestQueue) -> None:
    for job in (*(prefill(f"a{i}", "a") for i in range(5)), prefill("b0", "b")):
        requests.add(job)
    admitted = [job.request.request_id for job in iter(requests.admit_prefill, None) if job is not None]
    assert admitted == ["a0", "b0", "a1", "a2"]
    requests.check_invariants()


def test_an_undecided_one_that_waits_for_room_holds_up_nobody(requests: RequestQueue) -> None:
    added(requests, wanting("a", 20), wanting("undecided", 20, rests=True), wanting("small", 1))
    assert admit_all(requests) == ["a", "small"]


def test_those_that_rest_make_room_for_others_but_not_for_their_kind(requests: RequestQueue) -> None:
    added(requests, wanting("resting", 25, rests=True), wanting("too", 20, rests=True), wanting("busy", 25))
    assert admit_all(requests) == ["resting", "busy"]


def test_the_youngest_pauses_and_resumes_before_anything_new(requests: RequestQueue) -> None:
    old, young = added(requests, wanting("old"), wanting("young"))
    admit_all(requests)
    old.private_bytes = 25
    assert requests.pause_overgrown() == [young]
    assert requests.pause_overgrown() == []
    added(requests, wanting("new", 1))
    assert requests.resume_next() is None
    assert admit_all(requests) == [], "a new one would take the room that the paused one waits for"
    old.private_bytes = 10
    assert requests.resume_next() is young
    assert admit_all(requests) == ["new"]


def test_the_paused_longest_resumes_first(requests: RequestQueue) -> None:
    jobs = added(requests, *(wanting(name) for name in "abc"))
    admit_all(requests)
    jobs[0].private_bytes = 15
    assert requests.pause_overgrown() == [jobs[2]]
    jobs[0].private_bytes = 25
    assert requests.pause_overgrown() == [jobs[1]]
    jobs[0].private_bytes = 1
    assert [requests.resume_next(), requests.resume_next()] == [jobs[2], jobs[1]]


def test_of_those_that_pause_together_the_oldest_resumes_first(requests: RequestQueue) -> None:
    jobs = added(requests, *(wanting(name) for name in "abc"))
    admit_all(requests)
    jobs[0].private_bytes = 30
    assert requests.pause_overgrown() == [*jobs[1:]]
    jobs[0].private_bytes = 10
    assert [requests.resume_next(), requests.resume_next()] == [*jobs[1:]]


def test_one_that_rests_pauses_before_younger_ones_that_work(requests: RequestQueue) -> None:
    jobs = added(requests, *(wanting(name) for name in "abc"))
    admit_all(requests)
    jobs[1].rests, jobs[0].private_bytes = True, 15
    assert requests.pause_overgrown() == [jobs[1]]
    assert requests.resume_next() is None, "it has nothing to do"
    added(requests, wanting("new", 1))
    assert admit_all(requests) == ["new"], "nobody waits for one that rests"


def test_kv_of_a_paused_request_waits_in_host_memory(requests: RequestQueue) -> None:
    old, young = added(requests, wanting("old"), wanting("young"))
    admit_all(requests)
    moved: list[str] = []
    segment = SimpleNamespace(move=lambda device: moved.append(device.type))
    young.grown = [cast(Any, SimpleNamespace(segment=segment))]
    nothing = cast(Any, None)
    kept = cast(Any, SimpleNamespace(give_way=lambda: None))
    endings = Endings(requests, nothing, kept, nothing)
    admission = AdmissionControl(torch.device("cuda"), requests, nothing, kept, nothing, endings, nothing)
    old.private_bytes = 25
    admission.balance()
    assert moved == ["cpu"]
    old.private_bytes = 10
    admission.balance()
    assert moved == ["cpu", "cuda"]


def test_few_prefills_run_at_once_and_questions_do_not_wait_for_them(requests: RequestQueue) -> None:
    for number in range(6):
        requests.add(prefill(f"p{number}"))
    added(requests, wanting("a"))
    assert admit_all(requests) == ["a"]
    running = []
    while job := requests.admit_prefill():
        running.append(job.request.request_id)
    assert running == ["p0", "p1", "p2", "p3"]
    assert requests.num_waiting == 2
    assert requests.remove(requests.prefilling[1])
    following = requests.admit_prefill()
    assert following is not None
    assert following.request.request_id == "p4"
    requests.check_invariants()


def test_removed_from_wherever_it_is(requests: RequestQueue) -> None:
    waiting, running = wanting("waiting", 40), wanting("running")
    added(requests, running, waiting)
    admit_all(requests)
    assert (requests.remove(running), requests.remove(waiting)) == (True, False)
    assert len(requests) == 0
    assert running not in requests
    requests.check_invariants()


def test_a_request_over_a_context_is_found_in_every_place(requests: RequestQueue) -> None:
    jobs = added(requests, wanting("a"), wanting("b"), wanting("c", 100))
    requests.add(prefill("p"))
    admit_all(requests)
    jobs[0].private_bytes = 25
    requests.pause_overgrown()
    assert [requests.get(name) for name in "abc"] == [*jobs]
    assert requests.get("p") is not None


def urgent(name: str, priority: int, tenant: str = "") -> Wanting:
    request = GenerateRequest(name, (), (), ((1,),), tenant=tenant, priority=priority)
    return Wanting(request, lambda _: None, host=NOBODY)


def test_of_a_tenant_the_most_urgent_is_admitted_first(requests: RequestQueue) -> None:
    added(requests, urgent("a0", 0, "a"), urgent("a1", -1, "a"), urgent("b0", 50, "b"), urgent("a2", 0, "a"))
    assert admit_all(requests) == ["a1", "b0", "a0"]


def test_a_patient_request_is_overtaken_by_a_bounded_number(requests: RequestQueue) -> None:
    requests.add(urgent("patient", 100))
    for number in range(2 * MOST_OVERTAKEN):
        requests.add(urgent(f"urgent{number}", -100))
    admitted = []
    while job := requests.admit_next():
        admitted.append(job.request.request_id)
        requests.remove(job)
    assert admitted.index("patient") == MOST_OVERTAKEN


def test_prefills_go_by_priority_too(requests: RequestQueue) -> None:
    for name, priority in (("a", 0), ("b", 1), ("c", -1)):
        request = PrefillRequest(name, (), (Chunk("c", (1,)),), priority=priority)
        requests.add(PrefillJob(request, lambda _: None, on_computed=lambda *_: None))
    admitted = [job.request.request_id for job in iter(requests.admit_prefill, None) if job is not None]
    assert admitted == ["c", "a", "b"]
