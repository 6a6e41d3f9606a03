"""What is pasted into messages becomes the context: known chunks where the caller may read them, pieces of
long text, and nothing else."""

from __future__ import annotations

import random
import time
from contextlib import aclosing
from dataclasses import replace

import pytest

from services.gateway.config import GatewayConfig, PastedConfig
from services.gateway.pasted.borders import MOST
from services.gateway.pasted.known_chunks import BORDER
from services.gateway.pasted.recognising import RecognisedText, Recognising
from services.gateway.pipeline import Pipeline
from services.gateway.prefetch import Prefetching
from services.ingestion.chains import identified
from services.ingestion.chunker import Chunker
from services.ingestion.formats.parse import parse
from shared.answer import AnswerEvent, HandedDocument, Inquiry, Refusal, RetrievalOptions, Retrieved
from shared.documents import SourceDocument
from shared.earlier_turns import EarlierTurn, Speaker
from shared.errors import InvalidRequest
from shared.generation.orders import GenerationOrder
from shared.generation.pieces import Conditioned, Piece, Tokenized
from shared.kv_types import KvContext, Manifest
from shared.principals.principal import Principal, Role
from shared.request import RequestContext
from shared.wire.answer import INQUIRY
from tests.unit.gateway.fakes import FINGERPRINT, FakeFetcher, FakeGenerator, FakeRetriever
from tests.unit.gateway.pasted.documents import FakeDocuments, document, ids_of

TITLE = "Chronicle of Tambach"
ONE = "The bridge of Tambach was built by Orla Venn in the year 1874, of grey stone."
TWO = "It carries the road to the mill, and since 1921 the tram as well; 12 lamps light it at night.\n"
OTHER = "The market of Tambach is held on Fridays, between the church and the old bridge of the town."
LONG = " ".join(f"In the year {1500 + i} the mayor counted {i * 7} sheep." for i in range(80))
WHO = "Who built the bridge?"


class CharacterEncoder:
    def encode_chunk(self, text: str) -> tuple[int, ...]:
        return ids_of(text)


def asked(question: str, *turns: EarlierTurn) -> Inquiry:
    return Inquiry("", (question,), turns=turns, pasted=True)


def context(tenant: str = "default", *groups: str) -> RequestContext:
    if not groups:
        return RequestContext.create("r1", tenant)
    principal = Principal("ann", tenant, frozenset({Role.READER}), groups=frozenset(groups))
    return RequestContext.create("r1", principal=principal)


async def recognised(
    inquiry: Inquiry, *manifests: Manifest, ctx: RequestContext | None = None, **settings: object
) -> RecognisedText:
    config = PastedConfig(**settings)  # type: ignore[arg-type]
    recognising = Recognising(config, FakeDocuments(list(manifests)))
    return await recognising.recognise(ctx or context(), inquiry, FakeGenerator({}))


def pieces(found: RecognisedText) -> list[Piece]:
    return [hit.chunk.piece for hit in found.hits]


async def test_pasted_chunks_are_placed_with_their_chain_where_all_of_it_was_pasted() -> None:
    manifest = document("town.md", [ONE, TWO], TITLE)
    found = await recognised(asked(f"{TITLE}\n{ONE}\n{TWO}\n{WHO}"), manifest)
    first, second = manifest.chunks
    assert pieces(found) == [
        Conditioned(Tokenized(ids_of(ONE), ONE), parent_id=first.parent_id),
        Conditioned(Tokenized(ids_of(TWO), TWO), parent_id=first.chunk_id),
    ]
    assert [hit.chunk.chunk_id for hit in found.hits] == [first.chunk_id, second.chunk_id]
    assert [hit.document_id for hit in found.hits] == ["town.md"] * 2
    assert found.inquiry.questions == (f"{TITLE}\n\n{WHO}",)


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(f"{ONE}\n{TWO}\n{WHO}", id="without the header"),
        pytest.param(f"{ONE}\n{TITLE}\n{TWO}\n{WHO}", id="the header behind it"),
        pytest.param(f"{TITLE}\n{TWO}\n{WHO}", id="without the chunk in front"),
        pytest.param(f"{TITLE}\n{TWO}\n{ONE[:-1]}!\n{WHO}", id="the chunk in front is another"),
    ],
)
async def test_without_all_of_its_chain_a_chunk_is_isolated(message: str) -> None:
    found = await recognised(asked(message), document("town.md", [ONE, TWO], TITLE))
    assert pieces(found) == [Tokenized(ids_of(text), text) for text in (ONE, TWO) if text.strip() in message]
    assert all(hit.chunk.chunk_id == "" for hit in found.hits)


