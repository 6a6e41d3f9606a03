"""Memory for what is about to be read: ordinary tensors, whatever they are made of."""

from __future__ import annotations

import pytest
import torch

from shared.engine.kv.host_memory import host_tensors


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
# the last ones are mapped in huge pages
@pytest.mark.parametrize("shape", [(1, 1, 4), (2, 3, 5), (2, 512, 64), (4, 700, 128)])
def test_tensors_are_aligned_contiguous_and_share_no_byte(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensors = host_tensors(14, shape, dtype)
    for i, tensor in enumerate(tensors):
        assert (tuple(tensor.shape), tensor.dtype, tensor.is_contiguous()) == (shape, dtype, True)
        assert tensor.data_ptr() % 64 == 0
        tensor.fill_(i)
    assert all((tensor == i).all() for i, tensor in enumerate(tensors))


def test_a_tensor_outlives_the_others_of_its_memory() -> None:
    last = host_tensors(14, (2, 512, 128), torch.float32)[-1]
    last.fill_(3.0)
    others = host_tensors(14, (2, 512, 128), torch.float32)
    for tensor in others:
        tensor.fill_(1.0)
    assert (last == 3.0).all()
