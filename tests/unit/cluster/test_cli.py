"""The command line without services: options, messages, exit codes."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import re
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from rich.console import Console

from cluster.cli.answer_output import collect, show, show_json
from cluster.cli.ask_command import ask, decoding_of, equal_samples_hint, sampling_of
from cluster.cli.console import documents_table, print_whole, stage_cells, stages_table, status_table
from cluster.cli.explanation import ORIGINS
from cluster.cli.ingest_command import ingest_files, print_skipped
from cluster.cli.main import main
from cluster.cli.reuse_options import FOREST_MODES, reuse_of
from cluster.cli.session import Commands, exit_code
from cluster.cli.sources import SourceFile
from cluster.local.demo import MODES
from shared import errors
from shared.answer import AnswerDone, AnswerEvent, AnswerText, AnswerUsage, Citation, Retrieved
from shared.clients.health import ServiceHealth
from shared.documents import DocumentInfo, SourceDocument, Stage, UpsertProgress
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
from shared.generation.counted import LOADED
from shared.generation.modes import Ape, Recompute, ReuseMode
from shared.generation.orders import ASKED_MODES, Auto, Reuse
from shared.generation.selection import Grouping, Reading, SelectionTimings
from shared.generation.told import (
    ChosenEvent,
    FinishReason,
    MarginEvent,
    SelectedEvent,
    TextSpan,
    Timings,
    TokenEvent,
    Usage,
)
from shared.routing.costs import Tier
from shared.search import IndexedChunk, SearchHit, SearchMode

HIT = SearchHit(IndexedChunk("c1", "Orla Venn built it", (1, 2)), "bridge.txt", "Bridge", "f", 0.5)
COST = AnswerUsage(Usage(50, 40, 10, 2), Timings(retrieve_s=0.0032, first_token_s=0.021, total_s=0.04))


def invoke(*args: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, list(args), catch_exceptions=False)
    return result.exit_code, result.output


async def stream(*events: AnswerEvent) -> AsyncGenerator[AnswerEvent, None]:
    for event in events:
        yield event


def text(question: int, words: str) -> AnswerText:
    return AnswerText(
        question, 0, words, FinishReason.STOP, (Citation("bridge.txt", "Bridge", "c1", 0, "History"),)
    )


def whole(*texts: AnswerText, tokens: Sequence[str] = ()) -> list[AnswerEvent]:
    told = [TokenEvent(0, 0, 1, token, -0.1) for token in tokens]
    return [Retrieved((HIT,), SearchMode.DENSE), *told, *texts, COST, AnswerDone("r1")]


async def shown(
    events: list[AnswerEvent],
    questions: list[str],
    live: bool,
    per_question: int = 1,
    explain: bool = False,
    colour: bool = False,
) -> str:
    out = io.StringIO()
    console = Console(file=out, width=200, force_terminal=colour, color_system="standard" if colour else None)
    await show(console, stream(*events), questions, per_question, live, explain)
    return out.getvalue()


@pytest.mark.parametrize(
    "command",
    [
        "",
        "up",
        "down",
        "status",
        "ingest",
        "sync",
        "ask",
        "explore",
        "documents",
        "delete",
        "models",
        "eval",
        "demo",
    ],
)
def test_every_command_explains_itself(command: str) -> None:
    code, output = invoke(*filter(None, [command]), "--help")
    assert code == 0
    assert "Usage:" in output


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (["status"], 3, "start it with `kvquilt up`"),
        (["ask", "-c", "x"], 2, "give a QUESTION"),
        (["ask", "-q", "?", "-q", "!", "-c", "x", "--margins"], 2, "one question"),
        (
            ["ask", "?", "-c", "x", "--recompute-tokens", "1,2"],
            2,
            "--recompute-tokens belongs to --reuse tokens",
        ),
        (["ask", "?", "-c", "x", "--reuse", "tokens", "--recompute-tokens", "1;2"], 2, "no list of numbers"),
        (["ask", "?", "-c", "x", "--choose", "majority"], 2, "--choose belongs to --thoughts"),
        (["ask", "?", "-c", "x", "--length-penalty", "2"], 2, "--length-penalty belongs to --beams"),
        (["ask", "?", "-c", "x", "--beams", "2", "--thoughts", "2"], 2, "exclude each other"),
        (["explore", "?", "-c", "x"], 3, "start it with `kvquilt up`"),
        (["ask", "?", "-c", "x", "--samples", "2", "--thoughts", "2"], 2, "give one"),
        (["ingest", "-c", "x"], 2, "PATHS"),
        (["ingest", "nowhere", "-c", "x"], 2, "nowhere: no such file"),
        (["sync", "nowhere", "-c", "x"], 2, "nowhere: no such file or folder"),
        (["sync", "http://x", "-c", "x"], 2, "SOURCE: a folder or s3://"),
        (["sync", ".", "-c", "x", "--endpoint", "x:1"], 2, "belong to s3://"),
        (["sync", ".", "-c", "x", "--yes"], 2, "only with --delete"),
        (["sync", "s3://b", "-c", "x", "--endpoint", "http://x:1"], 2, "s3://b: bucket: 3 to 63"),
        (["delete", "-c", "x"], 2, "DOCUMENT_IDS"),
        (["up", "--model", "/no/such/model"], 2, "model: there is no directory"),
        (["up", "--grpc-port", "99999"], 2, "grpc_port: must be 1 to 65535"),
    ],
)
def test_mistakes_are_one_line_and_an_exit_code(
    args: list[str], code: int, says: str, tmp_path: Path
) -> None:
    got, output = invoke("--data-dir", str(tmp_path), *args)
    assert (got, len(output.strip().splitlines())) == (code, 1)
    assert says in output


def test_exit_codes_tell_wrong_absent_and_retryable_apart() -> None:
    assert [
        exit_code(e("x"))
        for e in (errors.ConfigError, errors.NotFound, errors.Unavailable, errors.InternalError)
    ] == [
        2,
        3,
        4,
        1,
    ]


async def test_a_streamed_answer_is_written_once_with_sources_and_cost() -> None:
    output = await shown(whole(text(0, " Orla Venn."), tokens=[" Orla", " Venn"]), ["Who?"], live=True)
    assert output.count("Orla Venn.") == 1
    assert "sources: bridge.txt (History) [1]" in output
    assert "50 prompt tokens: 40 reused, 10 computed; 2 generated" in output
    assert "3.2" in output


async def test_a_source_says_its_block_and_what_its_kv_knows_besides() -> None:
    citation = Citation("bridge.txt", "Bridge", "c1", 0, "History", 2, "History", True, (4, 5, 7))
    told = dataclasses.replace(text(0, " Orla Venn."), citations=(citation,))
    output = await shown(whole(told), ["Who?"], live=True)
    assert "sources: bridge.txt (History, block 2) [1], conditioned on header + 3 chunks" in output
    (answer,) = json.loads(show_json(await collect(stream(*whole(told))), ["Who?"]))["answers"]
    (cited,) = answer["citations"]
    assert cited["conditioned_on"] == "header + 3 chunks"
    assert (cited["block"], cited["conditioned_on_header"], cited["conditioned_on_chunks"]) == (
        2,
        True,
        [4, 5, 7],
    )


async def test_several_answers_each_follow_their_question() -> None:
    output = await shown(whole(text(1, "in 1874"), text(0, "Orla")), ["Who?", "When?"], live=True)
    assert output.index("When?") < output.index("in 1874") < output.index("Who?") < output.index("Orla")


async def test_thoughts_are_numbered_and_the_chosen_one_is_named() -> None:
    thoughts = [
        dataclasses.replace(text(0, words), sample=i, score=-0.5 - i)
        for i, words in enumerate(("42", "41", "42"))
    ]
    events = whole(*thoughts)
    events.insert(-2, ChosenEvent(0, 2, "42", 2))
    output = await shown(events, ["How many?"], live=True, per_question=3)
    assert (
        output.index("[1 of 3, score -0.500]")
        < output.index("[3 of 3, score -2.500]")
        < output.index("chosen: 3 (2 say “42”)")
    )
    answers = json.loads(show_json(await collect(stream(*events)), ["How many?"]))["answers"]
    assert [a["chosen"] for a in answers] == [False, False, True]
    assert (answers[2]["votes"], answers[2]["score"]) == (2, -2.5)


async def test_margins_are_shown_with_the_document_they_are_written_on() -> None:
    events = whole(text(0, "Orla"))
    events.insert(1, MarginEvent(0, " Orla built it", True, -0.1, -3.0))
    assert "margin on bridge.txt, kept: Orla built it" in await shown(events, ["Who?"], live=True)
    assert json.loads(show_json(await collect(stream(*events)), ["Who?"]))["margins"][0]["kept"] is True


def converted(args: dict[str, Any]) -> dict[str, Any]:
    """As the options of `kvquilt ask` hand them over."""
    types = {parameter.name: parameter.type for parameter in ask.params}
    return {name: types[name].convert(value, None, None) for name, value in args.items()}


@pytest.mark.parametrize(
    ("args", "sampling", "decoding"),
    [
        ({}, SamplingParams(temperature=0.0), Decoding()),
        ({"samples": 3, "temperature": 0.5}, SamplingParams(temperature=0.5, n=3), Decoding()),
        ({"beams": 4, "samples": 2}, SamplingParams(n=2), Decoding(beams=Beams(4))),
        (
            {"beams": 4, "length_penalty": 0.5, "early_stopping": "first"},
            SamplingParams(),
            Decoding(beams=Beams(4, 0.5, EarlyStopping.FIRST)),
        ),
        ({"margins": True, "beams": 2}, SamplingParams(), Decoding(beams=Beams(2), margins=Margins())),
        (
            {"margins": True, "margins_after": "previous"},
            SamplingParams(),
            Decoding(margins=Margins(after=MarginsAfter.PREVIOUS)),
        ),
        (
            {"thoughts": 5},
            SamplingParams(n=5, temperature=0.7),
            Decoding(choose=Choice(ChoiceRule.MEAN_LOGPROB)),
        ),
        (
            {"thoughts": 5, "choose": "majority", "marker": "A:", "temperature": 1.0},
            SamplingParams(n=5, temperature=1.0),
            Decoding(choose=Choice(ChoiceRule.MAJORITY, "A:")),
        ),
    ],
)
def test_options_of_ask_become_what_is_asked_for(
    args: dict[str, Any], sampling: SamplingParams, decoding: Decoding
) -> None:
    options = {parameter.name: None for parameter in ask.params} | {"seed": 0, "marker": ""}
    options |= converted(args)
    assert (sampling_of(options), decoding_of(options)) == (sampling, decoding)


@pytest.mark.parametrize(
    ("args", "hinted"),
    [
        ({"samples": 3}, True),
        ({"samples": 3, "temperature": 0.0}, True),
        ({"samples": 3, "temperature": 0.8}, False),
        ({"samples": 1}, False),
        ({"samples": 2, "beams": 4}, False),
        ({"thoughts": 3}, False),
        ({}, False),
    ],
)
def test_samples_that_must_all_be_equal_are_hinted_at(args: dict[str, Any], hinted: bool) -> None:
    hint = equal_samples_hint({parameter.name: None for parameter in ask.params} | args)
    assert bool(hint) == hinted
    assert not hint or "add --temperature" in hint


def clipped() -> list[AnswerEvent]:
    """One of the hit's two tokens was chosen, by a selector that took 30 ms, of which 10 were waited for."""
    spans = ((TextSpan(5, 9, 0.5),),)
    selected = SelectedEvent(
        (1,),
        None,
        (0.25, 0.5),
        (),
        spans,
        Reading.STITCHED,
        3,
        8,
        SelectionTimings(0.0015, 0.0, 0.003, 0.02, 0.025),
    )
    usage = Usage(50, 40, 10, 2, 0, 1, 3, 8, ReuseMode.CACHECLIP)
    cost = AnswerUsage(usage, Timings(select_s=0.03, select_wait_s=0.01))
    return [Retrieved((HIT,), SearchMode.DENSE), selected, text(0, "Orla"), cost, AnswerDone("r1")]


