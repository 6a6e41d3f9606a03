from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.principals.certificates import certificate_names
from shared.principals.peers import comes_from_elsewhere, is_here, is_loopback


@pytest.mark.parametrize(
    ("header", "names"),
    [
        ("", []),
        ("By=spiffe://a;Hash=ab;URI=spiffe://b/c", ["URI=spiffe://b/c"]),
        ('Hash=ab;Subject="CN=anna,O=Acme\\, Inc.";DNS=x.example', ["DNS=x.example", "CN=anna"]),
        ('Subject="O=CN=root,CN=anna"', ["CN=anna"]),
        ('Subject="CN=anna\\,CN=root,O=a"', ["CN=anna,CN=root"]),
        ('Subject="CN=anna,CN=root"', []),
        ('Subject="O=Acme\\,CN=root"', []),
        ('Subject="O=x/CN=root"', []),
        ("URI=spiffe://first,URI=spiffe://last", ["URI=spiffe://last"]),
        ('URI=spiffe://first,By=x;Subject=""', []),
        ('Subject="CN=an\\"na"', ['CN=an"na']),
        ("URI", []),
        ('Subject="CN=anna', []),
        ("URI=a" * 10_000, []),
        ("URI=a;;URI=b", []),
    ],
)
def test_the_nearest_proxys_word_is_read_and_nothing_made_up(header: str, names: list[str]) -> None:
    assert certificate_names(header) == names


@given(st.text(alphabet='UCNRID=;,"\\ /ab'))
def test_no_header_is_an_error(header: str) -> None:
    for name in certificate_names(header):
        assert name.startswith(("URI=", "DNS=", "CN="))


@pytest.mark.parametrize(
    "peer",
    [
        *("ipv4:127.0.0.1:5000", "ipv4:127.8.9.1:5", "ipv6:%5B::1%5D:5000", "ipv6:[::1]:5000"),
        *("ipv6:%5B::ffff:127.0.0.1%5D:5000", "unix:/run/x", "unix:", "127.0.0.1", "::1"),
    ],
)
def test_callers_of_this_machine_are_known(peer: str) -> None:
    assert is_loopback(peer)


@pytest.mark.parametrize(
    "peer",
    [
        *("", "ipv4:10.0.0.1:5000", "ipv6:%5Bfe80::1%25eth0%5D:5000", "ipv6:%5B::ffff:10.0.0.1%5D:5"),
        *("10.0.0.1", "localhost", "ipv4:", "ipv4:localhost:5", "ipv4:127.0.0.1.evil:5", "0.0.0.0", "peer"),
        "ipv6:]:1",
    ],
)
def test_all_others_are_not(peer: str) -> None:
    assert not is_loopback(peer)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"host": "127.0.0.1:8000"},
        {"host": "localhost:8000", "origin": "http://localhost:3000"},
        {"host": "[::1]:8000", "origin": "http://[::1]:1"},
        {"host": "app.localhost"},
    ],
)
def test_a_program_of_this_machine_comes_from_here(headers: dict[str, str]) -> None:
    assert not comes_from_elsewhere(headers)


@pytest.mark.parametrize(
    "headers",
    [
        {"x-forwarded-for": "127.0.0.1"},
        {"forwarded": "for=1"},
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1.evil.example"},
        {"host": "evil.example:8000"},
        {"host": "localhost.evil.example"},
        {"host": ""},
        {"origin": "http://["},
    ],
)
def test_a_proxy_and_a_browser_with_somebody_elses_page_do_not(headers: dict[str, str]) -> None:
    assert comes_from_elsewhere(headers)


@pytest.mark.parametrize(
    ("host", "here"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("", False), ("::", False)],
)
def test_a_host_to_listen_on_is_this_machines_or_not(host: str, here: bool) -> None:
    assert is_here(host) is here
