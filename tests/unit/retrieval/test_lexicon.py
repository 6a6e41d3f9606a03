import math

from hypothesis import given
from hypothesis import strategies as st

from services.retrieval.lexicon import K1, TYPICAL_LEN, B, Lexicon, SparseVector, row_vector

words = st.lists(st.sampled_from(["fox", "dog", "cat", "the", "river", "Zorblatt"]), max_size=12)
texts = st.lists(words.map(" ".join), min_size=1, max_size=8)


def _everything(readers: tuple[str, ...]) -> bool:
    return True


def _for_all(texts: list[str]) -> list[tuple[tuple[str, ...], SparseVector]]:
    return [((), row_vector(text)) for text in texts]


def _score(lexicon: Lexicon, query: str, text: str) -> float:
    row = row_vector(text)
    return sum(
        weight * row.get(term, 0.0) for term, weight in lexicon.query_vector(query, _everything).items()
    )


def _bm25(query: list[str], text: list[str], corpus: list[list[str]]) -> float:
    """The formula, term by term."""
    total = 0.0
    for word in query:
        rows = sum(word in other for other in corpus)
        if rows == 0:
            continue
        idf = math.log(1 + (len(corpus) - rows + 0.5) / (rows + 0.5))
        tf = text.count(word)
        total += idf * tf * (K1 + 1) / (tf + K1 * (1 - B + B * len(text) / TYPICAL_LEN))
    return total


@given(words, texts)
def test_the_inner_product_is_the_bm25_score(query: list[str], corpus: list[str]) -> None:
    lexicon = Lexicon()
    lexicon.add(_for_all(corpus))
    split = [text.split() for text in corpus]
    for text, tokens in zip(corpus, split, strict=True):
        assert math.isclose(_score(lexicon, " ".join(query), text), _bm25(query, tokens, split), abs_tol=1e-9)


@given(texts, texts, words)
def test_removing_rows_leaves_what_adding_the_others_makes(
    kept: list[str], removed: list[str], query: list[str]
) -> None:
    one, other = Lexicon(), Lexicon()
    one.add(_for_all(kept + removed))
    one.remove(_for_all(removed))
    other.add(_for_all(kept))
    assert one.query_vector(" ".join(query), _everything) == other.query_vector(" ".join(query), _everything)


def test_words_are_compared_without_case_and_width() -> None:
    assert row_vector("Straße ＡＢＣ") == row_vector("STRASSE abc")


def test_scripts_without_spaces_match_by_character() -> None:
    assert row_vector("京").keys() <= row_vector("東京都").keys()


def test_a_query_of_unknown_words_has_no_vector() -> None:
    lexicon = Lexicon()
    lexicon.add(_for_all(["fox"]))
    assert lexicon.query_vector("!? zebra", _everything) == {}


@given(texts, texts, words)
def test_rows_that_one_may_not_read_weigh_nothing(
    mine: list[str], others: list[str], query: list[str]
) -> None:
    mixed, alone = Lexicon(), Lexicon()
    mixed.add([*_for_all(mine), *((("hr",), row_vector(text)) for text in others)])
    alone.add(_for_all(mine))
    asked = " ".join(query)
    assert mixed.query_vector(asked, lambda readers: not readers) == alone.query_vector(asked, _everything)
    assert set(mixed.readers) == {(), ("hr",)}
    mixed.remove([(("hr",), row_vector(text)) for text in others])
    assert mixed.readers == [()]