async def test_an_explanation_shows_the_context_with_what_was_computed_anew_and_what_choosing_it_took() -> (
    None
):
    output = await shown(clipped(), ["Who?"], live=True, explain=True)
    assert "context, computed anew: 1 of 2 tokens" in output
    assert "[1] bridge.txt: 1 of 2 tokens; scores up to 0.5, 0.75 in all" in output
    assert "Orla ⟦Venn⟧ built it" in output
    assert (
        "selector: 3 of its tokens picked, 8 in groups, read stitched; load 1.5, encode 0.0, wait 3.0, "
        "score 20.0, total 25.0 ms" in output
    )
    assert "choosing took 30.0 ms: 20.0 hidden behind loading, 10.0 waited for" in output
    assert "10 computed, 1 of them chosen by cacheclip" in output
    coloured = await shown(clipped(), ["Who?"], live=True, explain=True, colour=True)
    assert "Orla \x1b[30;43mVenn\x1b[0m built it" in coloured
    plain = await shown(clipped(), ["Who?"], live=True)
    assert "⟦" not in plain
    assert "choosing took" in plain


@pytest.mark.parametrize(
    ("origins", "says"),
    [
        (("disk",), "in all; KV loaded from disk"),
        (("computed",), "in all; KV computed for this answer"),
        (("attic",), "in all; KV attic"),
        ((), "in all\n"),
    ],
)
async def test_an_explanation_says_where_each_chunks_kv_came_from(
    origins: tuple[str, ...], says: str
) -> None:
    events = [
        dataclasses.replace(event, usage=dataclasses.replace(event.usage, chunk_origins=origins))
        if isinstance(event, AnswerUsage)
        else event
        for event in clipped()
    ]
    assert says in await shown(events, ["Who?"], live=True, explain=True)


