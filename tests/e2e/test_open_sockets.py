"""What a stack on one machine listens on: the list in docs/transport.md, and nothing beyond this machine."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import grpc
import pyarrow as pa
import pytest
from pyarrow import flight

from cluster.local.processes import session_members
from cluster.paths import PROJECT_ROOT
from shared.clients.kv_node import AgentClient
from shared.errors import KvquiltError, Unauthenticated
from shared.principals.credentials import SIGNED, ServiceIdentity
from shared.principals.secret import signer_of
from shared.principals.services import credentials_of
from shared.request import RequestContext
from tests.e2e.stack import Stack

pytestmark = pytest.mark.e2e
LISTENING = "0A"
SECTION = "## What listens on one machine"
ROW = re.compile(r"^\| `([^`|]+)` \| ", re.MULTILINE)
PROGRAM = re.compile(r"ray::\w+|gcs_server|raylet|cluster\.local\.supervisor|\b(?:monitor|dashboard)\.py")
AT_TIMES = {"ray::IDLE", "monitor.py", "dashboard.py"}


def listening_inodes(pid: int) -> dict[str, tuple[str, int]]:
    """Of the sockets that anybody listens on: inode to address and port, of the machine of ``pid``."""
    found = {}
    for family in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{family}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENING:
                found[fields[9]] = address_of(fields[1]), int(fields[1].partition(":")[2], 16)
    return found


def address_of(local: str) -> str:
    """As the kernel writes it: words of four bytes, each in the machine's own order."""
    words = re.findall("." * 8, local.partition(":")[0])
    packed = b"".join(bytes.fromhex(word)[::-1] for word in words)
    found = ipaddress.ip_address(packed)
    return str(getattr(found, "ipv4_mapped", None) or found)


def sockets(stack: Stack) -> Iterator[tuple[str, str, int]]:
    """The name of every process of the stack that listens, the address and the port, a row for each
    socket."""
    listening = listening_inodes(stack.state.pid)
    for pid in (stack.state.pid, *session_members(stack.state.pid)):
        with contextlib.suppress(OSError):
            for fd in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    inode = os.readlink(fd).removeprefix("socket:[").removesuffix("]")
                    if inode in listening:
                        yield name_of(pid), *listening[inode]


def name_of(pid: int) -> str:
    """A process as docs/transport.md calls it."""
    command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    program = PROGRAM.search(command)
    return program[0] if program else command


def test_every_socket_is_on_this_machine_and_in_the_list(stack: Stack) -> None:
    found = sorted(set(sockets(stack)))
    page = (PROJECT_ROOT / "docs" / "transport.md").read_text(encoding="utf-8")
    listed = ROW.findall(page.partition(SECTION)[2].partition("\n## ")[0])
    assert [name for name, address, _ in found if not ipaddress.ip_address(address).is_loopback] == []
    begun = {name for name, *_ in found if not name.startswith("ray::SERVE_")}  # what is being started anew
    assert sorted(begun | AT_TIMES) == sorted(listed)


async def test_an_agents_servers_answer_nobody_who_is_no_service_of_the_stack(stack: Stack) -> None:
    """Whoever runs a program on the machine reaches them: they hold everybody's chunks, and take files."""
    owner = credentials_of(ServiceIdentity("owner", signer_of(stack.data_dir / "auth" / "secret")))
    ctx, told = RequestContext.create(), set()
    for name, address, port in set(sockets(stack)):
        if name != "ray::AgentActor":
            continue
        async with grpc.aio.insecure_channel(f"{address}:{port}") as channel:
            try:
                assert (await AgentClient.of(channel, owner).list_page(ctx)).chunks
            except KvquiltError:
                pass  # Ray's own server, or Arrow Flight's
            else:
                told.add("NodeStore")
                for ask in (AgentClient.of(channel).list_page, AgentClient.of(channel).stats):
                    with pytest.raises(Unauthenticated):
                        await ask(ctx)
        with contextlib.suppress(flight.FlightError, pa.ArrowException):
            client = flight.connect(f"grpc://{address}:{port}")
            ticket = flight.Ticket(json.dumps(["a" * 40, 0, 1]).encode())
            refused = await asyncio.to_thread(_refusal, client, ticket)
            if isinstance(refused, flight.FlightUnauthenticatedError) and SIGNED in str(refused):
                told.add("Flight")
    assert told == {"NodeStore", "Flight"}


def _refusal(client: flight.FlightClient, ticket: flight.Ticket) -> Exception | None:
    try:
        client.do_get(ticket, flight.FlightCallOptions(timeout=5)).read_all()
    except (flight.FlightError, pa.ArrowException, KeyError) as error:
        return error
    return None
