"""What happens to a running trial while questions are asked: settings change, generators come, go and die."""

from __future__ import annotations

import asyncio
import threading

import pytest

from shared.answer import AnswerEvent, Retrieved
from shared.errors import Unavailable
from shared.generation.asked import SamplingParams
from shared.generation.told import TokenEvent
from tests.k8s.asking import ANSWER, Trickle, answer
from tests.k8s.conftest import RECOVERY_S, Trial, answers
from tests.k8s.release import Values
from tests.k8s.shell import tell, wait_for

TWO_GENERATORS: Values = {"generator": {"replicas": 2}}


@pytest.mark.parametrize("grace", [[], ["--grace-period=1"]], ids=["drained", "killed"])
def test_an_answer_survives_that_the_pod_of_its_generator_goes_or_ends_as_retryable(
    trial: Trial, grace: list[str]
) -> None:
    pods = trial.release.ready_pods("generator", 2)
    begun = threading.Event()

    def note(event: AnswerEvent) -> None:
        if isinstance(event, TokenEvent):
            begun.set()

    def delete() -> None:
        begun.wait(60)
        names = [pod["metadata"]["name"] for pod in pods]
        tell(f"deleting {' and '.join(names)} in mid-answer")
        trial.kubectl("delete", "pod", *names, "--wait=false", *grace)

    deleting = threading.Thread(target=delete)
    deleting.start()
    try:
        long = SamplingParams(max_tokens=600, ignore_eos=True)
        answered = asyncio.run(answer(trial.door.target, sampling=long, on_event=note))
        tell(f"the answer came to its end: {answered.usage}")
    except Unavailable as error:
        tell(f"the answer ended as {type(error).__name__}: {error.detail}")
    deleting.join()
    assert begun.is_set()
    wait_for(lambda: answers(trial), "answer after the pods were deleted", RECOVERY_S)
    replaced = {pod["metadata"]["name"] for pod in trial.release.ready_pods("generator", 2)}
    assert not replaced & {pod["metadata"]["name"] for pod in pods}


def test_no_question_fails_while_settings_of_all_services_change_in_place(trial: Trial) -> None:
    (cluster,) = trial.release.ray_clusters()
    pods = {pod["metadata"]["name"] for pod in trial.release.pods()}
    changed: Values = {
        "config": {
            "gateway": {"k": 2},
            "retrieval": {"default_k": 6},
            "generator": {"engine": {"max_step_tokens": 1024}},
            "ingestion": {"prefill_batch": 4},
        }
    }
    with Trickle(trial.door) as trickle:
        trial.release.upgrade("dev-cpu", TWO_GENERATORS, changed)
        wait_for(lambda: _num_hits(trial) == 2 or None, "gateway with its new settings", RECOVERY_S)
        trial.release.wait_until_ready()
    trickle.check()
    with Trickle(trial.door) as trickle:
        trial.release.rollback()
        wait_for(lambda: _num_hits(trial) != 2 or None, "gateway with its former settings", RECOVERY_S)
        trial.release.wait_until_ready()
    trickle.check()
    assert trial.release.ray_clusters() == [cluster]
    assert {pod["metadata"]["name"] for pod in trial.release.pods()} == pods


def test_no_question_fails_while_a_node_is_drained_of_its_generator(trial: Trial) -> None:
    """`kubectl drain`, as before a node's maintenance: its generator is evicted, and comes back with the
    node."""
    (head,) = trial.release.ready_pods("head", 1)
    generators = trial.release.ready_pods("generator", 2)
    nodes = {pod["spec"]["nodeName"] for pod in generators} - {head["spec"]["nodeName"]}
    if not nodes:
        pytest.skip("generators have no node of their own")
    (node, *_) = nodes
    with Trickle(trial.door) as trickle:
        tell(f"draining {node} of its generator")
        trial.kubectl(
            *("drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=180s"),
            "--pod-selector=app.kubernetes.io/component=generator",
            timeout_s=200,
        )
        try:
            wait_for(lambda: _none_on(trial, node), f"{node} without a generator", RECOVERY_S)
            assert ANSWER in asyncio.run(answer(trial.door.target)).text
        finally:
            trial.kubectl("uncordon", node)
        trial.release.ready_pods("generator", 2)
        trial.release.wait_until_ready()
    trickle.check()


def test_a_change_of_the_pods_is_not_offered_with_the_embedded_milvus(trial: Trial) -> None:
    (cluster,) = trial.release.ray_clusters()
    service = trial.kubectl.all("rayservices")[0]
    assert service["spec"]["upgradeStrategy"]["type"] == "None"
    trial.release.upgrade("dev-cpu", TWO_GENERATORS, {"generator": {"annotations": {"changed": "yes"}}})
    assert ANSWER in asyncio.run(answer(trial.door.target)).text
    assert trial.release.ray_clusters() == [cluster]
    assert all(
        "changed" not in pod["metadata"].get("annotations", {}) for pod in trial.release.pods("generator")
    )


def test_no_question_fails_while_generators_come_and_go(trial: Trial) -> None:
    for replicas in (1, 2, 1):
        with Trickle(trial.door) as trickle:
            trial.release.upgrade("dev-cpu", {"generator": {"replicas": replicas}})
            trial.release.ready_pods("generator", replicas)
            trial.release.wait_until_ready()
            assert ANSWER in asyncio.run(answer(trial.door.target)).text
        trickle.check()


def test_generators_come_and_go_by_how_late_answers_begin_and_no_question_fails(trial: Trial) -> None:
    scaled: Values = {
        "generator": {"replicas": 2},
        "config": {
            "generator": {
                "scaling": {"latency_ms": 0.1},
                "deployment": {"max_replicas": 2, "upscale_delay_s": 0, "downscale_delay_s": 5},
            }
        },
    }
    with Trickle(trial.door) as trickle:
        trial.release.upgrade("dev-cpu", scaled)
        trial.release.ready_pods("generator", 2)
        trial.release.wait_until_ready()
        wait_for(lambda: _num_generators(trial) == 2 or None, "second generator", RECOVERY_S)
    trickle.check()
    wait_for(lambda: _num_generators(trial) == 1 or None, "end of the second generator", RECOVERY_S)
    assert len(trial.release.pods("generator")) == 2, "pods stay"
    assert ANSWER in asyncio.run(answer(trial.door.target)).text


def _num_generators(trial: Trial) -> int:
    """Pods in which a replica runs."""
    names = [pod["metadata"]["name"] for pod in trial.release.pods("generator")]
    look = ("sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' '\\n' | grep 'ServeReplica:[g]enerator' || true")
    return sum(bool(trial.kubectl("exec", name, "--", *look).strip()) for name in names)


def _num_hits(trial: Trial) -> int:
    """Passages that a question gets which names no number."""
    hits: list[AnswerEvent] = []
    asyncio.run(answer(trial.door.target, k=0, on_event=hits.append, sampling=SamplingParams(max_tokens=1)))
    return len(hits[0].hits) if isinstance(hits[0], Retrieved) else 0


def _none_on(trial: Trial, node: str) -> bool | None:
    left = [pod for pod in trial.release.pods("generator") if pod["spec"].get("nodeName") == node]
    return None if left else True
