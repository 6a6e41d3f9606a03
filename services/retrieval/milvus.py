"""A connection to Milvus: a server by its address, or the embedded one, which this process then owns."""

from __future__ import annotations

import contextlib
import enum
import errno
import logging
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
from pymilvus import MilvusClient
from pymilvus.exceptions import MilvusException

from services.retrieval.embedded_recovery import recover
from shared.errors import ConfigError, InternalError, KvquiltError, NotFound, StorageFull, Unavailable
from shared.private_files import make_private

log = logging.getLogger(__name__)
# It prints a traceback for every failed call before it raises; what fails is told by our own errors.
logging.getLogger("pymilvus").setLevel(logging.CRITICAL)

_BM25_SINCE = (2, 5)
NOT_LOADED = 101
CALL_S = 30.0  # without a limit pymilvus retries for minutes when a server is gone
_COLLECTION_NOT_FOUND = 100
_RETRY_S = 0.5
# pymilvus pings an idle connection every minute, and a gRPC server, unless told otherwise, ends one that is
# pinged more often than every five. The embedded one lives in this process: there is nothing to find out.
_NO_PINGS = {"grpc.keepalive_time_ms": 2**31 - 1}
# gRPC would wait up to two minutes before it tries a server again that was away, also in a channel made anew.
_TRIES_AGAIN = {"grpc.initial_reconnect_backoff_ms": 100, "grpc.max_reconnect_backoff_ms": 1000}


class Lexical(enum.Enum):
    """The computer of BM25: a function of the server, our sparse vectors (see ``lexicon``), or nobody."""

    SERVER = "server"
    OWN = "own"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Milvus:
    """``close`` lets go of the embedded directory."""

    client: MilvusClient
    version: str
    embedded: bool
    lexical: Lexical
    close: Callable[[], None]


def connect(uri: str, token: str, timeout_s: float) -> Milvus:
    """
    Raises:
        Unavailable: no server answers there, or another process keeps the embedded directory.
        ConfigError: the directory cannot hold an index.
    """
    return (
        _connect_server(uri, token, timeout_s)
        if uri.startswith(("http://", "https://"))
        else _open_embedded(uri, timeout_s)
    )


def _connect_server(uri: str, token: str, timeout_s: float) -> Milvus:
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            client = MilvusClient(uri=uri, token=token, timeout=timeout_s, grpc_options=_TRIES_AGAIN)
            version = str(client.get_server_version(timeout=timeout_s))
            break
        except (MilvusException, grpc.RpcError) as error:
            if time.monotonic() >= deadline:
                log.error("no Milvus at %s: %s", uri, error)
                raise Unavailable(
                    "the Milvus server at milvus_uri does not answer, or refuses milvus_token"
                ) from None
            log.info("waiting for Milvus at %s", uri)
            time.sleep(_RETRY_S)
    lexical = Lexical.SERVER if _numbers(version) >= _BM25_SINCE else Lexical.NONE
    if lexical is Lexical.NONE:
        needed = ".".join(map(str, _BM25_SINCE))
        log.warning(
            "Milvus %s has no BM25 (%s has): searches are dense only; BM25 and hybrid requests are refused",
            version,
            needed,
        )
    return Milvus(client, version, False, lexical, client.close)


def _open_embedded(directory: str, timeout_s: float) -> Milvus:
    server = serve_embedded(Path(directory), timeout_s)
    client = MilvusClient(uri=f"http://127.0.0.1:{server.port}", grpc_options=_NO_PINGS)

    def close() -> None:
        client.close()
        server.close()

    return Milvus(client, str(client.get_server_version()), True, Lexical.OWN, close)


@dataclass(frozen=True, slots=True)
class EmbeddedServer:
    """Milvus' gRPC service in this process. ``close`` lets go of the directory."""

    port: int
    close: Callable[[], None]


def serve_embedded(
    directory: Path, timeout_s: float, host: str = "127.0.0.1", port: int = 0
) -> EmbeddedServer:
    """
    Raises:
        Unavailable: another process kept the directory for ``timeout_s`` seconds.
        ConfigError: the directory cannot hold an index.
    """
    from milvus_lite import DataDirLockedError, MilvusLite
    from milvus_lite.adapter.grpc.server import start_server_in_thread

    make_private(directory)
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            with MilvusLite(str(directory)):
                recover(directory)
            server, database, port = start_server_in_thread(data_dir=str(directory), host=host, port=port)
            break
        except DataDirLockedError:
            if time.monotonic() >= deadline:
                raise Unavailable(
                    "the index is open in another process; one process at a time can own an embedded Milvus"
                ) from None
            log.info("waiting for the previous owner of the embedded Milvus to let go")
            time.sleep(_RETRY_S)
        except OSError as error:
            raise ConfigError(f"milvus_uri: cannot keep an index there: {error.strerror}") from error

    def close() -> None:
        server.stop(grace=2).wait()
        database.close()

    return EmbeddedServer(port, close)


@contextlib.contextmanager
def translated(doing: str) -> Iterator[None]:
    """Milvus' errors as ours.

    Raises:
        NotFound: the collection is not there.
        Unavailable: Milvus is not there.
        StorageFull: its disk is full.
    """
    try:
        yield
    except KvquiltError:
        raise
    except MilvusException as error:
        if error.code == _COLLECTION_NOT_FOUND:
            raise NotFound(f"the collection was removed while {doing}") from None
        if error.code == NOT_LOADED:
            log.warning("a collection was not loaded while %s: %s", doing, error)
            raise Unavailable(f"the collection was not loaded while {doing}; retry") from None
        if os.strerror(errno.ENOSPC) in str(error):
            log.warning("the index's disk is full: %s", error)
            raise StorageFull(
                f"no space left where the index is kept while {doing}; delete documents or enlarge the volume"
            ) from None
        log.error("Milvus failed while %s: %s", doing, error)
        if (
            isinstance(error.__cause__ or error.__context__, grpc.RpcError)
            or "unavailable" in str(error).lower()
        ):
            raise Unavailable(f"the index is not available while {doing}; retry") from None
        raise InternalError(f"the index failed while {doing}; the service's log has the reason") from None
    except grpc.RpcError as error:
        log.error("Milvus is gone while %s: %s", doing, error)
        raise Unavailable(f"the index is not available while {doing}; retry") from None


def _numbers(version: str) -> tuple[int, ...]:
    found = re.search(r"(\d+)\.(\d+)", version)
    return tuple(map(int, found.groups())) if found else (0, 0)