async def test_of_several_chains_the_one_that_was_pasted_is_chosen() -> None:
    behind_one, behind_other = document("a", [ONE, TWO]), document("b", [OTHER, TWO])
    found = await recognised(asked(f"{OTHER}\n{TWO}\n{WHO}"), behind_one, behind_other)
    assert [hit.chunk.parent_id for hit in found.hits] == ["", behind_other.chunks[0].chunk_id]
    alone = await recognised(asked(f"{TWO}\n{WHO}"), behind_one, behind_other)
    assert pieces(alone) == [Tokenized(ids_of(TWO), TWO)]


async def test_a_document_as_ingestion_cuts_it_is_recognised_whole_but_for_short_chunks() -> None:
    source = f"# {TITLE}\n\n{ONE}\n\n## Mill\n\n" + f"{TWO}\n" * 2 + f"\n## Market\n\nNone.\n\n{OTHER}"
    parsed = parse(SourceDocument("town.md", source.encode()))
    chunker = Chunker(CharacterEncoder(), 100, KvContext.DOCUMENT, 4000)
    chunks = identified(("default", FINGERPRINT, ()), chunker.split(parsed))
    assert any(len(chunk.text.strip()) < BORDER for chunk in chunks)
    manifest = replace(document("town.md", []), title=parsed.title, chunks=chunks)
    found = await recognised(asked(f"{source}\n\n{WHO}"), manifest)
    known = [chunk for chunk in chunks if len(chunk.text.strip()) >= BORDER]
    assert len(known) > 3
    assert [hit.chunk.chunk_id for hit in found.hits] == [chunk.chunk_id for chunk in known]
    without = await recognised(asked(source.replace("None.", "Some.") + f"\n\n{WHO}"), manifest)
    assert [hit.chunk.chunk_id for hit in without.hits] != [hit.chunk.chunk_id for hit in found.hits]


async def test_what_one_pasted_earlier_in_the_conversation_is_recognised_too() -> None:
    manifest = document("town.md", [ONE, TWO], TITLE)
    turns = (
        EarlierTurn(Speaker.USER, f"{TITLE}\n{ONE}\n{WHO}"),
        EarlierTurn(Speaker.ASSISTANT, OTHER),
        EarlierTurn(Speaker.USER, f"{TWO}\nAnd when?"),
    )
    found = await recognised(asked("By whom?", *turns), manifest, document("market", [OTHER]))
    assert [hit.chunk.chunk_id for hit in found.hits] == [chunk.chunk_id for chunk in manifest.chunks]
    assert [turn.text for turn in found.inquiry.turns] == [f"{TITLE}\n\n{WHO}", OTHER, "And when?"]
    assert found.inquiry.questions == ("By whom?",)


async def test_the_same_passage_pasted_twice_is_placed_twice_and_the_rest_keeps_its_order() -> None:
    message = f"First:\n{ONE}\nthen:\n{OTHER}\nagain:\n{ONE}\n{WHO}"
    found = await recognised(asked(message), document("a", [ONE]), document("b", [OTHER]))
    assert [hit.chunk.text for hit in found.hits] == [ONE, OTHER, ONE]
    assert found.inquiry.questions == (f"First:\n\nthen:\n\nagain:\n\n{WHO}",)


async def test_another_tenants_text_is_never_matched() -> None:
    with pytest.raises(InvalidRequest, match="neither known text"):
        await recognised(asked(f"{ONE}\n{WHO}"), document("town.md", [ONE], tenant="other"))


async def test_text_that_the_caller_may_not_read_is_never_matched() -> None:
    secret = document("secret.md", [ONE], readers=("board",))
    with pytest.raises(InvalidRequest, match="neither known text"):
        await recognised(asked(f"{ONE}\n{WHO}"), secret, ctx=context("default", "staff"))
    found = await recognised(asked(f"{ONE}\n{WHO}"), secret, ctx=context("default", "board"))
    assert found.hits[0].document_id == "secret.md"
    assert found.hits[0].chunk.readers == ("board",)


async def test_what_one_caller_may_read_is_in_no_other_callers_index() -> None:
    documents = FakeDocuments([document("secret.md", [ONE], readers=("board",))])
    recognising = Recognising(PastedConfig(), documents)
    generator = FakeGenerator({})
    await recognising.recognise(context("default", "board"), asked(f"{ONE}\n{WHO}"), generator)
    documents.read.clear()
    with pytest.raises(InvalidRequest, match="neither known text"):
        await recognising.recognise(context("default", "staff"), asked(f"{ONE}\n{WHO}"), generator)
    assert not documents.read


