"""`kvquilt train`: makes a model at home in stored KV."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from cluster.cli.output import output_option
from cluster.cli.session import Session
from cluster.cli.train_auxiliary import auxiliary
from cluster.cli.train_packets_command import packets
from cluster.cli.train_sft_command import sft
from cluster.cli.training_options import (
    loop_settings,
    mix_option,
    mixed_examples,
    refuse_collection,
    run_training,
    training_options,
)
from cluster.config import QuiltConfig
from services.training.adapter.settings import AdapterSettings, AdapterTarget
from shared.errors import ConfigError
from shared.generation.modes import ReuseMode

if TYPE_CHECKING:  # torch is slow to import
    from cluster.training.labelled import Labelled
    from cluster.training.mix import ExampleKind
    from cluster.training.run import TrainingTask
    from cluster.training.task import TrainedModel


@click.group()
def train() -> None:
    """Train what makes reuse better. Nothing needs to run."""


train.add_command(packets)
train.add_command(sft)


@train.command()
@training_options(AdapterSettings())
@mix_option()
@click.option(
    "--target",
    type=click.Choice([target.value for target in AdapterTarget]),
    default=AdapterTarget.TEACHER.value,
    show_default=True,
    help="teacher: what the model itself says that reads whole blocks under full; answers: those that --data "
    "gives, in the form of `kvquilt train sft`.",
)
@click.option(
    "--order",
    type=click.Choice(["shuffled", "best_last"]),
    default="shuffled",
    show_default=True,
    help="Of a context's chunks. best_last: the first question's best one last, as gateway.order has it.",
)
@click.option("--rank", type=int, default=16, show_default=True)
@click.option("--alpha", type=float, default=32.0, show_default=True, help="alpha / rank · B·A·x is added.")
@click.option(
    "--targets", default="", help="Linear layers: q_proj,v_proj. Default: all of attention and MLP."
)
@click.option(
    "--reuse",
    type=click.Choice(["reordered", "composite"]),
    default="reordered",
    show_default=True,
    help="The mode that it is trained for.",
)
@click.option(
    "--top-k", type=int, default=128, show_default=True, help="Tokens kept of the teacher's choice."
)
@click.option(
    "--answer-tokens", type=int, default=32, show_default=True, help="Longest answer of the teacher."
)
@output_option()
@click.pass_obj
def adapter(session: Session, /, **options: Any) -> None:
    """Train an adapter (LoRA) for the rows of requests, by self-distillation or on labelled answers.

    The model itself, reading whole blocks under full, is the teacher; the adapter learns to come to the same
    answers over stored chunks. With --target answers it learns those of --data instead. Stored KV and full
    stay as they are, bit by bit. Ctrl-C leaves a checkpoint, and the same command goes on from there, to the
    weights that it would have come to without it.

    \b
    kvquilt train adapter --model demo --invented 200 --out adapters/demo
    kvquilt train adapter --model smollm2 --data handbook.jsonl --out adapters/handbook
    kvquilt train adapter --model smollm2 --mix wiki=2:wiki.jsonl --mix rules=1:rules.jsonl --out adapters/mix
    kvquilt train adapter --model smollm2 --target answers --data answered.jsonl --out adapters/answers
    """
    settings = AdapterSettings(
        **loop_settings(options),
        target=AdapterTarget(options["target"]),
        rank=options["rank"],
        alpha=options["alpha"],
        targets=tuple(name.strip() for name in options["targets"].split(",") if name.strip()),
        reuse=ReuseMode(options["reuse"]),
        top_k=options["top_k"],
        answer_tokens=options["answer_tokens"],
    )
    out = options["out"]
    labelled = settings.target is AdapterTarget.ANSWERS

    def task(config: QuiltConfig, served: TrainedModel) -> TrainingTask:
        from cluster.training.adapter import AdapterTask, AnswersTask

        asked = replace(settings, stop=config.generator.stop)
        served = replace(served, best_last=options["order"] == "best_last")
        return AnswersTask(served, asked, out) if labelled else AdapterTask(served, asked, out)

    given = _answered if labelled else mixed_examples if options["mix"] else None
    run_training(session, options, task, examples_of=given)
    session.tell(
        {"out": out, "adapter": out.name},
        f"serve it: generator.engine.adapters: {{{out.name}: {out}}}, and kvquilt ask … --adapter {out.name}",
    )


def _answered(options: dict[str, Any]) -> Sequence[Labelled | ExampleKind[Labelled]]:
    from cluster.training.adapter import read_answered
    from cluster.training.labelled import invented_labelled

    if options["mix"]:
        return mixed_examples(options, partial(read_answered, option="--mix"))
    refuse_collection(options)
    data, invented = options["data"], options["invented"]
    if (data is None) == (invented is None):
        raise ConfigError("--data: name a file, or say --invented N, one of the two")
    return invented_labelled(options["seed"], invented) if data is None else read_answered(data)


train.add_command(auxiliary)
