"""Computes as many things at once as there is memory for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from shared.engine.model.out_of_memory import is_out_of_memory
from shared.errors import ConfigError, Overloaded

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")
AS_MANY_AS_THERE_ARE = 1 << 30


@dataclass(slots=True)
class Fitting:
    """``most``: at once; fewer from the moment in which memory ran out, which ``say`` is told of. ``what``:
    they are, in the plural."""

    what: str
    most: int = AS_MANY_AS_THERE_ARE
    say: Callable[[str], None] = lambda line: None

    def all(
        self, items: Sequence[ItemT], compute: Callable[[Sequence[ItemT]], Sequence[ResultT]]
    ) -> list[ResultT]:
        """Of all items, in order. When memory runs out it begins again with fewer at once, so that the
        results are those of as few from the start.

        Raises:
            ConfigError: out of memory with one.
        """
        while True:
            at_once = min(self.most, len(items))
            try:
                parts = (items[first : first + at_once] for first in range(0, len(items), at_once or 1))
                return [one for part in parts for one in compute(part)]
            except (RuntimeError, MemoryError, Overloaded) as error:
                # an engine whose passes do not fit tells their requests Overloaded
                if not isinstance(error, Overloaded) and not is_out_of_memory(error):
                    raise
                if at_once < 2:
                    raise ConfigError(
                        f"out of memory with one of the {self.what}; give fewer or shorter chunks, or a "
                        "machine with more memory"
                    ) from error
            self.most = at_once // 2  # when the frames of the error have let go of their tensors
            self.say(f"out of memory: from here on {self.most} {self.what}, not {at_once}")
