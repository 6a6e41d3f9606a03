"""Asks a running system for the documents of a collection, to train on them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from cluster.cli.session import LONG_DEADLINE_MS, Session
from cluster.training.collection import ModelWriter, QuestionWriter, examples_of, subjects_of
from cluster.training.examples import Example, read_examples, write_examples
from cluster.training.run import Progress
from cluster.training.task import TrainedModel
from shared.clients.doors import store_client
from shared.errors import InvalidRequest, NotFound
from shared.kv_types import Manifest


@contextmanager
def model_writer(served: TrainedModel) -> Iterator[QuestionWriter]:
    prompts = served.prompts()
    writer = ModelWriter(served.load(prompts), prompts)
    try:
        yield writer
    finally:
        writer.close()


def collection_examples(
    session: Session,
    options: dict[str, Any],
    served: TrainedModel,
    on_progress: Progress,
    writer_of: Callable[[TrainedModel], AbstractContextManager[QuestionWriter]] = model_writer,
) -> list[Example]:
    """Made once: what is in ``OUT/collection.jsonl`` stays, so that the same command goes on. ``writer_of``:
    who writes the questions.

    Raises:
        NotFound: nothing runs, or the collection has no documents.
        InvalidRequest: no questions can be generated; or what is there was made of another collection.
    """
    path, name = options["out"] / "collection.jsonl", options["collection"]
    if path.is_file():
        _check_same(path, name)
    else:
        subjects = subjects_of(
            asyncio.run(_stored(session, name)),
            served.num_chunks,
            served.num_questions,
            options["contexts"],
            options["seed"],
        )
        with writer_of(served) as writer:
            write_examples(path, examples_of(subjects, writer, name, on_progress), collection=name)
    return read_examples(path)


def _check_same(path: Path, collection: str) -> None:
    with path.open(encoding="utf-8") as file:
        try:
            made_of = json.loads(file.readline())["collection"]
        except (ValueError, KeyError, TypeError):
            return  # written by hand: read_examples says what is wrong with it
    if made_of != collection:
        raise InvalidRequest(
            f"--collection: {path} was made of {made_of!r}, not of {collection!r}; name another --out, or "
            "remove the file"
        )


async def _stored(session: Session, collection: str) -> list[Manifest]:
    async with session.connect(store_client) as store:
        found = [one async for one in store.list_manifests(session.context(LONG_DEADLINE_MS), collection)]
    if not found:
        raise NotFound(
            f"--collection: {collection!r} has no documents; run `kvquilt ingest DIRECTORY --collection "
            f"{collection}`, or name another one"
        )
    return found
