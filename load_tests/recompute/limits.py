"""Counts what has to be computed and read, which no machine can leave out (``Rates.limit_s``). A row at
position p sees p + 1 keys, in a private segment or in a stored one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from shared.measuring.shapes import Shape


class NeededWork(NamedTuple):
    flops: float
    num_bytes: float


def prefill_work(shape: Shape, positions: Sequence[int], num_stored: int) -> NeededWork:
    """Of rows at these positions, and one row of logits. ``num_stored``: tokens whose KV is there and is
    read."""
    num_keys = sum(positions) + len(positions)
    attention = 4 * shape.layers * shape.heads * shape.head_dim * num_keys
    return NeededWork(shape.flops(len(positions), 0) + attention, shape.bytes_read(num_stored))


def scoring_work(shape: Shape, num_rows: int, num_seen: Sequence[float]) -> NeededWork:
    """Of a question of ``num_rows`` behind each of some contexts, in which its rows see ``num_seen`` keys on
    average. The last layer gives queries, keys and their products alone. The contexts' KV is read, of the
    last layer the keys."""
    last = shape.hidden * (shape.heads + shape.kv_heads) * shape.head_dim
    weights = (shape.layers - 1) * shape.layer_weights + last
    products = 2 * shape.layers - 1  # with keys, and with values in all layers but the last
    attention = 2 * products * shape.heads * shape.head_dim * num_rows * sum(num_seen)
    kv = sum(num_seen) * shape.kv_bytes_per_token * products / (2 * shape.layers)
    return NeededWork(2 * num_rows * len(num_seen) * weights + attention, 2 * weights + kv)
