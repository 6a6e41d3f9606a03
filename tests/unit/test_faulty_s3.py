"""What passes the link of an S3 server's proxy takes its time."""

from __future__ import annotations

import pytest

from load_tests.servers.faulty_s3 import NetworkLink


def test_bytes_of_all_senders_pass_one_behind_the_other_and_an_idle_link_saves_nothing_up() -> None:
    now_s = 5.0
    link = NetworkLink(1000.0, lambda: now_s)
    assert [link.wait_s(100), link.wait_s(300)] == pytest.approx([0.1, 0.4])
    now_s += 0.3
    assert link.wait_s(200) == pytest.approx(0.3), "0.1 s of those before it are left"
    now_s += 60
    assert link.wait_s(50) == pytest.approx(0.05)
