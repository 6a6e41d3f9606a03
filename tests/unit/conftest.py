"""Unit tests open no sockets, wait for no clock and start no Ray (``tests.unit.fence``)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.fence import Fence


@pytest.fixture(autouse=True)
def fence() -> Iterator[Fence]:
    with Fence() as fence:
        yield fence
    assert not fence.refused, f"a unit test did what none may do: {'; '.join(fence.refused)}"
