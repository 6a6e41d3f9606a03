"""Commands about documents: `kvquilt ingest`, `ask`, `documents`, `delete`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from cluster.session import Session, run, run_resumable
from shared.errors import InvalidRequest

INGEST_DEADLINE_MS = 3_600_000
REUSE_MODES = ("full", "reordered", "composite")
SEARCH_MODES = ("auto", "dense", "bm25", "hybrid")


@click.command()
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path))
@click.option("--collection", "-c", required=True, help="Where the documents go; created when new.")
@click.option(
    "--re-encode",
    is_flag=True,
    help="Instead of PATHS: make the collection anew for the model that is being served, from its stored text.",
)
@click.pass_obj
def ingest(session: Session, paths: tuple[Path, ...], collection: str, re_encode: bool) -> None:
    """Documents in: folders (searched through) and files, .txt .md .html .pdf.

    Unchanged documents cost a lookup, changed ones are replaced, an interrupted run goes on when the same command is given again.
    Exit code 1 when a document failed; the others are in.

    \b
    kvquilt ingest ./docs --collection handbook
    kvquilt ingest lease.pdf notes.md -c handbook
    kvquilt ingest -c handbook --re-encode             after the model was changed
    """
    from cluster.ingesting import follow_all, ingest_files
    from cluster.remote import ingest_client
    from cluster.sources import find_sources

    if bool(paths) == re_encode:
        raise InvalidRequest("name the PATHS to ingest, or --re-encode, not both")
    sources = find_sources(paths) if paths else []

    async def go() -> int:
        async with ingest_client(session.target) as client:
            ctx = session.context(INGEST_DEADLINE_MS)
            if re_encode:
                summary = await follow_all(session.err, client.re_encode(ctx, collection))
            else:
                summary = await ingest_files(
                    session.err,
                    lambda documents: client.upsert(session.context(INGEST_DEADLINE_MS), collection, documents),
                    sources,
                )
        summary.print(session.out)
        return 1 if summary.failed else 0

    run_resumable(session, go())


@click.command()
@click.argument("question", required=False)
@click.option("--question", "-q", "questions", multiple=True, help="Several questions over one context, decoded together.")
@click.option("--collection", "-c", required=True, help="The documents to read.")
@click.option(
    "--reuse",
    type=click.Choice(REUSE_MODES),
    help="Stored KV at its place in the request (reordered), right after the prefix (composite), or none (full).",
)
@click.option("--stream/--no-stream", default=True, help="Write the answer as it comes.")
@click.option("-k", type=click.IntRange(min=1), default=None, help="Chunks in the context.")
@click.option("--search", type=click.Choice(SEARCH_MODES), default="auto", help="How to find them.")
@click.option("--n", type=click.IntRange(min=1), default=1, help="Independent samples per question; wants a temperature.")
@click.option("--temperature", type=float, default=0.0, help="0: always the most likely token.")
@click.option("--seed", type=click.IntRange(min=0), default=0, help="Equal seeds sample equally.")
@click.option("--max-tokens", type=click.IntRange(min=1), default=None, help="Most tokens per answer.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")
@click.pass_obj
def ask(
    session: Session,
    question: str | None,
    questions: tuple[str, ...],
    collection: str,
    reuse: Any,
    stream: bool,
    k: int | None,
    search: str,
    n: int,
    temperature: float,
    seed: int,
    max_tokens: int | None,
    as_json: bool,
) -> None:
    """Ask the documents of a collection.

    \b
    kvquilt ask "Who signed the lease?" -c handbook
    kvquilt ask "Who signed the lease?" -c handbook --reuse full       the same without reuse, for comparison
    kvquilt ask -q "Who signed it?" -q "When?" -q "Where?" -c handbook
    """
    from cluster.asking import collect, show, show_json
    from cluster.remote import rag_client
    from shared.answer import RetrievalOptions
    from shared.clients.generation import Sampling
    from shared.search import SearchMode

    asked = ([question] if question is not None else []) + list(questions)
    if not asked:
        raise InvalidRequest("give a QUESTION, or several by -q")
    sampling = Sampling(max_tokens=max_tokens or 0, temperature=temperature, seed=seed, n=n)
    retrieval = RetrievalOptions(k or 0, SearchMode(search))

    async def go() -> None:
        async with rag_client(session.target) as client:
            if len(asked) == 1:
                events = client.answer(session.context(), collection, asked[0], reuse, sampling, retrieval)
            else:
                events = client.answer_many(session.context(), collection, asked, reuse, sampling, retrieval)
            if as_json:
                click.echo(show_json(await collect(events), asked))
            else:
                await show(session.out, events, asked, len(asked) * n, stream)

    run(go())


@click.command()
@click.option("--collection", "-c", default="", help="Only this collection.")
@click.pass_obj
def documents(session: Session, collection: str) -> None:
    """What has been ingested."""
    from cluster.remote import ingest_client

    async def go() -> None:
        table = Table("collection", "document", "title", "chunks", "", box=None, pad_edge=False)
        async with ingest_client(session.target) as client:
            async for d in client.list(session.context(), collection):
                table.add_row(
                    d.collection, d.document_id, d.title, str(d.num_chunks), "" if d.current else "made for another model"
                )
        session.out.print(table if table.row_count else "no documents")

    run(go())


@click.command()
@click.argument("document_ids", nargs=-1)
@click.option("--collection", "-c", required=True)
@click.option("--all", "everything", is_flag=True, help="The whole collection.")
@click.pass_obj
def delete(session: Session, document_ids: tuple[str, ...], collection: str, everything: bool) -> None:
    """Remove documents and every chunk that no other document needs.

    \b
    kvquilt delete lease.pdf -c handbook
    kvquilt delete --all -c handbook
    """
    from cluster.remote import ingest_client

    if bool(document_ids) == everything:
        raise InvalidRequest("name DOCUMENT_IDS, or --all, not both")

    async def go() -> int:
        async with ingest_client(session.target) as client:
            deleted = await client.delete(session.context(), collection, document_ids, everything=everything)
        session.out.print(f"{deleted.num_documents} documents and {deleted.num_chunks} chunks removed")
        for document_id in deleted.not_found:
            session.err.print(f"not found: {document_id}", style="red")
        return 3 if deleted.not_found else 0

    sys.exit(run(go()))
