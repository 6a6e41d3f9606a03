"""`kvquilt gate`: judges by invented questions how a model's stored KV may be reused, and writes the verdict
that mode auto goes by."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from cluster.cli.session import EXISTING_FILE, FILE, Session
from shared.kv_types import KvContext

if TYPE_CHECKING:
    from cluster.config import QuiltConfig

DEFAULT_QUESTIONS, DEFAULT_TOLERANCE = 300, 0.01


@click.command()
@click.option(
    "--model", help="As of `kvquilt up`. Default: smollm2, where its package is installed, else demo."
)
@click.option(
    "--config",
    "config_path",
    type=EXISTING_FILE,
    help="The quilt.yaml that the model is served with: its prompt, chunks and selector are judged.",
)
@click.option(
    "--kv-context",
    type=click.Choice([context.value for context in KvContext]),
    help="What chunks are computed behind. Default: ingestion.kv_context.",
)
@click.option(
    "--questions",
    type=click.IntRange(min=1),
    default=DEFAULT_QUESTIONS,
    show_default=True,
    help="At least so many whose evidence lies in two chunks; others come with them.",
)
@click.option("--ratios", default="0.2", show_default=True, help="Of the tokens, to be recomputed: 0.1,0.2")
@click.option("--minutes", type=float, help="Stop asking after this long, and judge by what was asked.")
@click.option(
    "--tolerance",
    type=click.FloatRange(0, 1),
    default=DEFAULT_TOLERANCE,
    show_default=True,
    help="How much worse than full a mode may be, its interval considered; a share of the questions.",
)
@click.option(
    "--answers",
    type=FILE,
    help="Keep answers here as they come, and go on from those that are there.",
)
@click.option(
    "--verdict",
    "verdict_path",
    type=FILE,
    help="Where the verdict goes. Default: generator.verdict, else quilt.verdict.json beside the model.",
)
@click.option("--json", "json_path", type=FILE, help="Where a report goes.")
@click.option(
    "--threads", type=click.IntRange(min=1), default=1, show_default=True, help="Of torch, in each process."
)
@click.option(
    "--processes", type=click.IntRange(min=0), default=0, help="That ask at once. Default: one per core."
)
@click.pass_obj
def gate(
    session: Session,
    model: str | None,
    config_path: Path | None,
    kv_context: str | None,
    questions: int,
    ratios: str,
    minutes: float | None,
    tolerance: float,
    answers: Path | None,
    verdict_path: Path | None,
    json_path: Path | None,
    threads: int,
    processes: int,
) -> None:
    """Judge how a model's stored KV may be reused, and write the verdict that --reuse auto goes by.

    Invented documents are ingested as --kv-context says; every question about them is asked in every mode and
    compared with full. The verdict is the mode that computes least and surely loses no more than --tolerance;
    over chunks that know their documents recomputing may be advised against. It holds for this model, prompt
    and kv_context, beside verdicts on other ones in the same file; `kvquilt models` and `kvquilt status` show
    them. Nothing needs to run; with the demo model it takes minutes, with others hours: run it with --answers
    and --minutes, again and again. In a checkout `python -m load_tests.quality` has more knobs.

    \b
    kvquilt gate --model demo
    kvquilt gate --model smollm2 --questions 60 --answers gate.jsonl --minutes 30
    kvquilt gate --config quilt.yaml --kv-context none
    """
    import torch

    from cluster.cli.console import print_whole
    from cluster.cli.model_choice import served_config
    from cluster.gate.bench import Models
    from cluster.gate.evaluation import Evaluation
    from cluster.gate.modes import Comparison, parse_ratios
    from cluster.gate.show import summary_table
    from shared.measuring.report import write_report
    from shared.verdicts import keep_verdict

    plan = Comparison(ratios=parse_ratios(ratios))
    options = {"model": model, "ingestion": kv_context and {"kv_context": kv_context}}
    config = served_config(config_path, options, session.out)
    path = verdict_path or verdict_file(config)
    if config.generator.kv_encoding != "exact":
        session.err.print(
            f"generator.kv_encoding is {config.generator.kv_encoding}: exact KV is judged, and the verdict "
            "holds for that alone",
            style="yellow",
        )
    torch.set_num_threads(threads)
    models = Models(config.model, config.selector.model, config.ingestion, config.generator.engine.dtype)
    evaluation = Evaluation(models, plan, questions, minutes=minutes, threads=threads, processes=processes)
    evaluated = evaluation.run(answers, session.err)
    print_whole(session.out, summary_table(evaluated.found))
    if json_path is not None:
        write_report(json_path, evaluated.measurements(), evaluated.details(), threads=threads)
    verdict = evaluated.verdict(tolerance)
    keep_verdict(path, verdict)
    session.out.print(f"verdict (kv_context {verdict.kv_context}): {verdict.advice}", style="bold")
    session.out.print(
        f"written to {path}; mode auto goes by it once the generator starts anew", soft_wrap=True
    )


def verdict_file(config: QuiltConfig) -> Path:
    """Where the generator will look for it.

    Raises:
        ConfigError: the model has no directory of its own.
    """
    from shared.errors import ConfigError
    from shared.verdict import VERDICT_FILE

    if config.generator.verdict:
        return Path(config.generator.verdict)
    if not Path(config.model).is_dir():
        raise ConfigError(
            f"verdict: {config.model} has no directory here; name a file by --verdict, and that in "
            "generator.verdict"
        )
    return Path(config.model) / VERDICT_FILE
