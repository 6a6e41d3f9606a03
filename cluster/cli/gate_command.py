"""`kvquilt gate`: judges by questions how a model's stored KV may be reused, and writes the verdict that mode
auto goes by."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cluster.cli.output import output_option
from cluster.cli.session import EXISTING_FILE, FILE, Session
from shared.errors import InvalidRequest
from shared.kv_buffers import ENCODINGS
from shared.kv_types import KvContext

if TYPE_CHECKING:
    from cluster.config import QuiltConfig

DEFAULT_QUESTIONS, DEFAULT_TOLERANCE, DEFAULT_ALPHA = 1500, 0.03, 0.05


class NumberOrFile(click.ParamType[int | Path]):
    """Number of questions that are invented, or the file that holds one's own."""

    name = "FILE|NUMBER"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | Path:
        if isinstance(value, int) or (isinstance(value, str) and value.lstrip("-").isdigit()):
            if int(value) < 1:
                self.fail(f"{value}: must be at least 1, or name a file of questions", param, ctx)
            return int(value)
        if not Path(value).is_file():
            self.fail(
                f"there is no file {value}; write one question per line as JSON, or give the number of "
                "questions to invent",
                param,
                ctx,
            )
        return Path(value)


class Several(click.ParamType[tuple[str, ...]]):
    """Some of ``known``, separated by commas, or ``all``."""

    name = "LIST"

    def __init__(self, *known: str) -> None:
        self._known = known

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        names = [name.strip() for name in str(value).split(",") if name.strip()]
        if names == ["all"]:
            return self._known
        for name in names:
            if name not in self._known:
                listed = ", ".join(repr(one) for one in self._known)
                self.fail(f"{name!r} is not one of {listed}.", param, ctx)
        if not names:
            self.fail("names nothing", param, ctx)
        return tuple(dict.fromkeys(names))


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
    "--questions",
    type=NumberOrFile(),
    default=DEFAULT_QUESTIONS,
    show_default=True,
    help="Your own, a JSON object per line (question, answers, evidence, documents, unanswerable; "
    "docs/gate.md), asked over what the running system retrieves; or at least so many that are invented.",
)
@click.option(
    "--collection", "-c", default="", help="Of --questions FILE: the documents. Default: the only one."
)
@click.option(
    "-k", type=click.IntRange(min=1), help="Of --questions FILE: chunks in the context. Default: gateway.k."
)
@click.option(
    "--modes",
    default="all",
    show_default=True,
    metavar="LIST",
    help="Which to judge besides full and reordered: ape,epic,cacheclip.",
)
@click.option("--ratios", default="0.2", show_default=True, help="Of the tokens, to be recomputed: 0.1,0.2")
@click.option(
    "--kv-context",
    "contexts",
    type=Several(*(context.value for context in KvContext)),
    help="What chunks are computed behind; several, or `all`, make several verdicts. Default: "
    "ingestion.kv_context.",
)
@click.option(
    "--encoding",
    "encodings",
    type=Several(*ENCODINGS),
    help="How KV is stored; several, or `all`, make several verdicts. Default: generator.kv_encoding.",
)
@click.option(
    "--adapter",
    default="",
    metavar="LIST",
    help="Of generator.engine.adapters, which the requests go with; `none`: the model alone. Several, or "
    "`all`, make several verdicts. Default: generator.adapter.",
)
@click.option(
    "--minutes", type=float, help="Stop asking after this long for each verdict, and judge by what was asked."
)
@click.option(
    "--tolerance",
    type=click.FloatRange(0, 1),
    default=DEFAULT_TOLERANCE,
    show_default=True,
    help="How much worse than full over whole blocks a mode may be; a share of the questions.",
)
@click.option(
    "--alpha",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=DEFAULT_ALPHA,
    show_default=True,
    help="The chance that a mode is accepted that is worse than that.",
)
@click.option(
    "--check",
    type=click.IntRange(min=0),
    default=0,
    help="Then ask so many questions that the verdict did not take (of FILE at most, invented ones at "
    "least), and tell whether it holds on them. Default: none.",
)
@click.option(
    "--answers",
    type=FILE,
    help="Keep answers here, of one kv_context, encoding and adapter. Default: below the data directory "
    "until there is a verdict; a gate that was interrupted goes on from them.",
)
@click.option(
    "--verdict",
    "verdict_path",
    type=FILE,
    help="Where the verdict goes. Default: generator.verdict, else quilt.verdict.json beside the model.",
)
@click.option(
    "--json",
    "json_path",
    type=FILE,
    help="Where a report goes; of several verdicts one each beside it, and a summary.",
)
@click.option(
    "--threads", type=click.IntRange(min=1), default=1, show_default=True, help="Of torch, in each process."
)
@click.option(
    "--processes", type=click.IntRange(min=0), default=0, help="That ask at once. Default: one per core."
)
@output_option(help="For people (text), or the reports on standard output (json).")
@click.pass_obj
def gate(
    session: Session,
    model: str | None,
    config_path: Path | None,
    questions: int | Path,
    collection: str,
    k: int | None,
    modes: str,
    ratios: str,
    contexts: tuple[str, ...] | None,
    encodings: tuple[str, ...] | None,
    adapter: str,
    minutes: float | None,
    tolerance: float,
    alpha: float,
    check: int,
    answers: Path | None,
    verdict_path: Path | None,
    json_path: Path | None,
    threads: int,
    processes: int,
) -> None:
    """Judge how a model's stored KV may be reused, and write the verdict that --reuse auto goes by.

    Every question is asked in every mode and compared with the reference, full over the whole blocks of
    what was retrieved. The verdict is the mode that computes least and surely loses no more than
    --tolerance; asking stops as soon as that is known, and without enough questions, or if the model cannot
    read them, there is no verdict. Modes that the model is not served with are left out, and named. Your own
    questions (--questions FILE) need a running system that holds the documents; invented ones need nothing.
    The verdict holds for this model, tokenizer, prompt, adapter, kv_context, encoding and selector;
    `kvquilt models` and `kvquilt status` show it, and what has changed since. Of several verdicts the
    cheapest way to serve is advised. With the demo model it takes minutes, with others hours: what was
    interrupted goes on by the same command.

    \b
    kvquilt gate --questions questions.jsonl -c handbook
    kvquilt gate --model smollm2 --questions 60 --minutes 30
    kvquilt gate --model demo --check 500
    kvquilt gate --config quilt.yaml --kv-context all --encoding all --adapter all
    """
    import torch

    from cluster.cli.gating import Gate, adapters_of, plan_of
    from cluster.cli.model_choice import served_config
    from cluster.gate.servings import Serving

    if isinstance(questions, int) and (collection or k):
        raise InvalidRequest(
            "-c, -k: belong to --questions FILE; invented questions bring their own documents"
        )
    # packets are served with one of them only, which the settings must have
    first = min(contexts or (), key=lambda context: context != KvContext.NONE, default=None)
    options = {"model": model, "ingestion": first and {"kv_context": first}}
    config = served_config(config_path, options, session.out)
    plan = plan_of(modes, ratios, config.generator.selector)
    torch.set_num_threads(threads)
    runner = Gate(
        session,
        config,
        plan,
        verdict_path or verdict_file(config),
        threads,
        processes,
        minutes,
        tolerance,
        alpha,
        answers,
        check,
    )
    servings = [
        Serving(KvContext(context), encoding, name)
        for context in contexts or (config.ingestion.kv_context,)
        for encoding in encodings or (config.generator.kv_encoding,)
        for name in adapters_of(adapter, config)
    ]
    if answers is not None and len(servings) > 1:
        raise InvalidRequest(
            "--answers: holds those of one kv_context, encoding and adapter; leave it out, or name one"
        )
    found = runner.own_questions(questions, collection, k) if isinstance(questions, Path) else questions
    try:
        runner.run(servings, found, json_path)
    except KeyboardInterrupt:
        sys.exit(session.interrupted("interrupted; the same command goes on where this one stopped"))


def verdict_file(config: QuiltConfig) -> Path:
    """Returns where the generator will look for it.

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