def test_every_origin_of_kv_has_words() -> None:
    assert {*map(str, Tier), LOADED} - {str(Tier.ARRIVING)} <= set(ORIGINS)


async def test_without_spans_an_explanation_still_counts_and_without_a_choice_it_shows_the_chunks() -> None:
    events = clipped()
    events[1] = SelectedEvent((1,), 0)
    output = await shown(events, ["Who?", "When?"], live=True, explain=True)
    assert "context, computed anew for “Who?”: 1 of 2 tokens" in output
    assert "Orla Venn built it" in output
    assert "computed anew: 0 of 2 tokens" in await shown(
        whole(text(0, "Orla")), ["Who?"], live=True, explain=True
    )


async def test_json_has_what_was_chosen_with_its_text_and_times() -> None:
    answer = json.loads(show_json(await collect(stream(*clipped())), ["Who?"]))
    (selected,) = answer["selected"]
    assert selected["tokens"] == [1]
    assert selected["scores"] == [0.25, 0.5]
    assert selected["chunks"] == [[{"start": 5, "end": 9, "score": 0.5, "text": "Venn"}]]
    assert (selected["num_picked"], selected["num_grouped"], selected["reading"]) == (3, 8, "stitched")
    assert selected["timings_ms"]["score"] == 20.0
    assert answer["usage"]["reuse"] == "cacheclip"
    assert answer["timings_ms"]["select_wait"] == 10.0


