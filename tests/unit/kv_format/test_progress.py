"""Reading a chunk's file while it arrives."""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shared.errors import CorruptData, NotFound, Unavailable
from shared.kv_format import ChunkFile, ProgressReader, ProgressWriter, inspect_chunk, write_chunk
from tests.kv_chunks import header_of, kv_of

LAYERS = 3


class Arrival:
    """A chunk's file of its final size, all zeros, that is filled part by part."""

    def __init__(self, directory: Path) -> None:
        header = header_of(layers=LAYERS, tokens=40)
        self.kv = kv_of(header)
        write_chunk(directory / "whole", header, *self.kv)
        self.whole, self.layers = (
            (directory / "whole").read_bytes(),
            inspect_chunk(directory / "whole").layers,
        )
        self.path, self.progress_path = directory / "arriving", directory / "progress"
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT)
        os.truncate(self._fd, len(self.whole))
        self.progress = ProgressWriter(self.progress_path, LAYERS)

    def frame(self) -> None:
        self._write(sum(self.layers[-1]), len(self.whole))
        self.progress.frame_arrived()

    def layer(self, i: int) -> None:
        offset, length = self.layers[i]
        self._write(offset, offset + length)
        self.progress.layer_arrived(i)

    def open(self) -> ChunkFile:
        return ChunkFile.open(self.path, self.layers, progress=self.progress_path)

    def close(self) -> None:
        os.close(self._fd)
        self.progress.close(complete=False)

    def _write(self, start: int, end: int) -> None:
        os.pwrite(self._fd, self.whole[start:end], start)


@pytest.fixture
def arrival(tmp_path: Path) -> Iterator[Arrival]:
    arrival = Arrival(tmp_path)
    yield arrival
    arrival.close()


def read(file: ChunkFile, layer: int) -> list[bytes]:
    out = [np.empty((2, 40, 4), np.uint16) for _ in "kv"]
    file.read_layer(layer, *out)
    return [array.tobytes() for array in out]


class InThread(threading.Thread):
    """Runs ``call``; ``result`` waits for what it answers or raises."""

    def __init__(self, call: Callable[[], Any]) -> None:
        super().__init__()
        self._call = call
        self._answer: Any = None
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._answer = self._call()
        except BaseException as error:
            self._error = error

    def result(self) -> Any:
        self.join()
        if self._error:
            raise self._error
        return self._answer


def test_layers_are_read_as_they_arrive_in_any_order(arrival: Arrival) -> None:
    arrival.frame()
    with arrival.open() as file:
        assert file.summary == inspect_chunk(arrival.path.with_name("whole"))
        for layer in (2, 0, 1):
            arrival.layer(layer)
            assert read(file, layer) == [arrays[layer].tobytes() for arrays in arrival.kv]


def test_a_reader_waits_for_the_frame_and_for_its_layer(arrival: Arrival) -> None:
    opening = InThread(arrival.open)
    assert opening.is_alive()
    arrival.frame()
    with opening.result() as file:
        reading = InThread(lambda: read(file, 1))
        arrival.layer(0)
        assert reading.is_alive()
        arrival.layer(1)
        assert reading.result() == [arrays[1].tobytes() for arrays in arrival.kv]


def test_an_open_file_is_read_to_its_end_after_it_arrived_and_moved(arrival: Arrival) -> None:
    arrival.frame()
    with arrival.open() as file:
        for layer in range(LAYERS):
            arrival.layer(layer)
        arrival.progress.close(complete=True)
        arrival.path.rename(arrival.path.with_name("moved"))
        assert not arrival.progress_path.exists()
        assert [read(file, i) for i in range(LAYERS)] == [
            [a[i].tobytes() for a in arrival.kv] for i in range(LAYERS)
        ]


def test_a_file_that_will_never_be_whole_is_unavailable_not_corrupt(arrival: Arrival) -> None:
    arrival.frame()
    with arrival.open() as file:
        arrival.layer(0)
        reading = InThread(lambda: read(file, 1))
        arrival.progress.close(complete=False)
        with pytest.raises(Unavailable, match="did not arrive whole"):
            reading.result()


def test_a_frame_that_never_comes_is_unavailable_and_leaves_nothing_open(arrival: Arrival) -> None:
    before = set(os.listdir("/proc/self/fd"))
    opening = InThread(arrival.open)
    arrival.progress.close(complete=False)
    with pytest.raises((Unavailable, NotFound)):  # NotFound: it was given up before it was opened
        opening.result()
    assert set(os.listdir("/proc/self/fd")) <= before


def test_a_store_that_died_is_noticed(arrival: Arrival) -> None:
    with closing(ProgressReader(arrival.progress_path, stalled_s=0.01)) as reader:
        arrival.progress.layer_arrived(0)
        reader.wait_for_layer(0)
        with pytest.raises(Unavailable, match="stopped arriving"):
            reader.wait_for_layer(1)


def test_what_arrived_damaged_is_corrupt(arrival: Arrival) -> None:
    arrival.frame()
    arrival.layer(0)
    with arrival.open() as file:
        os.pwrite(arrival._fd, b"\x55\xaa", arrival.layers[0][0] + 300)
        with pytest.raises(CorruptData, match="layer 0 fails its checksum"):
            read(file, 0)


def test_a_damaged_frame_is_corrupt_at_once(arrival: Arrival) -> None:
    arrival.frame()
    os.pwrite(arrival._fd, b"\x55\xaa", len(arrival.whole) - 200)
    with pytest.raises(CorruptData):
        arrival.open()


def test_what_arrived_before_it_was_opened_is_to_be_asked_for_again(arrival: Arrival) -> None:
    arrival.frame()
    arrival.progress.close(complete=True)
    with pytest.raises(NotFound, match="arrived meanwhile"):
        arrival.open()


def test_one_arrival_has_one_writer(arrival: Arrival) -> None:
    with pytest.raises(FileExistsError):
        ProgressWriter(arrival.progress_path, LAYERS)


def test_a_progress_that_has_no_room_leaves_nothing_open_and_no_file(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    num_open = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            ProgressWriter(tmp_path / "progress", 4)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.iterdir()) == []
    assert len(os.listdir("/proc/self/fd")) == num_open
