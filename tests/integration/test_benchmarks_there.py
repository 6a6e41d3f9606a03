"""Every part of the engine's benchmarks puts its weights and KV where it is told: on a stand-in for a GPU."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from load_tests.engine.batches import BatchEngine
from load_tests.engine.ours import Ours
from load_tests.engine.sharing import Crowd, CrowdEngine
from load_tests.engine.stock import Stock
from load_tests.kv_store.stored_ttft import Contexts, measure_stored_ttft
from load_tests.recompute.primary import Primary
from shared.generation.modes import ReuseMode
from shared.measuring.case import Case
from shared.measuring.shapes import Shape
from tests.pretend_gpu import PretendGpu, pretend_gpu

TINY = Shape(hidden=32, layers=2, heads=4, kv_heads=2, head_dim=8, mlp=64, vocab=100)
THERE = Case(TINY, context=32, question=4, decode=2, chunk_len=16, prefix=4, threads=1, device="cuda")
CROWD = Crowd(replace(THERE, chunk_len=8, prefix=0), num_requests=3, num_own=1)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[PretendGpu]:
    with warnings.catch_warnings(), pretend_gpu(monkeypatch) as mode:
        warnings.filterwarnings("ignore", message=".*CUDA is not available.*")
        yield mode


def test_first_tokens_and_decoding(gpu: PretendGpu) -> None:
    ours = Ours(THERE)
    assert ours.stitched_s() > 0
    assert ours.decode_rate(3, 0.8) > 0
    assert Stock(THERE).cold_prefill_s() > 0
    assert gpu.kv_elements("cpu") == 0 < gpu.kv_elements("cuda")


def test_batches(gpu: PretendGpu) -> None:
    engine = BatchEngine(THERE, 2)
    assert engine.ttft_s(2, True) > 0
    assert gpu.kv_elements("cpu") == 0 < gpu.kv_elements("cuda")


def test_sharing(gpu: PretendGpu) -> None:
    assert CrowdEngine(CROWD, True).run().tokens_per_s > 0
    assert gpu.kv_elements("cpu") == 0 < gpu.kv_elements("cuda")


def test_stored_chunks(gpu: PretendGpu, tmp_path: Path) -> None:
    contexts = Contexts(chunk_lens=(16, 16), prefix_len=4, question_len=4, count=2)
    assert measure_stored_ttft(tmp_path, TINY, contexts, 2, "cuda")
    assert gpu.kv_elements("cpu") == 0 < gpu.kv_elements("cuda")


def test_recompute(gpu: PretendGpu) -> None:
    noise = random.Random(0)
    ids = [tuple(noise.randrange(TINY.vocab) for _ in range(length)) for length in (16, 16, 4)]
    with closing(Primary(THERE, ids[:2], ids[2])) as primary:
        assert primary.resident_s(ReuseMode.TOKENS, (3, 20)) > 0
    assert gpu.kv_elements("cpu") == 0 < gpu.kv_elements("cuda")
