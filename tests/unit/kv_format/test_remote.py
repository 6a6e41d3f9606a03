"""A chunk's file received layer by layer, against the bytes of the file."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.errors import CorruptData, NewerFormat, NotFound, Unavailable
from shared.kv_buffers import ENCODINGS
from shared.kv_format import ChunkFile, write_chunk
from shared.kv_format.remote import RemoteChunk
from tests.kv_chunks import Array, chunk_id_of, header_of, kv_of, newer_chunk_bytes

LAYERS = 5


class Server:
    """Gives ranges of ``data`` and remembers which. ``cut``: answers end there; ``down``: there are none."""

    def __init__(self, data: bytes) -> None:
        self.data, self.cut, self.down = data, len(data), False
        self.asked: list[tuple[int, int]] = []
        self.num_open = 0

    def get(self, start: int, end: int) -> Body:
        if self.down:
            raise ConnectionRefusedError("https://server/secret?signature=s")
        self.asked.append((start, end))
        self.num_open += 1
        return Body(self, self.data[start : min(end, self.cut)])


class Body:
    def __init__(self, server: Server, data: bytes) -> None:
        self._server, self._data = server, data

    def readinto(self, out: memoryview) -> int:
        piece, self._data = self._data[: len(out)], self._data[len(out) :]
        out[: len(piece)] = piece
        return len(piece)

    def close(self) -> None:
        self._server.num_open -= 1


def written(directory: Path, encoding: str = "exact", seed: int = 0) -> tuple[Path, list[list[Array]]]:
    path = directory / f"{encoding}{seed}.arrow"
    header = header_of(LAYERS, heads=2, tokens=33, head_dim=7, encoding=encoding)
    buffers = kv_of(header, seed)
    write_chunk(path, header, *buffers)
    return path, buffers


def nowhere() -> ChunkFile:
    raise NotFound("nowhere")


def remote(server: Server, instead: Callable[[], ChunkFile] = nowhere, tail_bytes: int = 4096) -> RemoteChunk:
    return RemoteChunk(server.data[-tail_bytes:], len(server.data), "c", server.get, instead)


def check_layer(chunk: RemoteChunk, buffers: list[list[Array]], layer: int) -> None:
    out = [buffer[layer].copy() for buffer in buffers]
    for array in out:
        array.view("u1").fill(0)
    chunk.read_layer(layer, *out)
    for array, buffer in zip(out, buffers, strict=True):
        assert array.tobytes() == buffer[layer].tobytes()


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_layers_in_their_order_come_with_one_request(tmp_path: Path, encoding: str) -> None:
    path, buffers = written(tmp_path, encoding)
    server = Server(path.read_bytes())
    chunk = remote(server)
    with ChunkFile.open(path) as file:
        assert chunk.header == file.header
        (start, _), (last, length) = file.summary.layers[0], file.summary.layers[-1]
    for layer in range(LAYERS):
        check_layer(chunk, buffers, layer)
    chunk.close()
    assert server.asked == [(start, last + length)], "neither the head nor the end comes twice"
    assert server.num_open == 0


@settings(max_examples=30, deadline=None)
@given(order=st.permutations(range(LAYERS)), num_threads=st.integers(1, 4))
def test_layers_in_any_order_on_any_threads(
    tmp_path_factory: pytest.TempPathFactory, order: list[int], num_threads: int
) -> None:
    path, buffers = written(tmp_path_factory.mktemp("kv"))
    server = Server(path.read_bytes())
    chunk = remote(server)
    with ThreadPoolExecutor(num_threads) as threads:
        list(threads.map(partial(check_layer, chunk, buffers), order))
    chunk.close()
    assert server.num_open == 0


def test_whoever_wants_an_earlier_layer_goes_first(tmp_path: Path) -> None:
    path, buffers = written(tmp_path)
    server, go_on, all_wait = Server(path.read_bytes()), threading.Event(), threading.Barrier(3)
    get = server.get

    def slow(start: int, end: int) -> Body:
        all_wait.wait(10)
        go_on.wait(10)
        return get(start, end)

    chunk = RemoteChunk(server.data[-4096:], len(server.data), "c", slow, nowhere)
    with ThreadPoolExecutor(3) as threads:
        first = threads.submit(check_layer, chunk, buffers, 0)
        later = [threads.submit(_after, all_wait, check_layer, chunk, buffers, layer) for layer in (2, 1)]
        go_on.set()
        for future in (first, *later):
            future.result(10)
    assert len(server.asked) == 1
    chunk.close()


def _after(barrier: threading.Barrier, call: Callable[..., None], *args: object) -> None:
    barrier.wait(10)
    call(*args)


@pytest.mark.parametrize("layer", range(LAYERS))
def test_another_way_is_taken_where_bytes_are_damaged(tmp_path: Path, layer: int) -> None:
    path, buffers = written(tmp_path)
    data = bytearray(path.read_bytes())
    with ChunkFile.open(path) as file:
        offset, length = file.summary.layers[layer]
    data[offset + length // 2] ^= 1
    server = Server(bytes(data))
    chunk = remote(server, partial(ChunkFile.open, path))
    for each in range(LAYERS):
        check_layer(chunk, buffers, each)
    chunk.close()

    lost = remote(server)
    for each in range(layer):
        check_layer(lost, buffers, each)
    with pytest.raises(CorruptData, match=f"layer {layer} fails its checksum"):
        check_layer(lost, buffers, layer)
    lost.close()
    assert server.num_open == 0


def test_another_way_is_taken_where_an_answer_breaks_off(tmp_path: Path) -> None:
    path, buffers = written(tmp_path)
    server = Server(path.read_bytes())
    chunk = remote(server, partial(ChunkFile.open, path))
    check_layer(chunk, buffers, 0)
    chunk.close()
    with ChunkFile.open(path) as file:
        server.cut = sum(file.summary.layers[1]) - 1
    chunk = remote(server, partial(ChunkFile.open, path))
    for layer in range(LAYERS):
        check_layer(chunk, buffers, layer)
    chunk.close()
    lost = remote(server)
    check_layer(lost, buffers, 0)
    with pytest.raises(Unavailable, match="ended an answer early"):
        check_layer(lost, buffers, 1)
    lost.close()


def test_a_server_that_is_down_is_said_to_be_without_its_url(tmp_path: Path) -> None:
    path, buffers = written(tmp_path)
    server = Server(path.read_bytes())
    server.down = True
    with pytest.raises(Unavailable) as told:
        check_layer(remote(server), buffers, 0)
    assert "secret" not in told.value.detail
    assert told.value.__cause__ is None
    chunk = remote(server, partial(ChunkFile.open, path))
    check_layer(chunk, buffers, 0)
    chunk.close()


def test_layers_of_two_files_do_not_mix(tmp_path: Path) -> None:
    (path, buffers), (other, _) = written(tmp_path), written(tmp_path, seed=1)
    server = Server(path.read_bytes())
    chunk = remote(server, partial(ChunkFile.open, other))
    check_layer(chunk, buffers, 0)
    server.cut = 0
    with pytest.raises(Unavailable, match="replaced while it was read"):
        check_layer(chunk, buffers, 3)  # a request of its own
    chunk.close()


def test_what_is_no_end_of_a_chunks_file_is_refused(tmp_path: Path) -> None:
    path, _ = written(tmp_path)
    data = path.read_bytes()
    with pytest.raises(CorruptData):
        RemoteChunk(data[-4096:-1], len(data) - 1, "c", Server(data).get, nowhere)
    with pytest.raises(CorruptData, match="ends early"):
        RemoteChunk(data[-100:], len(data), "c", Server(data).get, nowhere)
    newer = newer_chunk_bytes(chunk_id_of(0))
    with pytest.raises(NewerFormat):
        RemoteChunk(newer, len(newer), "c", Server(newer).get, nowhere)


def test_an_array_of_another_shape_is_refused_before_anything_is_asked_for(tmp_path: Path) -> None:
    path, buffers = written(tmp_path)
    server = Server(path.read_bytes())
    with pytest.raises(ValueError, match="the buffer for"):
        remote(server).read_layer(0, *(buffer[0][:, 1:] for buffer in buffers))
    assert not server.asked
