"""Options that every recipe of `kvquilt train` has, and what is done with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from cluster.cli.session import EXISTING_FILE, Session
from cluster.config import QuiltConfig
from services.training.loop_settings import LoopSettings
from shared.errors import ConfigError
from shared.kv_types import KvContext

if TYPE_CHECKING:  # torch is slow to import
    from cluster.training.examples import Example
    from cluster.training.run import TrainingTask
    from cluster.training.task import TrainedModel

CommandT = TypeVar("CommandT", bound=Callable[..., Any])
TaskT = TypeVar("TaskT", bound="TrainingTask")


def training_options(usual: LoopSettings, questions: int = 8) -> Callable[[CommandT], CommandT]:
    """``usual``: the settings of the recipe whose values are the defaults; ``questions``: the default of
    these."""
    options = (
        click.option(
            "--model", help="As of `kvquilt up`. Default: smollm2, where its package is installed, else demo."
        ),
        click.option(
            "--config",
            "config_path",
            type=EXISTING_FILE,
            help="The quilt.yaml that the model is served with: its prompt, chunks and type of weights "
            "count.",
        ),
        click.option(
            "--device", help="cpu, cuda or cuda:1. Default: generator.engine.device of the settings."
        ),
        click.option(
            "--kv-context",
            type=click.Choice([context.value for context in KvContext]),
            help="What chunks are computed behind. Default: ingestion.kv_context.",
        ),
        click.option(
            "--data",
            type=EXISTING_FILE,
            help="Documents and questions, one JSON object per line; see docs/training.md.",
        ),
        click.option(
            "--invented", type=click.IntRange(min=2), help="Instead: so many contexts of invented documents."
        ),
        click.option(
            "--collection",
            help="Instead: an ingested collection of the running system, and questions that the model "
            "writes; they stay in OUT/collection.jsonl.",
        ),
        click.option(
            "--contexts",
            type=click.IntRange(min=2),
            default=200,
            show_default=True,
            help="Of --collection: most contexts that are made of it.",
        ),
        click.option(
            "--out",
            type=click.Path(path_type=Path, file_okay=False),
            required=True,
            help="Folder of what is trained, its checkpoint, and what is computed once. Begins anew or goes "
            "on there.",
        ),
        _setting(usual, "updates", int, "Of what is trained."),
        _setting(usual, "contexts_per_update", int, "All their questions count."),
        _setting(usual, "contexts_per_pass", int, "Most computed at once; 0: all of an update."),
        click.option(
            "--chunks", type=click.IntRange(min=1), default=6, show_default=True, help="Most in a context."
        ),
        click.option(
            "--questions",
            type=click.IntRange(min=1),
            default=questions,
            show_default=True,
            help="Most about one context.",
        ),
        _setting(usual, "lr", float, "Highest rate of AdamW."),
        _setting(usual, "weight_decay", float, "Of AdamW."),
        _setting(usual, "warmup", int, "Updates over which the rate rises."),
        _setting(usual, "held_out", float, "Share of the contexts to evaluate on."),
        _setting(usual, "evaluate_every", int, "Updates."),
        _setting(usual, "checkpoint_every", int, "Updates."),
        _setting(usual, "seed", int, None),
        click.option(
            "--threads",
            type=click.IntRange(min=1),
            default=1,
            show_default=True,
            help="Of torch, in each worker.",
        ),
        click.option(
            "--workers",
            type=click.IntRange(min=1),
            default=1,
            show_default=True,
            help="Processes that share the contexts of an update, with a GPU each under --device cuda.",
        ),
    )

    def decorate(command: CommandT) -> CommandT:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def mix_option() -> Callable[[CommandT], CommandT]:
    """See ``mixed_examples``."""
    return click.option(
        "--mix",
        multiple=True,
        metavar="KIND=SHARE:FILE[,FILE]",
        help="Instead: kinds of examples and their shares, once per kind, or one YAML or JSON file that says "
        "all; files as of --data.",
    )


def mixed_examples(
    options: dict[str, Any], read: Callable[[Path], Sequence[Any]] | None = None
) -> Sequence[Any]:
    """Kinds of examples, as --mix says. ``read``: the examples of a file; None: as of --data.

    Raises:
        ConfigError, InvalidRequest: the mix has another form, or a file; names file, line and field.
    """
    from cluster.training.examples import read_examples
    from cluster.training.mix import NO_SHARES, parse_mix, read_kinds

    if others := [name for name in ("data", "invented", "collection") if options[name] is not None]:
        raise ConfigError(f"--mix: says what is trained on; leave out --{' and --'.join(others)}")
    return read_kinds(parse_mix(options["mix"], NO_SHARES), read or partial(read_examples, option="--mix"))


def loop_settings(options: dict[str, Any]) -> dict[str, Any]:
    """Those of them that are the loop's, by name."""
    return {field.name: options[field.name] for field in fields(LoopSettings)}


