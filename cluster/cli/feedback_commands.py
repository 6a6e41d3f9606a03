"""`kvquilt feedback …`: ratings of answers in, and a file of questions out."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path

import click

from cluster.cli.output import output_option
from cluster.cli.session import LONG_DEADLINE_MS, Session
from shared.errors import NotFound
from shared.feedback import Feedback, RatedAnswer, Rating

_BESIDE = (
    "request_id",
    "rating",
    "comment",
    "collection",
    "answer",
    "reuse",
    "ratio",
    "chunk_ids",
    "document_ids",
)


@click.group()
def feedback() -> None:
    """What users say of answers."""


@feedback.command()
@click.argument("request_id")
@click.argument("rating", type=click.Choice([rating.value for rating in Rating]), default=Rating.NONE.value)
@click.option("--comment", default="", help="In words.")
@click.option(
    "--question",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Which one, where several were asked over one context.",
)
@output_option()
@click.pass_obj
def rate(session: Session, request_id: str, rating: str, comment: str, question: int) -> None:
    """Rate an answer that was given lately, by its request id (`kvquilt ask --json` tells it).

    It is kept with the mode and the chunks that the answer was given by.

    \b
    kvquilt feedback rate 5f0c… good
    kvquilt feedback rate 5f0c… bad --comment "That was last year's price."
    """
    from shared.clients.doors import rag_client

    given = Feedback(request_id, Rating(rating), comment, question - 1)
    session.ask(rag_client, lambda client: client.rate(session.context(), given))
    session.tell({"request_id": request_id, "rating": rating, "question": question}, "kept")


@feedback.command()
@click.option(
    "--collection", "-c", default="", help="Only about this collection. Default: all of the tenant's."
)
@click.option(
    "--rating",
    type=click.Choice([rating.value for rating in Rating]),
    help="Only these. Default: all.",
)
@click.option(
    "--to",
    "-o",
    "file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Where the questions go. Default: standard output, which is JSON either way.",
)
@output_option()
@click.pass_obj
def export(session: Session, collection: str, rating: str | None, file: Path | None) -> None:
    """Write what was rated as a file of questions for `kvquilt gate --questions`.

    An answer that was rated good is the evidence that later answers are judged by; of the others only the
    question is used, and what was said of them stands beside it.

    \b
    kvquilt feedback export -c handbook -o questions.jsonl
    """
    from shared.clients.doors import rag_client

    async def go() -> list[RatedAnswer]:
        async with session.connect(rag_client) as client:
            return [one async for one in client.ratings(session.context(LONG_DEADLINE_MS), collection)]

    rated = [one for one in asyncio.run(go()) if rating in (None, one.rating.value)]
    if not rated:
        raise NotFound(
            "feedback: nothing was rated; rate answers by `kvquilt feedback rate REQUEST_ID good|bad`"
        )
    lines = "".join(f"{line}\n" for line in questions_of(rated))
    if file is None:
        click.echo(lines, nl=False)
    else:
        file.write_text(lines, encoding="utf-8")
        session.tell({"num_questions": len(rated), "file": file})
        session.err.print(f"{len(rated)} questions written to {file}", soft_wrap=True)


def questions_of(rated: Iterable[RatedAnswer]) -> Iterator[str]:
    """Lines of a file of questions."""
    for one in rated:
        line: dict[str, object] = {"question": one.asked}
        if one.rating is Rating.GOOD and one.reuse and one.answer.strip():
            line["evidence"] = [one.answer]
        elif one.rating is Rating.GOOD and not one.reuse:
            line["unanswerable"] = True
        values = asdict(one)
        yield json.dumps(line | {"feedback": {name: values[name] for name in _BESIDE}}, ensure_ascii=False)
