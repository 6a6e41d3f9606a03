"""`kvquilt mcp`."""

from __future__ import annotations

import asyncio

import click

from cluster.cli.output import output_option
from cluster.cli.session import Session


@click.command()
@output_option(help="Of errors alone: what is answered is always JSON.")
@click.pass_obj
def mcp(session: Session) -> None:
    """Serve `search`, `ask` and `list_documents` to one program by the Model Context Protocol, over standard
    input and output. The gateway serves the same over HTTP, at /mcp.

    \b
    kvquilt mcp
    kvquilt --target kvquilt.example:9000 --key-file key mcp
    """
    from shared.clients.doors import ingest_client, rag_client, retrieval_client
    from shared.mcp_server.server import Library, mcp_server

    async def serve() -> None:
        async with (
            session.connect(rag_client) as rag,
            session.connect(retrieval_client) as retrieval,
            session.connect(ingest_client) as ingest,
        ):
            library = Library(lambda _: session.context(), rag.answer, retrieval, ingest)
            await mcp_server(library).run_stdio_async()

    asyncio.run(serve())