def refuse_collection(options: dict[str, Any]) -> None:
    """Of recipes that learn answers.

    Raises:
        ConfigError: --collection was given.
    """
    if options["collection"] is not None:
        raise ConfigError(
            "--collection: its documents come without answers; write them into a file of --data"
        )


def _asked_examples(options: dict[str, Any], apart: float | None) -> list[Example] | None:
    """Returns what --data or --invented says; None: --collection.

    Raises:
        ConfigError, InvalidRequest: none of them or several; the file cannot be used.
    """
    from cluster.training.examples import invented_examples, read_examples

    data, invented = options["data"], options["invented"]
    if [data, invented, options["collection"]].count(None) != 2:
        raise ConfigError("--data: name a file, or say --invented N or --collection NAME, one of these")
    if invented is not None:
        invent = invented_examples if apart is None else partial(invented_examples, apart=apart)
        return list(invent(options["seed"], invented))
    return None if data is None else read_examples(data)


def run_training(
    session: Session,
    options: dict[str, Any],
    task_of: Callable[[QuiltConfig, TrainedModel], TaskT],
    apart: float | None = None,
    examples_of: Callable[[dict[str, Any]], Sequence[Any]] | None = None,
) -> tuple[TaskT, Sequence[Any]]:
    """``task_of``: the recipe, by the settings that the model is served with and the ``TrainedModel``; it is
    returned, with what it was trained on. ``apart``: see ``invented_examples``; None: as it has it.
    ``examples_of``: what the recipe is given, by the options; None: as these have it."""
    import torch
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    from cluster.cli.model_choice import served_config
    from cluster.cli.training_collection import collection_examples
    from cluster.training.run import train
    from cluster.training.task import TrainedModel

    kv_context = options["kv_context"]
    examples = _asked_examples(options, apart) if examples_of is None else examples_of(options)
    device = options["device"]
    chosen = {
        "model": options["model"],
        "ingestion": kv_context and {"kv_context": kv_context},
        "generator": device and {"engine": {"device": device}},
    }
    config = served_config(options["config_path"], chosen, session.out)
    torch.set_num_threads(options["threads"])
    served = TrainedModel(
        config.ingestion,
        base=str(config.model),
        dtype=config.generator.engine.dtype,
        device=config.generator.engine.device,
        num_chunks=options["chunks"],
        num_questions=options["questions"],
    )
    task = task_of(config, served)

    def say(line: str) -> None:
        session.out.print(line, soft_wrap=True)

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Bar(*columns, console=session.err, transient=True) as bar:
        asked = bar.add_task("asking the teacher")

        def on_progress(done: int, of: int) -> None:
            bar.update(asked, completed=done, total=of)

        if examples is None:
            examples = collection_examples(session, options, served, on_progress)
        if options["workers"] == 1:
            loop = task.loop(examples, on_progress, say)
        else:
            from cluster.training.together import Team, train_together

            team = Team(options["workers"], served.device.startswith("cuda"), options["threads"])
            train_together(task, examples, team, on_progress, say)
            return task, examples
    train(loop, say)
    return task, examples


def _setting(usual: LoopSettings, name: str, kind: type, help_: str | None) -> Callable[[CommandT], CommandT]:
    flag = "--" + name.replace("_", "-")
    return click.option(flag, type=kind, default=getattr(usual, name), show_default=True, help=help_)