async def test_readers_that_were_taken_away_meanwhile_and_documents_that_changed_are_not_matched() -> None:
    documents = FakeDocuments([document("town.md", [ONE], readers=("board",)), document("b", [OTHER])])
    recognising = Recognising(PastedConfig(refresh_s=1000), documents)
    ask = (context("default", "board"), asked(f"{ONE}\n{OTHER}\n{WHO}"), FakeGenerator({}))
    assert len((await recognising.recognise(*ask)).hits) == 2
    documents.manifests[0] = document("town.md", [ONE], readers=("others",))
    assert [hit.document_id for hit in (await recognising.recognise(*ask)).hits] == ["b"]
    documents.manifests[1] = document("b", [OTHER.replace("Fridays", "Mondays")])
    with pytest.raises(InvalidRequest, match="neither known text"):
        await recognising.recognise(*ask)


async def test_chunks_of_another_model_are_not_placed() -> None:
    with pytest.raises(InvalidRequest, match="neither known text"):
        await recognised(asked(f"{ONE}\n{WHO}"), document("town.md", [ONE], fingerprint="e" * 32))


async def test_long_text_that_nobody_knows_is_the_context_and_the_question_stays() -> None:
    for message in (f"{LONG}\n\n{WHO}", f"{WHO}\n\n{LONG}", f"{WHO}\n{LONG}"):
        found = await recognised(asked(message))
        assert " ".join(hit.chunk.text for hit in found.hits) == LONG
        assert all(isinstance(piece, str) for piece in pieces(found))
        assert [hit.document_id for hit in found.hits] == [f"pasted[{i}]" for i in range(len(found.hits))]
        assert found.inquiry.questions == (WHO,)


async def test_long_text_around_known_text_is_taken_in_its_place() -> None:
    found = await recognised(asked(f"Read this.\n\n{LONG}\n{ONE}\n{LONG}\n\n{WHO}"), document("a", [ONE]))
    texts = [hit.chunk.text for hit in found.hits]
    assert " ".join(texts) == f"{LONG} {ONE} {LONG}"
    assert found.inquiry.questions == (f"Read this.\n\n{WHO}",)


@pytest.mark.parametrize(
    "message",
    [
        WHO,
        f"{ONE}\n\n{WHO}",
        f"{LONG[:900]}\n\n{WHO}",
        " \n\n ",
        f"{LONG[:1000]}\n\n{LONG[:1000]}",
    ],
)
async def test_what_is_short_is_refused_as_before(message: str) -> None:
    with pytest.raises(InvalidRequest, match="collection: name the collection"):
        await recognised(asked(message))


@pytest.mark.parametrize("message", [f"{LONG} {WHO}", f"{LONG}\n\n{LONG} {WHO}"])
async def test_where_no_paragraph_is_short_the_last_piece_is_the_question(message: str) -> None:
    found = await recognised(asked(message))
    (question,) = found.inquiry.questions
    assert question.endswith(WHO)
    assert len(question) <= MOST
    assert [*" ".join(hit.chunk.text for hit in found.hits).split(), *question.split()] == message.split()


async def test_something_stays_to_be_the_question() -> None:
    found = await recognised(asked(f"{ONE}\n{OTHER}"), document("a", [ONE]), document("b", [OTHER]))
    assert ([hit.chunk.text for hit in found.hits], found.inquiry.questions) == ([ONE], (OTHER,))


