"""How much may stand in front of a chunk: what the settings say, if the model's positions leave it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from services.ingestion import recipe
from services.ingestion.config import LEAST_CHUNK_TOKENS, IngestionConfig
from shared.errors import ConfigError
from shared.kv_types import KvContext
from tests.ingestion_world import WordTokenizer

PREFIX_LEN = len(WordTokenizer.prefix_ids)


def context_tokens(tmp_path: Path, num_positions: int, **settings: Any) -> int:
    config = {"model_type": "llama", "max_position_embeddings": num_positions}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return recipe.context_tokens(IngestionConfig(model=str(tmp_path), **settings), PREFIX_LEN)


@pytest.mark.parametrize(
    ("num_positions", "settings", "expected"),
    [
        (8192, {}, 4096),
        (2048, {}, 2048 - PREFIX_LEN - 512),
        (2048, {"kv_context_tokens": 100}, 100),
        (2048, {"kv_context_tokens": 2048 - PREFIX_LEN - 512}, 2048 - PREFIX_LEN - 512),
        (PREFIX_LEN + 512, {}, 0),
        (512, {"chunk_tokens": 512 - PREFIX_LEN, "kv_context": KvContext.HEADER}, 0),
        (2048, {"kv_context": KvContext.NONE, "kv_context_tokens": 9999}, 0),
    ],
)
def test_it_is_what_is_set_or_what_the_positions_leave(
    num_positions: int, settings: dict[str, Any], expected: int, tmp_path: Path
) -> None:
    assert context_tokens(tmp_path, num_positions, **settings) == expected


def test_more_than_the_positions_leave_is_refused_with_what_they_do(tmp_path: Path) -> None:
    most = 2048 - PREFIX_LEN - 512
    with pytest.raises(ConfigError, match=rf"ingestion\.kv_context_tokens: {most + 1} .*set it to {most} at"):
        context_tokens(tmp_path, 2048, kv_context_tokens=most + 1)


@pytest.mark.parametrize("kv_context", list(KvContext))
def test_a_chunk_longer_than_the_positions_is_refused_before_any_document_fails(
    kv_context: KvContext, tmp_path: Path
) -> None:
    most = 1024 - PREFIX_LEN
    with pytest.raises(ConfigError, match=rf"ingestion\.chunk_tokens: .*1024 positions; set it to {most} at"):
        context_tokens(tmp_path, 1024, chunk_tokens=most + 1, kv_context=kv_context)


@pytest.mark.parametrize("num_positions", [PREFIX_LEN - 1, PREFIX_LEN + LEAST_CHUNK_TOKENS - 1])
@pytest.mark.parametrize("kv_context", list(KvContext))
def test_a_prefix_that_leaves_no_chunk_room_is_refused_with_what_it_is_made_of(
    kv_context: KvContext, num_positions: int, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=rf"prompt: .*prefix of {PREFIX_LEN} tokens .*prompt\.instruction"):
        context_tokens(tmp_path, num_positions, chunk_tokens=LEAST_CHUNK_TOKENS, kv_context=kv_context)
    most = context_tokens(
        tmp_path, PREFIX_LEN + LEAST_CHUNK_TOKENS, chunk_tokens=LEAST_CHUNK_TOKENS, kv_context=kv_context
    )
    assert most == 0
