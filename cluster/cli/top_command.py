"""`kvquilt top`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import click
import urllib3
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from cluster.cli.output import output_option
from cluster.cli.session import Session
from shared.errors import InvalidRequest, PermissionDenied, Unavailable

if TYPE_CHECKING:
    from cluster.cli.top_figures import MetricsLook, TopFigures

_ANSWER_S = 10.0
_MOST_BYTES = 64 << 20


@click.command()
@click.option(
    "--metrics",
    "addresses",
    multiple=True,
    metavar="URL",
    help="Where metrics are told, `/metrics` included; again for other machines. Default: the local system.",
)
@click.option(
    "--interval",
    type=click.FloatRange(0.1, 3600),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="Between two looks; figures per second are of that time.",
)
@click.option("--once", is_flag=True, help="Show the figures of one interval, and end.")
@output_option(help="For people (text), or a line of JSON per interval (json).")
@click.pass_obj
def top(session: Session, addresses: Sequence[str], interval: float, once: bool) -> None:
    """Watch a system at work: questions per second, time to the first token, where KV comes from, queues,
    tiers, replicas. Ctrl-C ends it.

    \b
    kvquilt top
    kvquilt top --once --output json
    kvquilt --key-file admin-key top --metrics https://kvquilt.example/metrics --interval 10

    A metrics address tells of one machine; on a cluster, name that of every one, or look at the dashboards.
    """
    if not addresses:
        if not session.http:
            raise InvalidRequest("--metrics: name where the system at --target tells its metrics")
        addresses = [f"{session.http}/metrics"]
    looks = _looks(session, addresses, interval)
    if session.as_json:
        for figures in looks:
            session.tell_line(figures)
            if once:
                return
    elif once or not session.out.is_terminal:
        for figures in looks:
            session.out.print(screen_of(figures))
            if once:
                return
    else:
        with Live(Text("looking …", style="dim"), console=session.out, auto_refresh=False) as live:
            for figures in looks:
                live.update(screen_of(figures), refresh=True)


def _looks(session: Session, addresses: Sequence[str], interval: float) -> Iterator[TopFigures]:
    from cluster.cli.top_figures import figures_of

    headers = {"Authorization": f"Bearer {session.key}"} if session.key else {}
    ca_certs = session.ca_file or None
    with (
        urllib3.PoolManager(timeout=_ANSWER_S, retries=False, headers=headers, ca_certs=ca_certs) as pool,
        ThreadPoolExecutor(len(addresses)) as threads,
    ):
        before = _look(pool, threads, addresses)
        while True:
            time.sleep(interval)
            now = _look(pool, threads, addresses)
            yield figures_of(before, now)
            before = now


def _look(pool: urllib3.PoolManager, threads: ThreadPoolExecutor, addresses: Sequence[str]) -> MetricsLook:
    from cluster.cli.top_figures import MetricsLook

    texts = list(threads.map(lambda address: _told(pool, address), addresses))
    return MetricsLook(texts, time.monotonic())


def _told(pool: urllib3.PoolManager, address: str) -> str:
    """
    Raises:
        InvalidRequest: it is no address. PermissionDenied: the key may not look. Unavailable: nobody tells.
    """
    try:
        answer = pool.request("GET", address, preload_content=False, redirect=False)
        told = answer.read(_MOST_BYTES)
        answer.release_conn()
    except (urllib3.exceptions.LocationValueError, urllib3.exceptions.URLSchemeUnknown):
        raise InvalidRequest(f"--metrics: {address!r} is no address; give http://HOST:PORT/metrics") from None
    except urllib3.exceptions.HTTPError as error:
        raise Unavailable(f"{address} does not tell metrics ({type(error).__name__})") from None
    if answer.status in (401, 403):
        raise PermissionDenied(f"{address}: metrics are for administrators; give such a key by --key-file")
    if answer.status != 200:
        raise Unavailable(f"{address} does not tell metrics (status {answer.status})")
    return told.decode(errors="replace")


def screen_of(figures: TopFigures) -> RenderableType:
    """Three small tables, one below the other, so that it fits any width."""
    return Group(_questions(figures), Text(), _kv(figures), Text(), _services(figures))


def _grid(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for i, name in enumerate(columns):
        table.add_column(name, justify="right" if i else "left", no_wrap=True)
    return table


def _questions(f: TopFigures) -> Table:
    table = Table.grid(padding=(0, 2))
    modes = ", ".join(f"{mode or '-'} {rate:.1f}" for mode, rate in f.by_mode_per_s.items())
    failures = ", ".join(f"{code} {rate:.1f}" for code, rate in f.failures_per_s.items())
    table.add_row("answers/s", f"{f.answers_per_s:.1f}" + (f"  ({modes})" if modes else ""))
    table.add_row("failures/s", Text(failures or "0.0", "red" if failures else ""))
    table.add_row("first token", f"p50 {_time(f.ttft_p50_s)}, p95 {_time(f.ttft_p95_s)}")
    table.add_row("tokens/s", f"{f.tokens_per_s:.1f}, p50 {_time(f.token_p50_s)} between two")
    table.add_row("under way", f"{f.answering} answers; engine: {f.running} running, {f.waiting} waiting")
    return table


def _kv(f: TopFigures) -> Group:
    shares = ", ".join(f"{share:.0%} {source}" for source, share in f.prompt_share.items())
    tiers = _grid("tier", "chunks", "bytes", "of", "loaded/s")
    room = _bytes(f.resident_capacity_bytes) if f.resident_capacity_bytes else "-"
    tiers.add_row("engine", "-", _bytes(f.resident_bytes), room, "-")
    for name, tier in f.tiers.items():
        capacity = _bytes(tier.capacity_bytes) if tier.capacity_bytes else "-"
        tiers.add_row(name, f"{tier.chunks:,}", _bytes(tier.num_bytes), capacity, f"{tier.loaded_per_s:.1f}")
    return Group(Text(f"prompt tokens: {shares or '-'}; {f.documents:,} documents"), tiers)


def _services(f: TopFigures) -> Table:
    table = _grid("service", "processes", "memory")
    for name, service in f.services.items():
        table.add_row(name, str(service.replicas), _bytes(service.memory_bytes))
    return table


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.0f} ms"


def _bytes(number: float) -> str:
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return f"{number / 1e3:.0f} kB"
