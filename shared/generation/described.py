"""The description of a generator, and of chunks that it prefilled."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """``tokenizer_hash`` is empty for a model without a tokenizer, which is served by ids only.
    ``kv_encoding``: how new KV is stored (exact, int8, …)."""

    model: str
    fingerprint: str
    tokenizer_hash: str
    prefix_ids: tuple[int, ...]
    chunk_template: str
    question_template: str
    max_positions: int
    dtype: str
    kv_bytes_per_token: int
    device: str
    eos_ids: tuple[int, ...]
    kv_encoding: str = ""


@dataclass(frozen=True, slots=True)
class PrefilledChunk:
    """One chunk whose KV is durable. ``existed``: it was so before the call."""

    index: int
    chunk_id: str
    token_ids: tuple[int, ...]
    existed: bool
