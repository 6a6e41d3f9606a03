"""Metadata filters without user text in an expression.

Every row carries its filterable values in a JSON field in which keys and values are hex digits of their UTF-8
bytes. An expression is made of these alone, so there is nothing to quote or escape, and a prefix of a text is
a prefix of its digits.
"""

from __future__ import annotations

from collections.abc import Sequence

from shared.errors import InvalidRequest
from shared.indexable import OTHER_LANGUAGE, term_key, term_value
from shared.search import Filter, FilterOp

TERMS_FIELD = "terms"
IN_OTHER_LANGUAGE = f'exists {TERMS_FIELD}["{OTHER_LANGUAGE}"]'
MAX_FILTERS = 32
MAX_VALUES = 256


def expression(filters: Sequence[Filter]) -> str:
    """A Milvus expression that holds where all ``filters`` hold; empty for none.

    Raises:
        InvalidRequest: names the filter and what is wrong.
    """
    if len(filters) > MAX_FILTERS:
        raise InvalidRequest(f"filters: at most {MAX_FILTERS}, got {len(filters)}")
    return " and ".join(f"({_condition(i, f)})" for i, f in enumerate(filters))


def _condition(position: int, condition: Filter) -> str:
    where = f"filters[{position}]"
    if not condition.field:
        raise InvalidRequest(f"{where}.field: is empty")
    if condition.op is FilterOp.IN:
        if not 1 <= len(condition.values) <= MAX_VALUES:
            raise InvalidRequest(
                f"{where}.values: OP_IN takes 1 to {MAX_VALUES} values, got {len(condition.values)}"
            )
    elif len(condition.values) != 1:
        raise InvalidRequest(f"{where}.values: takes exactly one value, got {len(condition.values)}")
    term = f'{TERMS_FIELD}["{term_key(condition.field)}"]'
    digits = [term_value(value) for value in condition.values]
    if condition.op is FilterOp.PREFIX:
        return f'{term} like "{digits[0]}%"'
    if condition.op is FilterOp.NE:
        return f'not (exists {term}) or {term} != "{digits[0]}"'
    return " or ".join(f'{term} == "{value}"' for value in digits)
