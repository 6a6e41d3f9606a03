"""Chooses the copies that go when there is no room: S3-FIFO, by bytes.

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


class _Queue:
    """Names with their sizes, the oldest first."""

    def __init__(self) -> None:
        self.sizes: OrderedDict[str, int] = OrderedDict()
        self.num_bytes = 0

    def put(self, name: str, size_bytes: int) -> None:
        """As the youngest, or with another size where it is."""
        self.num_bytes += size_bytes - self.sizes.get(name, 0)
        self.sizes[name] = size_bytes

    def pop(self, name: str) -> int:
        """Its size; 0: it was not here."""
        size_bytes = self.sizes.pop(name, 0)
        self.num_bytes -= size_bytes
        return size_bytes


class S3Fifo:
    """Names and sizes only; not thread-safe."""

    def __init__(self) -> None:
        self._small, self._main, self._ghost = _Queue(), _Queue(), _Queue()
        self._uses: dict[str, int] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._uses

    def __len__(self) -> int:
        return len(self._uses)

    @property
    def num_bytes(self) -> int:
        return self._small.num_bytes + self._main.num_bytes

    def size_of(self, name: str) -> int:
        """0: it is not here."""
        return self._small.sizes.get(name) or self._main.sizes.get(name, 0)

    def admit(self, name: str, size_bytes: int) -> None:
        """A copy that is there now. One of the same name is replaced and keeps its rank."""
        is_main = name in self._main.sizes or name in self._ghost.sizes
        self._ghost.pop(name)
        (self._main if is_main else self._small).put(name, size_bytes)
        self._uses.setdefault(name, 0)

    def touch(self, name: str) -> None:
        """It was used."""
        if name in self._uses:
            self._uses[name] = min(self._uses[name] + 1, _MOST_USES)

    def remove(self, name: str) -> None:
        """It is gone for another reason than want of room."""
        if self._uses.pop(name, None) is not None:
            self._small.pop(name)
            self._main.pop(name)

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
        assert not self._small.sizes.keys() & self._main.sizes.keys()
        assert self._small.sizes.keys() | self._main.sizes.keys() == self._uses.keys()
        assert not self._ghost.sizes.keys() & self._uses.keys()
        for queue in (self._small, self._main, self._ghost):
            assert queue.num_bytes == sum(queue.sizes.values())
        assert all(0 <= uses <= _MOST_USES for uses in self._uses.values())

    @property
    def _small_is_large(self) -> bool:
        return bool(self._small.sizes) and self._small.num_bytes * _SMALL_SHARE >= self.num_bytes

    def _can_free(self, num_bytes: int, keep: Callable[[str], bool]) -> bool:
        for queue in (self._small, self._main):
            for name, size_bytes in queue.sizes.items():
                if num_bytes <= 0:
                    return True
                num_bytes -= 0 if keep(name) else size_bytes
        return num_bytes <= 0

    def _from_small(self, keep: Callable[[str], bool]) -> tuple[str, int] | None:
        """The oldest that was not used enough; what was moves on to the main queue, and so does what must be
        kept."""
        while self._small.sizes:
            name = next(iter(self._small.sizes))
            size_bytes = self._small.pop(name)
            if self._uses[name] < _USES_OF_THE_HOT and not keep(name):
                self._remember(name, size_bytes)
                return name, size_bytes
            self._uses[name] = 0
            self._main.put(name, size_bytes)
        return None

    def _from_main(self, keep: Callable[[str], bool]) -> tuple[str, int] | None:
        """The oldest that was not used since its last round; None if all must be kept."""
        for _ in range((_MOST_USES + 1) * len(self._main.sizes)):
            name = next(iter(self._main.sizes))
            if not self._uses[name] and not keep(name):
                return name, self._main.pop(name)
            self._uses[name] = max(self._uses[name] - 1, 0)
            self._main.sizes.move_to_end(name)
        return None

    def _remember(self, name: str, size_bytes: int) -> None:
        """As many bytes' worth of names as there are bytes."""
        self._ghost.put(name, size_bytes)
        while self._ghost.sizes and self._ghost.num_bytes > self.num_bytes:
            self._ghost.pop(next(iter(self._ghost.sizes)))
