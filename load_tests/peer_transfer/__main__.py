"""Measures how a chunk's file travels from one node to another: gRPC frames, Arrow Flight or a plain socket,
into a staged file.

    python -m load_tests.peer_transfer [--json FILE]

Sender and receiver are processes of their own on this machine, so the numbers compare what each way costs in
processor time; a network adds the same to all. The file lies in the page cache. Every received file is
compared with the sent one.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import grpc

from load_tests.benchmark import in_turn, json_option, new_parser, printed
from protos.kvquilt.v1 import kv_store_pb2 as pb
from services.kv_store.fetching.flight import FlightReader, FlightServer
from shared.measuring.report import Measurement, measured, write_report

FRAME_BYTES = 1 << 20
CHUNK_BYTES = 28 * FRAME_BYTES
RUNS = 9
_METHOD = "/kvquilt.v1.KvStore/Get"
_CHUNK_ID = "0" * 40
_OPTIONS = [("grpc.max_receive_message_length", 4 * FRAME_BYTES)]


def _pieces(path: str) -> Iterator[bytes]:
    with open(path, "rb", buffering=0) as file:
        while piece := file.read(FRAME_BYTES):
            yield piece


# --- gRPC: the store's own Get, 1 MiB per message ----------------------------------------------------------


async def _serve_grpc(path: str, started: Connection) -> None:
    async def get(request: pb.GetRequest, context: Any) -> AsyncIterator[pb.GetResponse]:
        for piece in _pieces(path):
            yield pb.GetResponse(data=piece)

    method = grpc.unary_stream_rpc_method_handler(
        get,
        request_deserializer=pb.GetRequest.FromString,
        response_serializer=pb.GetResponse.SerializeToString,
    )
    server = grpc.aio.server(options=_OPTIONS)
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler("kvquilt.v1.KvStore", {"Get": method})]
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    started.send(port)
    await server.wait_for_termination()


def serve_grpc(path: str, started: Connection) -> None:
    asyncio.run(_serve_grpc(path, started))


def receive_grpc(port: int, targets: Sequence[int]) -> None:
    async def receive(channel: grpc.aio.Channel, fd: int) -> None:
        call = channel.unary_stream(
            _METHOD,
            request_serializer=pb.GetRequest.SerializeToString,
            response_deserializer=pb.GetResponse.FromString,
        )
        offset = 0
        async for response in call(pb.GetRequest()):
            offset += os.pwrite(fd, response.data, offset)

    async def receive_all() -> None:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=_OPTIONS) as channel:
            await asyncio.gather(*(receive(channel, fd) for fd in targets))

    asyncio.run(receive_all())


# --- Arrow Flight: the store's own -------------------------------------------------------------------------


def serve_flight(path: str, started: Connection) -> None:
    server = FlightServer("127.0.0.1", lambda chunk_id, start, length: _pieces(path))
    started.send(int(server.location.rpartition(":")[2]))
    threading.Event().wait()


def receive_flight(port: int, targets: Sequence[int]) -> None:
    reader = FlightReader()

    def receive(fd: int) -> None:
        def write(offset: int, piece: memoryview) -> None:
            os.pwrite(fd, piece, offset)

        reader.read(f"grpc://127.0.0.1:{port}", _CHUNK_ID, 0, os.fstat(fd).st_size, write, timeout_s=60)

    _in_threads(receive, targets)
    reader.close()


# --- a plain socket ----------------------------------------------------------------------------------------


def serve_socket(path: str, started: Connection) -> None:
    def send(connection: socket.socket) -> None:
        with connection, open(path, "rb") as file:
            connection.sendfile(file)

    with socket.create_server(("127.0.0.1", 0)) as server:
        started.send(server.getsockname()[1])
        while True:
            connection, _ = server.accept()
            threading.Thread(target=send, args=(connection,), daemon=True).start()


def receive_socket(port: int, targets: Sequence[int]) -> None:
    def receive(fd: int) -> None:
        buffer = memoryview(bytearray(FRAME_BYTES))
        offset = 0
        with socket.create_connection(("127.0.0.1", port)) as connection:
            while count := connection.recv_into(buffer):
                offset += os.pwrite(fd, buffer[:count], offset)

    _in_threads(receive, targets)


# --- the comparison ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Way:
    """``receive`` fills one open file per stream, all at once."""

    name: str
    serve: Callable[[str, Connection], None]
    receive: Callable[[int, Sequence[int]], None]


WAYS = (
    Way("grpc", serve_grpc, receive_grpc),
    Way("flight", serve_flight, receive_flight),
    Way("socket", serve_socket, receive_socket),
)


def measure_peer_transfer(
    chunk_bytes: int = CHUNK_BYTES, num_streams: Sequence[int] = (1, 4), runs: int = RUNS
) -> list[Measurement]:
    """Bytes per second of each way, ``peer_WAY_N`` for N chunks at once; the baseline is gRPC's."""
    context = multiprocessing.get_context("spawn")
    servers, ports = [], {}
    with TemporaryDirectory(prefix="kvquilt-peer-") as directory:
        source = Path(directory) / "source"
        source.write_bytes(os.urandom(chunk_bytes))
        try:
            for way in WAYS:
                ours, theirs = context.Pipe()
                server = context.Process(target=way.serve, args=(str(source), theirs), daemon=True)
                server.start()
                servers.append(server)
                ports[way.name] = ours.recv()
            return [m for n in num_streams for m in _compare(ports, source, n, runs)]
        finally:
            for server in servers:
                server.kill()
                server.join()


def _compare(ports: dict[str, int], source: Path, num_streams: int, runs: int) -> list[Measurement]:
    ways = [(runs + 1, partial(_rate, way, ports[way.name], source, num_streams)) for way in WAYS]
    rates = [of_way[1:] for of_way in in_turn(*ways)]  # the first ones warm up
    return [
        measured(f"peer_{way.name}_{num_streams}", values, "byte/s", better="higher", baseline=rates[0])
        for way, values in zip(WAYS, rates, strict=True)
    ]


def _rate(way: Way, port: int, source: Path, num_streams: int) -> float:
    size = source.stat().st_size
    paths = [source.with_name(f"staged-{i}") for i in range(num_streams)]
    targets = [os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC) for path in paths]
    try:
        for fd in targets:
            os.posix_fallocate(fd, 0, size)
        started = time.perf_counter()
        way.receive(port, targets)
        elapsed = time.perf_counter() - started
        expected = source.read_bytes()
        assert all(path.read_bytes() == expected for path in paths), f"{way.name} changed the bytes"
        return num_streams * size / elapsed
    finally:
        for fd in targets:
            os.close(fd)


def _in_threads(receive: Callable[[int], None], targets: Sequence[int]) -> None:
    with ThreadPoolExecutor(len(targets)) as threads:
        list(threads.map(receive, targets))


def main() -> None:
    parser = new_parser("load_tests.peer_transfer", __doc__)
    json_option(parser)
    path = parser.parse_args().json
    measurements = printed(measure_peer_transfer())
    if path:
        write_report(path, measurements)


if __name__ == "__main__":
    main()
