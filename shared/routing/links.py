"""Adds up what the replicas of one node ask of the links that they share: its disks, its network, its
memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from shared.routing.costs import MOST_MS, Tier
from shared.routing.reports import told_age_ms

LINKS: Mapping[str, str] = {
    Tier.MEMORY.value: "memory",
    Tier.DISK.value: "disk",
    Tier.PEER.value: "network",
    Tier.OBJECTS.value: "network",
}
"""By tier."""
Notice = dict[str, object]


def busy_ms(loading_ms: Iterable[tuple[str, float]]) -> float:
    """Until the links of a node have brought what was asked of them, side by side. ``loading_ms``: tiers, and
    how long it takes to bring what comes from each."""
    links: defaultdict[str, float] = defaultdict(float)
    for tier, left_ms in loading_ms:
        links[LINKS[tier]] += left_ms
    return min(max(links.values(), default=0.0), MOST_MS)


def with_shared_links(notices: Sequence[Notice]) -> list[Notice]:
    """``notices``: of one node, as routers are told; those of replicas say beside their load how many
    milliseconds each tier is busy for them (``loading``). Their ``loading_ms`` becomes that of all of them
    together, as of when each was told. What makes no sense counts nothing."""
    left_ms = busy_ms(
        (tier, max(0.0, loading_ms - told_age_ms(notice)))
        for notice in notices
        for tier, loading_ms in _loading(notice)
    )
    return [_with_links(notice, left_ms) for notice in notices]


def _with_links(notice: Notice, left_ms: float) -> Notice:
    told = {name: value for name, value in notice.items() if name != "loading"}
    load = told.get("load")
    if not isinstance(load, Mapping):
        return told
    loading_ms = min(left_ms + told_age_ms(notice), MOST_MS) if left_ms else 0.0
    return told | {"load": dict(load) | {"loading_ms": loading_ms}}


def _loading(notice: Notice) -> Iterator[tuple[str, float]]:
    loading = notice.get("loading")
    if not isinstance(loading, Mapping):
        return
    for tier, left_ms in loading.items():
        number = isinstance(left_ms, int | float) and not isinstance(left_ms, bool)
        if isinstance(tier, str) and tier in LINKS and number and 0 <= left_ms <= MOST_MS:  # no NaN is
            yield tier, left_ms
