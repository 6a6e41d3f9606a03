"""Own questions asked by the engine, over documents as they would be ingested now."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from cluster.gate.answering import Models
from cluster.gate.evaluated import Evaluated
from cluster.gate.ingested import Ingesting
from cluster.gate.modes import FULL, REORDERED, WHOLE_BLOCKS, Comparison, Over
from cluster.gate.own import OwnBench, OwnEvaluation
from cluster.gate.questions import OwnQuestion
from cluster.gate.retrieved import OwnSubject, RetrievedQuestions
from cluster.gate.trials import draw_trial, is_spread
from cluster.paths import DEMO_MODEL
from services.ingestion.chunker import TextChunk
from services.ingestion.config import IngestionConfig
from shared.engine.modes.token_selection import num_selected
from shared.errors import InvalidRequest
from shared.generation.modes import ReuseMode
from shared.kv_types import KvContext, Manifest
from shared.prompt import PromptTokenizer
from tests.unit.quality.worlds import SHAPES

MODEL = str(DEMO_MODEL)
MODELS = Models(MODEL, "", IngestionConfig(MODEL))
PLAN = Comparison(controls=(), clips=(), ratios=())
QUIET = Console(quiet=True)


def stored(prompts: PromptTokenizer, title: str, texts: list[str]) -> Manifest:
    """A document that was ingested alone, chunk by chunk."""
    chunks, start = [], 0
    for text in texts:
        chunks.append(TextChunk(text, prompts.encode_chunk(text), start, start + len(text), ""))
        start += len(text) + 2
    ingesting = Ingesting(IngestionConfig(MODEL, kv_context=KvContext.NONE), prompts, 10**6, "f")
    return replace(ingesting.named(title, chunks), document_id=title)


@pytest.fixture(scope="module")
def retrieved() -> RetrievedQuestions:
    """Questions about passages of several documents, over all of them; one without an answer, one
    unjudged."""
    prompts = PromptTokenizer.of_model(MODEL)
    assert prompts is not None
    subjects: list[OwnSubject] = []
    documents: dict[str, Manifest] = {}
    for number in range(3):
        trial = draw_trial(3, number, SHAPES)
        hits = []
        for passage in trial.passages:
            title = f"{number} {passage.document.title}"
            texts = [p.text for p in trial.passages if p.document is passage.document]
            documents[title] = stored(prompts, passage.document.title, texts)
            hits.append((title, texts.index(passage.text)))
        for question in trial.questions:
            if is_spread(question):
                own = OwnQuestion(question.text, (question.value,))
                subjects.append(OwnSubject(len(subjects), own, tuple(hits[::-1]), trial.texts[::-1]))
    for beside in (OwnQuestion("Who?"), OwnQuestion("What is lost?", unanswerable=True)):
        subjects.append(OwnSubject(len(subjects), beside, subjects[0].hits, subjects[0].texts))
    return RetrievedQuestions(tuple(subjects), documents)


def evaluate(
    retrieved: RetrievedQuestions, kept: Path | None = None, tolerance: float | None = None
) -> Evaluated:
    return OwnEvaluation(MODELS, PLAN, retrieved, processes=1, tolerance=tolerance).run(kept, QUIET)


def test_questions_are_judged_by_their_answers_and_the_verdict_says_that_they_were_own(
    retrieved: RetrievedQuestions, tmp_path: Path
) -> None:
    kept = tmp_path / "answers.jsonl"
    evaluated = evaluate(retrieved, kept)
    kinds = {finding.kind: finding for finding in evaluated.found}
    assert set(kinds) == {"own", "own_unanswerable", "own_unjudged"}
    assert (kinds["own"].counts, kinds["own_unjudged"].counts) == (True, False)
    assert kinds["own"].num_questions == len(retrieved.subjects) - 2
    for finding in kinds.values():
        of_reordered, of_reference = finding.row(REORDERED).kl, finding.row(WHOLE_BLOCKS).kl
        assert of_reordered is not None
        assert of_reference is not None
        assert of_reordered.value > of_reference.value == 0
    verdict = evaluated.verdict(0.9, 0.5)
    assert (verdict.mode, verdict.questions) == ("reordered", "own")
    asked = kept.read_bytes()
    assert evaluate(retrieved, kept).verdict(0.9, 0.5) == verdict
    assert kept.read_bytes() == asked
    few = evaluate(replace(retrieved, subjects=retrieved.subjects[:9]), tolerance=0.9)
    assert len(few.order) < 9 or few.decide(0.9).decided


def test_a_ratio_is_what_a_request_would_have(retrieved: RetrievedQuestions) -> None:
    """Else the verdict would name another one than was judged."""
    recomputing = (ReuseMode.EPIC, ReuseMode.CACHEBLEND)
    plan = Comparison(controls=recomputing, clips=(), ratios=(0.2,), as_served=True)
    few = replace(retrieved, subjects=retrieved.subjects[:2])
    served, matched = (
        {
            (answer.mode, answer.context): answer
            for answer in OwnEvaluation(MODELS, one, few, processes=1).run(None, QUIET).answers
        }
        for one in (plan, replace(plan, as_served=False))
    )
    for subject in few.subjects:
        epic, blend = (served[f"{mode}_20", subject.number] for mode in recomputing)
        assert epic.selected == num_selected(0.2, epic.num_tokens)
        assert blend.selected < matched["cacheblend_20", subject.number].selected


def test_without_answers_or_evidence_only_the_divergence_is_told(retrieved: RetrievedQuestions) -> None:
    unjudged = tuple(one for one in retrieved.subjects if one.question.kind == "own_unjudged")
    evaluated = evaluate(replace(retrieved, subjects=unjudged))
    assert evaluated.found[0].row(FULL).kl is not None
    with pytest.raises(InvalidRequest, match="no question carries answers or evidence"):
        evaluated.verdict(0.9, 0.5)


def test_the_reference_reads_whole_blocks_and_chunks_stand_behind_their_documents(
    retrieved: RetrievedQuestions,
) -> None:
    bench = OwnBench(MODELS, PLAN, retrieved.documents)
    subject = retrieved.subjects[0]
    one = replace(subject, hits=subject.hits[:1], texts=subject.texts[:1])
    asked = bench.asked(one)
    document = retrieved.documents[one.hits[0][0]]
    assert len(asked.chunks(Over.PLACED)) == 1
    blocks = asked.chunks(Over.BLOCKS)
    assert [chunk.token_ids for chunk in blocks] == [chunk.token_ids for chunk in document.chunks]
    assert all(chunk.parent_id for chunk in blocks)
    assert {chunk.parent_id for chunk in blocks} <= {c.chunk_id for c in (*asked.ingested.links, *blocks)}
    bench.close()
