"""Models with random weights, and one thread."""

from __future__ import annotations

from dataclasses import replace

import pytest

from services.training.recipe import AUXILIARY, PRIMARY
from services.training.trainer import Trainer

TINY = {
    "steps": 1,
    "tokenizer_documents": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_heads": 2,
    "num_kv_heads": 2,
}


@pytest.fixture(autouse=True)
def _with_one_thread(one_thread: None) -> None: ...


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Random weights: options that name a primary and an auxiliary model."""
    directory = tmp_path_factory.mktemp("models")
    for name, recipe in (("model", PRIMARY), ("auxiliary", AUXILIARY)):
        Trainer(replace(recipe, vocab_size=500, num_layers=3, **TINY), directory / name).save()
    names = ["--model", str(directory / "model"), "--auxiliary", str(directory / "auxiliary")]
    return [*names, "--passage-tokens", "0"]
