"""`kvquilt size`."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from rich.table import Table

from cluster.cli.console import print_whole
from cluster.cli.output import output_option
from cluster.cli.session import Session
from shared.errors import ConfigError, InvalidRequest
from shared.kv_buffers import ENCODINGS

if TYPE_CHECKING:
    from cluster.sizing.plan import QuestionCost, Size, SystemPlan

CommandT = TypeVar("CommandT", bound=Callable[..., Any])
_HELP = {
    "documents": "How many.",
    "document_tokens": "Of each.",
    "chunk_tokens": "Of each chunk.",
    "rate": "Questions per second.",
    "chunks": "Of each question.",
    "question_tokens": "Of each question.",
    "answer_tokens": "Of each answer.",
    "hit_share": "Of a question's chunks, those in an engine's memory.",
    "recompute": "Of the chunks' tokens, those that are computed anew.",
    "ttft_ms": "What the first token may take in the mean, waiting included.",
    "branches": "Answers that a replica decodes at once.",
    "tflops": "What a replica reaches in prefill.",
    "memory_gb_s": "What it reads from its memory.",
    "load_gb_s": "Chunks into its memory, from wherever most come.",
    "replica_price": "Per hour.",
    "storage_price": "Per GB and month, for all KV.",
    "cache_price": "Per GB and month, on disks of nodes.",
    "cached_share": "Of all KV, what the disks of nodes have.",
}


def _plan_options(command: CommandT) -> CommandT:
    from cluster.sizing.plan import SystemPlan

    for field in reversed(dataclasses.fields(SystemPlan)):
        kind = click.FloatRange() if isinstance(field.default, float) else click.INT
        name = "--" + field.name.replace("_", "-")
        command = click.option(
            name, type=kind, default=field.default, show_default=True, help=_HELP[field.name]
        )(command)
    return command


@click.command()
@click.option(
    "--model",
    default="smollm2",
    show_default=True,
    help="As of `kvquilt up`; or a config.json alone, of a model that is not here.",
)
@click.option(
    "--encoding",
    "encodings",
    type=click.Choice(ENCODINGS),
    multiple=True,
    help="How KV is stored; again for others. Default: all.",
)
@_plan_options
@output_option()
@click.pass_obj
def size(session: Session, /, model: str, encodings: Sequence[str], **of_plan: Any) -> None:
    """How large a system must be: bytes of KV, replicas for a rate of questions, what they cost, and how
    often a chunk must be used from where storing its KV costs less than computing it.

    \b
    kvquilt size --model smollm2 --documents 100000
    kvquilt size --model Qwen2.5-7B/config.json --documents 1000000 --rate 40 --ttft-ms 500
    kvquilt size --model demo --encoding int8 --output json

    Plain arithmetic on the model's sizes: rates and prices are yours to say, and nothing is measured.
    docs/sizing.md explains each figure.
    """
    from cluster.sizing.decoder import read_decoder
    from cluster.sizing.plan import SystemPlan, size_of

    try:
        plan = SystemPlan(**of_plan)
    except ValueError as error:
        name, _, why = str(error).partition(": ")
        raise InvalidRequest(f"--{name.replace('_', '-')}: {why}") from None
    decoder = read_decoder(_directory(model))
    sizes = [size_of(decoder, plan, encoding) for encoding in encodings or ENCODINGS]
    session.tell(
        {
            "model": model,
            "kv_bytes_per_token": decoder.kv_bytes_per_token,
            "plan": dataclasses.asdict(plan),
            "sizes": list(map(dataclasses.asdict, sizes)),
        }
    )
    if not session.as_json:
        print_whole(session.out, _table(plan, sizes))


def _directory(model: str) -> Path:
    """Or a config.json.

    Raises:
        ConfigError, ModelUnsupported, StorageFull: see ``resolve_model``.
    """
    from cluster.models.resolution import resolve_model

    path = Path(model).expanduser()
    if path.is_file() and path.suffix == ".json":
        return path
    if not Path(resolved := resolve_model(model, "--model", os.environ)).is_absolute():
        raise ConfigError(
            f"--model: {model} is not here; `kvquilt models pull` brings it, or give its config.json"
        )
    return Path(resolved)


def _table(plan: SystemPlan, sizes: Sequence[Size]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for one in sizes:
        table.add_column(one.encoding, justify="right")
    for name, cell in _rows(plan):
        table.add_row(name, *map(cell, sizes))
    return table


def _rows(plan: SystemPlan) -> Iterator[tuple[str, Callable[[Size], str]]]:
    yield "chunks", lambda s: f"{s.num_chunks:,}"
    yield "a chunk", lambda s: _bytes(s.chunk_bytes)
    yield "all KV, stored", lambda s: _bytes(s.stored_bytes)
    yield "of it on disks of nodes", lambda s: _bytes(s.cached_bytes)
    yield "storing it, per month", lambda s: _price(s.stored_per_month)
    yield "computing it, once", lambda s: f"{s.prefill_h:,.1f} h, {_price(s.prefill_price)}"
    yield "uses of a chunk per month from where storing pays", lambda s: _few(s.break_even)
    yield f"a question over {plan.context:,} tokens", lambda s: ""
    for name, serving in (("reusing", _reusing), ("computing all", _full)):
        yield f"  {name}: load, prefill", _times(serving)
        yield f"  {name}: replicas, per month", _replicas(plan, serving)


def _reusing(size: Size) -> QuestionCost:
    return size.reusing


def _full(size: Size) -> QuestionCost:
    return size.full


def _times(of: Callable[[Size], QuestionCost]) -> Callable[[Size], str]:
    return lambda size: f"{of(size).load_ms:,.1f}, {of(size).prefill_ms:,.1f} ms"


def _replicas(plan: SystemPlan, of: Callable[[Size], QuestionCost]) -> Callable[[Size], str]:
    def told(size: Size) -> str:
        serving = of(size)
        if serving.replicas is None or serving.per_month is None:
            return f"none: {serving.least_ttft_ms:,.0f} > {plan.ttft_ms:,.0f} ms"
        return f"{serving.replicas:,}, {_price(serving.per_month)}"

    return told


def _bytes(number: float) -> str:
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if number >= size:
            return f"{number / size:,.1f} {unit}"
    return f"{number / 1e3:,.1f} kB"


def _price(number: float) -> str:
    return f"{number:,.2f}"


def _few(number: float | None) -> str:
    return "-" if number is None else f"{number:.3g}"
