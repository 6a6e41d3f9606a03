"""The hub's client against a server that answers as the hub does."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from cluster.models.hub import HuggingFaceHub
from cluster.models.pulling import pull
from shared.engine import load_model
from shared.engine.model.loader import read_config
from shared.errors import ConfigError, NotFound, Unavailable
from tests.oracles import tiny_model

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Repository:
    """``me/tiny`` with a tag; ``me/gated`` without consent. ``breaks_at``: bytes of the weights after which
    their first download breaks off."""

    def __init__(self, files: dict[str, bytes], breaks_at: int | None = None) -> None:
        self.files = files
        self.breaks_at = breaks_at
        self.asked: list[tuple[str, str]] = []
        """Path, authorization."""


def handler_of(repository: Repository) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            repository.asked.append((path, self.headers.get("Authorization", "")))
            if "/gated" in path:
                return self._answer(403, b"", {"X-Error-Code": "GatedRepo"})
            if path == "/api/models/me/tiny/refs":
                tag = {"name": "v1.0", "ref": "refs/tags/v1.0", "targetCommit": COMMIT}
                return self._json({"branches": [], "converts": [], "tags": [tag]})
            if path == f"/api/models/me/tiny/revision/{COMMIT}":
                return self._json({"id": "me/tiny", "sha": COMMIT, "siblings": self._siblings()})
            if path.startswith(f"/me/tiny/resolve/{COMMIT}/"):
                return self._file(path.rpartition("/")[2])
            code = "RevisionNotFound" if "/me/tiny/" in path else "RepoNotFound"
            return self._answer(404, b"", {"X-Error-Code": code})

        def _siblings(self) -> list[dict[str, object]]:
            return [
                {"rfilename": name, "size": len(data)}
                | (
                    {"lfs": {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 1}}
                    if name.endswith(".safetensors")
                    else {}
                )
                for name, data in repository.files.items()
            ]

        def _file(self, name: str) -> None:
            data = repository.files[name]
            start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")[0])
            headers = {"ETag": f'"{hashlib.sha256(data).hexdigest()}"', "X-Repo-Commit": COMMIT}
            if start:
                headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
            sent = data[start:]
            if name == "model.safetensors" and self.command == "GET" and repository.breaks_at is not None:
                sent, repository.breaks_at = sent[: repository.breaks_at], None
                self.close_connection = True
            self._answer(206 if start else 200, sent, headers, len(data) - start)

        def _json(self, value: object) -> None:
            self._answer(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

        def _answer(self, status: int, body: bytes, headers: dict[str, str], told: int | None = None) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body) if told is None else told))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    return Handler


@contextmanager
def served(repository: Repository) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler_of(repository))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("repository")
    tiny_model("llama").save_pretrained(folder)
    return {path.name: path.read_bytes() for path in folder.iterdir()} | {"code.py": b"1 / 0"}


def check(directory: Path) -> None:
    read_config(str(directory))


def test_a_pulled_model_can_be_served_and_the_token_of_the_environment_is_sent(
    files: dict[str, bytes], tmp_path: Path
) -> None:
    repository = Repository(files)
    with served(repository) as endpoint:
        target = pull(HuggingFaceHub("hf_secret", endpoint), "me/tiny", "v1.0", tmp_path / "m", check)
    assert load_model(str(target)).spec.num_layers == 2
    assert {token for _, token in repository.asked} == {"Bearer hf_secret"}
    assert not [path for path, _ in repository.asked if path.endswith(".py")]
    assert not (target / ".cache").exists()


def test_a_download_that_broke_off_is_completed(files: dict[str, bytes], tmp_path: Path) -> None:
    repository = Repository(files, breaks_at=50_000)
    with served(repository) as endpoint:
        hub = HuggingFaceHub("", endpoint)
        for _ in range(2):  # the client itself may go on, or leave that to the next try
            try:
                pull(hub, "me/tiny", COMMIT, tmp_path / "m", check)
                break
            except Unavailable:
                continue
    assert (tmp_path / "m" / "model.safetensors").read_bytes() == files["model.safetensors"]
    assert repository.breaks_at is None
    assert {token for _, token in repository.asked} == {""}


def test_what_the_hub_refuses_is_told_with_the_remedy(files: dict[str, bytes], tmp_path: Path) -> None:
    with served(Repository(files)) as endpoint:
        hub = HuggingFaceHub("", endpoint)
        with pytest.raises(ConfigError, match=r"me/gated is gated; .*HF_TOKEN"):
            pull(hub, "me/gated", COMMIT, tmp_path / "m", check)
        with pytest.raises(NotFound, match="knows no me/nothing"):
            pull(hub, "me/nothing", COMMIT, tmp_path / "m", check)
        with pytest.raises(NotFound, match="has no such revision"):
            pull(hub, "me/tiny", "f" * 40, tmp_path / "m", check)
    with pytest.raises(Unavailable, match="cannot be reached"):
        pull(HuggingFaceHub("", "http://127.0.0.1:1"), "me/tiny", COMMIT, tmp_path / "m", check)
