"""The benchmark of the KV store measures what it says, at sizes that take seconds."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from load_tests.benchmark import line
from load_tests.kv_store.__main__ import StorePlan, measure
from load_tests.kv_store.object_loads import measure_object_loads
from load_tests.kv_store.stored_chunks import ChunkShape
from load_tests.kv_store.stored_ttft import Contexts
from load_tests.seals.__main__ import measure as measure_seals
from shared.measuring.report import measured
from shared.measuring.shapes import Shape
from tests.minio_server import S3Server

TINY_MODEL = Shape(hidden=64, layers=3, heads=4, kv_heads=2, head_dim=16, mlp=96, vocab=300)


def test_every_measurement_is_made_under_the_name_by_which_targets_go(
    tmp_path: Path, s3_server: S3Server
) -> None:
    plan = StorePlan(
        tmp_path, s3_server.endpoint, ChunkShape(3, 2, 16, 24), TINY_MODEL, Contexts((24, 24), 5, 6), runs=2
    )
    by_name = {m.name: m for m in measure(plan)}
    assert {"open_29mb", "load_29mb_memory", "load_29mb_object_store", "ttft_disk_over_resident"} <= set(
        by_name
    )
    assert {"ttft_cold_over_resident", "ttft_cold_over_resident_unpipelined"} <= set(by_name)
    assert {f"peer_{way}_{streams}" for way in ("grpc", "flight", "socket") for streams in (1, 4)} <= set(
        by_name
    )
    for name in ("load_29mb_memory", "load_29mb_object_store", "scrub_29mb_object_store"):
        assert by_name[name].baseline is not None
        assert by_name[name].ratio == pytest.approx(by_name[name].value / by_name[name].baseline)
    assert all(m.value > 0 and m.n == 2 for name, m in by_name.items() if not name.startswith("ttft"))
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("node-")], (
        "what it stored is gone"
    )
    assert "AWS_ACCESS_KEY_ID" in os.environ  # the keys of the server that was given were left alone


def test_a_server_that_is_started_for_it_is_read_from_apart_as_well(tmp_path: Path) -> None:
    processors = os.sched_getaffinity(0)
    found = {m.name: m for m in measure_object_loads(tmp_path, ChunkShape(3, 2, 16, 24), "", runs=2)}
    assert ("load_29mb_object_store_apart" in found) == (len(processors) > 1)
    assert all(m.baseline is not None and m.n == 2 for m in found.values())
    assert os.sched_getaffinity(0) == processors


def test_rates_are_printed_in_gigabytes_per_second_with_their_ratio() -> None:
    printed = line(measured("load", [2e9, 3e9, 4e9], "byte/s", better="higher", baseline=2e9))
    assert "3 GB/s" in printed
    assert "1.50 x 2" in printed


def test_what_seals_cost_is_found_by_pairs_of_sealed_and_unsealed_kv(tmp_path: Path) -> None:
    found = {m.name: m for m in measure_seals(tmp_path, TINY_MODEL, Contexts((24, 24), 5, 6), num_pairs=3)}
    sealed, ratio = found["ttft_sealed"], found["ttft_sealed_over_unsealed"]
    assert (sealed.n, ratio.n) == (3, 3)
    assert ratio.min is not None
    assert ratio.max is not None
    assert 0 < ratio.min <= ratio.value <= ratio.max
    sizes = {
        name: {path.stat().st_size for path in (tmp_path / name).glob("c*/**/*.arrow")}
        for name in ("sealed-True", "sealed-False")
    }
    assert min(sizes["sealed-True"]) > max(sizes["sealed-False"]), "a seal takes room"
