"""`kvquilt ask`."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from cluster.cli.output import output_option
from cluster.cli.reuse_options import OneOf, reuse_of, reuse_options
from cluster.cli.session import Session
from shared.answer import Refusal
from shared.errors import InvalidRequest
from shared.generation.asked import (
    Beams,
    Choice,
    ChoiceRule,
    Decoding,
    EarlyStopping,
    Margins,
    MarginsAfter,
    SamplingParams,
)

SEARCH_MODES = ("auto", "dense", "bm25", "hybrid")
THOUGHT_TEMPERATURE = 0.7


@click.command()
@click.argument("question", required=False)
@click.option(
    "--question",
    "-q",
    "questions",
    multiple=True,
    help="Several questions over one context, decoded together.",
)
@click.option("--collection", "-c", required=True, help="The documents to read.")
@reuse_options
@click.option("--stream/--no-stream", default=True, help="Write the answer as it comes.")
@click.option("-k", type=click.IntRange(min=1), help="Chunks in the context.")
@click.option("--search", type=click.Choice(SEARCH_MODES), default="auto", help="How to find them.")
@click.option(
    "--samples",
    "--n",
    "samples",
    type=click.IntRange(1, 64),
    help=(
        "Answers per question: independent samples (wants a temperature), or with --beams the best "
        "so many. Default 1."
    ),
)
@click.option("--beams", type=click.IntRange(1, 64), help="Beam search of this width instead of sampling.")
@click.option(
    "--length-penalty",
    type=float,
    help="Of beams: above 0 favours long answers, 0 is none. Default 1.",
)
@click.option(
    "--early-stopping",
    type=OneOf(EarlyStopping),
    help="Of beams, once there are as many whole answers as beams: stop at once (first), when no beam "
    "looks better (estimate), or "
    "when none can become better (never). Default estimate.",
)
@click.option(
    "--thoughts",
    type=click.IntRange(2, 64),
    help="So many sampled thoughts, of which one is chosen.",
)
@click.option(
    "--choose",
    type=OneOf(ChoiceRule),
    help=(
        "Of thoughts: the one the model finds most likely (default), or one whose final answer most "
        "of them share."
    ),
)
@click.option(
    "--marker",
    default="",
    help="Of a majority: the final answer is the line behind this text; else the whole thought.",
)
@click.option(
    "--margins",
    is_flag=True,
    help="First note on every chunk what helps, then answer with the relevant notes in context.",
)
@click.option(
    "--margins-after",
    type=OneOf(MarginsAfter),
    help="Of margins: each sees its own chunk alone (own), or all chunks in front of it as well, as in the "
    "paper (previous). Default own.",
)
@click.option(
    "--temperature",
    type=float,
    help="0: always the most likely token. Default 0, of thoughts 0.7.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, help="Equal seeds sample equally.")
@click.option("--max-tokens", type=click.IntRange(min=1), help="Most tokens per answer.")
@click.option(
    "--refusal",
    type=OneOf(Refusal),
    help="Answer nothing that the documents hold too little evidence for. Default: as configured (off).",
)
@click.option(
    "--no-shadow",
    is_flag=True,
    help="Never ask this question again of the reference (gateway.shadow; docs/gate.md).",
)
@click.option(
    "--trace",
    is_flag=True,
    help="Have it traced, and show what every service did, and when (docs/tracing.md).",
)
@output_option(with_flag=True)
@click.pass_obj
def ask(
    session: Session, /, question: str | None, questions: tuple[str, ...], collection: str, **options: Any
) -> None:
    """Ask the documents of a collection. However many answers are asked for, they are decoded together over
    one context.

    \b
    kvquilt ask "Who signed the lease?" -c handbook
    kvquilt ask "Who signed the lease?" -c handbook --reuse full       the same without reuse, for comparison
    kvquilt ask "Who signed the lease?" -c handbook --reuse cacheclip --recompute-ratio 0.2 --explain
    kvquilt ask -q "Who signed it?" -q "When?" -q "Where?" -c handbook
    kvquilt ask "Who signed it?" -c handbook --samples 4 --temperature 0.8
    kvquilt ask "Who signed it?" -c handbook --beams 4 --samples 2     the best 2 of 4 beams
    kvquilt ask "Who signed it?" -c handbook --margins                 notes on every chunk first
    kvquilt ask "Who signed it?" -c handbook --trace                   and what every service did for it
    kvquilt ask "How many rooms?" -c handbook --thoughts 5 --choose majority --marker "Answer:"
    """
    from cluster.cli.answer_output import WholeAnswer, collect, show, show_json
    from cluster.cli.trace_command import show_asked_for, spans_asked_for
    from shared.answer import Inquiry, RetrievalOptions
    from shared.clients.doors import rag_client
    from shared.search import SearchMode
    from shared.tracing.traceparent import new_traceparent, trace_id_of

    asked = ([question] if question is not None else []) + list(questions)
    if not asked:
        raise InvalidRequest("give a QUESTION, or several by -q")
    if options["margins"] and len(asked) > 1:
        raise InvalidRequest("--margins are written for one question; ask one at a time")
    sampling = sampling_of(options)
    inquiry = Inquiry(
        collection,
        tuple(asked),
        reuse_of(options),
        sampling,
        RetrievalOptions(options["k"] or 0, SearchMode(options["search"])),
        decoding_of(options),
        options["no_prefix"],
        options["explain"],
        options["refusal"],
        no_shadow=options["no_shadow"],
    )
    if hint := equal_samples_hint(options):
        session.err.print(f"hint: {hint}", style="yellow", soft_wrap=True)

    traceparent = new_traceparent() if options["trace"] else ""
    trace_id = trace_id_of(traceparent)

    async def go() -> WholeAnswer | None:
        async with session.connect(rag_client) as client:
            events = client.answer(session.context(traceparent=traceparent), inquiry)
            if session.as_json:
                return await collect(events)
            await show(session.out, events, asked, sampling.n, options["stream"], options["explain"])
            return None

    answer = asyncio.run(go())
    if answer is not None:
        spans = spans_asked_for(session, trace_id) if trace_id else None
        click.echo(show_json(answer, asked, trace_id, spans))
    elif trace_id:
        show_asked_for(session, trace_id)


def sampling_of(options: dict[str, Any]) -> SamplingParams:
    """
    Raises:
        InvalidRequest: thoughts and samples.
    """
    if options["thoughts"] and options["samples"]:
        raise InvalidRequest("--thoughts and --samples both say how many answers to sample; give one")
    usual = THOUGHT_TEMPERATURE if options["thoughts"] else 0.0
    return SamplingParams(
        max_tokens=options["max_tokens"],
        temperature=usual if options["temperature"] is None else options["temperature"],
        seed=options["seed"],
        n=options["thoughts"] or options["samples"] or 1,
    )


def equal_samples_hint(options: dict[str, Any]) -> str:
    """Says why all answers will be the same; empty if they need not be."""
    if (options["samples"] or 0) < 2 or options["temperature"] or options["beams"]:
        return ""
    equal = f"--samples {options['samples']} at temperature 0 gives the same answer every time"
    return f"{equal}; add --temperature 0.8"


def decoding_of(options: dict[str, Any]) -> Decoding:
    """
    Raises:
        InvalidRequest: an option without the one that it belongs to, or beams and thoughts.
    """
    for name, needs in (
        ("length_penalty", "beams"),
        ("early_stopping", "beams"),
        ("choose", "thoughts"),
        ("marker", "thoughts"),
        ("margins_after", "margins"),
    ):
        if options[name] and not options[needs]:
            raise InvalidRequest(f"--{name.replace('_', '-')} belongs to --{needs}; give that too")
    if options["beams"] and options["thoughts"]:
        raise InvalidRequest("--beams and --thoughts exclude each other: beams are ranked already")
    after = options["margins_after"] or MarginsAfter.OWN
    margins = Margins(after=after) if options["margins"] else None
    if options["beams"]:
        penalty = 1.0 if options["length_penalty"] is None else options["length_penalty"]
        stopping = options["early_stopping"] or EarlyStopping.ESTIMATE
        return Decoding(beams=Beams(options["beams"], penalty, stopping), margins=margins)
    if options["thoughts"]:
        rule = options["choose"] or ChoiceRule.MEAN_LOGPROB
        return Decoding(choose=Choice(rule, options["marker"]), margins=margins)
    return Decoding(margins=margins)
