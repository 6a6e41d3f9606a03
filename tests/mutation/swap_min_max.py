"""Mutates ``min`` into ``max`` and back: who is evicted, chosen or served first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from cosmic_ray.operators.operator import Example, Operator
from parso.python.tree import Name

_OTHER = {"min": "max", "max": "min"}
Position = tuple[tuple[int, int], tuple[int, int]]


class SwapMinMax(Operator):
    """Calls of the one become calls of the other."""

    def mutation_positions(self, node: Any) -> Iterator[Position]:
        if isinstance(node, Name) and node.value in _OTHER and _is_called(node):
            yield node.start_pos, node.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        return Name(_OTHER[node.value], node.start_pos, node.prefix)

    @classmethod
    def examples(cls) -> Sequence[Example]:
        return (Example("min(a, b)", "max(a, b)"), Example("max(x)", "min(x)"))


def _is_called(node: Name) -> bool:
    after = node.get_next_sibling()
    return after is not None and after.type == "trailer" and after.children[0].value == "("
