"""What is retrieved of which documents, and the chunks that ingestion makes of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cluster.gate.ingested import Ingested, Ingesting
from cluster.gate.tasks import (
    KINDS,
    DocumentLayout,
    Task,
    TaskDocument,
    TaskKind,
    blocks_of,
    sources_of,
    tasks_of,
)
from cluster.gate.trials import Trial, draw_trial, is_spread
from services.ingestion.config import IngestionConfig
from shared.errors import InvalidRequest
from shared.generation.asked import chain_of
from shared.identity import chunk_identity
from shared.kv_types import KvContext
from shared.prompt import PromptTokenizer
from shared.selection.spans import SpanTokenizer
from tests.unit.quality.worlds import SHAPES, flat


def trials_and_tasks() -> Iterator[tuple[Trial, Task]]:
    for number in range(12):
        trial = draw_trial(0, number, SHAPES)
        for task in tasks_of(0, trial, KINDS):
            yield trial, task


def test_every_kind_places_what_it_says() -> None:
    seen = set()
    for trial, task in trials_and_tasks():
        everything = list(range(len(trial.passages)))
        for question in (trial.questions[i] for i in task.questions):
            naming, stating = question.evidence[0], question.evidence[-1]
            assert is_spread(question) == (task.kind is not TaskKind.SINGLE)
            assert (stating in task.placed) == (task.kind is not TaskKind.UNANSWERABLE)
            document = trial.passages[naming].document
            placed = [trial.passages[i] for i in task.placed]
            named = any(p.names_subject and p.document is document for p in placed)
            unnamed = (TaskKind.UNNAMED, TaskKind.IN_FRONT, TaskKind.UNANSWERABLE)
            assert named == (task.kind not in unnamed)
            assert task.placed
        if task.kind in (TaskKind.DOCUMENT_ORDER, TaskKind.CROSS_DOCUMENT):
            assert list(task.placed) == everything
        if task.kind in (TaskKind.SPREAD, TaskKind.SINGLE):
            assert sorted(task.placed) == everything
        if task.kind is TaskKind.PARTIAL:
            assert set(task.placed) <= set(everything)
        assert set(task.placed) <= set(blocks_of(trial, task.placed))
        assert list(blocks_of(trial, task.placed)) == sorted(blocks_of(trial, task.placed))
        seen.add(task.kind)
    assert seen == set(TaskKind)


def test_every_spread_question_is_asked_once_of_every_kind_and_some_kinds_are_seldom() -> None:
    for number in range(8):
        trial = draw_trial(0, number, SHAPES)
        spread = [i for i, question in enumerate(trial.questions) if is_spread(question)]
        tasks = tasks_of(0, trial, KINDS)
        for kind in TaskKind:
            asked = sorted(i for task in tasks if task.kind is kind for i in task.questions)
            single = [i for i in range(len(trial.questions)) if i not in spread]
            wanted = single if kind is TaskKind.SINGLE else spread
            assert asked == ([] if kind.is_seldom and number % 4 else wanted)


def test_what_is_asked_does_not_depend_on_what_else_is() -> None:
    trial = draw_trial(0, 4, SHAPES)
    alone = tasks_of(0, trial, [TaskKind.UNNAMED])
    assert alone == [task for task in tasks_of(0, trial, KINDS) if task.kind is TaskKind.UNNAMED]
    assert tasks_of(1, trial, [TaskKind.SPREAD]) != tasks_of(0, trial, [TaskKind.SPREAD])


def test_an_untitled_document_names_its_thing_in_its_first_passage_alone() -> None:
    for number in range(12):
        trial = draw_trial(0, number, SHAPES)
        for titled, untitled in zip(
            sources_of(trial, DocumentLayout.TITLED), sources_of(trial, DocumentLayout.UNTITLED), strict=True
        ):
            name = trial.passages[titled.passages[0]].document.name
            assert (untitled.title, untitled.passages) == ("", titled.passages)
            assert untitled.texts[1:] == titled.texts[1:]
            assert titled.texts[0].endswith(untitled.texts[0])
            assert flat(name) not in flat(untitled.texts[0].split("\n")[0])
            assert [flat(name) in flat(text) for text in untitled.texts] == [True] + [False] * (
                len(untitled.texts) - 1
            )


def test_apart_the_naming_passage_is_a_document_of_its_own() -> None:
    trial = draw_trial(0, 2, SHAPES)
    sources = sources_of(trial, DocumentLayout.APART)
    assert sorted(i for source in sources for i in source.passages) == list(range(len(trial.passages)))
    assert [bool(source.title) for source in sources] == [True, False] * (len(sources) // 2)
    assert all(
        trial.passages[i].names_subject == bool(source.title) for source in sources for i in source.passages
    )


# --- what ingestion makes of them --------------------------------------------------------------------------


def ingested(models: list[str], context: KvContext, sources: list[TaskDocument], **settings: int) -> Ingested:
    prompts = PromptTokenizer.of_model(models[1])
    assert prompts is not None
    config = IngestionConfig(models[1], kv_context=context, **settings)
    return Ingesting(config, prompts, 500, "m").ingest(sources)


def test_chunks_are_chained_as_ingestion_chains_them(models: list[str]) -> None:
    trial = draw_trial(0, 2, SHAPES)
    sources = sources_of(trial, DocumentLayout.TITLED)
    prompts = PromptTokenizer.of_model(models[1])
    assert prompts is not None
    made = {context: ingested(models, context, sources) for context in KvContext}
    for found in made.values():
        assert [c.token_ids for c in found.chunks] == [prompts.encode_chunk(text) for text in trial.texts]
    assert all(not chunk.parent_id for chunk in made[KvContext.NONE].chunks)
    for source in sources:
        links = made[KvContext.DOCUMENT].links
        chunks = [made[KvContext.DOCUMENT].chunks[i] for i in source.passages]
        header, *in_front = chain_of(chunks[-1], links) or ()
        assert in_front == chunks[:-1]
        assert source.title in prompts.decode(header.token_ids)
        of = ("quality", "m", prompts.prefix_ids)
        assert header.chunk_id == chunk_identity(*of, header.token_ids)
        assert chunks[0].chunk_id == chunk_identity(*of, chunks[0].token_ids, header.chunk_id)
        for i in source.passages:
            (alone,) = chain_of(made[KvContext.HEADER].chunks[i], made[KvContext.HEADER].links) or ()
            assert source.title in prompts.decode(alone.token_ids)


def test_what_stands_in_front_of_a_chunk_has_the_text_of_its_ids(models: list[str]) -> None:
    prompts = PromptTokenizer.of_model(models[1])
    assert prompts is not None
    spans = SpanTokenizer(prompts, "primary")
    for layout in DocumentLayout:
        for context in KvContext:
            made = ingested(models, context, sources_of(draw_trial(0, 2, SHAPES), layout))
            links = [link for of_chunk in made.contexts for link in of_chunk]
            assert bool(links) == (context is not KvContext.NONE)
            for link in links:
                assert spans.tokenize_chunk(link.text).token_ids[: len(link.token_ids)] == link.token_ids


def test_a_passage_longer_than_a_chunk_is_refused_by_name(models: list[str]) -> None:
    with pytest.raises(InvalidRequest, match="--chunk-tokens"):
        ingested(models, KvContext.DOCUMENT, [TaskDocument("T", (0,), ("word " * 90,))], chunk_tokens=64)
