"""The index over the embedded Milvus, against a plain model of what it holds."""

import itertools
import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.retrieval.embedder import EmbedderSettings
from services.retrieval.filters import expression
from services.retrieval.index import MilvusIndex
from services.retrieval.layout import Places
from services.retrieval.milvus import Lexical, connect
from services.retrieval.rows import rows_of
from shared.errors import DocumentTaken, InvalidRequest, NotFound, Unavailable
from shared.principals.principal import Principal, Role
from shared.search import (
    CollectionInfo,
    Filter,
    FilterOp,
    IndexedChunk,
    IndexedDocument,
    IndexedIds,
    SearchHit,
)

DIM = 8
OPERATOR = Principal.operator("t")
_names = (f"c-{i}.x_y" for i in itertools.count())


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MilvusIndex]:
    opened = MilvusIndex(connect(str(tmp_path_factory.mktemp("milvus") / "index"), "", 5), "embedder", DIM)
    yield opened
    opened.close()


@pytest.fixture
def collection() -> str:
    return next(_names)


def _document(document_id: str, *texts: str, **metadata: str) -> IndexedDocument:
    chunks = tuple(
        IndexedChunk(f"{document_id}-{i}", text, (i, 7), "H", i, i + 1) for i, text in enumerate(texts)
    )
    return IndexedDocument(document_id, f"Title of {document_id}", "model", chunks, metadata)


def _vectors(document: IndexedDocument) -> np.ndarray:
    seeds = [abs(hash((document.document_id, c.text))) for c in document.chunks]
    return np.stack([np.random.default_rng(s).standard_normal(DIM) for s in seeds]).astype(np.float32)


def _put(index: MilvusIndex, collection: str, *documents: IndexedDocument, tenant: str = "t") -> None:
    for document in documents:
        name = index.places(tenant, collection).own
        index.put(name, tenant, collection, document, _vectors(document))


def _dense(
    index: MilvusIndex,
    collection: str,
    where: str = "",
    limit: int = 1000,
    tenant: str = "t",
    who: Principal = OPERATOR,
) -> list[SearchHit]:
    name = index.searched(tenant, collection, who).searched
    ranked = index.search_dense(name, np.ones((1, DIM), np.float32), limit, where, who)[0]
    rows = index.fetch(name, [key for key, _ in ranked], who)
    return [rows[key] for key, _ in ranked]


def _bm25(index: MilvusIndex, collection: str, query: str, who: Principal = OPERATOR) -> list[str]:
    name = index.searched("t", collection, who).searched
    ranked = index.search_bm25(name, [query], 100, "", who)[0]
    rows = index.fetch(name, [key for key, _ in ranked], who)
    return [rows[key].chunk.text for key, _ in ranked]


def test_what_was_put_is_found_whole(index: MilvusIndex, collection: str) -> None:
    document = _document('d"1\\', "one", "two", lang="en")
    _put(index, collection, document)
    assert sorted((hit.chunk for hit in _dense(index, collection)), key=lambda c: c.chunk_id) == list(
        document.chunks
    )
    hit = _dense(index, collection)[0]
    assert (hit.document_id, hit.title, hit.metadata, hit.model_fingerprint) == (
        'd"1\\',
        document.title,
        {"lang": "en"},
        "model",
    )


def test_the_documents_of_a_collection_are_listed_whichever_embedder_indexed_them(
    index: MilvusIndex, collection: str
) -> None:
    assert index.documents("t", collection, OPERATOR) == IndexedIds()
    _put(index, collection, _document("b/ü", "one", "two"), _document("a", "three"))
    _put(index, collection, _document("theirs", "four"), tenant="u")
    assert index.documents("t", collection, OPERATOR) == IndexedIds(("a", "b/ü"))
    later = MilvusIndex(index._milvus, "another embedder", DIM)
    assert later.documents("t", collection, OPERATOR) == IndexedIds(("a", "b/ü"), other_embedder=True)
    _put(later, collection, _document("c", "five"))
    assert later.documents("t", collection, OPERATOR) == IndexedIds(("a", "b/ü", "c"), other_embedder=True)
    later.remove("t", collection, ["a", "b/ü"], OPERATOR)
    assert later.documents("t", collection, OPERATOR) == IndexedIds(("c",))


