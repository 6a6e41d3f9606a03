"""Ports that are chosen before they are used."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from cluster.local import launcher


def test_no_outgoing_connection_is_given_a_chosen_port() -> None:
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = {launcher.free_port() for _ in range(50)}
    assert len(ports) > 40
    assert all(20_000 <= port < first for port in ports)


def test_a_taken_port_is_not_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of a range of one port, which is taken, the system chooses another."""
    taken = launcher.free_port()
    monkeypatch.setattr(launcher, "_FIRST_PORT", taken)
    ephemeral = tmp_path / "ip_local_port_range"
    ephemeral.write_text(f"{taken + 1}\t60999\n")
    monkeypatch.setattr(launcher, "_EPHEMERAL_PORTS", ephemeral)
    with socket.socket() as server:
        server.bind(("127.0.0.1", taken))
        assert launcher.free_port() not in (0, taken)
    assert launcher.free_port() == taken


def test_elsewhere_the_system_chooses(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(launcher, "_EPHEMERAL_PORTS", tmp_path / "none")
    assert launcher.free_port() > 0
