from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.emulated_tiles import kernels_of


@pytest.fixture(autouse=True)
def _kernels(request: pytest.FixtureRequest) -> Iterator[None]:
    """Of the level of kernels that a test is about, on emulated tiles if need be."""
    case = getattr(request.node, "callspec", None)
    with kernels_of(case.params.get("level", 0) if case else 0):
        yield