def test_the_nearest_vector_comes_first_with_its_cosine(index: MilvusIndex, collection: str) -> None:
    document = _document("d", "one", "two", "three")
    _put(index, collection, document)
    query = _vectors(document)[1:2]
    best_key, best_score = index.search_dense(index.places("t", collection).own, query, 3, "", OPERATOR)[0][0]
    assert index.fetch(index.places("t", collection).own, [best_key], OPERATOR)[best_key].chunk.text == "two"
    assert best_score == pytest.approx(1.0, abs=1e-5)


def test_every_query_of_a_batch_gets_its_own_ranking(index: MilvusIndex, collection: str) -> None:
    document = _document("d", "one", "two", "three")
    _put(index, collection, document)
    rankings = index.search_dense(index.places("t", collection).own, _vectors(document), 1, "", OPERATOR)
    found = [ranking[0][0] for ranking in rankings]
    rows = index.fetch(index.places("t", collection).own, found, OPERATOR)
    assert [rows[ranking[0][0]].chunk.text for ranking in rankings] == ["one", "two", "three"]


def test_more_hits_than_there_are_chunks_is_no_error(index: MilvusIndex, collection: str) -> None:
    _put(index, collection, _document("d", "one", "two"))
    assert len(_dense(index, collection, limit=16_384)) == 2


def test_replacing_a_document_removes_its_old_chunks(index: MilvusIndex, collection: str) -> None:
    _put(index, collection, _document("d", "one", "two", "three"), _document("other", "one"))
    _put(index, collection, _document("d", "one", "new"))
    assert sorted((h.document_id, h.chunk.text) for h in _dense(index, collection)) == [
        ("d", "new"),
        ("d", "one"),
        ("other", "one"),
    ]
    assert _bm25(index, collection, "three two") == []


def test_only_an_equal_document_is_current(index: MilvusIndex, collection: str) -> None:
    document, own = _document("d", "one", "two"), index.places("t", collection).own
    assert not index.is_current(own, "t", collection, document)
    _put(index, collection, document)
    assert index.is_current(own, "t", collection, document)
    assert not index.is_current(own, "t", collection, replace(document, chunks=document.chunks[:1]))
    assert not index.is_current(own, "t", collection, replace(document, model_fingerprint="other"))
    assert not index.is_current(own, "t", collection, replace(document, document_id="e"))


def test_a_rare_word_finds_its_chunk_however_late_it_came(index: MilvusIndex, collection: str) -> None:
    for i in range(12):
        _put(
            index,
            collection,
            _document(f"d{i}", f"who founded the town of place{i} and when", "who founded what and when"),
        )
    _put(index, collection, _document("last", "the town of Zorblatt", "another town"))
    assert _bm25(index, collection, "when and who founded Zorblatt")[0] == "the town of Zorblatt"


def test_words_that_nobody_has_find_nothing(index: MilvusIndex, collection: str) -> None:
    _put(index, collection, _document("d", "one"))
    assert (
        index.search_bm25(index.places("t", collection).own, ["zebra", "one", "!?"], 5, "", OPERATOR)[0] == []
    )
    assert (
        len(index.search_bm25(index.places("t", collection).own, ["zebra", "one", "!?"], 5, "", OPERATOR)[1])
        == 1
    )


def test_a_chunk_without_any_word_can_be_stored(index: MilvusIndex, collection: str) -> None:
    _put(index, collection, IndexedDocument("d", "", "m", (IndexedChunk("c", "!?", (1,)),)))
    assert [hit.chunk.text for hit in _dense(index, collection)] == ["!?"]


def test_tenants_do_not_see_each_other(index: MilvusIndex, collection: str) -> None:
    _put(index, collection, _document("d", "mine"), tenant="a-tenant")
    _put(index, collection, _document("d", "theirs"), tenant="b-tenant")
    assert [hit.chunk.text for hit in _dense(index, collection, tenant="a-tenant")] == ["mine"]
    place = index.places("b-tenant", collection).own
    theirs = [key for key, _ in index.search_dense(place, np.ones((1, DIM), np.float32), 9, "", OPERATOR)[0]]
    assert index.fetch(index.places("a-tenant", collection).own, theirs, OPERATOR) == {}
    assert index.remove("c-tenant", collection, ["d"], OPERATOR) == 0
    assert [(info.name, info.num_chunks) for info in index.collections("a-tenant", OPERATOR)] == [
        (collection, 1)
    ]
    assert index.collections("c-tenant", OPERATOR) == []


