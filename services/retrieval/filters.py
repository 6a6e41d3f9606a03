"""Filters by metadata and readers, without user text in an expression.

Every row carries its filterable values in a JSON field in which keys and values are hex digits of their UTF-8
bytes. An expression is made of these alone, so there is nothing to quote or escape, and a prefix of a text is
a prefix of its digits. Groups of readers are written alike. A row without any, as all that earlier versions
wrote, is for everybody of the tenant.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shared.errors import InvalidRequest
from shared.indexable import OTHER_LANGUAGE, READERS, term_key, term_value, value_of_term
from shared.principals.principal import Principal
from shared.readers import Readers, reads_everything
from shared.search import Filter, FilterOp

TERMS_FIELD = "terms"
_READERS = f'{TERMS_FIELD}["{READERS}"]'
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


def readable_by(principal: Principal) -> str:
    """A Milvus expression that holds for rows that ``principal`` may read; empty: for all."""
    if reads_everything(principal):
        return ""
    for_all = f"not (exists {_READERS})"
    groups = ", ".join(f'"{term_value(group)}"' for group in sorted(principal.groups))
    return f"{for_all} or json_contains_any({_READERS}, [{groups}])" if groups else for_all


def all_of(*expressions: str) -> str:
    """An expression that holds where all of these do; empty ones hold everywhere."""
    return " and ".join(f"({one})" for one in expressions if one)


def readers_in(row: Mapping[str, Any]) -> Readers:
    """Of a row of which ``TERMS_FIELD`` was read."""
    return tuple(map(value_of_term, row[TERMS_FIELD].get(READERS, ())))


def with_readers(row: Mapping[str, Any], readers: Readers) -> dict[str, Any]:
    terms = {key: value for key, value in row[TERMS_FIELD].items() if key != READERS}
    return {**row, TERMS_FIELD: terms | ({READERS: list(map(term_value, readers))} if readers else {})}


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
