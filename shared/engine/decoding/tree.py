"""Finds the branches of a forest that are still seen, and frees the others. Nobody counts references: what no leaf reaches is
garbage.

::

    a ──┬── b ── d          leaves d and e: a, b are seen by others, c by nobody. ``compact`` then makes one branch of b and d,
        ├── c               so that a forest of n leaves has fewer than 2·n branches however often it forked
        └── e
"""  # noqa: E501

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from shared.engine.kv.branch import Branch


def reachable(leaves: Iterable[Branch]) -> list[Branch]:
    """The leaves and all their ancestors, each once, children before parents."""
    found: dict[Branch, None] = {}
    for leaf in leaves:
        node: Branch | None = leaf
        while node is not None:
            found.pop(node, None)  # a parent goes behind every one of its children
            found[node] = None
            node = node.parent
    return list(found)


def compact(leaves: Iterable[Branch]) -> None:
    """Frees what no leaf sees: ends of branches that nobody continues, and branches with a single child,
    which absorbs them."""
    alive = list(leaves)
    children: defaultdict[Branch, list[Branch]] = defaultdict(list)
    for branch in reversed(reachable(alive)):
        if branch.parent is not None and branch.parent not in alive:
            children[branch.parent].append(branch)
    for parent, seeing in children.items():
        if any(child.offset != parent.offset for child in seeing):
            continue  # a question or a context, which its answers only hang on
        if len(seeing) == 1:
            seeing[0].absorb_parent()
        else:
            parent.segment.truncate(max(child.first for child in seeing) - parent.first)
