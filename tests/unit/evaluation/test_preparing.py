"""Which chunks of a case's documents are asked over, and with which adapter."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.evaluation.adapters import adapter_places
from cluster.evaluation.arms import FULL, FULL_RETRIEVED, EvalArm, arms_of
from cluster.evaluation.bench import ON_GPU, gpu_size
from cluster.evaluation.cases import EvalCase, EvalDocument, EvalTask
from cluster.evaluation.metrics import Metric
from cluster.evaluation.preparing import CasePreparer, PreparedCase, prompts_of
from cluster.gate.answering import Models
from cluster.paths import DEMO_MODEL
from services.ingestion.config import IngestionConfig
from shared.engine_config import GIB
from shared.errors import InvalidRequest
from shared.generation.modes import ReuseMode
from shared.kv_types import KvContext

MODELS = Models(str(DEMO_MODEL), "", IngestionConfig(str(DEMO_MODEL), chunk_tokens=48))
CONTEXTS = (KvContext.DOCUMENT, KvContext.NONE)
REORDERED = EvalArm(ReuseMode.REORDERED, KvContext.DOCUMENT)


def document(name: str, value: int) -> EvalDocument:
    lines = [f"The {name} stands at place {i} of the river, and nobody has counted it." for i in range(6)]
    return EvalDocument("\n\n".join([*lines, f"The keeper of the {name} is number {value}."]), name)


CASE = EvalCase(
    "one",
    "What number is the keeper of the lighthouse?",
    (("7041",),),
    tuple(document(name, value) for name, value in (("mill", 3), ("lighthouse", 7041), ("bridge", 5))),
    (1,),
)
TASK = EvalTask("t", Metric.SUBSPAN, 8, (CASE,))


def prepared(retrieve: int) -> PreparedCase:
    preparer = CasePreparer(MODELS, prompts_of(MODELS), CONTEXTS, 1500, 1536, "model", retrieve)
    return preparer.prepare(TASK, CASE)


def test_all_chunks_are_asked_over_unless_some_are_retrieved() -> None:
    one = prepared(0)
    assert one.retrieved == one.whole == one.cut.placed
    assert one.placed(REORDERED) == one.placed(FULL)
    assert one.num_tokens(FULL) == one.cut.num_tokens
    assert one.placed(EvalArm(None)) == ()


def test_retrieved_chunks_are_in_any_order_and_full_reads_their_whole_documents() -> None:
    one = prepared(3)
    assert len(one.retrieved) == len(set(one.retrieved)) == 3
    assert any("7041" in one.cut.texts[i] for i in one.retrieved)
    found_in = {one.cut.document_of[i] for i in one.retrieved}
    assert one.whole == tuple(i for i in one.cut.placed if one.cut.document_of[i] in found_in)
    assert set(one.retrieved) < set(one.whole)
    assert one.placed(FULL) == one.whole
    assert one.placed(FULL_RETRIEVED) == one.placed(REORDERED) == one.retrieved
    assert one.num_tokens(FULL_RETRIEVED) < one.num_tokens(FULL)
    assert one.retrieved == prepared(3).retrieved


def test_the_value_is_looked_for_where_it_is_asked() -> None:
    """Numbers of tokens count over the retrieved chunks, in their order."""
    one = prepared(3)
    lens = [len(one.ingested_as(REORDERED).chunks[i].token_ids) for i in one.retrieved]
    at = next(n for n, i in enumerate(one.retrieved) if "7041" in one.cut.texts[i])
    assert one.value_tokens
    assert all(sum(lens[:at]) <= token < sum(lens[: at + 1]) for token in one.value_tokens)


def test_each_mode_is_asked_without_an_adapter_and_with_each() -> None:
    arms = arms_of((ReuseMode.REORDERED,), CONTEXTS, (0.2,), ("a", "b"), retrieved=True)
    assert [arm.label for arm in arms] == [
        "closed book",
        "full",
        "full retrieved",
        "reordered document",
        "reordered document +a",
        "reordered document +b",
        "reordered none",
        "reordered none +a",
        "reordered none +b",
    ]


def test_an_adapter_is_named_by_what_is_served_or_by_its_folder(tmp_path: Path) -> None:
    (tmp_path / "handbook").mkdir()
    served = {"support": str(tmp_path / "handbook")}
    assert adapter_places(["support"], served) == served
    assert adapter_places([str(tmp_path / "handbook")], {}) == {"handbook": str(tmp_path / "handbook")}
    with pytest.raises(InvalidRequest, match=r"--adapter: 'legal' is none of .*\(support\), nor a directory"):
        adapter_places(["legal"], served)
    (tmp_path / "more" / "handbook").mkdir(parents=True)
    with pytest.raises(InvalidRequest, match="--adapter: two are called 'handbook'"):
        adapter_places([str(tmp_path / "handbook"), str(tmp_path / "more" / "handbook")], {})


def test_on_a_gpu_stored_kv_takes_a_quarter_of_what_is_free_at_most() -> None:
    assert gpu_size(8 * GIB).resident_bytes == 2 * GIB
    assert gpu_size(70 * GIB) == ON_GPU
