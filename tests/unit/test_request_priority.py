"""A caller's priority travels with the request, from service to service."""

from __future__ import annotations

import pytest

from protos.kvquilt.v1 import common_pb2
from shared.clients.service import meta_of
from shared.errors import InvalidRequest
from shared.principals.callers import OPERATOR
from shared.request import RequestContext


def test_what_a_caller_says_is_told_to_the_next_service() -> None:
    ctx = OPERATOR.context(common_pb2.RequestMeta(priority=-42))
    assert ctx.priority == -42
    assert OPERATOR.context(meta_of(ctx)).priority == -42
    assert OPERATOR.context(common_pb2.RequestMeta()).priority == 0


@pytest.mark.parametrize("priority", [-101, 101, -(2**31)])
def test_bounds_are_named(priority: int) -> None:
    with pytest.raises(
        InvalidRequest, match=rf"^meta.priority: must be from -100 .* to 100, got {priority}$"
    ):
        RequestContext.create(priority=priority)
