"""A chunk's file received layer by layer, against the bytes of the file."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.errors import CorruptData, NewerFormat, NotFound, Unavailable
from shared.kv_buffers import ENCODINGS
from shared.kv_format import ChunkFile, ChunkHeader, Frame, write_chunk
from shared.kv_format.remote import RemoteChunk
from tests.kv_chunks import Array, chunk_id_of, header_of, kv_of, newer_chunk_bytes

LAYERS = 5


class Server:
    """Gives ranges of ``data`` and remembers which of the layers. ``cut``: answers end there; ``down``: there
    are none."""

    def __init__(self, data: bytes) -> None:
        self.data, self.cut, self.down = data, len(data), False
        self.asked: list[tuple[int, int]] = []
        self.num_open = 0

    def get(self, byte_range: str) -> Body:
        if self.down:
            raise ConnectionRefusedError("https://server/secret?signature=s")
        first, last = byte_range.removeprefix("bytes=").split("-")
        self.num_open += 1
        if not first:
            return Body(self, self.data[-int(last) :])
        start, end = int(first), int(last) + 1
        self.asked.append((start, end))
        return Body(self, self.data[start : min(end, self.cut)])


class Body:
    def __init__(self, server: Server, data: bytes) -> None:
        self._server, self._data = server, data
        self.size = len(server.data)

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


def at_once(call: Callable[[], Frame]) -> Future[Frame]:
    future: Future[Frame] = Future()
    try:
        future.set_result(call())
    except Exception as error:
        future.set_exception(error)
    return future


def remote(
    server: Server,
    instead: Callable[[], ChunkFile] = nowhere,
    submit: Callable[[Callable[[], Frame]], Future[Frame]] = at_once,
    check: Callable[[ChunkHeader], None] = lambda header: None,
) -> RemoteChunk:
    return RemoteChunk("c", server.get, check, instead, submit)


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
@given(order=st.permutations(range(LAYERS)))
def test_layers_in_any_order(tmp_path_factory: pytest.TempPathFactory, order: list[int]) -> None:
    path, buffers = written(tmp_path_factory.mktemp("kv"))
    server = Server(path.read_bytes())
    chunk = remote(server)
    for layer in order:
        check_layer(chunk, buffers, layer)
    chunk.close()
    assert server.num_open == 0


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


def test_what_is_no_chunks_file_is_told_as_it_is(tmp_path: Path) -> None:
    path, buffers = written(tmp_path)
    data = path.read_bytes()
    with pytest.raises(CorruptData):
        check_layer(remote(Server(data[:-1])), buffers, 0)
    newer = newer_chunk_bytes(chunk_id_of(0))
    with pytest.raises(NewerFormat):
        check_layer(remote(Server(newer)), buffers, 0)
    with pytest.raises(NewerFormat):
        _ = remote(Server(newer)).header


def test_another_chunks_file_is_not_read(tmp_path: Path) -> None:
    path, buffers = written(tmp_path)
    server = Server(path.read_bytes())

    def refuse(header: ChunkHeader) -> None:
        raise CorruptData("another chunk's")

    with pytest.raises(CorruptData, match="another chunk's"):
        check_layer(remote(server, check=refuse), buffers, 0)
    assert not server.asked
    chunk = remote(server, partial(ChunkFile.open, path), check=refuse)
    with ChunkFile.open(path) as file:
        assert chunk.header == file.header
    chunk.close()


def test_a_chunk_that_nobody_reads_gives_its_connection_back(tmp_path: Path) -> None:
    path, _ = written(tmp_path)
    server = Server(path.read_bytes())
    remote(server).close()
    assert server.num_open == 0
    waiting: Future[Frame] = Future()
    remote(server, submit=lambda call: waiting).close()
    assert waiting.cancelled()


def test_a_reader_that_is_shutting_down_says_so(tmp_path: Path) -> None:
    path, buffers = written(tmp_path)
    waiting: Future[Frame] = Future()
    chunk = remote(Server(path.read_bytes()), submit=lambda call: waiting)
    waiting.cancel()
    with pytest.raises(Unavailable, match="shutting down"):
        check_layer(chunk, buffers, 0)


def test_an_array_of_another_shape_is_refused(tmp_path: Path) -> None:
    path, buffers = written(tmp_path)
    server = Server(path.read_bytes())
    with pytest.raises(ValueError, match="the buffer for"):
        remote(server).read_layer(0, *(buffer[0][:, 1:] for buffer in buffers))
