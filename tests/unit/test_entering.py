"""Streams on their way into a service."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import pytest
from google.protobuf.message import DecodeError

from protos.kvquilt.v1 import kv_store_pb2
from shared.admission.entering import Entering
from shared.errors import InvalidRequest
from shared.request import RequestContext


async def test_bytes_that_are_no_message_in_mid_stream_are_the_callers_fault() -> None:
    async def stream() -> AsyncIterator[kv_store_pb2.PutRequest]:
        yield kv_store_pb2.PutRequest(data=b"whole")
        raise DecodeError("Wire format was corrupt")

    entering = Entering("Put", True, contextlib.ExitStack())
    heard = entering.checked(object(), stream(), lambda meta: RequestContext.create())
    assert (await anext(heard)).data == b"whole"
    with pytest.raises(InvalidRequest, match="cannot be read"):
        await anext(heard)
