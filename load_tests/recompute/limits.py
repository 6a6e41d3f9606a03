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
    return max(
        prefill_flops(shape, positions) / rates.flops, shape.bytes_read(num_stored) / rates.bytes_per_s
    )


def prefill_flops(shape: Shape, positions: Sequence[int]) -> float:
    num_keys = sum(positions) + len(positions)
    return shape.flops(len(positions), 0) + 4 * shape.layers * shape.heads * shape.head_dim * num_keys


def scoring_limit_s(shape: Shape, num_rows: int, num_seen: Sequence[float], rates: Rates) -> float:
    """Of a question of ``num_rows`` behind each of some contexts, in which its rows see ``num_seen`` keys on
    average. The last layer gives queries, keys and their products alone. The contexts' KV is read, of the
    last layer the keys."""
    kv = sum(num_seen) * shape.kv_bytes_per_token * _products(shape) / (2 * shape.layers)
    num_bytes = 2 * _scoring_weights(shape) + kv
    return max(scoring_flops(shape, num_rows, num_seen) / rates.flops, num_bytes / rates.bytes_per_s)


def scoring_flops(shape: Shape, num_rows: int, num_seen: Sequence[float]) -> float:
    rows, num_keys = num_rows * len(num_seen), num_rows * sum(num_seen)
    products = 2 * _products(shape) * shape.heads * shape.head_dim * num_keys
    return 2 * rows * _scoring_weights(shape) + products


def _scoring_weights(shape: Shape) -> int:
    last = shape.hidden * (shape.heads + shape.kv_heads) * shape.head_dim
    return (shape.layers - 1) * shape.layer_weights + last


def _products(shape: Shape) -> int:
    """With keys, and with values in all layers but the last."""
    return 2 * shape.layers - 1
