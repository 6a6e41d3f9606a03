"""`kvquilt train packets`: vectors around isolated chunks."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from cluster.cli.output import output_option
from cluster.cli.session import Session
from cluster.cli.training_options import (
    loop_settings,
    mix_option,
    mixed_examples,
    run_training,
    training_options,
)
from cluster.config import QuiltConfig
from services.training.packets.settings import PacketSettings
from shared.generation.modes import ReuseMode
from shared.kv_types import KvContext

if TYPE_CHECKING:  # torch is slow to import
    from cluster.training.run import TrainingTask
    from cluster.training.task import TrainedModel

USUAL = PacketSettings()


@click.command()
@training_options(USUAL)
@mix_option()
@click.option(
    "--header",
    type=int,
    default=USUAL.num_header,
    show_default=True,
    help="Vectors in front of every chunk.",
)
@click.option("--trailer", type=int, default=USUAL.num_trailer, show_default=True, help="Vectors behind it.")
@click.option(
    "--begin-with",
    default=USUAL.begin_with,
    help="Text whose tokens' embeddings they begin as. Default: an end of line; '': any tokens, by --seed.",
)
@click.option(
    "--reuse",
    type=click.Choice(["reordered", "composite"]),
    default="reordered",
    show_default=True,
    help="The mode that they are trained for.",
)
@click.option(
    "--top-k",
    type=int,
    default=USUAL.top_k,
    show_default=True,
    help="Tokens kept of the teacher's choice.",
)
@click.option(
    "--answer-tokens",
    type=int,
    default=USUAL.answer_tokens,
    show_default=True,
    help="Longest answer of the teacher.",
)
@output_option()
@click.pass_obj
def packets(session: Session, /, **options: Any) -> None:
    """Train soft-token packets: vectors in front of and behind every isolated chunk, by self-distillation.

    The model itself, reading whole blocks under full, is the teacher; the packets make it come to the same
    answers over chunks that were computed alone. The model and full stay as they are; chunks are stored with
    their packets, so collections are encoded again. Ctrl-C leaves a checkpoint, and the same command goes on
    from there, to the vectors that it would have come to without it.

    \b
    kvquilt train packets --model demo --invented 400 --out packets/demo
    kvquilt train packets --model smollm2 --mix wiki=2:wiki.jsonl --mix rules=1:rules.jsonl --out packets/mix
    """
    settings = PacketSettings(
        **loop_settings(options),
        num_header=options["header"],
        num_trailer=options["trailer"],
        begin_with=options["begin_with"],
        reuse=ReuseMode(options["reuse"]),
        top_k=options["top_k"],
        answer_tokens=options["answer_tokens"],
    )
    out = options["out"]
    options["kv_context"] = options["kv_context"] or KvContext.NONE.value

    def task(config: QuiltConfig, served: TrainedModel) -> TrainingTask:
        from cluster.training.packets import PacketTask

        return PacketTask(served, replace(settings, stop=config.generator.stop), out)

    run_training(session, options, task, examples_of=mixed_examples if options["mix"] else None)
    session.tell(
        {"out": out},
        f"serve them: prompt.packets: {out}, ingestion.kv_context: none, selector.model: '', and "
        "kvquilt ingest --re-encode",
    )
