"""`kvquilt train auxiliary`: an auxiliary model learns what is worth computing anew."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cluster.cli.output import output_option
from cluster.cli.session import Session
from cluster.cli.training_options import loop_settings, run_training, training_options
from services.training.auxiliary.settings import AuxiliarySettings, Target

if TYPE_CHECKING:  # torch is slow to import
    from rich.table import Table

    from cluster.config import QuiltConfig
    from cluster.training.task import TrainedModel
    from services.training.auxiliary.judge import JudgedChoices

_USUAL = AuxiliarySettings()
_FOLDER = click.Path(path_type=Path, file_okay=False, exists=True)


@click.command()
@training_options(_USUAL)
@click.option(
    "--auxiliary", "begin_with", help="Model directory or hub id to begin with. Default: selector.model."
)
@click.option(
    "--target",
    type=click.Choice([target.value for target in Target]),
    default=Target.GAIN.value,
    show_default=True,
    help="gain: what computing a window anew is worth to the answer; attention: what the model itself "
    "attends to, as CacheClip has it.",
)
@click.option(
    "--pair-windows",
    type=int,
    default=_USUAL.pair_windows,
    show_default=True,
    help="So many windows of a question are also tried two by two; 0: none.",
)
@click.option(
    "--answer-tokens", type=int, default=32, show_default=True, help="Longest answer of the reference."
)
@click.option(
    "--judge",
    "num_judged",
    type=click.IntRange(min=0),
    default=20,
    show_default=True,
    help="Contexts to compare it on in the end: invented ones with names of their own; of --data those held "
    "out, however many.",
)
@click.option("--ratios", default="0.2", show_default=True, help="Of the tokens, to compare at: 0.1,0.2")
@click.option(
    "--beside",
    type=_FOLDER,
    multiple=True,
    help="Another auxiliary model with this tokenizer, to compare as well.",
)
@output_option()
@click.pass_obj
def auxiliary(session: Session, /, **options: Any) -> None:
    """Train the auxiliary model that chooses what cacheclip computes anew.

    The model itself tells what each window of a context is worth to each question: a branch that computes
    only this window anew is forced through the answer that the whole context gives. The auxiliary's scores
    learn that. In the end its choice is compared with the untuned one, with chance, with the model's own
    attention and with the ceiling, the choice by true gain. Ctrl-C leaves a checkpoint; the same command goes
    on from there.

    \b
    kvquilt train auxiliary --model demo --kv-context none --invented 400 --out auxiliaries/demo
    kvquilt train auxiliary --model smollm2 --auxiliary HuggingFaceTB/SmolLM2-135M --data qa.jsonl --out aux
    """
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as Bar

    from cluster.gate.names import parse_shares
    from cluster.training.auxiliary import AuxiliaryTask
    from cluster.training.examples import invented_examples
    from services.training.names import Split

    settings = AuxiliarySettings(
        **loop_settings(options),
        target=Target(options["target"]),
        pair_windows=options["pair_windows"],
        answer_tokens=options["answer_tokens"],
    )
    ratios = parse_shares("--ratios", options["ratios"], "the tokens")
    beside = [str(path) for path in options["beside"]]

    def task(config: QuiltConfig, served: TrainedModel) -> AuxiliaryTask:
        named = options["begin_with"] or config.selector.model
        return AuxiliaryTask(served, named, replace(settings, stop=config.generator.stop), options["out"])

    trained, examples = run_training(session, options, task, apart=1.0)
    held_out, num_judged = options["invented"] is None, options["num_judged"]
    if not held_out:
        examples = list(invented_examples(options["seed"], num_judged, Split.HELD_OUT, apart=1.0))
    compared: list[dict[str, object]] = []
    if num_judged:
        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
        with Bar(*columns, console=session.err, transient=True) as bar:
            asked = bar.add_task("comparing choices")

            def on_progress(done: int, of: int) -> None:
                bar.update(asked, completed=done, total=of)

            for ratio, judged in trained.judge(examples, beside, ratios, on_progress, held_out):
                session.out.print(table_of(ratio, judged))
                compared.append({"ratio": ratio, "choices": values_of(judged)})
    told = {"out": options["out"], "compared": compared}
    session.tell(told, f"serve it: selector.model: {options['out']}")


def values_of(judged: JudgedChoices) -> list[dict[str, object]]:
    """As ``table_of``, for programs: fractions, and the mean log-probability."""
    return [
        {
            "choice": choice,
            "answers": float(judged.exact(choice).mean()),
            "logprob": float(judged.logprobs(choice).mean()),
            "computed": float(judged.share(choice)),
        }
        for choice in judged.by_choice
    ]


def table_of(ratio: float, judged: JudgedChoices) -> Table:
    """A row for each choice, and what it gives beyond the untuned auxiliary."""
    from rich.table import Table

    from cluster.training.auxiliary import UNTUNED
    from services.training.auxiliary.judge import CEILING, STORED, compare

    title = f"{100 * ratio:g} % of the tokens, {len(judged.contexts)} questions"
    columns = ("choice", "answers", "log-probability", "computed", "of the gap closed", "p", "p (log-prob.)")
    table = Table(*columns, title=title, box=None, pad_edge=False, title_justify="left")
    for choice in judged.by_choice:
        exact, logprob = judged.exact(choice).mean(), judged.logprobs(choice).mean()
        row = [choice, f"{100 * exact:.1f}", f"{logprob:.3f}", f"{100 * judged.share(choice):.1f}"]
        if choice not in (STORED, UNTUNED):
            found = compare(judged, choice, UNTUNED)
            closed = (100 * x for x in (found.closed.value, found.closed.low, found.closed.high))
            shown = "{:.0f} ({:.0f} to {:.0f})".format(*closed) if choice != CEILING else "100"
            row += [shown, f"{found.p:.2g}", f"{found.logprob_p:.2g}"]
        table.add_row(*row)
    return table
