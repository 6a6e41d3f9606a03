"""Which copies go when there is no room: S3-FIFO, by bytes.

    admitted ──▶ small (a tenth) ──used twice──▶ main ──▶ evicted, unless used since it came here or came round
                   │                              ▲
                   └──▶ evicted, name kept ──▶ ghost ── admitted again

What is read once, however much of it, passes through the small queue and never touches the main one: a scan
does not flush the hot set. Queues are orders of arrival, not of time, so no clock matters. (Yang et al.,
"FIFO queues are all you need for cache eviction", SOSP 2023.)
"""  # noqa: E501

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

_MOST_USES = 3
_USES_OF_THE_HOT = 2
_SMALL_SHARE = 10


class S3Fifo:
    """Names and sizes only; not thread-safe."""

    def __init__(self) -> None:
        self._small: OrderedDict[str, int] = OrderedDict()  # name → bytes, the oldest first
        self._main: OrderedDict[str, int] = OrderedDict()
        self._ghost: OrderedDict[str, int] = OrderedDict()
        self._uses: dict[str, int] = {}
        self._small_bytes = self._main_bytes = self._ghost_bytes = 0

    def __contains__(self, name: str) -> bool:
        return name in self._uses

    def __len__(self) -> int:
        return len(self._uses)

    @property
    def num_bytes(self) -> int:
        return self._small_bytes + self._main_bytes

    def admit(self, name: str, size_bytes: int) -> None:
        """A copy that is there now. One of the same name is replaced and keeps its rank."""
        if name in self._uses:
            self._resize(name, size_bytes)
        elif name in self._ghost:
            self._forget(name)
            self._to_main(name, size_bytes)
        else:
            self._small[name] = size_bytes
            self._small_bytes += size_bytes
        self._uses.setdefault(name, 0)

    def touch(self, name: str) -> None:
        """It was used."""
        if name in self._uses:
            self._uses[name] = min(self._uses[name] + 1, _MOST_USES)

    def remove(self, name: str) -> None:
        """It is gone for another reason than want of room."""
        if self._uses.pop(name, None) is not None:
            self._small_bytes -= self._small.pop(name, 0)
            self._main_bytes -= self._main.pop(name, 0)

    def victims(self, num_bytes: int, keep: Callable[[str], bool]) -> list[str]:
        """Names that free at least ``num_bytes``, removed from here; none of them is one to ``keep``. Empty
        if there are not enough."""
        if not self._can_free(num_bytes, keep):
            return []
        chosen: list[str] = []
        while num_bytes > 0:
            victim = (
                self._from_small(keep)
                if self._small_is_large
                else self._from_main(keep) or self._from_small(keep)
            )
            if victim is not None:
                name, size_bytes = victim
                chosen.append(name)
                num_bytes -= size_bytes
                del self._uses[name]
        return chosen

    def check_invariants(self) -> None:
        assert not self._small.keys() & self._main.keys()
        assert self._small.keys() | self._main.keys() == self._uses.keys()
        assert not self._ghost.keys() & self._uses.keys()
        assert self._small_bytes == sum(self._small.values())
        assert self._main_bytes == sum(self._main.values())
        assert self._ghost_bytes == sum(self._ghost.values())
        assert all(0 <= uses <= _MOST_USES for uses in self._uses.values())

    @property
    def _small_is_large(self) -> bool:
        return bool(self._small) and self._small_bytes * _SMALL_SHARE >= self.num_bytes

    def _can_free(self, num_bytes: int, keep: Callable[[str], bool]) -> bool:
        for queue in (self._small, self._main):
            for name, size_bytes in queue.items():
                if num_bytes <= 0:
                    return True
                num_bytes -= 0 if keep(name) else size_bytes
        return num_bytes <= 0

    def _from_small(self, keep: Callable[[str], bool]) -> tuple[str, int] | None:
        """The oldest that was not used enough; what was moves on to the main queue, and so does what must be
        kept."""
        while self._small:
            name, size_bytes = self._small.popitem(last=False)
            self._small_bytes -= size_bytes
            if self._uses[name] < _USES_OF_THE_HOT and not keep(name):
                self._remember(name, size_bytes)
                return name, size_bytes
            self._uses[name] = 0
            self._to_main(name, size_bytes)
        return None

    def _from_main(self, keep: Callable[[str], bool]) -> tuple[str, int] | None:
        """The oldest that was not used since its last round; None if all must be kept."""
        for _ in range((_MOST_USES + 1) * len(self._main)):
            name, size_bytes = next(iter(self._main.items()))
            if not self._uses[name] and not keep(name):
                del self._main[name]
                self._main_bytes -= size_bytes
                return name, size_bytes
            self._uses[name] = max(self._uses[name] - 1, 0)
            self._main.move_to_end(name)
        return None

    def _to_main(self, name: str, size_bytes: int) -> None:
        self._main[name] = size_bytes
        self._main_bytes += size_bytes

    def _resize(self, name: str, size_bytes: int) -> None:
        if name in self._small:
            self._small_bytes += size_bytes - self._small[name]
            self._small[name] = size_bytes
        else:
            self._main_bytes += size_bytes - self._main[name]
            self._main[name] = size_bytes

    def _remember(self, name: str, size_bytes: int) -> None:
        """As many bytes' worth of names as there are bytes."""
        self._ghost[name] = size_bytes
        self._ghost_bytes += size_bytes
        while self._ghost and self._ghost_bytes > self.num_bytes:
            self._forget(next(iter(self._ghost)))

    def _forget(self, name: str) -> None:
        self._ghost_bytes -= self._ghost.pop(name)
