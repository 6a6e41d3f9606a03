import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.retrieval.filters import expression
from shared.errors import InvalidRequest
from shared.indexable import encode_terms
from shared.search import Filter, FilterOp

hostile = st.text(st.characters(codec="utf-8"), min_size=1) | st.sampled_from(
    [
        '"',
        "\\",
        '" or 1 == 1 or "',
        "a\nb",
        "%",
        "_",
        "'; drop",
        "\x00",
        "é€😀",
        '\\" or document_key != "',
        "] or true or k[",
    ]
)
operators = st.sampled_from([FilterOp.EQ, FilterOp.NE, FilterOp.PREFIX])
_ATOM = r'terms\["k[0-9a-f]+"\] (==|!=|like) "v[0-9a-f]*%?"'
_SAFE = re.compile(rf'\((not \(exists terms\["k[0-9a-f]+"\]\) or )?{_ATOM}( or {_ATOM})*\)')


@given(hostile, hostile, operators)
def test_expressions_hold_nothing_but_hex_digits_of_user_text(field: str, value: str, op: FilterOp) -> None:
    assert _SAFE.fullmatch(expression([Filter(field, op, (value,))]))


@given(st.lists(hostile, min_size=1, max_size=5))
def test_lists_of_values_are_encoded_one_by_one(values: list[str]) -> None:
    assert _SAFE.fullmatch(expression([Filter("f", FilterOp.IN, tuple(values))]))


@given(
    st.dictionaries(hostile.filter(lambda k: k not in ("document_id", "title")), hostile), hostile, hostile
)
def test_stored_terms_distinguish_what_differs(
    metadata: dict[str, str], document_id: str, title: str
) -> None:
    terms = encode_terms(document_id, title, metadata)
    assert len(terms) == len(metadata) + 2
    assert all(
        re.fullmatch(r"k[0-9a-f]+", key) and re.fullmatch(r"v[0-9a-f]*", value)
        for key, value in terms.items()
    )


@given(hostile, hostile)
def test_a_prefix_of_a_text_is_a_prefix_of_its_encoding(start: str, rest: str) -> None:
    stored = encode_terms(start + rest, "", {})
    wanted = expression([Filter("document_id", FilterOp.PREFIX, (start,))])
    pattern = wanted.split('like "')[1].removesuffix('%")')
    assert any(value.startswith(pattern) for value in stored.values())


@pytest.mark.parametrize(
    ("condition", "names"),
    [
        (Filter("", FilterOp.EQ, ("x",)), r"filters\[0\].field"),
        (Filter("f", FilterOp.EQ, ()), r"filters\[0\].values"),
        (Filter("f", FilterOp.EQ, ("a", "b")), r"filters\[0\].values"),
        (Filter("f", FilterOp.IN, ()), r"filters\[0\].values"),
        (Filter("f", FilterOp.IN, ("x",) * 257), r"filters\[0\].values"),
    ],
)
def test_a_filter_that_cannot_be_is_named(condition: Filter, names: str) -> None:
    with pytest.raises(InvalidRequest, match=names):
        expression([condition])


def test_too_many_filters_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="at most 32"):
        expression([Filter("f", FilterOp.EQ, ("x",))] * 33)


@pytest.mark.parametrize("key", ["", "document_id", "title"])
def test_metadata_cannot_shadow_a_built_in_field(key: str) -> None:
    with pytest.raises(InvalidRequest, match="metadata"):
        encode_terms("d", "t", {key: "x"})
