"""Every value that travels is the same afterwards, and what no message may say is named."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protos.kvquilt.v1 import (
    common_pb2,
    generation_pb2,
    ingest_pb2,
    rag_pb2,
    recompute_pb2,
    retrieval_pb2,
    selection_pb2,
)
from shared import answer, documents, kv_items, kv_reports, kv_types, pinned, search
from shared.clients.health import HEALTH, ServiceHealth
from shared.errors import InternalError, InvalidRequest, NotFound
from shared.generation import asked, described, forest, modes, orders, pieces, selection, told
from shared.generation.response_format import ResponseFormat
from shared.wire import answer as answers
from shared.wire import asked as asking
from shared.wire import forest as forests
from shared.wire import ingest as ingesting
from shared.wire import kv_store as storing
from shared.wire import retrieval
from shared.wire import selection as selecting
from shared.wire import told as telling
from shared.wire.enums import (
    FILTER_OPS,
    FINISH_REASONS,
    GROUPINGS,
    MODES,
    READINGS,
    RULES,
    SEARCH_MODES,
    STAGES,
    STOPPINGS,
    USED_MODES,
)
from shared.wire.message import MessageWire

NUMBERS = st.integers(0, 2**32 - 1)
SEEDS = st.integers(0, 2**64 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
FACTS = st.dictionaries(TEXT, TEXT, max_size=2)
FILLED = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
FLOATS = st.floats(width=32, allow_nan=False)
# Whole milliseconds: in between, seconds and milliseconds differ in the last digit.
SECONDS = st.integers(0, 10**6).map(lambda ms: ms / 1000)
IDS = st.lists(NUMBERS, max_size=4).map(tuple)
PIECES = TEXT | IDS | st.builds(pieces.Tokenized, IDS, FILLED)
PREFIXES = st.none() | PIECES
ITEMS = st.builds(
    kv_items.Item, TEXT, TEXT, FACTS, st.lists(TEXT, max_size=2).map(tuple), SEEDS, TEXT, SECONDS, TEXT
)
IDENTITIES = st.text("0123456789abcdef", min_size=40, max_size=40)
CHUNKS = (
    PIECES
    | st.builds(pieces.Conditioned, PIECES, context=st.lists(PIECES, min_size=1, max_size=3).map(tuple))
    | st.builds(pieces.Conditioned, PIECES, parent_id=IDENTITIES)
)
SCORES = st.lists(FLOATS, max_size=3).map(tuple)
TOP = st.lists(st.tuples(NUMBERS, FLOATS), max_size=3).map(tuple)


def tuples(values: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(values, max_size=3).map(tuple)


SAMPLING = st.builds(
    asked.SamplingParams,
    max_tokens=st.none() | st.integers(1, 2**32 - 1),
    temperature=st.floats(0, 100, width=32),
    top_k=NUMBERS,
    top_p=st.floats(0, 1, width=32, exclude_min=True),
    seed=SEEDS,
    n=st.integers(1, 64),
    stop=tuples(FILLED),
    ignore_eos=st.booleans(),
    top_logprobs=st.integers(0, 64),
    watch_ids=st.just(()),  # of callers in the engine's process
)
FORMS = st.sampled_from([ResponseFormat(), ResponseFormat('{"type": "null"}')])
SAMPLING |= st.builds(partial(dataclasses.replace, ignore_eos=False), SAMPLING, response_format=FORMS)
BEAMS = st.builds(
    asked.Beams,
    width=st.integers(1, 64),
    length_penalty=st.floats(-10, 10, width=32),
    early_stopping=st.sampled_from(asked.EarlyStopping),
)
CHOICES = st.builds(asked.Choice, rule=st.sampled_from(asked.ChoiceRule), marker=TEXT)
MARGINS = st.builds(
    asked.Margins,
    instruction=FILLED,
    relevance=FILLED,
    yes=FILLED,
    no=FILLED,
    max_tokens=st.integers(1, 2**32 - 1),
    after=st.sampled_from(asked.MarginsAfter),
)
DECODING = st.builds(asked.Decoding, beams=st.none() | BEAMS, margins=st.none() | MARGINS) | st.builds(
    asked.Decoding, choose=CHOICES, margins=st.none() | MARGINS
)
REUSE = st.builds(
    orders.Reuse,
    mode=st.none() | st.sampled_from(orders.ASKED_MODES),
    recompute=st.builds(
        modes.Recompute,
        ratio=st.none() | st.floats(0, 1),
        tokens=st.lists(NUMBERS, max_size=4, unique=True).map(tuple),
        seed=SEEDS,
    ),
    ape=st.builds(modes.Ape, temperature=st.floats(0.01, 10), scale=st.floats(0.01, 10)),
    grouping=st.none() | st.sampled_from(selection.Grouping),
    reading=st.none() | st.sampled_from(selection.Reading),
    adapter=TEXT,
)
KV_CONTEXTS = st.none() | st.sampled_from(kv_types.KvContext)
ORDERS = st.builds(
    orders.GenerationOrder,
    chunks=tuples(CHUNKS),
    questions=tuples(PIECES),
    prefix=PREFIXES,
    reuse=REUSE,
    sampling=SAMPLING,
    decoding=DECODING,
    explain=st.booleans(),
    kv_context=KV_CONTEXTS,
    idle=st.booleans(),
    conversation=st.booleans(),
    chunk_ids=tuples(TEXT),
    route=TEXT,
    route_held=NUMBERS,
)
FORESTS = st.builds(
    orders.ForestOrder, chunks=tuples(CHUNKS), prefix=PREFIXES, reuse=REUSE, kv_context=KV_CONTEXTS
)
LENGTHS = st.none() | NUMBERS
EDITS = (
    st.builds(forest.Start, NUMBERS, PIECES)
    | st.builds(forest.Fork, NUMBERS, NUMBERS, LENGTHS)
    | st.builds(forest.Rewind, NUMBERS, NUMBERS)
    | st.builds(forest.Prune, NUMBERS)
    | st.builds(forest.Append, NUMBERS, PIECES)
    | st.builds(forest.Grow, NUMBERS, SAMPLING)
    | st.builds(forest.Merge, NUMBERS, IDS, LENGTHS, st.booleans())
)
SELECTION_TIMINGS = st.builds(selection.SelectionTimings, SECONDS, SECONDS, SECONDS, SECONDS)
SPANS = tuples(st.builds(told.TextSpan, NUMBERS, NUMBERS, FLOATS))
SELECTED = st.builds(
    told.SelectedEvent,
    tokens=IDS,
    question=st.none() | NUMBERS,
    scores=SCORES,
    layers=IDS,
    chunks=tuples(SPANS),
    reading=st.none() | st.sampled_from(selection.Reading),
    num_picked=NUMBERS,
    num_grouped=NUMBERS,
    timings=st.none() | SELECTION_TIMINGS,
)
TIMINGS = st.builds(told.Timings, **{f.name: SECONDS for f in dataclasses.fields(told.Timings)})
USAGE = st.builds(
    told.Usage,
    **{f.name: NUMBERS for f in dataclasses.fields(told.Usage) if f.name.endswith("_tokens")},
    reuse=st.none() | st.sampled_from(modes.ReuseMode),
    note=TEXT,
    adapter=TEXT,
    route=TEXT,
    verdict=st.none() | st.builds(told.ObeyedVerdict, TEXT, st.none() | st.floats(0, 1)),
)
FINISHED = st.sampled_from(told.FinishReason)
DONE = st.builds(told.DoneEvent, USAGE, TIMINGS, tuples(TEXT))
TOKENS = st.builds(
    told.TokenEvent, NUMBERS, NUMBERS, NUMBERS, TEXT, FLOATS, top_logprobs=TOP, watched=st.just(())
)
BESIDE = (
    SELECTED
    | TOKENS
    | st.builds(told.ChosenEvent, NUMBERS, NUMBERS, TEXT, NUMBERS)
    | st.builds(told.MarginTokenEvent, NUMBERS, NUMBERS, TEXT)
    | st.builds(told.MarginEvent, NUMBERS, TEXT, st.booleans(), FLOATS, FLOATS)
)
GENERATED = BESIDE | DONE | st.builds(told.BranchDoneEvent, NUMBERS, NUMBERS, FINISHED, TEXT, NUMBERS, FLOATS)
EXPLORED = (
    SELECTED
    | DONE
    | st.builds(told.AppliedEvent, NUMBERS, NUMBERS, st.booleans())
    | st.builds(told.GrownEvent, NUMBERS, NUMBERS, TEXT, FLOATS, TOP)
    | st.builds(told.RestedEvent, NUMBERS, FINISHED, TEXT, NUMBERS)
)
FILTERS = st.builds(search.Filter, TEXT, st.sampled_from(search.FilterOp), tuples(TEXT))
RETRIEVALS = st.builds(
    answer.RetrievalOptions, k=NUMBERS, mode=st.sampled_from(search.SearchMode), filters=tuples(FILTERS)
)
INQUIRIES = st.builds(
    answer.Inquiry,
    collection=TEXT,
    questions=tuples(TEXT),
    reuse=REUSE,
    sampling=SAMPLING,
    retrieval=RETRIEVALS,
    decoding=DECODING,
    without_prefix=st.booleans(),
    explain=st.booleans(),
    preface=TEXT,
    no_shadow=st.booleans(),
)
HITS = st.builds(
    search.SearchHit,
    chunk=st.builds(
        search.IndexedChunk,
        *(TEXT, TEXT, IDS, TEXT, NUMBERS, NUMBERS, TEXT, NUMBERS),
        st.none() | st.builds(search.Block, NUMBERS, TEXT, NUMBERS, st.booleans()),
    ),
    document_id=TEXT,
    title=TEXT,
    model_fingerprint=TEXT,
    score=FLOATS,
    metadata=FACTS,
    kv_context=TEXT,
)
ANSWERS = (
    BESIDE
    | st.builds(
        answer.Retrieved,
        tuples(HITS),
        st.sampled_from(search.SearchMode),
        tuples(TEXT),
        st.sampled_from(answer.FollowUp),
    )
    | st.builds(
        answer.AnswerText,
        NUMBERS,
        NUMBERS,
        TEXT,
        FINISHED,
        tuples(
            st.builds(answer.Citation, TEXT, TEXT, TEXT, NUMBERS, TEXT, NUMBERS, TEXT, st.booleans(), IDS)
        ),
        FLOATS,
    )
    | st.builds(answer.AnswerUsage, USAGE, TIMINGS)
    | st.builds(answer.AnswerDone, TEXT)
)
SELECTED_TOKENS = st.builds(
    selection.SelectedTokens,
    tokens=IDS,
    scores=SCORES,
    reading=st.none() | st.sampled_from(selection.Reading),
    num_picked=NUMBERS,
    num_grouped=NUMBERS,
    timings=SELECTION_TIMINGS,
    num_isolated=NUMBERS,
)
SELECTION_CHUNKS = st.builds(
    selection.SelectionChunk,
    TEXT,
    IDS,
    TEXT,
    TEXT,
    tuples(st.builds(selection.SelectionLink, TEXT, IDS)),
)
MODELS = st.builds(
    described.ModelDescription,
    TEXT,
    TEXT,
    TEXT,
    IDS,
    TEXT,
    TEXT,
    NUMBERS,
    TEXT,
    SEEDS,
    TEXT,
    IDS,
    TEXT,
)
AUXILIARIES = st.builds(
    selection.AuxiliaryDescription,
    TEXT,
    TEXT,
    TEXT,
    IDS,
    TEXT,
    NUMBERS,
    TEXT,
    SEEDS,
    TEXT,
    TEXT,
    st.booleans(),
)


@given(ORDERS)
def test_a_generation(order: orders.GenerationOrder) -> None:
    assert asking.order_of(asking.order_to_pb(order)) == order


@given(FORESTS)
def test_a_forest(order: orders.ForestOrder) -> None:
    assert asking.forest_of(asking.forest_to_pb(order)) == order


@given(EDITS)
def test_what_a_forest_is_told(edit: forest.Edit) -> None:
    assert forests.command_of(forests.COMMANDS.to_pb(edit)) == edit


@given(INQUIRIES)
def test_an_inquiry(inquiry: answer.Inquiry) -> None:
    assert answers.INQUIRY.of(answers.INQUIRY.to_pb(inquiry)) == inquiry


@given(GENERATED)
def test_what_is_told_of_a_generation(event: told.GenerationEvent) -> None:
    assert telling.GENERATED.of(telling.GENERATED.to_pb(event)) == event


@given(EXPLORED)
def test_what_is_told_of_a_forest(event: told.ExploringEvent) -> None:
    assert forests.EXPLORED.of(forests.EXPLORED.to_pb(event)) == event


def test_a_refusal_keeps_its_kind_and_its_words() -> None:
    refused = told.RefusedEvent(3, NotFound("fork.source: there is no branch 2"))
    back = forests.EXPLORED.of(forests.EXPLORED.to_pb(refused))
    assert isinstance(back, told.RefusedEvent)
    assert (back.command, type(back.error), back.error.detail) == (3, NotFound, refused.error.detail)


@given(ANSWERS)
def test_what_is_told_of_an_answer(event: answer.AnswerEvent) -> None:
    assert answers.ANSWERED.of(answers.ANSWERED.to_pb(event)) == event


@given(st.lists(SELECTED_TOKENS, max_size=3), SELECTION_TIMINGS, SELECTION_CHUNKS)
def test_a_selection(
    questions: list[selection.SelectedTokens],
    timings: selection.SelectionTimings,
    chunk: selection.SelectionChunk,
) -> None:
    selected = tuple(dataclasses.replace(one, timings=timings) for one in questions)
    assert selecting.selected_of(selecting.selected_to_pb(selected)) == selected
    assert selecting.CHUNK.of(selecting.CHUNK.to_pb(chunk)) == chunk


@given(
    st.builds(
        selection.SelectionOrder,
        tuples(SELECTION_CHUNKS),
        tuples(TEXT),
        FLOATS,
        st.sampled_from(selection.Grouping),
        st.sampled_from(selection.Reading),
    )
)
def test_an_order_of_a_selection(order: selection.SelectionOrder) -> None:
    assert selecting.ORDER.of(selecting.ORDER.to_pb(order)) == order


def test_a_grouping_or_reading_that_came_later_is_the_usual() -> None:
    usual = selection.SelectionOrder((), ("Who?",), 0.5)
    request = selection_pb2.SelectRequest(questions=["Who?"], ratio=0.5, grouping=9, reading=9)  # type: ignore[arg-type]
    assert selecting.ORDER.of(request) == usual


@given(
    MODELS,
    AUXILIARIES,
    st.builds(described.PrefilledChunk, NUMBERS, TEXT, IDS, st.booleans()),
    st.builds(selection.EncodedChunk, NUMBERS, TEXT, NUMBERS, st.booleans()),
    FILTERS,
)
def test_descriptions_chunks_and_filters(
    model: described.ModelDescription,
    auxiliary: selection.AuxiliaryDescription,
    prefilled: described.PrefilledChunk,
    encoded: selection.EncodedChunk,
    condition: search.Filter,
) -> None:
    assert telling.MODEL.of(telling.MODEL.to_pb(model)) == model
    assert selecting.DESCRIPTION.of(selecting.DESCRIPTION.to_pb(auxiliary)) == auxiliary
    assert telling.PREFILLED.of(telling.PREFILLED.to_pb(prefilled)) == prefilled
    assert telling.PREFILLED.to_pb(prefilled).num_tokens == len(prefilled.token_ids)
    assert selecting.ENCODED.of(selecting.ENCODED.to_pb(encoded)) == encoded
    assert retrieval.FILTER.of(retrieval.FILTER.to_pb(condition)) == condition


@pytest.mark.parametrize(
    ("table", "twin"),
    [
        (STOPPINGS, common_pb2.EarlyStopping),
        (RULES, common_pb2.ChoiceRule),
        (GROUPINGS, selection_pb2.Grouping),
        (READINGS, selection_pb2.Reading),
    ],
)
def test_an_enum_and_its_twin_have_the_same_members(table: Any, twin: Any) -> None:
    for name, number in twin.items():
        assert table.to_pb(table.of(number, "field")) == name
    with pytest.raises(InvalidRequest, match="field: 77 is not known; use one of "):
        table.of(77, "field")
    assert table.of(77) is None


@pytest.mark.parametrize(
    ("table", "twin", "unset"),
    [
        (FINISH_REASONS, common_pb2.FinishReason, told.FinishReason.UNKNOWN),
        (SEARCH_MODES, retrieval_pb2.SearchMode, search.SearchMode.AUTO),
        (FILTER_OPS, retrieval_pb2.Filter.Op, search.FilterOp.EQ),
        (STAGES, ingest_pb2.UpsertProgress.Stage, documents.Stage.PREFILLED),
    ],
)
def test_what_an_answer_leaves_open_is_the_usual_member(table: Any, twin: Any, unset: Any) -> None:
    assert {table.to_pb(table.of(number)) for number in twin.values()[1:]} == set(twin.keys()[1:])
    assert {table.of(0), table.of(77)} == {unset}


def test_a_reason_to_finish_that_only_a_newer_service_knows_is_told_as_unknown() -> None:
    end = generation_pb2.BranchDone(finish_reason=77)  # type: ignore[arg-type]
    event = telling.GENERATED.of(generation_pb2.GenerateResponse(branch_done=end))
    assert isinstance(event, told.BranchDoneEvent)
    assert event.finish_reason is told.FinishReason.UNKNOWN
    assert telling.GENERATED.of(telling.GENERATED.to_pb(event)) == event, "relayed, it stays so"


@pytest.mark.parametrize("mode", orders.ASKED_MODES, ids=lambda mode: mode.value)
def test_a_mode_travels_as_its_name(mode: orders.AskedMode) -> None:
    assert MODES.to_pb(mode) == mode.value
    assert MODES.of(mode.value, "reuse") is mode
    assert (USED_MODES.of(mode.value) is mode) == isinstance(mode, modes.ReuseMode)


def test_no_mode_is_empty_and_an_unknown_one_is_answered_with_those_there_are() -> None:
    assert (MODES.to_pb(None), MODES.of("", "reuse"), USED_MODES.of("")) == ("", None, None)
    for name in ("magic", "FULL", " full"):
        known = ", ".join(mode.value for mode in orders.ASKED_MODES)
        with pytest.raises(InvalidRequest) as refusal:
            MODES.of(name, "reuse")
        assert refusal.value.detail == f"reuse: {name!r} is not one of {known}"
        assert USED_MODES.of(name) is None


@pytest.mark.parametrize(
    ("message", "number"),
    [
        (generation_pb2.GenerateRequest, 5),
        (generation_pb2.ForestOpen, 4),
        (rag_pb2.AnswerRequest, 4),
        (common_pb2.Usage, 9),
    ],
)
def test_a_message_with_the_number_that_a_mode_once_was_is_read_as_one_without(
    message: Any, number: int
) -> None:
    assert message.FromString(bytes([number << 3, 1])).reuse == ""


def test_what_is_left_out_is_the_services_own_or_the_usual() -> None:
    order = asking.order_of(generation_pb2.GenerateRequest())
    assert order == orders.GenerationOrder((), ())
    beams = asking.DECODING.of(common_pb2.Decoding(beams=common_pb2.Beams(width=2, length_penalty=0.0)))
    assert beams.beams == asked.Beams(2, 0.0)
    assert asking.DECODING.of(
        common_pb2.Decoding(margins=common_pb2.Margins(yes=" ja"))
    ).margins == asked.Margins(yes=" ja")


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"reuse": "magic"}, "reuse: 'magic' is not one of full, reordered"),
        ({"recompute": recompute_pb2.Recompute(grouping=9)}, "recompute.grouping: 9"),  # type: ignore[arg-type]
        ({"recompute": recompute_pb2.Recompute(reading=9)}, "recompute.reading: 9"),  # type: ignore[arg-type]
        ({"decoding": common_pb2.Decoding(choose=common_pb2.Choice())}, "decoding.choose.rule: is not set"),
        (
            {"decoding": common_pb2.Decoding(beams=common_pb2.Beams(width=2, early_stopping=9))},  # type: ignore[arg-type]
            "decoding.beams.early_stopping: 9 is not known",
        ),
        ({"questions": [generation_pb2.Piece()]}, "questions[0]: neither text nor token_ids"),
        ({"kv_context": "page"}, "kv_context: 'page' is not one of document, header, none"),
    ],
)
def test_what_cannot_be_read_is_named(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        asking.order_of(generation_pb2.GenerateRequest(**fields))
    assert refusal.value.detail.startswith(says)


def test_a_token_that_no_message_can_carry_is_named() -> None:
    reuse = orders.Reuse(modes.ReuseMode.TOKENS, modes.Recompute(tokens=(-1,)))
    with pytest.raises(InvalidRequest, match=r"recompute\.tokens: -1 is out of range"):
        asking.reuse_to_pb(reuse)


CHUNK_STATS = tuples(st.builds(kv_types.ChunkStat, TEXT, st.booleans(), SEEDS, FLOATS))
TIERS = st.builds(kv_reports.TierStats, TEXT, SEEDS, SEEDS, SEEDS, SEEDS)
STORES = st.builds(
    kv_reports.StoreStats,
    nodes=tuples(
        st.builds(
            kv_reports.NodeStats, TEXT, st.booleans(), tuples(TIERS), st.dictionaries(TEXT, SEEDS, max_size=2)
        )
    ),
    objects=st.none() | TIERS,
    tenants=tuples(
        st.builds(
            *(kv_reports.TenantStats, TEXT, SEEDS, SEEDS, SEEDS),
            tuples(st.builds(kv_reports.PrincipalStats, TEXT, SEEDS, SEEDS, SEEDS)),
        )
    ),
    num_unreachable=NUMBERS,
    objects_detail=TEXT,
)
MANIFESTS = st.builds(
    kv_types.Manifest,
    *(TEXT,) * 6,
    IDS,
    tuples(st.builds(kv_types.ManifestChunk, TEXT, IDS, NUMBERS, NUMBERS, TEXT, TEXT, TEXT, TEXT, IDS)),
    FACTS,
    FLOATS,
    TEXT,
    TEXT,
)
DAMAGED = tuples(st.builds(kv_reports.DamagedCopy, TEXT, TEXT, TEXT, TEXT, st.booleans()))
RANGES = tuples(st.tuples(SEEDS, SEEDS))
INFOS = tuples(
    st.builds(documents.DocumentInfo, TEXT, TEXT, TEXT, NUMBERS, TEXT, st.booleans(), FLOATS, TEXT, TEXT)
)


@pytest.mark.parametrize(
    ("wire", "values"),
    [
        (storing.CHUNK_PAGE, st.builds(kv_types.ChunkPage, CHUNK_STATS, st.booleans())),
        (storing.DELETED, st.builds(kv_types.DeletedChunks, tuples(TEXT), tuples(TEXT))),
        (storing.MANIFEST_PAGE, st.builds(kv_types.ManifestPage, tuples(MANIFESTS), st.booleans())),
        (storing.ALIKE, st.builds(kv_types.AlikeDocuments, TEXT, SEEDS, TEXT, TEXT, TEXT, TEXT)),
        (storing.STATS, STORES),
        (storing.VERIFIED, st.builds(kv_reports.VerifyProgress, SEEDS, SEEDS, DAMAGED, tuples(TEXT))),
        (storing.COLLECTED, st.builds(kv_reports.CollectedGarbage, SEEDS, SEEDS, SEEDS)),
        (storing.PINNED, st.builds(pinned.PinnedDocuments, TEXT, TEXT, SEEDS)),
        (
            storing.OPENED,
            st.builds(kv_types.OpenedChunk, TEXT, st.booleans(), TEXT, SEEDS, RANGES, TEXT, TEXT),
        ),
        (storing.CHAIN, st.builds(kv_types.Chain, TEXT, TEXT, IDS, tuples(IDS), tuples(TEXT))),
        (storing.PEER_COPY, st.builds(kv_types.PeerCopy, TEXT, SEEDS, TEXT)),
        (
            ingesting.SOURCE,
            st.builds(documents.SourceDocument, TEXT, st.binary(), TEXT, FACTS),
        ),
        (
            ingesting.PROGRESS,
            st.builds(
                documents.UpsertProgress, TEXT, st.sampled_from(documents.Stage), *(NUMBERS,) * 4, TEXT, TEXT
            ),
        ),
        (ingesting.DELETED, st.builds(documents.DeletedDocuments, NUMBERS, NUMBERS, tuples(TEXT))),
        (ingesting.PAGE, st.builds(documents.DocumentPage, INFOS, st.booleans())),
        (retrieval.COLLECTION, st.builds(search.CollectionInfo, TEXT, SEEDS)),
        (
            retrieval.DOCUMENT,
            st.builds(
                search.IndexedDocument,
                TEXT,
                TEXT,
                TEXT,
                tuples(st.builds(search.IndexedChunk, TEXT, TEXT, IDS, TEXT, NUMBERS, NUMBERS)),
                FACTS,
            ),
        ),
        (storing.ITEM_PAGE, st.builds(kv_items.ItemPage, tuples(ITEMS), st.booleans())),
        (
            retrieval.EMBEDDED,
            st.builds(search.EmbeddedTexts, TEXT, tuples(st.lists(FLOATS, max_size=3).map(tuple)), NUMBERS),
        ),
        (retrieval.IDS, st.builds(search.IndexedIds, tuples(TEXT), st.booleans())),
        (
            HEALTH,
            st.builds(ServiceHealth, TEXT, st.booleans(), TEXT, FACTS),
        ),
    ],
    ids=lambda value: type(value).__name__,
)
@given(st.data())
def test_documents_and_what_keeps_them(
    wire: MessageWire[Any, Any], values: st.SearchStrategy[Any], data: st.DataObject
) -> None:
    value = data.draw(values)
    assert wire.of(wire.to_pb(value)) == value


def test_a_message_of_a_kind_that_came_later_is_no_end_of_a_stream() -> None:
    with pytest.raises(InternalError, match="event: nothing is not known to this version"):
        telling.GENERATED.of(generation_pb2.GenerateResponse())
