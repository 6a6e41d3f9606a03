"""A stand-in for a GPU: tensors that were put on ``cuda`` lie in host memory, and are known to be elsewhere.

Whoever mixes them with the host's, or asks for their numbers without bringing them back, fails as on a GPU.
Copies on a stream of their own happen as late as they may: until somebody waits for an event behind them
there is nothing but poison. What crosses between the two is in a list, and whether the host waits for it.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

GPU = torch.device("cuda", 0)
HOST = torch.device("cpu")
# These take tensors of both: they copy, or look up places that the host knows.
_CROSS = {"copy_", "__getitem__", "__setitem__", "index_select", "to", "type_as", "set_", "__set__"}
_TO_HOST = {"cpu", "tolist", "item"}
_NEEDS_HOST = {"numpy", "__array__"}
# What these say of a tensor there is known when all that it is made of is computed.
_ASKS = {
    "__bool__", "__contains__", "__float__", "__index__", "__int__", "allclose", "argwhere", "bincount",
    "equal", "is_nonzero", "masked_select", "nonzero", "unique", "unique_consecutive",
}  # fmt: skip
_MAKES = {"as_tensor", "asarray", "tensor"}


@dataclass(frozen=True)
class Crossing:
    """``way``: "there", "back", or "asked" where only the host waits. ``waits``: it does, until all that it
    ordered before is done."""

    name: str
    way: str
    waits: bool
    thread: str


class PretendStream:
    """``todo``: copies that were ordered and did not happen yet; ``num_done`` did."""

    def __init__(self, *_: object) -> None:
        self._lock = threading.Lock()
        self.todo: deque[Callable[[], object]] = deque()
        self.num_done = 0

    @property
    def num_ordered(self) -> int:
        return self.num_done + len(self.todo)

    def order(self, copy: Callable[[], object]) -> None:
        with self._lock:
            self.todo.append(copy)

    def do(self, num: int) -> None:
        """The first so many of all."""
        with self._lock, torch._C.DisableTorchFunction():
            while self.num_done < num:
                self.todo.popleft()()
                self.num_done += 1


class PretendEvent:
    def __init__(self, gpu: PretendGpu) -> None:
        self._gpu = gpu
        self._stream, self._num = _HERE.stream, 0

    def record(self, stream: PretendStream | None = None) -> None:
        self._stream = stream or _HERE.stream
        self._num = self._stream.num_ordered if self._stream else 0
        self._gpu.log("event", self._num)

    def wait(self) -> None:
        self._gpu.log("wait", self._num)
        if self._stream is not None:
            self._stream.do(self._num)

    def synchronize(self) -> None:
        self._gpu.cross("synchronize", "asked", True)
        if self._stream is not None:
            self._stream.do(self._num)

    def query(self) -> bool:
        return self._stream is None or self._stream.num_done >= self._num

    def elapsed_time(self, end_event: PretendEvent) -> float:
        """Every pass takes a millisecond."""
        return 1.0


class _Here(threading.local):
    """The stream that this thread's copies go to; None: they happen at once."""

    stream: PretendStream | None = None


_HERE = _Here()


def _set_stream(stream: PretendStream | None) -> None:
    _HERE.stream = stream