def test_an_unknown_collection_is_named_with_those_there_are(index: MilvusIndex) -> None:
    _put(index, "known.one", _document("d", "text"), tenant="n")
    with pytest.raises(NotFound, match=r"'missing' does not exist; there are: known\.one"):
        _dense(index, "missing", tenant="n")
    with pytest.raises(NotFound, match="there is none yet"):
        _dense(index, "missing", tenant="nobody")


def test_removing_the_last_document_removes_the_collection(index: MilvusIndex, collection: str) -> None:
    _put(index, collection, _document("d", "one", "two"), _document("e", "three"))
    assert index.remove("t", collection, ["d", "unknown"], OPERATOR) == 2
    assert index.remove("t", collection, ["e"], OPERATOR) == 1
    with pytest.raises(NotFound):
        _dense(index, collection)
    _put(index, collection, _document("d", "again"))
    assert _bm25(index, collection, "again") == ["again"]


def test_a_chunk_that_does_not_fit_leaves_nothing_behind(index: MilvusIndex, collection: str) -> None:
    with pytest.raises(InvalidRequest):
        _put(index, collection, _document("d", "x" * 70_000))
    with pytest.raises(NotFound):
        _dense(index, collection)


HOSTILE = [
    '"',
    "\\",
    '\\"',
    "'",
    "a\nb",
    "%",
    "_",
    '" or 1 == 1 or "',
    "\x00",
    "é",
    "😀",
    "é😀",
    "ab",
    "abc",
    "",
    "\u2028",
    "] or terms[",
]
hostile = st.sampled_from(HOSTILE) | st.text(st.characters(codec="utf-8"), max_size=6)


@pytest.fixture(scope="module")
def hostile_documents(index: MilvusIndex) -> str:
    _put(
        index,
        "hostile",
        _document("without", "text"),
        *(_document(f"d{i}", "text", key=v) for i, v in enumerate(HOSTILE)),
    )
    return "hostile"


@given(wanted=hostile, op=st.sampled_from([FilterOp.EQ, FilterOp.NE, FilterOp.PREFIX]))
@settings(deadline=None)
def test_filters_select_what_a_plain_comparison_selects(
    index: MilvusIndex, hostile_documents: str, wanted: str, op: FilterOp
) -> None:
    found = {
        hit.document_id
        for hit in _dense(index, hostile_documents, expression([Filter("key", op, (wanted,))]))
    }
    holds = {
        FilterOp.EQ: wanted.__eq__,
        FilterOp.NE: wanted.__ne__,
        FilterOp.PREFIX: lambda v: v.startswith(wanted),
    }[op]
    expected = {f"d{i}" for i, value in enumerate(HOSTILE) if holds(value)} | (
        {"without"} if op is FilterOp.NE else set()
    )
    assert found == expected


def test_filters_apply_to_built_in_fields_and_all_together(index: MilvusIndex, collection: str) -> None:
    _put(
        index,
        collection,
        _document("a/1", "x", lang="en"),
        _document("a/2", "x", lang="de"),
        _document("b/1", "x", lang="en"),
    )
    both = [Filter("document_id", FilterOp.PREFIX, ("a/",)), Filter("lang", FilterOp.IN, ("en", "fr"))]
    assert [hit.document_id for hit in _dense(index, collection, expression(both))] == ["a/1"]
    titled = [Filter("title", FilterOp.EQ, ("Title of b/1",))]
    assert [hit.document_id for hit in _dense(index, collection, expression(titled))] == ["b/1"]
    assert (
        len(index.search_bm25(index.places("t", collection).own, ["x"], 9, expression(both), OPERATOR)[0])
        == 1
    )