@pytest.mark.parametrize("seed", range(30))
async def test_every_character_is_either_placed_or_stays_in_its_order(seed: int) -> None:
    draw = random.Random(seed)
    words = ["Brücke", "𝔘nicode", "<|im_end|>", "日本", "the", "mill.", "e\u0301"]
    chunks = [" ".join(draw.choices(words, k=draw.randint(5, 60))) for _ in range(6)]
    manifests = [document(f"d{i}", chunks[i::2]) for i in range(2)]
    parts = [WHO]
    for _ in range(draw.randint(1, 8)):
        unknown = " ".join(draw.choices(words, k=draw.choice([2, 20, 600])))
        parts.append(draw.choice([draw.choice(chunks), unknown]))
    message = draw.choice(["\n", "\n\n"]).join([*parts, "When?"])
    try:
        found = await recognised(asked(message), *manifests)
    except InvalidRequest:
        assert not any(chunk in message for chunk in chunks if len(chunk) >= 64)
        return
    rest, at = found.inquiry.questions[0].split(), 0
    placed = [hit.chunk.text.split() for hit in found.hits]
    told = message.split()
    while at < len(told):  # a placed text, whole, or a word that stayed
        if placed and told[at : at + len(placed[0])] == placed[0]:
            at += len(placed.pop(0))
        else:
            assert rest.pop(0) == told[at]
            at += 1
    assert not rest
    assert not placed


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"collection": "docs"}, "collection: is not for questions that bring"),
        ({"documents": (HandedDocument("", "x"),)}, "documents: is not for"),
        ({"retrieval": RetrievalOptions(k=3)}, "retrieval: is not for"),
        ({"refusal": Refusal.STRICT}, "refusal: is not for"),
        ({"questions": (WHO, WHO)}, "questions: with pasted there is one, got 2"),
    ],
)
async def test_what_is_for_searches_is_refused_beside_it(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        await recognised(replace(asked(WHO), **changes))  # type: ignore[arg-type]


async def test_a_conversation_of_ten_thousand_turns_and_a_megabyte_is_looked_through_at_once() -> None:
    turns = [EarlierTurn(Speaker.USER, f"And in {year}?") for year in range(10_000)]
    turns.append(EarlierTurn(Speaker.USER, f"{TITLE}\n{ONE}\n" + "a" * 1_000_000 + f"\n{TWO}\nWell?"))
    began = time.process_time()
    found = await recognised(asked(WHO, *turns), document("a", [ONE, TWO], TITLE))
    assert time.process_time() - began < 20
    assert [hit.document_id for hit in found.hits if hit.chunk.token_ids] == ["a", "a"]
    assert sum(len(hit.chunk.text) for hit in found.hits) > 1_000_000


async def test_it_can_be_turned_off() -> None:
    with pytest.raises(InvalidRequest, match=r"gateway\.pasted\.enabled"):
        await recognised(asked(f"{ONE}\n{WHO}"), document("a", [ONE]), enabled=False)


async def test_while_the_store_is_away_long_text_is_cut_all_the_same() -> None:
    documents = FakeDocuments([document("a", [ONE])], away=True)
    recognising = Recognising(PastedConfig(), documents)
    ask = (context(), asked(f"{LONG}\n\n{ONE}\n\n{WHO}"), FakeGenerator({}))
    assert all(not hit.chunk.token_ids for hit in (await recognising.recognise(*ask)).hits)
    documents.away = False
    assert (await recognising.recognise(*ask)).hits[-1].chunk.text == ONE


async def answered(
    inquiry: Inquiry, *manifests: Manifest
) -> tuple[GenerationOrder, list[AnswerEvent], FakeFetcher]:
    """What the generator was told, what came of it, and what was brought nearer meanwhile."""
    generator, fetcher = FakeGenerator({WHO: "Orla Venn"}), FakeFetcher()
    config = GatewayConfig()
    recognising = Recognising(config.pasted, FakeDocuments(list(manifests)))
    pipeline = Pipeline(FakeRetriever({}), generator, config, Prefetching(fetcher), recognising=recognising)
    async with aclosing(pipeline.answer(context(), INQUIRY.of(INQUIRY.to_pb(inquiry)))) as events:
        told = [event async for event in events]
    return generator.asked[0], told, fetcher


async def test_stored_kv_of_what_was_recognised_is_brought_nearer() -> None:
    manifest = document("a", [ONE, TWO])
    _, _, fetcher = await answered(asked(f"{ONE}\n{TWO}\n{LONG}\n\n{WHO}"), manifest)
    assert fetcher.asked == [tuple(chunk.chunk_id for chunk in manifest.chunks)]
    _, _, fetcher = await answered(asked(f"{LONG}\n\n{WHO}"), manifest)
    assert fetcher.asked == []


async def test_the_generator_is_told_what_it_would_be_of_documents_that_were_handed_over() -> None:
    pasted, events, _ = await answered(asked(f"{LONG}\n\n{WHO}"))
    assert isinstance(events[0], Retrieved)
    pieces = [HandedDocument("", hit.chunk.text) for hit in events[0].hits]
    handed, _, _ = await answered(Inquiry("", (WHO,), documents=tuple(pieces)))
    assert pasted == handed
    assert len(pasted.chunks) > 1


async def test_over_the_wire_turns_and_system_text_stand_in_front_of_the_question() -> None:
    turns = (EarlierTurn(Speaker.USER, f"{ONE}\nHello"), EarlierTurn(Speaker.ASSISTANT, "Hi"))
    inquiry = replace(asked(WHO, *turns), preface="Be brief.")
    assert INQUIRY.of(INQUIRY.to_pb(inquiry)) == inquiry
    told = f"Be brief.\nEarlier in this conversation:\nUser: Hello\nAssistant: Hi\n\n{WHO}"
    generator = FakeGenerator({told: "Orla"})
    config = GatewayConfig()
    recognising = Recognising(config.pasted, FakeDocuments([document("a", [ONE])]))
    pipeline = Pipeline(FakeRetriever({}), generator, config, Prefetching(None), recognising=recognising)
    async with aclosing(pipeline.answer(context(), inquiry)) as events:
        assert [event async for event in events]
    assert generator.asked[0].questions == (told,)