class PretendGpu(TorchFunctionMode):
    """``made``: by device, how many numbers of uninitialised tensors of three or four dimensions it was asked
    for: KV of a layer, or of several. ``room``: what it refuses for want of memory: such tensors of more
    numbers per layer than this. ``crossings``: of all threads, in their order.
    ``logged``: copies on streams, and events behind so many copies, by thread."""

    def __init__(self) -> None:
        super().__init__()
        self.made = {"cuda": 0, "cpu": 0}
        self.room = {"cuda": math.inf}
        self.crossings: list[Crossing] = []
        self.logged: list[tuple[str, str, int]] = []
        self._pinned: dict[int, torch.Tensor] = {}  # by where their memory is; kept, so that it stays theirs

    def cross(self, name: str, way: str, waits: bool) -> None:
        self.crossings.append(Crossing(name, way, waits, threading.current_thread().name))

    def log(self, what: str, number: int) -> None:
        self.logged.append((threading.current_thread().name, what, number))

    def pin(self, x: torch.Tensor) -> torch.Tensor:
        with torch._C.DisableTorchFunction():
            pinned = x.clone()
            self._pinned[pinned.untyped_storage().data_ptr()] = pinned
        return _mark(pinned, False)

    def _is_pinned(self, x: torch.Tensor) -> bool:
        with torch._C.DisableTorchFunction():
            return x.untyped_storage().data_ptr() in self._pinned

    def _seen(self, address: int) -> torch.Tensor:
        """Pinned memory as kernels see it."""
        with torch._C.DisableTorchFunction():
            seen = _mark(self._pinned[address].view(torch.int64), True)
        seen._is_seen = True  # type: ignore[attr-defined]
        return seen

    def _note(self, name: str, asked: torch.device | None, args: tuple[Any, ...], late: bool) -> None:
        """What a call lets cross. ``late``: it may be done when the call has returned."""
        of = args[0] if args else None
        there = is_there(of)
        asks = name in _ASKS or (name == "where" and len(args) == 1)
        looks_up = name in ("__getitem__", "__setitem__") and _is_looked_up(args[1])
        if there and (asks or looks_up):
            self.cross(name, "asked", True)
        elif name in _MAKES and asked is not None and asked.type == "cuda" and not there:
            self.cross(name, "there", True)
        elif there and (name in _TO_HOST or (asked is not None and asked.type == "cpu")):
            self.cross(name, "back", True)
        elif getattr(of, "_is_seen", False):
            self.cross(name, "there", False)
        elif name == "copy_" and there != is_there(args[1]):
            self.cross(name, "there" if there else "back", not (there and late and self._is_pinned(args[1])))
        elif isinstance(of, torch.Tensor) and not there and asked is not None and asked.type == "cuda":
            self.cross(name, "there", not (late and self._is_pinned(of)))

    def kv_elements(self, device: str) -> int:
        return self.made[device]

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name, kwargs = getattr(func, "__name__", str(func)), dict(kwargs or {})
        owner = getattr(getattr(func, "__self__", None), "__name__", "")
        if name == "__get__" and owner == "device":
            return GPU if is_there(args[0]) else func(*args, **kwargs)
        if name == "__get__" and owner == "is_cuda":
            return is_there(args[0])
        if name in ("_parse_to", "_has_compatible_shallow_copy_type"):
            return func(*args, **kwargs)
        if name == "__iter__":
            return iter(args[0].unbind(0))
        if name == "__set__" and owner == "data":
            out = func(*args, **kwargs)
            _mark(args[0], is_there(args[1]))
            return out
        there = [is_there(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if name == "as_tensor" and hasattr(args[0], "__cuda_array_interface__"):
            return self._seen(args[0].__cuda_array_interface__["data"][0])
        if name == "empty" and kwargs.pop("pin_memory", False):
            return self.pin(func(*args, **kwargs))
        late = bool(kwargs.get("non_blocking"))
        if name in _NEEDS_HOST and any(there):
            raise TypeError(f"{name}: can't convert a tensor on {GPU} to numpy; bring it to the host first")
        asked, args, kwargs = _without_device(args, kwargs)
        self._note(name, asked, args, late)
        if name not in _CROSS and asked is None and name not in _TO_HOST:
            _check_together(name, args, kwargs)
        if name == "copy_" and _HERE.stream is not None and there[0] and not there[-1]:
            _HERE.stream.order(partial(func, *args, **kwargs))
            self.log("copy", _HERE.stream.num_ordered)
            return args[0].fill_(math.nan)
        out = func(*args, **kwargs)
        goes = _goes(name, asked, args, there)
        arrives = name == "empty" or (name == "to" and not is_there(args[0]))
        if goes and arrives and out.dim() in (3, 4):
            layer = out if out.dim() == 3 else out[0]
            if layer.numel() > self.room["cuda"]:
                raise torch.OutOfMemoryError(f"no room for {layer.numel()} numbers")
        if name == "empty" and out.dim() in (3, 4):
            self.made["cuda" if goes else "cpu"] += out.numel()
        if name in ("to", "cuda", "cpu") and isinstance(out, torch.Tensor) and is_there(args[0]) != goes:
            out = out.clone() if out is args[0] else out  # a copy there, even if it is the same number here
        return tree_map(lambda x: _mark(x, goes) if isinstance(x, torch.Tensor) else x, out)


def is_there(x: object) -> bool:
    return bool(getattr(x, "_pretended", False))


def _is_looked_up(index: object) -> bool:
    """By places that are counted first, or brought there first."""
    parts = index if isinstance(index, tuple) else (index,)
    tensors = [part for part in parts if isinstance(part, torch.Tensor)]
    return any(isinstance(part, (list, np.ndarray)) for part in parts) or any(
        x.dtype is torch.bool or (not is_there(x) and x.dim() > 0) for x in tensors
    )


def _mark(x: torch.Tensor, goes: bool) -> torch.Tensor:
    x._pretended = goes  # type: ignore[attr-defined]
    return x


def _goes(name: str, asked: torch.device | None, args: tuple[Any, ...], there: list[bool]) -> bool:
    if name in _TO_HOST:
        return False
    if name == "cuda":
        return True
    if asked is not None:
        return asked.type == "cuda"
    if name in _CROSS and args:
        return is_there(args[0])
    return any(there)


def _without_device(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[torch.device | None, tuple[Any, ...], dict[str, Any]]:
    """The device that a call names, and the call with the host instead."""
    asked: torch.device | None = None

    def host(value: Any) -> Any:
        nonlocal asked
        if isinstance(value, torch.device) or (isinstance(value, str) and value.startswith(("cuda", "cpu"))):
            asked = torch.device(value)
            return HOST
        return value

    args = tuple(host(value) for value in args)
    kwargs = {key: host(value) if key == "device" else value for key, value in kwargs.items()}
    return asked, args, kwargs


def _check_together(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
    if len({is_there(x) for x in tensors if x.dim() or is_there(x)}) > 1:
        raise RuntimeError(f"{name}: expected all tensors to be on the same device, found {GPU} and cpu")


@contextmanager
def pretend_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[PretendGpu]:
    """Also in threads that begin meanwhile."""
    mode, run = PretendGpu(), threading.Thread.run

    def run_there(self: threading.Thread) -> None:
        with PretendGpuOf(mode):
            run(self)

    monkeypatch.setattr(threading.Thread, "run", run_there)
    fakes: dict[str, Callable[..., Any]] = {
        "is_available": lambda: True,
        "synchronize": lambda *_: mode.cross("synchronize", "asked", True),
        "empty_cache": lambda: None,
        "mem_get_info": lambda *_: (1 << 34, 1 << 34),
        "Stream": PretendStream,
        "Event": lambda **_: PretendEvent(mode),
        "set_stream": _set_stream,
        "default_stream": lambda *_: None,
        "get_device_properties": lambda *_: SimpleNamespace(multi_processor_count=4, major=9, minor=0),
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self, *_: mode.pin(self))
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda *_: None)
    with mode:
        yield mode


class PretendGpuOf(PretendGpu):
    """The same books, in another thread."""

    def __init__(self, other: PretendGpu) -> None:
        super().__init__()
        self.made, self.room = other.made, other.room
        self.crossings, self.logged, self._pinned = other.crossings, other.logged, other._pinned
