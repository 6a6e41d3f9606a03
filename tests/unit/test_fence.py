"""What a unit test may not do is refused, however it is tried."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable, Iterator

import grpc
import pytest
import ray
import urllib3

from tests.unit.fence import Fence, OutsideUnit
from tests.virtual_time import run_virtually, virtual_loop

NOBODY = ("127.0.0.1", 9)


@contextlib.contextmanager
def refused(fence: Fence, what: str) -> Iterator[None]:
    with pytest.raises(OutsideUnit, match=what):
        yield
    assert fence.refused
    fence.refused.clear()


@pytest.mark.parametrize(
    "door",
    [
        lambda _: socket.create_connection(NOBODY),
        lambda opened: opened.bind(NOBODY),
        lambda opened: opened.connect_ex(NOBODY),
        lambda opened: opened.sendto(b"", NOBODY),
        lambda _: socket.getaddrinfo("localhost", 80),
        lambda _: urllib3.request("GET", "http://127.0.0.1:9"),
    ],
)
def test_no_socket_is_opened(fence: Fence, door: Callable[[socket.socket], object]) -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as opened, refused(fence, "socket"):
        door(opened)


@pytest.mark.parametrize("name", ["insecure_channel", "secure_channel", "server"])
@pytest.mark.parametrize("module", [grpc, grpc.aio])
def test_no_grpc_channel_and_no_server(fence: Fence, module: object, name: str) -> None:
    with refused(fence, name):
        getattr(module, name)("127.0.0.1:9")


def test_ray_is_not_started(fence: Fence) -> None:
    with refused(fence, "socket|Ray"):
        ray.init(address="local", include_dashboard=False)


def test_nobody_sleeps(fence: Fence) -> None:
    with refused(fence, "sleep"):
        time.sleep(0.001)
    time.sleep(0)


async def test_no_coroutine_sleeps_but_gives_way(fence: Fence) -> None:
    with refused(fence, "sleep"):
        await asyncio.sleep(0.001)
    await asyncio.sleep(0)


def test_sleeping_takes_no_time_where_time_is_virtual() -> None:
    async def work() -> float:
        await asyncio.sleep(1000)
        return virtual_loop().time()

    assert run_virtually(work()) == 1000


def test_what_was_swallowed_is_found_in_the_end() -> None:
    fence = Fence()
    with fence, contextlib.suppress(BaseException):
        time.sleep(1)
    assert fence.refused == ["time.sleep(1)"]
