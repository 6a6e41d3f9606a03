"""The command line: `kvquilt up`, `ingest`, `ask`, `documents`, `delete`, `status`, `down`, `demo`.

Commands only translate: options into values, values into what ``console``, ``asking`` and ``ingesting`` print. Errors are one line
on standard error and an exit code: 2 wrong input, 3 not found, 4 try again, 1 anything else, 130 interrupted.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.table import Table

from shared.errors import InvalidRequest, KvquiltError, NotFound
from shared.request import RequestContext

ResultT = TypeVar("ResultT")
INGEST_DEADLINE_MS = 3_600_000
REUSE_MODES = ("full", "reordered", "composite")
SEARCH_MODES = ("auto", "dense", "bm25", "hybrid")


@dataclass(frozen=True, slots=True)
class Session:
    """What the options before the command say."""

    data_dir: Path
    data_dir_chosen: bool
    target_option: str
    tenant: str
    out: Console
    err: Console

    @property
    def target(self) -> str:
        """``--target``, else the stack that runs on the data directory.

        Raises:
            NotFound: there is none.
        """
        from cluster.state import RunDirectory

        if self.target_option:
            return self.target_option
        state = RunDirectory(self.data_dir).running()
        if state is None:
            raise NotFound(
                f"kvquilt is not running on {self.data_dir}; start it with `kvquilt up`, or name a server by --target HOST:PORT"
            )
        return state.target

    def context(self, deadline_ms: int = 120_000) -> RequestContext:
        return RequestContext.create(tenant=self.tenant, deadline_ms=deadline_ms)


class Commands(click.Group):
    """Turns our errors into one line and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KvquiltError as error:
            click.echo(f"kvquilt: {error.detail}", err=True)
            ctx.exit(exit_code(error))


def exit_code(error: KvquiltError) -> int:
    if error.retryable:
        return 4
    if isinstance(error, NotFound):
        return 3
    return 2 if isinstance(error, InvalidRequest) else 1


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path),
    help="Where everything is kept. Default: KVQUILT_DATA_DIR, else ~/.local/share/kvquilt.",
)
@click.option("--target", default="", metavar="HOST:PORT", help="A running system, instead of the local one.")
@click.option("--tenant", default="", help="Whose documents; tenants never see each other's.")
@click.version_option(package_name="kvquilt")
@click.pass_context
def main(ctx: click.Context, data_dir: Path | None, target: str, tenant: str) -> None:
    """Answers questions from your documents without reading them again: their KV is computed once, stored, and reused in any order.

    \b
    kvquilt up                                         start the services on this machine
    kvquilt ingest ./docs --collection handbook        documents in; run it again at any time
    kvquilt ask "Who signed the lease?" -c handbook    an answer with its sources
    kvquilt down                                       stop them
    """
    from cluster.paths import default_data_dir

    where = data_dir.expanduser().absolute() if data_dir else default_data_dir(os.environ)
    ctx.obj = Session(where, data_dir is not None, target, tenant, Console(highlight=False), Console(stderr=True, highlight=False))


@main.command()
@click.option("--model", help="A model directory or a Hugging Face id. Default: the demo model that comes along.")
@click.option(
    "--config",
    "config_path",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="A quilt.yaml; see docs/configuration.md.",
)
@click.option("--grpc-port", type=int, help="Default 9000.")
@click.option("--http-port", type=int, help="Default 8000; health checks only.")
@click.pass_obj
def up(session: Session, model: str | None, config_path: Path | None, grpc_port: int | None, http_port: int | None) -> None:
    """Start the services on this machine.

    \b
    kvquilt up
    kvquilt up --model Qwen/Qwen2.5-0.5B-Instruct
    kvquilt --data-dir /srv/kv up --config quilt.yaml
    """
    from cluster import launcher
    from cluster.config import load_quilt
    from cluster.console import start_progress
    from shared.config import read_yaml

    values = read_yaml(config_path.read_text(encoding="utf-8"), str(config_path)) if config_path else {}
    given = {"model": model, "grpc_port": grpc_port, "http_port": http_port}
    values |= {key: value for key, value in given.items() if value is not None}
    environ = dict(os.environ)
    if session.data_dir_chosen:  # an option is stronger than the environment, which is stronger than the file
        values["data_dir"] = str(session.data_dir)
        environ.pop("KVQUILT_DATA_DIR", None)
    config = load_quilt(values, environ)
    with start_progress(session.out) as on_progress:
        state = launcher.start(config, on_progress)
    session.out.print(f"kvquilt is ready at {state.target}; data in {config.data_dir}; log in {state.log_path}", soft_wrap=True)
    session.out.print("next: kvquilt ingest ./docs --collection handbook", style="dim")


@main.command()
@click.pass_obj
def down(session: Session) -> None:
    """Stop the services on this machine. What was ingested stays."""
    from cluster import launcher

    with session.out.status("stopping"):
        stopped = launcher.stop(session.data_dir)
    session.out.print("stopped" if stopped else f"nothing is running on {session.data_dir}")


@main.command()
@click.pass_obj
def status(session: Session) -> None:
    """The state of every service. Exit code 1 when one is not ready."""
    from cluster.console import status_table
    from cluster.remote import rag_client

    async def ask() -> bool:
        async with rag_client(session.target) as client:
            services = await client.status(session.context(15_000))
        session.out.print(f"kvquilt at {session.target}")
        session.out.print(status_table(services))
        return all(service.ready for service in services)

    if not run(ask()):
        sys.exit(1)


@main.command()
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

    try:
        code = run(go())
    except KeyboardInterrupt:
        session.err.print("interrupted; the same command goes on where this one stopped")
        sys.exit(130)
    sys.exit(code)


@main.command()
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


@main.command()
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


@main.command()
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


@main.command()
@click.option(
    "--json", "json_path", type=click.Path(path_type=Path), default=Path("build/demo.json"), help="Where the report goes."
)
@click.option("--keep", is_flag=True, help="Leave the services running afterwards.")
@click.pass_obj
def demo(session: Session, json_path: Path, keep: bool) -> None:
    """Start everything in build/demo, ingest the shipped documents, ask them, show what reuse bought, take everything down."""
    from cluster.demo import run_demo

    run_demo(session.out, json_path, keep)


def run(work: Coroutine[Any, Any, ResultT]) -> ResultT:
    return asyncio.run(work)


if __name__ == "__main__":
    main()
