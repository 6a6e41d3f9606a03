"""`kvquilt trace`, and the traces that other commands ask for."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cluster.cli.output import output_option
from cluster.cli.session import Session
from shared.errors import NotFound

if TYPE_CHECKING:
    from shared.tracing.kept import KeptSpan

_MOST_WAIT_S, _QUIET_S, _POLL_S = 5.0, 0.6, 0.1
DIRECTORY = click.Path(path_type=Path, file_okay=False, exists=True)


@click.command()
@click.argument("wanted", metavar="[REQUEST_ID | TRACE_ID]", required=False)
@click.option("--last", type=click.IntRange(min=1), default=10, help="How many to list. Default 10.")
@click.option(
    "--directory", type=DIRECTORY, help="Where spans are kept. Default: `traces` in the data directory."
)
@output_option(with_flag=True)
@click.pass_obj
def trace(session: Session, wanted: str | None, last: int, directory: Path | None) -> None:
    """Show what the services of this machine did for a request, stage by stage: when each began, how long it
    took, how many chunks and tokens it was about. Without an id: the latest traces.

    Requests are traced whose caller asks for it: `kvquilt ask --trace`, or a `traceparent` in gRPC's metadata
    or HTTP's headers whose flags are 01; and others by chance, as tracing.sample says (docs/tracing.md).

    \b kvquilt ask "Who signed the lease?" -c handbook --trace kvquilt trace
    the latest ones kvquilt trace 0af7651916cd43dd8448eb211c80319c       one of them
    """
    from cluster.cli.console import print_whole
    from cluster.cli.trace_tree import show_trace, spans_json, spans_of, traces_table
    from shared.tracing.kept import kept_spans

    found = list(kept_spans(directory or traces_directory(session)))
    if wanted is None:
        if session.as_json:
            session.tell(spans_json(found))
        else:
            print_whole(session.out, traces_table(found, last))
        return
    found = spans_of(found, wanted)
    if not found:
        raise NotFound(
            f"no spans of {wanted} are kept here; was it traced? Ask with --trace, or set tracing.sample "
            "(docs/tracing.md)"
        )
    if session.as_json:
        session.tell(spans_json(found))
    else:
        show_trace(session.out, found)


def traces_directory(session: Session) -> Path:
    from cluster.config import TRACES

    return session.data_dir / TRACES


def gathered(
    find: Callable[[], list[KeptSpan]],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> list[KeptSpan]:
    """The spans of a request that has just ended: processes keep theirs a moment later, so they are there
    when no more come."""
    ends_s = clock() + _MOST_WAIT_S
    found, since_s = find(), clock()
    while clock() < ends_s and not (found and clock() - since_s >= _QUIET_S):
        sleep(_POLL_S)
        more = find()
        if len(more) > len(found):
            found, since_s = more, clock()
    return found


def spans_asked_for(session: Session, trace_id: str) -> list[KeptSpan]:
    """Of a request that this command had traced; empty where the services keep none on this machine."""
    from cluster.cli.trace_tree import spans_of
    from shared.tracing.kept import kept_spans

    if session.target_option:
        return []
    return gathered(lambda: spans_of(kept_spans(traces_directory(session)), trace_id))


def show_asked_for(session: Session, trace_id: str) -> None:
    """After the answer that was traced."""
    from cluster.cli.trace_tree import show_trace

    spans = spans_asked_for(session, trace_id)
    session.out.print(f"\ntrace {trace_id}", style="dim")
    if spans:
        show_trace(session.out, spans)
    else:
        where = "tracing.keep_bytes is 0" if not session.target_option else f"{session.target} keeps its own"
        session.out.print(f"no spans of it are kept here ({where}); see docs/tracing.md", style="yellow")
