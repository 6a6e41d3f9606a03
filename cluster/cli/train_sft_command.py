"""`kvquilt train sft`: fine-tunes a model on labelled answers over stored chunks."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from cluster.cli.output import output_option
from cluster.cli.session import Session
from cluster.cli.training_options import loop_settings, refuse_collection, run_training, training_options
from cluster.config import QuiltConfig
from services.training.sft.settings import SftSettings
from shared.errors import ConfigError
from shared.generation.modes import ReuseMode

if TYPE_CHECKING:  # torch is slow to import
    from cluster.training.run import TrainingTask
    from cluster.training.task import TrainedModel


@click.command()
@training_options(SftSettings(), questions=1)
@click.option(
    "--mix",
    multiple=True,
    metavar="KIND=SHARE:FILE[,FILE]",
    help="Instead: kinds of examples and their shares, once per kind; or one YAML or JSON file that says "
    "all. qa, dialogue, reasoning, code and others need no share: 50, 25, 10, 10 and 5, the paper's.",
)
@click.option(
    "--reuse",
    type=click.Choice(["reordered", "composite", "full"]),
    default="reordered",
    show_default=True,
    help="The mode that it is trained for; full makes the naive twin.",
)
@click.option(
    "--rank",
    type=int,
    default=0,
    show_default=True,
    help="Of a LoRA that is merged into the weights. 0: the whole model is trained.",
)
@click.option(
    "--alpha", type=float, default=32.0, show_default=True, help="Of the LoRA: alpha / rank · B·A is added."
)
@click.option("--targets", default="", help="Of the LoRA: q_proj,v_proj. Default: all of attention and MLP.")
@click.option(
    "--recompute-activations",
    is_flag=True,
    help="Computes layers again for their gradients: less memory, a third slower. Begins by itself when "
    "memory runs out.",
)
@output_option()
@click.pass_obj
def sft(session: Session, /, **options: Any) -> None:
    """Fine-tune a model on labelled answers, over chunks placed as they are served (TurboRAG).

    A line of --data (or of a file of --mix) holds documents, questions and answers, or a conversation; the
    loss is on answers alone. What comes of it is a model of its own, a directory: ingest documents again with
    it. The same data, seed and settings with --reuse full make its naive twin, to compare with.

    \b
    kvquilt train sft --model smollm2 --data handbook.jsonl --out models/handbook
    kvquilt train sft --mix qa=qa.jsonl --mix dialogue=chats.jsonl --mix poems=5:poems.jsonl --out models/mix
    """
    settings = SftSettings(
        **loop_settings(options),
        reuse=ReuseMode(options["reuse"]),
        rank=options["rank"],
        alpha=options["alpha"],
        targets=tuple(name.strip() for name in options["targets"].split(",") if name.strip()),
        recompute_activations=options["recompute_activations"],
    )
    out = options["out"]

    def task(config: QuiltConfig, served: TrainedModel) -> TrainingTask:
        from cluster.training.sft import SftTask

        return SftTask(served, settings, out)

    run_training(session, options, task, examples_of=_kinds)
    session.tell(
        {"out": out},
        f"serve it: kvquilt up --model {out}; its fingerprint is another one, so ingest documents again",
    )


def _kinds(options: dict[str, Any]) -> list[Any]:
    from cluster.training.labelled import read_labelled
    from cluster.training.mix import MixPart, parse_mix, read_kinds
    from cluster.training.sft import invented_kind

    data, invented, mix = options["data"], options["invented"], options["mix"]
    refuse_collection(options)
    if sum((data is not None, invented is not None, bool(mix))) != 1:
        raise ConfigError("--data: name a file, or say --mix or --invented N, one of the three")
    if mix:
        return read_kinds(parse_mix(mix), partial(read_labelled, option="--mix"))
    if data is not None:
        return read_kinds([MixPart("qa", 1.0, (data,))], partial(read_labelled, option="--data"))
    return [invented_kind(options["seed"], invented)]
