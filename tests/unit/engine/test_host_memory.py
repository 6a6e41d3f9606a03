"""Memory for what is about to be read: ordinary tensors, whatever they are made of."""

from __future__ import annotations

import mmap
import threading

import pytest
import torch

from shared.engine.host_memory import FreedMemory, HostArena, host_tensors

PAGE = mmap.PAGESIZE


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


def test_memory_of_tensors_that_are_gone_is_used_again_and_not_before() -> None:
    shape = (3, 1024, 256)  # a size that no other test has
    tensors = host_tensors(14, shape, torch.float32)
    first = tensors[0].data_ptr()
    kept = tensors.pop()
    kept.fill_(3.0)
    del tensors
    others = host_tensors(14, shape, torch.float32)
    assert others[0].data_ptr() != first
    assert (kept == 3.0).all()
    del kept
    assert host_tensors(14, shape, torch.float32)[0].data_ptr() == first


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8])
def test_moved_tensors_keep_shape_values_and_alignment_and_share_no_byte(dtype: torch.dtype) -> None:
    arena, shapes = HostArena(4 << 20), [(3, 5), (700, 300), (0, 4), (1024, 65), (5_000_001,), (7,)]
    given = [torch.randint(-9, 9, shape, generator=torch.Generator().manual_seed(0)) for shape in shapes]
    moved = [arena.moved(one.to(dtype)) for one in given]
    for before, after in zip(given, moved, strict=True):
        assert (after.dtype, after.data_ptr() % 64) == (dtype, 0)
        assert torch.equal(after, before.to(dtype))
        after.zero_()  # of nobody else
    small = [tensor for tensor in moved if 0 < tensor.nbytes < 1 << 20]
    assert len({tensor.untyped_storage().data_ptr() for tensor in small}) < len(small)


def test_freed_memory_is_bounded_and_goes_by_size() -> None:
    freed = FreedMemory(4 * PAGE)
    first, second, large = mmap.mmap(-1, PAGE), mmap.mmap(-1, 2 * PAGE), mmap.mmap(-1, 3 * PAGE)
    for mapping in (first, second):
        freed.give(mapping)
    assert freed.take(3 * PAGE) is None
    assert freed.take(2 * PAGE) is second
    freed.give(second)
    freed.give(large)
    assert freed.num_bytes == 3 * PAGE, "the longest freed went"
    assert freed.take(3 * PAGE) is large
    assert freed.take(3 * PAGE) is None
    freed.give(mmap.mmap(-1, 5 * PAGE))
    assert freed.num_bytes == 0


def test_memory_that_is_freed_while_another_thread_looks_is_not_waited_with() -> None:
    freed = FreedMemory(4 * PAGE)
    with freed._lock:
        giving = threading.Thread(target=freed.give, args=(mmap.mmap(-1, PAGE),))
        giving.start()
        giving.join(10)
        assert not giving.is_alive()
    assert freed.num_bytes == 0