async def test_a_note_says_what_an_answer_really_ran_as() -> None:
    events = whole(text(0, "Orla"))
    note = "cacheclip became epic: the selector did not answer within 5 s"
    events[-2] = AnswerUsage(Usage(50, 40, 10, 2, reuse=ReuseMode.EPIC, note=note), Timings())
    assert note in await shown(events, ["Who?"], live=True)


async def test_an_answer_says_which_adapter_it_went_with() -> None:
    events = whole(text(0, "Orla"))
    events[-2] = AnswerUsage(Usage(50, 40, 10, 2, adapter="qa"), Timings())
    assert "10 computed; 2 generated; adapter qa" in await shown(events, ["Who?"], live=True)
    answer = json.loads(show_json(await collect(stream(*events)), ["Who?"]))
    assert answer["usage"]["adapter"] == "qa"


@pytest.mark.parametrize(
    ("args", "reuse"),
    [
        ({}, Reuse()),
        ({"reuse": "auto"}, Reuse(Auto.AUTO)),
        (
            {"reuse": "tokens", "recompute_tokens": "5, 1,9"},
            Reuse(ReuseMode.TOKENS, Recompute(tokens=(5, 1, 9))),
        ),
        (
            {"reuse": "random", "recompute_ratio": 0.3, "seed": 4},
            Reuse(ReuseMode.RANDOM, Recompute(0.3, seed=4)),
        ),
        (
            {"reuse": "cacheclip", "grouping": "paper", "reading": "each"},
            Reuse(ReuseMode.CACHECLIP, grouping=Grouping.PAPER, reading=Reading.EACH),
        ),
        ({"adapter": "qa"}, Reuse(adapter="qa")),
        ({"reuse": "ape", "ape_scale": 0.5, "seed": 4}, Reuse(ReuseMode.APE, ape=Ape(scale=0.5))),
    ],
)
def test_options_of_reuse_become_what_is_asked_for(args: dict[str, Any], reuse: Reuse) -> None:
    options = {parameter.name: None for parameter in ask.params} | {"seed": 0, "recompute_tokens": ""}
    assert reuse_of(options | converted(args)) == reuse


