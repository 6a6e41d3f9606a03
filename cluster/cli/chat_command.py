"""`kvquilt chat`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import click

from cluster.cli.output import output_option
from cluster.cli.reuse_options import ADAPTER_OPTION, OneOf
from cluster.cli.session import Session
from shared.answer import Refusal
from shared.generation.orders import MODES_BY_NAME, AskedMode

if TYPE_CHECKING:
    from shared.answer import AnswerEvent, Inquiry


@click.command()
@click.option("--collection", "-c", required=True, help="The documents to read.")
@click.option("--reuse", type=OneOf(MODES_BY_NAME), help="As of `kvquilt ask`; /mode changes it.")
@click.option("--recompute-ratio", type=float, metavar="0..1", help="The part of the tokens. Default 0.2.")
@ADAPTER_OPTION
@click.option("-k", type=click.IntRange(min=1), help="Chunks in the context of each answer.")
@click.option("--temperature", type=float, default=0.0, help="0: always the most likely token.")
@click.option("--seed", type=click.IntRange(min=0), default=0, help="Equal seeds sample equally.")
@click.option("--max-tokens", type=click.IntRange(min=1), help="Most tokens per answer.")
@click.option(
    "--refusal",
    type=OneOf(Refusal),
    help="Answer nothing that the documents hold too little evidence for. Default: as configured (off).",
)
@output_option(help="For people (text), or a line of JSON for each answer and each command (json).")
@click.pass_obj
def chat(
    session: Session,
    collection: str,
    reuse: AskedMode | None,
    recompute_ratio: float | None,
    adapter: str,
    k: int | None,
    temperature: float,
    seed: int,
    max_tokens: int | None,
    refusal: Refusal | None,
) -> None:
    """Talk with the documents of a collection: questions and answers in turns, with the sources after each.

    The model is told what was said earlier; documents are searched by the new question alone, so say what it
    is about. Where the input is no terminal, a line is a question. Exit code: that of the first question that
    failed.

    \b
    /mode MODE [RATIO]   how KV is reused from now on
    /sources             the passages that the last answer was read from
    /clear, /help, /quit
    Ctrl-C ends an answer, Ctrl-D the conversation.

    \b
    kvquilt chat -c handbook
    kvquilt chat -c handbook --output json < questions.txt
    """
    from cluster.cli.chatting import ChatLoop, Dialogue, lines_of
    from shared.answer import Inquiry, RetrievalOptions
    from shared.clients.doors import rag_client
    from shared.generation.asked import SamplingParams
    from shared.generation.modes import Recompute
    from shared.generation.orders import Reuse

    common = Inquiry(
        collection,
        (),
        Reuse(reuse, Recompute(recompute_ratio), adapter=adapter),
        SamplingParams(max_tokens=max_tokens, temperature=temperature, seed=seed),
        RetrievalOptions(k or 0),
        refusal=refusal,
    )
    with asyncio.Runner() as runner:
        doors = AsyncExitStack()
        client = runner.run(doors.enter_async_context(session.connect(rag_client)))

        def ask(inquiry: Inquiry) -> AsyncGenerator[AnswerEvent, None]:
            return client.answer(session.context(), inquiry)

        if sys.stdin.isatty():
            session.err.print(f"{collection}: /help says what there is; Ctrl-D ends", style="dim")
        try:
            code = ChatLoop(session, runner, ask, Dialogue(common)).follow(lines_of(sys.stdin))
        finally:
            runner.run(doors.aclose())
    sys.exit(code)
