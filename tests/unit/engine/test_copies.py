"""Stored KV on its way from files to a GPU: how often, in which order, and who waits for it, on a stand-in
that copies as late as it may."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from shared.engine import Engine, EngineConfig, wrap_model
from shared.engine.attention import Attention, Backend, Lane
from shared.engine.kv.segment import Segment, side_by_side
from shared.engine.kv.source import ComputedChunk, NoSource, StoredSegment
from shared.engine.model.model import LoadedModel
from shared.kv_format import ChunkFile
from shared.stored_segments.files import FileSegment, KvShape, Scratch, encode_layers, write_layers
from tests.engine_runs import Prompts, engine_of, run
from tests.oracles import tiny_model
from tests.pretend_gpu import PretendGpu, pretend_gpu

CHUNKS = (20, 33, 12, 5)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[PretendGpu]:
    with warnings.catch_warnings(), pretend_gpu(monkeypatch) as mode:
        warnings.filterwarnings("ignore", message=".*CUDA is not available.*")
        yield mode


class Files(NoSource):
    """Chunks as files of one encoding."""

    def __init__(self, directory: Path, encoding: str) -> None:
        self._directory, self._encoding = directory, encoding

    def of(self, model: LoadedModel) -> Files:
        self._shape, self._scratch = KvShape.of_model(model), Scratch(model.spec.rope)
        return self

    def open(
        self, chunk_lens: Mapping[str, int], encoding: str = "", traceparent: str = "", tenant: str = ""
    ) -> Mapping[str, StoredSegment]:
        paths = {chunk_id: self._directory / chunk_id for chunk_id in chunk_lens}
        return {
            chunk_id: FileSegment(ChunkFile.open(path), self._scratch)
            for chunk_id, path in paths.items()
            if path.exists()
        }

    def save(self, chunk: ComputedChunk) -> None:
        header = self._shape.header(chunk.key, chunk.prefix_ids, chunk.token_ids, self._encoding)
        layers = encode_layers(self._encoding, chunk.segment.k_LKTD, chunk.segment.v_LKTD, self._scratch)
        write_layers(self._directory / chunk.key, header, layers)


class Watched:
    """A backend that notes every layer."""

    def __init__(self, backend: Backend, gpu: PretendGpu) -> None:
        self._backend, self._gpu = backend, gpu

    def plan(self, lanes: Sequence[Lane]) -> Attention:
        return WatchedStep(self._backend.plan(lanes), self._gpu)


class WatchedStep:
    def __init__(self, step: Attention, gpu: PretendGpu) -> None:
        self._step, self._gpu = step, gpu

    def run(self, layer: int, q_HRD: Tensor, k_KRD: Tensor, v_KRD: Tensor, scale: float) -> Tensor:
        self._gpu.log("attend", layer)
        return self._step.run(layer, q_HRD, k_KRD, v_KRD, scale)


def engine_there(files: Files, **settings: Any) -> Engine:
    model = wrap_model(tiny_model("qwen2").to("cuda"))
    config = EngineConfig(device="cuda", backend="torch", num_threads=1, loader_threads=1, **settings)
    return Engine(model, config, files.of(model))


def engine_here(files: Files) -> Engine:
    engine = engine_of("qwen2", backend="torch", source=files)
    files.of(engine.model)
    return engine


@pytest.mark.parametrize("pipelined", [True, False])
def test_each_layer_of_a_chunk_is_one_copy_that_the_pass_waits_for_before_this_layer(
    gpu: PretendGpu, tmp_path: Path, pipelined: bool
) -> None:
    """More layers of chunks than there are pieces of pinned memory: none is written over before its copy."""
    files = Files(tmp_path, "exact")
    here = engine_here(files)
    request = Prompts(here, seed=3).request(7, CHUNKS, (9,), max_tokens=3)
    (computed,) = run(here, request)
    here.shut_down()

    there = engine_there(files, pipelined=pipelined)
    passes, num_layers = there._steps.passes, there.model.spec.num_layers
    passes._backend = Watched(passes._backend, gpu)
    gpu.logged.clear()
    gpu.crossings.clear()
    (loaded,) = run(there, request)
    there.shut_down()
    assert loaded.branch().token_ids == computed.branch().token_ids
    assert loaded.done.usage.loaded_tokens == sum(CHUNKS)

    ours = threading.current_thread().name
    num_copies = num_layers * len(CHUNKS)
    assert num_copies > 4
    loaders = [(what, number) for thread, what, number in gpu.logged if thread != ours]
    # of each layer the first, one copy, the event for its pinned memory, and the one for the pass
    assert loaders == [
        one for n in range(1, num_copies + 1) for one in (("copy", n), ("event", n), ("event", n))
    ]
    # its own events are those of its tables
    engine = [(what, number) for thread, what, number in gpu.logged if thread == ours and what != "event"]
    assert not [one for one in gpu.crossings if one.thread != ours and one.way == "there" and one.waits]
    first_wait = engine.index(("wait", 1))
    expected: list[tuple[str, int]] = []
    for layer in range(num_layers):
        copies = range(layer * len(CHUNKS) + 1, (layer + 1) * len(CHUNKS) + 1)
        expected += [*(("wait", n) for n in copies), ("attend", layer)]
    assert engine[first_wait : first_wait + len(expected)] == expected
    assert {what for what, _ in engine[first_wait + len(expected) :]} == {"attend"}


def test_what_is_encoded_crosses_as_it_is_stored_in_one_copy_per_layer(
    gpu: PretendGpu, tmp_path: Path
) -> None:
    files = Files(tmp_path, "int8")
    here = engine_here(files)
    request = Prompts(here, seed=4).request(7, CHUNKS, (9,), max_tokens=3)
    run(here, request)
    here.shut_down()
    here = engine_here(files)
    (decoded,) = run(here, request)
    here.shut_down()
    assert decoded.done.usage.loaded_tokens == sum(CHUNKS)

    there = engine_there(files)
    gpu.crossings.clear()
    (loaded,) = run(there, request)
    there.shut_down()
    assert loaded.branch().token_ids == decoded.branch().token_ids
    ours = threading.current_thread().name
    crossed = [one for one in gpu.crossings if one.thread != ours and one.way != "asked"]
    tables = 2  # cos and sin, once
    assert len(crossed) == there.model.spec.num_layers * len(CHUNKS) + tables
    assert not any(one.waits for one in crossed)


@pytest.mark.parametrize(("encoding", "tables"), [("exact", 0), ("int8", 2)])
def test_layers_that_are_read_together_cross_in_one_copy(
    gpu: PretendGpu, tmp_path: Path, encoding: str, tables: int
) -> None:
    """``tables``: of the rotation, which cross once."""
    files = Files(tmp_path, encoding)
    here = engine_here(files)
    request = Prompts(here, seed=5).request(7, (20,), (4,), max_tokens=1)
    run(here, request)
    here.shut_down()
    spec_there = engine_there(files).model.spec
    segments = []
    gpu.crossings.clear()
    for spec in (spec_there, here.model.spec):
        segment = Segment.arriving(spec, 20)
        (stored,) = files.open({request.chunks[0].chunk_id: 20}).values()
        stored.read_layers(range(spec.num_layers), segment.k_LKTD, segment.v_LKTD)
        stored.close()
        segments.append(segment)
    assert len([one for one in gpu.crossings if one.way == "there"]) == 1 + tables
    there, right = segments
    for ours, theirs in ((there.k_LKTD, right.k_LKTD), (there.v_LKTD, right.v_LKTD)):
        for x_KTD, y_KTD in zip(ours, theirs, strict=True):
            torch.testing.assert_close(x_KTD.cpu(), y_KTD)


def test_only_what_lies_in_one_piece_is_copied_as_one(gpu: PretendGpu) -> None:
    spec = engine_there(Files(Path(), "exact")).model.spec
    segment = Segment.arriving(spec, 6)
    for layer in range(spec.num_layers):
        k_KTD, v_KTD = segment.k_LKTD[layer], segment.v_LKTD[layer]
        both = side_by_side([k_KTD, v_KTD])
        assert both is not None
        both.copy_(torch.arange(float(both.numel())).view(both.shape).to("cuda"))
        assert torch.equal(torch.stack([k_KTD, v_KTD]), both)
        assert side_by_side([v_KTD, k_KTD]) is None
        assert side_by_side([k_KTD[:, 1:], v_KTD[:, 1:]]) is None
    assert side_by_side([segment.k_LKTD[0], segment.k_LKTD[0].clone()]) is None
