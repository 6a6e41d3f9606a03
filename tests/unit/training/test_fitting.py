"""Less at once when memory runs out, all over again, on a CPU as on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

from services.training.fitting import Fitting
from shared.engine.model.out_of_memory import is_out_of_memory, told_alike
from shared.errors import ConfigError, Overloaded
from tests.out_of_memory import CPU_IS_FULL

ERRORS = [
    lambda: torch.OutOfMemoryError("no room"),
    lambda: RuntimeError(CPU_IS_FULL),
    MemoryError,
    lambda: Overloaded("the device ran out of memory on this request"),
]


@pytest.mark.parametrize("error", ERRORS, ids=["GPU", "CPU", "Python", "an engine"])
def test_begins_again_with_fewer_and_says_so(error: Callable[[], Exception]) -> None:
    said: list[str] = []
    computed: list[tuple[int, ...]] = []

    def twice(some: Sequence[int]) -> list[int]:
        if len(some) > 2:
            raise error()
        computed.append(tuple(some))
        return [2 * one for one in some]

    fitting = Fitting("things", say=said.append)
    assert fitting.all(range(9), twice) == [0, 2, 4, 6, 8, 10, 12, 14, 16]
    assert said == [f"out of memory: from here on {n} things, not {m}" for n, m in ((4, 9), (2, 4))]
    assert computed == [(0, 1), (2, 3), (4, 5), (6, 7), (8,)]
    assert fitting.all([5, 6, 7], twice) == [10, 12, 14]
    assert len(said) == 2
    assert fitting.all([], twice) == []


def test_what_was_computed_before_memory_ran_out_is_computed_again() -> None:
    def sizes(some: Sequence[int]) -> list[int]:
        if len(some) == 4 and 5 in some:
            raise RuntimeError(CPU_IS_FULL)
        return [len(some)] * len(some)

    assert Fitting("things", 4).all(range(6), sizes) == [4, 4, 4, 4, 2, 2]
    assert Fitting("things", 4).all(range(8), sizes) == [2] * 8


def test_one_that_does_not_fit_is_told_with_the_remedy() -> None:
    def full(some: Sequence[int]) -> list[int]:
        raise RuntimeError(CPU_IS_FULL)

    with pytest.raises(ConfigError, match="out of memory with one of the things; give fewer or"):
        Fitting("things").all([1, 2], full)


def test_other_errors_are_raised_as_they_are() -> None:
    def broken(some: Sequence[int]) -> list[int]:
        raise RuntimeError("shapes differ")

    with pytest.raises(RuntimeError, match="shapes differ"):
        Fitting("things").all([1, 2], broken)
    with pytest.raises(RuntimeError, match="shapes differ") as raised, told_alike():
        broken([])
    assert not isinstance(raised.value, torch.OutOfMemoryError)


def test_what_a_processor_says_is_recognised_and_told_as_a_gpu_would() -> None:
    with pytest.raises(RuntimeError) as raised:
        torch.empty(10**14)  # numbers, which no machine has room for
    assert is_out_of_memory(raised.value)
    assert "DefaultCPUAllocator: can't allocate memory: you tried to allocate 400000000000000 bytes" in str(
        raised.value
    )
    with pytest.raises(torch.OutOfMemoryError, match="DefaultCPUAllocator"), told_alike():
        torch.empty(10**14)
    with pytest.raises(torch.OutOfMemoryError), told_alike():
        raise MemoryError
    assert not is_out_of_memory(ValueError(CPU_IS_FULL))
