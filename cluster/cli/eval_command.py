"""`kvquilt eval`: evaluates a model in every mode of reuse, by the papers' own tasks and metrics."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cluster.cli.output import output_option
from cluster.cli.session import EXISTING_FILE, FILE, Session
from shared.kv_types import KvContext

if TYPE_CHECKING:
    from cluster.evaluation.evaluation import EvalResult

_DEFAULT_CASES = 40


@click.command(name="eval")
@click.option(
    "--suite",
    required=True,
    metavar="NAME",
    help="ruler, cacheclip (made on the spot); rgb, longbench, ctxs, mmlu, triviaqa, gsm8k (from --data).",
)
@click.option("--data", multiple=True, type=FILE, help="A published file, in its own format. Repeatable.")
@click.option("--tasks", default="", help="Only these of the suite: niah_single_1,vt. Default: all.")
@click.option(
    "--cases", type=click.IntRange(min=1), default=_DEFAULT_CASES, show_default=True, help="Of each task."
)
@click.option(
    "--length",
    type=click.IntRange(min=64),
    help="Tokens of a prompt and its answer: cases of ruler are made as long, longer documents of files lose "
    "chunks in their middle. Default: 2048 of ruler and cacheclip; of files what the model can read.",
)
@click.option(
    "--modes",
    help="reordered,query_attention,…; full and closed book come along. Default: reordered, and cacheclip "
    "where the model has a selector.",
)
@click.option("--ratios", default="0.2", show_default=True, help="Of the tokens, to be recomputed: 0.1,0.2")
@click.option(
    "--kv-context",
    help="What stored chunks are computed behind: document,header,none. Default: ingestion.kv_context, and "
    "none.",
)
@click.option(
    "--model", help="As of `kvquilt up`. Default: smollm2, where its package is installed, else demo."
)
@click.option(
    "--config", "config_path", type=EXISTING_FILE, help="The quilt.yaml that the model is served with."
)
@click.option(
    "--retrieve",
    type=click.IntRange(min=1),
    help="Ask over so many chunks of a case's documents, found by the question's words, in any order; full "
    "over these alone is asked besides, and their whole documents are what full reads. Default: all chunks.",
)
@click.option(
    "--adapter",
    "adapters",
    multiple=True,
    help="Ask every mode with this adapter as well: one of generator.engine.adapters, or a directory. "
    "Repeatable.",
)
@click.option("--device", help="cpu, cuda, … Default: generator.engine.device.")
@click.option(
    "--haystack", type=EXISTING_FILE, help="Prose to hide needles in. Default: invented paragraphs."
)
@click.option("--max-tokens", type=click.IntRange(min=1), help="Of an answer. Default: as the suite has it.")
@click.option("--metric", help="In place of the authors': exact, subspan, f1, rouge_l, …")
@click.option("--noise", default="0,0.2,0.4,0.6,0.8", show_default=True, help="Of rgb: shares of passages.")
@click.option(
    "--passages", type=click.IntRange(min=1), default=5, show_default=True, help="Of rgb: of each question."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of cases that are drawn.")
@click.option("--minutes", type=float, help="Stop asking after this long, and report what was asked.")
@click.option("--answers", type=FILE, help="Keep answers here as they come, and go on from those there.")
@click.option(
    "--via",
    type=(click.Choice(["grpc"]), str),
    metavar="grpc HOST:PORT",
    help="Ask a running system, which serves --model, instead of the engine.",
)
@click.option("--json", "json_path", type=FILE, help="Where a report goes.")
@click.option(
    "--html", "html_path", type=FILE, help="Where a page with plots goes, and the model's attention."
)
@click.option(
    "--threads", type=click.IntRange(min=1), default=1, show_default=True, help="Of torch, in each process."
)
@click.option(
    "--processes", type=click.IntRange(min=0), default=0, help="That ask at once. Default: one per core."
)
@output_option(help="For people (text), or the report on standard output (json).")
@click.pass_obj
def evaluate(
    session: Session,
    suite: str,
    data: tuple[Path, ...],
    tasks: str,
    cases: int,
    length: int | None,
    modes: str | None,
    ratios: str,
    kv_context: str | None,
    model: str | None,
    config_path: Path | None,
    retrieve: int | None,
    adapters: tuple[str, ...],
    device: str | None,
    haystack: Path | None,
    max_tokens: int | None,
    metric: str | None,
    noise: str,
    passages: int,
    seed: int,
    minutes: float | None,
    answers: Path | None,
    via: tuple[str, str] | None,
    json_path: Path | None,
    html_path: Path | None,
    threads: int,
    processes: int,
) -> None:
    """Evaluate a model in every mode of reuse, by the tasks and metrics of the papers.

    Every case is asked without documents (closed book), with everything computed (full), and in each mode
    over stored KV of each kind. A row is one mode: its score with a 95 % interval, what that differs from
    full by with the p of a paired test, the KL divergence of the first token from full, how much of the
    context was computed, arithmetic and time of an answer. Where full does not beat closed book by 20 points
    the model does not read such documents, and only KL is reported. Nothing needs to run.

    \b
    kvquilt eval --suite ruler --length 2048 --modes full,reordered,cacheclip --model demo
    kvquilt eval --suite cacheclip --ratios 0.1,0.2,0.4 --answers eval.jsonl --minutes 30     again to go on
    kvquilt eval --suite ruler --tasks niah_single_2,vt --kv-context none --json report.json
    kvquilt eval --suite rgb --data en.json --data en_int.json --data en_fact.json --noise 0,0.4,0.8
    kvquilt eval --suite longbench --data musique.jsonl --data dureader.jsonl --length 8192 --cases 100
    kvquilt eval --suite ctxs --data musique_s.json --modes full,reordered,query_attention
    kvquilt eval --suite ctxs --data nq-open-20_total_documents_gold_at_0.jsonl.gz --retrieve 8 --device cuda
    kvquilt eval --suite rgb --data en.json --adapter adapters/handbook
    kvquilt eval --suite ruler --via grpc 127.0.0.1:9000 --model demo

    docs/evaluation.md says what is asked and how it is scored.
    """
    import torch

    from cluster.cli.model_choice import served_config
    from cluster.evaluation.adapters import adapter_places
    from cluster.evaluation.arms import parse_contexts, parse_modes
    from cluster.evaluation.datasets.wanted import parse_noise
    from cluster.evaluation.evaluation import EvalRun
    from cluster.evaluation.metrics import Metric
    from cluster.evaluation.suites import SuiteOrder, parse_suite
    from cluster.gate.answering import Models
    from cluster.gate.modes import parse_ratios
    from cluster.gate.names import parse_names
    from shared.clients.doors import generation_client
    from shared.generation.modes import ReuseMode

    order = SuiteOrder(
        parse_suite(suite),
        cases,
        tuple(tasks.split(",")) if tasks else (),
        seed,
        length or 0,
        max_tokens or 0,
        haystack,
        data,
        next(iter(parse_names("--metric", metric or "", Metric)), None),
        parse_noise(noise),
        passages,
    )
    order.check()
    wanted = parse_modes(",".join(name for name in (modes or "").split(",") if name.strip() != "full"))
    shares = parse_ratios(ratios)
    contexts = parse_contexts(kv_context) if kv_context else ()
    options = {"model": model, "generator": device and {"engine": {"device": device}}}
    config = served_config(config_path, options, session.out)
    if modes is None:
        clip = (ReuseMode.CACHECLIP,) if config.selector.model else ()
        wanted = (ReuseMode.REORDERED, *clip)
    contexts = contexts or tuple(dict.fromkeys((config.ingestion.kv_context, KvContext.NONE)))
    there = config.generator.engine.adapters
    places = dict.fromkeys(adapters, "") if via else adapter_places(adapters, there)
    torch.set_num_threads(threads)
    evaluation = EvalRun(
        Models(
            config.model,
            config.selector.model,
            config.ingestion,
            config.generator.engine.dtype,
            stop=config.generator.stop,
            adapters=places,
            device=config.generator.engine.device,
            weights=config.generator.engine.weights,
        ),
        order,
        wanted,
        contexts,
        shares,
        threads,
        processes,
        minutes,
        attention=html_path is not None and via is None,
        connect=via and partial(generation_client, via[1], session.credentials_at(via[1])),
        tenant=session.tenant,
        retrieve=retrieve or 0,
        adapters=tuple(places),
    )
    try:
        evaluated = evaluation.run(answers, session.err)
    except KeyboardInterrupt:
        again = "the same command goes on from here" if answers else "with --answers it could go on"
        raise click.exceptions.Exit(session.interrupted(f"interrupted; {again}")) from None
    _report(session, evaluated, json_path, html_path, threads)


def _report(
    session: Session, evaluated: EvalResult, json_path: Path | None, html_path: Path | None, threads: int
) -> None:
    from cluster.cli.console import print_whole
    from cluster.evaluation.page import write_page
    from cluster.evaluation.show import shown
    from shared.measuring.report import report_of, write_report

    if session.as_json:
        session.tell(report_of(evaluated.measurements(), evaluated.details(), threads=threads))
    if not evaluated.found:
        session.err.print("no case has been asked in every mode yet; give it more --minutes")
    for part in shown(evaluated.found, evaluated.averages):
        if isinstance(part, str):
            session.out.print(part, soft_wrap=True)
        else:
            print_whole(session.out, part)
    if json_path is not None:
        write_report(json_path, evaluated.measurements(), evaluated.details(), threads=threads)
        session.out.print(f"report: {json_path}", soft_wrap=True)
    if html_path is not None:
        write_page(html_path, evaluated)
        session.out.print(f"page: {html_path}", soft_wrap=True)
