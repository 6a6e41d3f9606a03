"""Serves the embedded Milvus to other processes, without users: ``python -m services.retrieval.milvus_server
DIRECTORY HOST PORT``. The chart runs it in a pod of its own."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from pathlib import Path

from services.retrieval.milvus import serve_embedded
from shared.errors import KvquiltError

_LOCKED_S = 300.0


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="milvus_server", description="Serves an embedded Milvus by gRPC.")
    parser.add_argument("directory", type=Path, help="keeps the index; one process at a time")
    parser.add_argument("host", help="address to listen on")
    parser.add_argument("port", type=int, help="0: a free one")
    given = parser.parse_args(arguments)
    over = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: over.set())
    try:
        server = serve_embedded(given.directory, _LOCKED_S, given.host, given.port)
    except KvquiltError as error:
        print(error.detail, file=sys.stderr)
        return 1
    except RuntimeError as error:  # grpc's
        print(f"cannot listen at {given.host}:{given.port}: {error}", file=sys.stderr)
        return 1
    print(f"Milvus at {given.host}:{server.port}", flush=True)
    over.wait()
    server.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
