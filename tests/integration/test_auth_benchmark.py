"""The benchmark of authentication measures every way, by pairs."""

from __future__ import annotations

import pytest

from load_tests.auth.__main__ import measure


async def test_every_way_is_measured_with_its_interval(capsys: pytest.CaptureFixture[str]) -> None:
    measurements = await measure(10)
    assert [m.name for m in measurements] == [
        "auth_added_key",
        "auth_added_token",
        "auth_added_key_and_four_services",
    ]
    for m in measurements:
        assert m.min is not None
        assert m.max is not None
        assert m.min <= m.value <= m.max
    assert len(capsys.readouterr().out.splitlines()) == 3
