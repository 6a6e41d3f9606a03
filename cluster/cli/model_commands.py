"""The commands about models on this machine: what is there, and bringing one."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.table import Table
from rich.text import Text

from cluster.cli.console import print_whole
from cluster.cli.output import output_option
from cluster.cli.session import Session

if TYPE_CHECKING:
    from cluster.models.listing import ModelFacts


@click.group(invoke_without_command=True)
@output_option(with_flag=True)
@click.pass_context
def models(ctx: click.Context) -> None:
    """The models on this machine: those that come along, converted GGUF files, pulled ones.

    \b
    kvquilt models                                             what is there
    kvquilt models pull Qwen/Qwen2.5-0.5B-Instruct@COMMIT      bring one from the Hugging Face hub
    kvquilt up --model smollm2                                 serve one

    "KV/token" is what exact KV of a token takes in the store; a chunk takes that times its tokens.
    """
    if ctx.invoked_subcommand:
        return
    from cluster.models.listing import models_here

    session: Session = ctx.obj
    found = models_here(os.environ)
    if session.as_json:
        session.tell([dataclasses.asdict(m) | {"kv_bytes_per_chunk": m.kv_bytes_per_chunk} for m in found])
    else:
        print_whole(session.out, models_table(found))


@models.command()
@click.argument("model")
@click.option(
    "--to",
    type=click.Path(path_type=Path, file_okay=False),
    help="The directory that becomes the model. Default: one of its own in ~/.cache/kvquilt/models.",
)
@output_option()
@click.pass_obj
def pull(session: Session, model: str, to: Path | None) -> None:
    """Bring a model to this machine: MODEL is ID@REVISION of the Hugging Face hub, where REVISION is a commit
    or a tag; or a GGUF file, or smollm2, which are converted.

    Weights come as safetensors only, with configuration and tokenizer; no code of the model's is run. A token
    for private models is read from HF_TOKEN. The same command goes on where it was interrupted.

    \b
    kvquilt models pull HuggingFaceTB/SmolLM2-360M-Instruct@COMMIT
    kvquilt models pull smollm2 --to /models/smollm2
    """
    from cluster.cli.model_choice import conversion_progress
    from cluster.models.resolution import bring_model

    with conversion_progress(session.out, model) as (on_progress, on_wait):
        directory = bring_model(model, to, os.environ, on_progress, on_wait)
    session.tell({"model": model, "path": str(directory)}, f"{model} is in {directory}")


def models_table(found: Sequence[ModelFacts]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("model", "parameters", "positions", "prompt", "KV/token", "KV/chunk", "verdict", "where"):
        table.add_column(name, justify="right" if name in _NUMBERS else "left")
    for m in found:
        chunk = f"{_size(m.kv_bytes_per_chunk)} of {m.chunk_tokens}" if m.kv_bytes_per_chunk else "-"
        cells = (
            m.name,
            _count(m.parameters),
            str(m.positions or "-"),
            m.template or "-",
            _size(m.kv_bytes_per_token),
            chunk,
            m.verdict or "-",
            m.note or m.path,
        )
        table.add_row(*map(Text, cells))
    return table


_NUMBERS = ("parameters", "positions", "KV/token", "KV/chunk")


def _count(number: int | None) -> str:
    if number is None:
        return "-"
    return f"{number / 1e9:.2f} B" if number >= 1e9 else f"{number / 1e6:.1f} M"


def _size(num_bytes: int | None) -> str:
    if num_bytes is None:
        return "-"
    return f"{num_bytes / 2**20:.1f} MiB" if num_bytes >= 2**20 else f"{num_bytes / 2**10:.1f} KiB"