def test_what_another_embedder_indexed_is_searched_until_it_is_replaced_at_once(tmp_path: Path) -> None:
    milvus = connect(str(tmp_path / "index"), "", 5)
    noted = EmbedderSettings("/models/old", "q: ", None)
    old, new = (
        MilvusIndex(milvus, "old", DIM, noted),
        MilvusIndex(milvus, "new", DIM, EmbedderSettings("new")),
    )
    _put(old, "c", _document("d", "one"), _document("e", "two"))
    assert new.outdated() == 1
    places = new.searched("t", "c", OPERATOR)
    assert places.replacing
    assert new.settings_of(places.searched) == noted
    assert new.adopt("t", "c") == 0  # nothing could be searched any more
    for text, document in (("one", "d"), ("two", "e")):
        _put(new, "c", _document(document, text))
        assert sorted(hit.chunk.text for hit in _dense(new, "c")) == ["one", "two"]
        assert new.searched("t", "c", OPERATOR) == places
        assert new.collections("t", OPERATOR) == [CollectionInfo("c", 2)]
    assert new.adopt("t", "c") == 1
    assert new.outdated() == 0
    assert new.searched("t", "c", OPERATOR) == Places(places.own, places.own)
    assert sorted(hit.chunk.text for hit in _dense(new, "c")) == ["one", "two"]
    with pytest.raises(NotFound, match="removed while searching"):  # who has not noticed yet, does now
        _dense(old, "c")
    assert sorted(hit.chunk.text for hit in _dense(old, "c")) == ["one", "two"]
    assert new.adopt("t", "c") == 0
    new.close()


def test_going_back_and_forth_between_embedders_loses_nothing(tmp_path: Path) -> None:
    milvus = connect(str(tmp_path / "index"), "", 5)
    one, two, three = (MilvusIndex(milvus, name, DIM) for name in ("one", "two", "three"))
    _put(one, "c", _document("d", "text"))
    _put(two, "c", _document("d", "text"))  # given up half-way for another one
    for index, others in ((three, 2), (one, 1), (two, 1)):
        _put(index, "c", _document("d", "text"))
        assert index.adopt("t", "c") == others
        places = index.searched("t", "c", OPERATOR)
        assert places.own == places.searched
        assert [hit.chunk.text for hit in _dense(index, "c")] == ["text"]
    one.close()


def test_a_removed_document_is_gone_from_what_is_searched_and_from_what_replaces_it(
    tmp_path: Path,
) -> None:
    milvus = connect(str(tmp_path / "index"), "", 5)
    old, new = MilvusIndex(milvus, "old", DIM), MilvusIndex(milvus, "new", DIM)
    for index in (old, new):
        _put(index, "c", _document("d", "one", "two"), _document("e", "three"))
    assert new.remove("t", "c", ["d"], OPERATOR) == 2
    assert new.documents("t", "c", OPERATOR) == IndexedIds(("e",), other_embedder=True)
    assert new.remove("t", "c", ["e"], OPERATOR) == 1
    assert not milvus.client.list_collections()
    new.close()


def test_a_reopened_index_answers_whoever_asks_first_and_all_at_once(tmp_path: Path) -> None:
    for attempt in range(4):
        index = MilvusIndex(connect(str(tmp_path / "index"), "", 5), "embedder", DIM)
        if attempt:
            with ThreadPoolExecutor(8) as threads:
                found = [threads.submit(_dense, index, f"c{i % 2}") for i in range(4)]
                listed = [threads.submit(index.collections, "t", OPERATOR) for _ in range(2)]
                found += [threads.submit(_dense, index, f"c{i % 2}") for i in range(4)]
            assert [hit.chunk.text for f in found for hit in f.result()] == ["one"] * 8
            assert all(sum(info.num_chunks for info in f.result()) == 2 for f in listed)
        else:
            for name in ("c0", "c1"):
                _put(index, name, _document("d", "one"))
        index.close()


def test_a_bm25_function_of_the_server_is_used_where_there_is_one(tmp_path: Path) -> None:
    milvus = replace(connect(str(tmp_path / "index"), "", 5), lexical=Lexical.SERVER)
    index = MilvusIndex(milvus, "embedder", DIM)
    _put(index, "c", _document("d", "a red apple", "a blue whale"))
    assert _bm25(index, "c", "whale") == ["a blue whale"]
    assert {
        f["name"] for f in milvus.client.describe_collection(milvus.client.list_collections()[0])["functions"]
    } == {"bm25"}
    index.close()


def test_a_server_that_does_not_answer_is_told(unused_tcp_port: int) -> None:
    with pytest.raises(Unavailable, match="does not answer"):
        connect(f"http://127.0.0.1:{unused_tcp_port}", "", 0.1)


def _write_until_killed(directory: str, acknowledged: "multiprocessing.Queue[int]") -> None:
    index = MilvusIndex(connect(directory, "", 5), "embedder", DIM)
    for i in itertools.count():
        _put(index, "c", _document(f"d{i}", f"text {i}", "more"))
        acknowledged.put(i)