def test_a_forest_is_offered_the_modes_that_need_no_question() -> None:
    assert set(ASKED_MODES) - set(FOREST_MODES) == {"tokens", "query_attention", "cacheclip"}


async def test_an_answer_that_breaks_off_is_an_error_not_an_answer() -> None:
    with pytest.raises(errors.Unavailable, match="broke off"):
        await collect(stream(*whole(text(0, "Orla"))[:-1]))


async def test_json_has_answers_hits_usage_and_times_in_milliseconds() -> None:
    answer = json.loads(show_json(await collect(stream(*whole(text(0, " Orla Venn")))), ["Who?"]))
    assert answer["answers"][0]["text"] == "Orla Venn"
    assert answer["answers"][0]["citations"][0]["document_id"] == "bridge.txt"
    assert answer["hits"][0]["chunk_id"] == "c1"
    assert answer["usage"]["reused_tokens"] == 40
    assert answer["timings_ms"]["first_token"] == 21.0


def test_files_that_are_left_out_are_said_and_many_are_counted() -> None:
    out = io.StringIO()
    print_skipped(Console(file=out, width=40), {Path(f"{i}.png"): "is none of .txt" for i in range(25)})
    lines = out.getvalue().splitlines()
    assert lines[0] == "skipped 0.png: is none of .txt"
    assert (len(lines), lines[-1]) == (21, "skipped 5 more")


def test_a_name_of_any_bytes_can_be_told() -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    print_skipped(
        Console(file=out, width=40), {Path(os.fsdecode(b"caf\xe9.txt")): "its name cannot be printed"}
    )
    out.seek(0)
    assert out.read() == "skipped caf\\udce9.txt: its name cannot be printed\n"


