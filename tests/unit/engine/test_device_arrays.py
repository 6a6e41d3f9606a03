"""Numbers of the host on a device: all types, in place, and out of memory that is not written too early."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest
import torch

from shared.engine import device_arrays
from shared.engine.device_arrays import DeviceArrays, brought
from tests.pretend_gpu import GPU, HOST, is_there, pretend_gpu

ARRAYS = [
    np.array([[1, -2], [3, 1 << 30]], np.int32),
    np.array([True, False, True]),
    np.array([-(1 << 60)], np.int64),
    np.array([0.5], np.float32),
    np.array([], np.float64),
]


def numbers(arrays: DeviceArrays) -> list[Any]:
    return [tensor.cpu().numpy() for tensor in arrays.tensors]


@pytest.mark.parametrize("device", [HOST, GPU], ids=str)
def test_numbers_of_all_types_arrive_and_are_written_in_place(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pretend_gpu(monkeypatch):
        arrays = DeviceArrays(ARRAYS, device)
        places = [tensor.data_ptr() for tensor in arrays.tensors]
        for times in (1, 2):
            written = [(array * times).astype(array.dtype) for array in ARRAYS]
            arrays.write(written)
            for ours, theirs in zip(numbers(arrays), written, strict=True):
                np.testing.assert_array_equal(ours, theirs.reshape(-1))
        assert [tensor.data_ptr() for tensor in arrays.tensors] == places
        shaped = brought(torch.from_numpy(ARRAYS[0]), device)
        assert (tuple(shaped.shape), is_there(shaped)) == ((2, 2), device == GPU)


@pytest.mark.parametrize("is_read", [False, True])
def test_pinned_memory_is_written_again_once_it_is_read(
    is_read: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_arrays._Pinned, "is_read", is_read)
    with pretend_gpu(monkeypatch):
        arrays = DeviceArrays(ARRAYS, GPU)
        for _ in range(3):
            arrays.write(ARRAYS)
        assert len(arrays._pinned) == (1 if is_read else 4)
        monkeypatch.setattr(device_arrays._Pinned, "is_read", True)
        del arrays


def test_pinned_memory_of_arrays_that_are_gone_is_kept_until_it_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(device_arrays._Pinned, "is_read", False)
    with pretend_gpu(monkeypatch):
        arrays = DeviceArrays(ARRAYS, GPU)
        pinned = weakref.ref(arrays._pinned[0])
        del arrays
        gc.collect()
        assert pinned() is not None
        monkeypatch.setattr(device_arrays._Pinned, "is_read", True)
        brought(torch.ones(3), GPU)
        gc.collect()
        assert pinned() is None