def test_acknowledged_documents_survive_a_kill_and_the_next_owner_waits_for_the_lock(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    acknowledged: multiprocessing.Queue[int] = spawn.Queue()
    writer = spawn.Process(target=_write_until_killed, args=(str(tmp_path / "index"), acknowledged))
    writer.start()
    last = [acknowledged.get(timeout=60) for _ in range(4)][-1]
    with pytest.raises(Unavailable, match="another process"):
        connect(str(tmp_path / "index"), "", 0.1)
    writer.kill()
    writer.join()
    index = MilvusIndex(connect(str(tmp_path / "index"), "", 10), "embedder", DIM)
    found = {hit.document_id for hit in _dense(index, "c")}
    assert {f"d{i}" for i in range(last + 1)} <= found
    assert set(_bm25(index, "c", "text")) >= {f"text {i}" for i in range(last + 1)}
    index.close()


@pytest.mark.parametrize("kept", [0, 50, 128, 191])
def test_a_vector_index_half_written_is_made_anew(tmp_path: Path, kept: int) -> None:
    directory = tmp_path / "index"
    index = MilvusIndex(connect(str(directory), "", 5), "embedder", DIM)
    _put(index, "c", _document("d", "one", "two"))
    index.close()  # waits until it is written
    (file,) = directory.rglob("*.idx")
    whole = file.read_bytes()
    assert len(whole) == 192
    file.write_bytes(whole[:kept])

    index = MilvusIndex(connect(str(directory), "", 5), "embedder", DIM)
    assert {hit.chunk.text for hit in _dense(index, "c")} == {"one", "two"}
    index.close()
    assert file.read_bytes() == whole


def test_a_collection_half_made_or_half_dropped_can_be_made_again(tmp_path: Path) -> None:
    directory = tmp_path / "index"
    index = MilvusIndex(connect(str(directory), "", 5), "embedder", DIM)
    _put(index, "c", _document("d", "one"))
    index.close()
    (schema,) = directory.rglob("schema.json")
    schema.rename(schema.with_name("schema.json.tmp"))

    index = MilvusIndex(connect(str(directory), "", 5), "embedder", DIM)
    assert index.collections("t", OPERATOR) == []
    _put(index, "c", _document("e", "two"))
    assert [hit.chunk.text for hit in _dense(index, "c")] == ["two"]
    index.close()


def _who(*groups: str) -> Principal:
    return Principal("somebody", "t", frozenset([Role.WRITER]), frozenset(groups))


def _for(document: IndexedDocument, *readers: tuple[str, ...]) -> IndexedDocument:
    chunks = zip(document.chunks, readers, strict=True)
    return replace(document, chunks=tuple(replace(chunk, readers=of) for chunk, of in chunks))


@pytest.fixture(params=[Lexical.OWN, Lexical.SERVER])
def read_by_some(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MilvusIndex]:
    milvus = replace(connect(str(tmp_path / "index"), "", 5), lexical=request.param)
    index = MilvusIndex(milvus, "embedder", DIM)
    _put(
        index,
        "c",
        _document("open", "open word"),
        _for(_document("hr", "hr word", "hr other"), ("hr",), ("hr",)),
        _for(_document("part", "part word", "part secret"), (), ("board", "hr")),
    )
    _put(index, "hidden", _for(_document("d", "one"), ("hr",)))
    yield index
    index.close()


def test_who_asks_finds_what_he_may_read_as_if_nothing_else_were_there(read_by_some: MilvusIndex) -> None:
    index = read_by_some

    def seen(who: Principal) -> tuple[list[str], list[str], dict[str, int], tuple[str, ...]]:
        dense = sorted(hit.chunk.text for hit in _dense(index, "c", who=who))
        counts = {info.name: info.num_chunks for info in index.collections("t", who)}
        return (
            dense,
            sorted(_bm25(index, "c", "word", who)),
            counts,
            index.documents("t", "c", who).document_ids,
        )

    assert (
        seen(_who())
        == seen(_who("other"))
        == (*(["open word", "part word"], ["open word", "part word"], {"c": 2}, ("open", "part")),)
    )
    assert seen(_who("board")) == (
        ["open word", "part secret", "part word"],
        ["open word", "part word"],
        {"c": 3},
        ("open", "part"),
    )
    everything = (
        ["hr other", "hr word", "open word", "part secret", "part word"],
        ["hr word", "open word", "part word"],
        {"c": 5, "hidden": 1},
        ("hr", "open", "part"),
    )
    assert seen(_who("hr")) == seen(_who("*")) == seen(OPERATOR) == everything
    with pytest.raises(NotFound, match=r"'hidden' does not exist; there are: c$"):
        _dense(index, "hidden", who=_who("board"))


def test_as_many_hits_come_as_there_are_readable_ones(read_by_some: MilvusIndex) -> None:
    for i in range(20):
        _put(read_by_some, "c", _for(_document(f"more{i}", "hr word"), ("hr",)))
    for limit in (1, 2, 3):
        assert len(_dense(read_by_some, "c", limit=limit, who=_who("board"))) == limit


def test_scores_tell_nothing_of_what_one_may_not_read(index: MilvusIndex, collection: str) -> None:
    def score() -> float:
        name = index.searched("t", collection, _who()).searched
        ((_, found),) = index.search_bm25(name, ["rare word"], 9, "", _who())[0]
        return found

    _put(index, collection, _document("open", "a rare word"))
    alone = score()
    _put(index, collection, _for(_document("hr", *["rare"] * 5), *[("hr",)] * 5))
    assert score() == alone
    assert index.search_bm25(index.places("t", collection).own, ["hr rare"], 9, "", _who("hr"))[0]


def test_readers_change_without_new_vectors(read_by_some: MilvusIndex) -> None:
    index = read_by_some
    name = index.places("t", "c").own
    changed = _for(_document("hr", "hr word", "hr other"), ("board",), ("hr",))
    assert index.has_content(name, changed)
    assert not index.is_current(name, "t", "c", changed)
    index.put_readers(name, "t", "c", changed)
    assert index.is_current(name, "t", "c", changed)
    assert sorted(_bm25(index, "c", "word", _who("board"))) == ["hr word", "open word", "part word"]
    assert sorted(_bm25(index, "c", "word", _who("hr"))) == ["open word", "part word"]
    own = [hit for hit in _dense(index, "c", who=_who("board")) if hit.document_id == "hr"]
    query = _vectors(changed)[:1]
    ((_, cosine), *_rest) = index.search_dense(name, query, 9, "", _who("board"))[0]
    assert [hit.chunk.readers for hit in own] == [("board",)]
    assert cosine == pytest.approx(1.0, abs=1e-5)


def test_a_restricted_document_loses_readers_and_gains_none(read_by_some: MilvusIndex) -> None:
    index = read_by_some
    assert index.restrict("t", "c", "part", ("board", "x")) == 2
    assert sorted(hit.document_id for hit in _dense(index, "c", who=_who("x"))) == ["open", "part"]
    assert sorted(
        hit.chunk.text for hit in _dense(index, "c", who=_who("board")) if hit.document_id == "part"
    ) == [
        "part secret",
        "part word",
    ]
    assert [hit.document_id for hit in _dense(index, "c", who=_who())] == ["open"]
    assert index.restrict("t", "c", "part", ()) == 0
    assert index.restrict("t", "c", "part", ("nobody-else",)) == 2
    assert [hit.document_id for hit in _dense(index, "c", who=_who("board", "nobody-else"))] == ["open"]
    assert len(_dense(index, "c", who=OPERATOR)) == 5


def test_what_one_may_not_read_he_neither_removes_nor_replaces(read_by_some: MilvusIndex) -> None:
    index = read_by_some
    assert index.remove("t", "c", ["hr", "gone"], _who("board")) == 0
    for document_id, who in (("hr", _who()), ("part", _who())):
        with pytest.raises(DocumentTaken, match=f"'{document_id}' is taken"):
            index.check_may_change("t", "c", document_id, who)
    with pytest.raises(DocumentTaken, match="'part' is taken"):
        index.remove("t", "c", ["part"], _who())
    assert len(_dense(index, "c", who=OPERATOR)) == 5
    index.check_may_change("t", "c", "part", _who("board"))
    assert index.remove("t", "c", ["part"], _who("board")) == 2


def test_rows_of_earlier_versions_are_for_everybody(index: MilvusIndex, collection: str) -> None:
    """They say nothing of readers."""
    document = _document("old", "one")
    assert not any("_readers" in row["terms"] for row in rows_of("t", collection, document))
    _put(index, collection, document)
    assert [hit.document_id for hit in _dense(index, collection, who=_who())] == ["old"]