def test_a_document_is_named_whole_however_narrow_the_screen_is() -> None:
    out = io.StringIO()
    name = f"{'folder/' * 12}[1] a lease.pdf"
    table = documents_table([DocumentInfo("c", name, "A lease", 3, "f", True, 0.0)])
    print_whole(Console(file=out, width=40), table)
    assert name in out.getvalue()
    assert len(out.getvalue().splitlines()) == 2


def test_a_service_that_lacks_something_is_degraded_and_says_what() -> None:
    out = io.StringIO()
    services = [
        ServiceHealth("gateway", True, facts={"chunks": "3"}),
        ServiceHealth("kv_store", True, "the object store cannot be reached; retry"),
        ServiceHealth("generator", False, "no answer within 2 s"),
        ServiceHealth("retrieval", True, facts={"chunks": "3", "remote": "search.example:9000"}),
    ]
    Console(file=out, width=100).print(status_table(services))
    assert [line.split()[1:3] for line in out.getvalue().splitlines()[1:]] == [
        ["ready", "chunks"],
        ["degraded", "the"],
        ["not", "ready"],
        ["ready", "remote"],
    ]


def test_an_interrupted_command_ends_with_130() -> None:
    @click.command()
    def interrupted() -> None:
        raise KeyboardInterrupt

    group = Commands(commands={"interrupted": interrupted})
    result = CliRunner().invoke(group, ["interrupted"])
    assert (result.exit_code, result.output) == (130, "kvquilt: interrupted\n")


@pytest.mark.parametrize("width", [80, 120])
def test_the_stages_of_modes_fit_the_screen_with_a_unit_below_every_name(width: int) -> None:
    table = stages_table("reused tokens", "computed tokens")
    timings = Timings(3.2, 0.2, 1.5, 912.3, 1210.0, 333.0, 16000.0)
    for mode in MODES:
        table.add_row(str(mode), "15000", "14000", *stage_cells(timings))
    out = io.StringIO()
    Console(file=out, width=width).print(table)
    names, units, first, *_ = out.getvalue().splitlines()
    assert names.split()[:3] == ["reused", "computed", "retrieve"]
    assert units.split() == ["tokens"] * 2 + ["ms"] * 7
    ends = [names.index(name) + len(name) for name in ("reused", "computed")]
    assert [found.end() for found in re.finditer("tokens", units)] == ends
    assert len(first.split()) == 10
    assert "…" not in out.getvalue()


async def test_ingesting_goes_on_after_a_failure_and_names_it(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.txt", tmp_path / "bad.pdf"
    good.write_text("text", encoding="utf-8")
    bad.write_text("not a pdf", encoding="utf-8")
    sources = [
        SourceFile(tmp_path / "gone.txt", "gone.txt"),
        SourceFile(bad, "bad.pdf"),
        SourceFile(good, "good.txt"),
    ]

    async def upsert(documents: Sequence[SourceDocument]) -> AsyncGenerator[UpsertProgress, None]:
        for d in documents:
            if d.document_id == "bad.pdf":
                yield UpsertProgress(
                    "bad.pdf", Stage.FAILED, error="no PDF", error_code="DOCUMENT_UNREADABLE"
                )
            else:
                yield UpsertProgress(d.document_id, Stage.PARSED, 2)
                yield UpsertProgress(
                    d.document_id, Stage.STORED, 2, 2, 80, 1, warnings=("no text on page 2 of 3",)
                )

    out = io.StringIO()
    console = Console(file=out, width=100)
    summary = await ingest_files(console, upsert, sources)
    summary.print(console)
    assert (summary.num_stored, summary.num_chunks, summary.num_tokens, summary.num_chunks_reused) == (
        1,
        2,
        80,
        1,
    )
    assert set(summary.failed) == {"gone.txt", "bad.pdf"}
    assert "bad.pdf: no PDF" in out.getvalue()
    assert "gone.txt: cannot be read" in out.getvalue()
    assert "good.txt: no text on page 2 of 3" in out.getvalue()
