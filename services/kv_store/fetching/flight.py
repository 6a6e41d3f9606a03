"""Moves chunks between nodes: Arrow Flight, 1.1 to 1.5 times as fast as gRPC frames
(docs/kv-store-measurements.md).

A node's agent serves byte ranges of its chunk files as record batches of one ``uint8`` column; the bytes are
the file's own.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import pyarrow as pa
from pyarrow import flight

from services.kv_store.tiers.chunk_names import check_chunk_id
from shared.errors import CorruptData, KvquiltError, NotFound, Unavailable
from shared.principals.credentials import SIGNED, Credentials, ServiceIdentity, no_credentials
from shared.principals.services import check_service

_SCHEMA = pa.schema([pa.field("data", pa.uint8())])
ReadChunk = Callable[[str, int, int], Iterator[bytes]]
"""Chunk id, start and length to the bytes in pieces. Raises ``NotFound``."""
Write = Callable[[int, memoryview], None]
"""Offset in the file, and what belongs there."""


class Flights(Protocol):
    """Brings bytes from other nodes' servers."""

    def read(
        self, location: str, chunk_id: str, start: int, length: int, write: Write, timeout_s: float
    ) -> None:
        """Writes bytes [start, start + length) of the chunk's file as they come, all of them. Blocks.

        Raises:
            NotFound: the node does not have it any more.
            CorruptData: the node's copy ends before.
            Unavailable: the node does not answer, or failed.
        """
        ...

    def close(self) -> None: ...


class FlightServer:
    """Serves in threads of its own from construction to ``close``."""

    def __init__(self, host: str, read: ReadChunk, identity: ServiceIdentity | None = None) -> None:
        """``host``: an address of this machine that the other nodes reach; the port is one that is free.
        ``identity``: of the agent; the services that it believes are answered, and nobody else. None:
        everybody is."""
        bracketed = f"[{host}]" if ":" in host else host
        middleware = {} if identity is None else {SIGNED: _Doorkeeper(identity)}
        self._server = _Server(f"grpc://{bracketed}:0", read, middleware)
        self.location = f"grpc://{bracketed}:{self._server.port}"
        self._serving = threading.Thread(target=self._server.serve, name="kv-flight", daemon=True)
        self._serving.start()

    def close(self) -> None:
        """Ends what is being sent."""
        self._server.shutdown()
        self._serving.join()


class FlightReader:
    """``Flights`` over the network; one connection per location. Thread-safe. ``credentials``: of a
    service, which the servers ask for."""

    def __init__(self, credentials: Credentials = no_credentials) -> None:
        self._credentials = credentials
        self._clients: dict[str, flight.FlightClient] = {}
        self._lock = threading.Lock()

    def read(
        self, location: str, chunk_id: str, start: int, length: int, write: Write, timeout_s: float
    ) -> None:
        ticket = flight.Ticket(json.dumps([chunk_id, start, length]).encode())
        received = 0
        try:
            for batch in self._client(location).do_get(ticket, self._options(timeout_s)):
                data = batch.data.column(0)
                write(start + received, memoryview(data.buffers()[1])[data.offset : data.offset + len(data)])
                received += len(data)
        except (pa.ArrowKeyError, KeyError):
            raise NotFound(f"chunk {chunk_id}: not on that node any more") from None
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            self._forget(location)
            raise Unavailable("a node of the store does not answer; retry") from error
        if received != length:
            raise CorruptData(f"chunk {chunk_id}: a node's copy is shorter than it said")

    def close(self) -> None:
        with self._lock:
            clients, self._clients = list(self._clients.values()), {}
        for client in clients:
            client.close()

    def _options(self, timeout_s: float) -> flight.FlightCallOptions:
        headers = [(name.encode(), value.encode()) for name, value in self._credentials()]
        return flight.FlightCallOptions(timeout=timeout_s, headers=headers)

    def _client(self, location: str) -> flight.FlightClient:
        with self._lock:
            if location not in self._clients:
                self._clients[location] = flight.connect(location)
            return self._clients[location]

    def _forget(self, location: str) -> None:
        """Others may be in the middle of a call, so it is not closed."""
        with self._lock:
            self._clients.pop(location, None)


class _Doorkeeper(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Looks at every call before anything of it is read."""

    def __init__(self, identity: ServiceIdentity) -> None:
        super().__init__()
        self._signer = identity.signer

    def start_call(self, info: Any, headers: dict[str, list[str]]) -> None:
        try:
            check_service(self._signer, next(iter(headers.get(SIGNED, ())), ""))
        except KvquiltError as error:
            raise flight.FlightUnauthenticatedError(error.detail) from None


class _Server(flight.FlightServerBase):  # type: ignore[misc]
    def __init__(self, location: str, read: ReadChunk, middleware: dict[str, _Doorkeeper]) -> None:
        super().__init__(location, middleware=middleware)
        self._read = read

    def do_get(self, context: Any, ticket: flight.Ticket) -> flight.GeneratorStream:
        chunk_id, start, length = json.loads(ticket.ticket)
        return flight.GeneratorStream(_SCHEMA, self._batches(str(chunk_id), int(start), int(length)))

    def _batches(self, chunk_id: str, start: int, length: int) -> Iterator[pa.RecordBatch]:
        try:
            for piece in self._read(check_chunk_id(chunk_id), start, length):
                array = pa.Array.from_buffers(pa.uint8(), len(piece), [None, pa.py_buffer(piece)])
                yield pa.record_batch([array], schema=_SCHEMA)
        except NotFound:
            raise KeyError(chunk_id) from None
        except KvquiltError as error:
            raise flight.FlightUnavailableError(error.detail) from None
