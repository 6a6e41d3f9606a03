"""What no machine with the measured rates can beat: the arithmetic of what has to be computed, or the bytes
that it has to read, whichever takes longer. A row at position p sees p + 1 keys, in a private segment or in a
stored one."""

from __future__ import annotations

from collections.abc import Sequence

from shared.measuring.rates import Rates
from shared.measuring.shapes import Shape


def prefill_limit_s(shape: Shape, positions: Sequence[int], num_stored: int, rates: Rates) -> float:
    """Of rows at these positions, and one row of logits. ``num_stored``: tokens whose KV is there and is
    read."""
    num_keys = sum(positions) + len(positions)
    flops = shape.flops(len(positions), 0) + 4 * shape.layers * shape.heads * shape.head_dim * num_keys
    return max(flops / rates.flops, shape.bytes_read(num_stored) / rates.bytes_per_s)


def scoring_limit_s(shape: Shape, num_rows: int, num_seen: Sequence[float], rates: Rates) -> float:
    """Of a question of ``num_rows`` behind each of some contexts, in which its rows see ``num_seen`` keys on
    average. The last layer gives queries, keys and their products alone. The contexts' KV is read, of the
    last layer the keys."""
    before_last, rows, num_keys = shape.layers - 1, num_rows * len(num_seen), num_rows * sum(num_seen)
    last_weights = shape.hidden * (shape.heads + shape.kv_heads) * shape.head_dim
    weights = before_last * shape.layer_weights + last_weights
    products = 2 * before_last + 1  # with keys, and with values in all layers but the last
    flops = 2 * rows * weights + 2 * products * shape.heads * shape.head_dim * num_keys
    num_bytes = 2 * weights + sum(num_seen) * shape.kv_bytes_per_token * products / (2 * shape.layers)
    return max(flops / rates.flops, num_bytes / rates.bytes_per_s)
