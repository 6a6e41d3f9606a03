"""Measures the kernel ceiling: how long a step's kernels take when each runs alone, at its own shapes, over
and over.

Everything between it and the arithmetic limit is the kernels' own; everything between it and the measured
time is the engine's. Kernels are recorded from a real step: matrix products and attention. What merely moves
numbers is no kernel here, so it counts against the engine; so does attention by Triton, which torch does not
see. Norms and products that are one native call are one kernel, and layers that are one call are recorded
apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from shared.engine.attention import StepPlan
from shared.engine.backends.native import NativeAttention
from shared.engine.model.linear_kernels import LinearKernels, Stages
from shared.measuring.rates import best_s

_KERNELS = (
    "mm",
    "addmm",
    "bmm",
    "_linear_pointwise",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_flash_attention_forward",
)


_Call = partial[torch.Tensor]


@dataclass(frozen=True, slots=True)
class _Packed:
    """A weight in oneDNN's own order."""

    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class Ceiling:
    """``seconds``: all kernels of the work, each at its best; ``num_kernels`` calls, those but attention of
    ``num_shapes`` different ones."""

    seconds: float
    num_kernels: int
    num_shapes: int


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: Counter[tuple[Any, tuple[Any, ...], tuple[tuple[str, Any], ...]]] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func.overloadpacket.__name__ in _KERNELS:
            self.calls[func, tuple(map(_layout, args)), tuple((kwargs or {}).items())] += 1
        return func(*args, **(kwargs or {}))


def ceiling_of(work: Callable[[], object]) -> Ceiling:
    """``work`` runs once, recorded, on this thread."""
    with (
        _Recorder() as recorder,
        mock.patch.object(StepPlan, "uninterrupted", None),  # so that layers are several calls
        _recorded(NativeAttention, "run") as attention,
        _recorded(LinearKernels, "product") as products,
        _recorded(Stages, "run") as stages,
    ):
        work()
    with torch.inference_mode():
        seconds = sum(
            count * _kernel_s(func, args, dict(kwargs))
            for (func, args, kwargs), count in recorder.calls.items()
        )
        seconds += sum(map(best_s, attention))
        of_a_size: dict[tuple[Any, ...], list[_Call]] = {}
        for call in (*products, *stages):
            sizes = (*map(_layout, call.args[1:]), *call.keywords.items())
            of_a_size.setdefault(sizes, []).append(call)
        seconds += sum(len(calls) * best_s(calls[0]) for calls in of_a_size.values())
    ours = len(attention) + len(products) + len(stages)
    return Ceiling(seconds, recorder.calls.total() + ours, len(recorder.calls) + len(of_a_size))


@contextmanager
def _recorded(owner: type, name: str) -> Iterator[list[_Call]]:
    """Calls of the native kernels, which torch does not see."""
    calls: list[_Call] = []
    run = getattr(owner, name)

    def recording(*args: Any, **options: Any) -> torch.Tensor:
        calls.append(partial(run, *args, **options))
        return calls[-1]()

    with mock.patch.object(owner, name, recording):
        yield calls


def _layout(argument: Any) -> Any:
    if isinstance(argument, torch.Tensor) and argument.is_mkldnn:
        return _Packed(tuple(argument.shape), argument.dtype)
    if isinstance(argument, torch.Tensor):
        return tuple(argument.shape), argument.stride(), argument.dtype, str(argument.device)
    return tuple(argument) if isinstance(argument, list) else argument


def _tensor(layout: Any) -> Any:
    if isinstance(layout, _Packed):
        return torch.ops.mkldnn._reorder_linear_weight(torch.randn(layout.shape).to(layout.dtype), None)
    if not (isinstance(layout, tuple) and len(layout) == 4 and isinstance(layout[2], torch.dtype)):
        return layout
    shape, stride, dtype, device = layout
    num_items = 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
    return torch.randn(num_items, device=device).to(dtype).as_strided(shape, stride)


def _kernel_s(func: Any, layouts: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
    args = [_tensor(layout) for layout in layouts]
    device = next((str(a.device) for a in args if isinstance(a, torch.Tensor)), "cpu")
    return best_s(lambda: func(*args, **kwargs), device)
