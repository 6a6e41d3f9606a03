"""Segments that are used while they are still being read: layer i computes while layer i+1 arrives.

Loader threads mark layers, the engine's thread waits for the layer that its pass needs next. A pass that
cannot go on is given up as a whole: nothing it did counts before it ends, so it can simply run again later.
On a GPU a layer is there as soon as its copy is ordered: it is the device that waits for the copy, with what
the engine's thread orders from then on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

_POLL_S = 0.005
_PATIENCE_S = 1.0


class GivenUp(Exception):
    """The pass needs a layer that is not there. ``stalled``: it was waited for in vain; otherwise it will
    never come, or there is something better to do than to wait."""

    def __init__(self, stalled: bool) -> None:
        super().__init__("a layer is not there yet" if stalled else "the wait for a layer ended early")
        self.stalled = stalled


class Patience:
    """The time for which one pass may wait for layers, all in all, and what ends the wait at once."""

    def __init__(self, interrupted: Callable[[], bool] = lambda: False, total_s: float = _PATIENCE_S) -> None:
        self._interrupted = interrupted
        self._left_s = total_s

    def spend(self, seconds: float) -> None:
        """
        Raises:
            GivenUp: no more waiting.
        """
        self._left_s -= seconds
        if self._interrupted():
            raise GivenUp(stalled=False)
        if self._left_s <= 0:
            raise GivenUp(stalled=True)


class Copied(Protocol):
    """``torch.cuda.Event``"""

    def wait(self) -> None:
        """The calling thread's current stream waits for it."""
        ...


class Arrival:
    """The layers of one segment that are there. For any thread, ``wait_for`` for the engine's."""

    def __init__(self, num_layers: int) -> None:
        self._began_s = time.monotonic()
        self._first_s: float | None = None
        self._num_first = 0  # layers that came together then
        self._changed = threading.Condition()
        self._there = [False] * num_layers
        self._copies: dict[int, Copied] = {}
        self._num_missing = num_layers
        self._failed = False

    @property
    def whole(self) -> bool:
        return self._num_missing == 0

    @property
    def missing_share(self) -> float:
        """Of its layers, those that are not there."""
        return self._num_missing / len(self._there)

    @property
    def remaining_s(self) -> float:
        """Seconds that the missing layers will take if they come as the others did."""
        num_missing, num_there = self._num_missing, len(self._there) - self._num_missing
        return (time.monotonic() - self._began_s) * num_missing / max(1, num_there)

    @property
    def pace_s(self) -> float | None:
        """Seconds that the missing layers will take if they come as those behind the first did; None: there
        are none to go by."""
        num_missing, num_there = self._num_missing, len(self._there) - self._num_missing
        if self._first_s is None or num_there <= self._num_first:
            return None
        return (time.monotonic() - self._first_s) * num_missing / (num_there - self._num_first)

    @property
    def failed(self) -> bool:
        """Says that what is missing will never come."""
        return self._failed

    @property
    def settled(self) -> bool:
        """All of it is there, and whatever the engine's thread orders comes after the copies."""
        return self.whole and not self._copies

    def layers_arrived(self, layers: range, copied: Copied | None = None) -> None:
        """``copied``: what the device has to wait for, before the first of these layers is used."""
        with self._changed:
            if copied is not None:
                self._copies[layers.start] = copied
            if self._first_s is None:
                self._first_s, self._num_first = time.monotonic(), len(layers)
            for layer in layers:
                self._num_missing -= not self._there[layer]
                self._there[layer] = True
            self._changed.notify_all()

    def fail(self) -> None:
        with self._changed:
            self._failed = True
            self._changed.notify_all()

    def wait_for(self, layer: int, patience: Patience) -> None:
        """Layers are waited for in their order.

        Raises:
            GivenUp: the layer will never come, or ``patience`` came to its end.
        """
        self.wait_until_ordered(layer, patience)
        if (copied := self.take_copied(layer)) is not None:
            copied.wait()

    def take_copied(self, layer: int) -> Copied | None:
        """What the device has to wait for before this layer; None: for nothing that it does not wait for
        already. The caller sees to it."""
        return self._copies.pop(layer, None)

    def wait_until_ordered(self, layer: int, patience: Patience) -> None:
        """Returns when the layer is there, or its copy to the device is ordered. Raises like ``wait_for``."""
        while not self._there[layer]:
            if self._failed:
                raise GivenUp(stalled=False)
            began = time.monotonic()
            with self._changed:
                self._changed.wait_for(lambda: self._there[layer] or self._failed, _POLL_S)
            if not self._there[layer]:
                patience.spend(time.monotonic() - began)
