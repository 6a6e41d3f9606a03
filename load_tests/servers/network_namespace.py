"""Has a network of one's own, joined to this machine's by one link that can be cut: what runs in it is like
another machine, as far as the network can tell."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
from collections.abc import Sequence

_INSIDE = "inside"


class NoNetworkNamespace(Exception):
    """None can be had here; says why."""


class NetworkNamespace:
    """From construction to ``close``. ``here`` and ``there``: the addresses of both ends of the link, of a
    range that is for tests of networks (RFC 2544)."""

    def __init__(self) -> None:
        """
        Raises:
            NoNetworkNamespace: says why.
        """
        if os.geteuid() != 0 or shutil.which("ip") is None:
            raise NoNetworkNamespace("to make a network namespace needs root and `ip` of iproute2")
        number = secrets.randbelow(1 << 14)
        self.name = f"kvquilt-{number}"
        network = f"198.{18 + (number >> 13)}.{number >> 6 & 0x7F}.{(number & 0x3F) << 2}"
        first, _, last = network.rpartition(".")
        self.here, self.there = f"{first}.{int(last) + 1}", f"{first}.{int(last) + 2}"
        self._link = f"kvq{number}"
        try:
            self._make()
        except NoNetworkNamespace:
            self.close()
            raise

    def command(self, *command: str) -> Sequence[str]:
        """The same command, run inside."""
        return ["ip", "netns", "exec", self.name, *command]

    def cut(self) -> None:
        """From now on what either side sends is lost, without a word."""
        _ip("-n", self.name, "link", "set", _INSIDE, "down")

    def heal(self) -> None:
        _ip("-n", self.name, "link", "set", _INSIDE, "up")

    def close(self) -> None:
        """The link goes with it; processes that run inside lose their network."""
        with contextlib.suppress(NoNetworkNamespace):
            _ip("netns", "delete", self.name)
        with contextlib.suppress(NoNetworkNamespace):  # the namespace lives as long as processes in it
            _ip("link", "delete", self._link)

    def _make(self) -> None:
        _ip("netns", "add", self.name)
        _ip("link", "add", self._link, "type", "veth", "peer", "name", _INSIDE, "netns", self.name)
        _ip("address", "add", f"{self.here}/30", "dev", self._link)
        _ip("-n", self.name, "address", "add", f"{self.there}/30", "dev", _INSIDE)
        _ip("link", "set", self._link, "up")
        _ip("-n", self.name, "link", "set", "lo", "up")
        self.heal()


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoNetworkNamespace(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
