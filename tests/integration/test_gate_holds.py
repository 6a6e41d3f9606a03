"""A verdict that the gate wrote holds for a generator of the same settings, and expires with each of them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from cluster.cli.main import main
from cluster.paths import DEMO_MODEL
from shared.engine import load_model
from shared.engine.model.lora_files import write_adapter
from shared.errors import KvquiltError
from shared.kv_types import KvContext
from tests.generation_server import context, order_of, serving
from tests.lora_adapters import random_adapter

pytestmark = pytest.mark.usefixtures("one_thread")

QUESTIONS = ["--questions", "12", "--modes", "reordered", "--processes", "1"]
CERTAIN_SOON = ["--tolerance", "1", "--alpha", "0.5"]
SERVED: dict[str, Any] = {"kv_store": "", "kv_encoding": "int8", "kv_context": "header", "adapter": "legal"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With two adapters, and the verdict of a gate over titles, by int8 and the first adapter."""
    directory = tmp_path_factory.mktemp("models") / "reader"
    shutil.copytree(DEMO_MODEL, directory)
    hf_model = load_model(str(directory), pack=False).hf_model
    for seed, name in enumerate(("legal", "support")):
        write_adapter(
            random_adapter(hf_model, name, seed, strength=0.001, only=("q_proj",)), directory / name
        )
    config = directory.parent / "quilt.yaml"
    settings = {
        "model": str(directory),
        "ingestion": {"kv_context": "header"},
        "generator": {"kv_encoding": "int8", "adapter": "legal", "engine": engine(directory)},
    }
    config.write_text(yaml.safe_dump(settings), encoding="utf-8")
    where = ["--data-dir", str(directory.parent / "data"), "gate", "--config", str(config)]
    judged = CliRunner().invoke(main, [*where, *QUESTIONS, *CERTAIN_SOON], catch_exceptions=False)
    assert judged.exit_code == 0, judged.output
    return directory


def engine(model: Path) -> dict[str, Any]:
    return {"adapters": {name: str(model / name) for name in ("legal", "support")}}


async def told(model: Path, **changes: Any) -> tuple[str, str, str]:
    """What status says, the mode that ``auto`` took, and the note on it."""
    settings = SERVED | {"engine": engine(model)} | changes
    async with serving(model, **settings) as served:
        assert not isinstance(served.generator, KvquiltError)
        order = order_of(
            ["The mill is old."], ["Which mill?"], "auto", kv_context=KvContext(settings["kv_context"])
        )
        events = [event async for event in served.client.generate(context(), order)]
        usage = events[-1].usage
        return served.generator.facts()["verdict"], usage.reuse, usage.note


async def test_auto_obeys_it(model: Path) -> None:
    assert await told(model) == ("reordered (header)", "reordered", "")


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("encoding", {"kv_encoding": "exact"}),
        ("kv_context", {"kv_context": "document"}),
        ("adapter", {"adapter": "support"}),
        ("adapter", {"adapter": ""}),
        ("model", {"engine": {"dtype": "float32"}, "adapter": ""}),
    ],
)
async def test_a_change_of_a_setting_expires_it(model: Path, name: str, changes: dict[str, Any]) -> None:
    status, reuse, note = await told(model, **changes)
    assert name in status.removeprefix("expired: it was made for another ").partition(";")[0].split(", ")
    assert reuse == "full"
    assert name in note


async def test_another_prompt_tokenizer_or_an_adapter_that_was_trained_anew_expires_it(
    model: Path, tmp_path: Path
) -> None:
    other = tmp_path / "reader"
    shutil.copytree(model, other)
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    tokenizer["model"]["merges"].pop()
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    status, _, note = await told(other)
    assert status == "expired: it was made for another tokenizer; run `kvquilt gate`"
    assert note == "auto is full: the verdict was made for another tokenizer"
    shutil.copy(model / "tokenizer.json", other)
    assert (await told(other))[1] == "reordered", "a copy elsewhere is the same model"
    prompt = json.loads((other / "kvquilt.json").read_text())
    (other / "kvquilt.json").write_text(json.dumps(prompt | {"prefix": "Read this.\n\n"}))
    assert (await told(other))[0] == "expired: it was made for another prefix; run `kvquilt gate`"
    shutil.copy(model / "kvquilt.json", other)
    adapter = random_adapter(load_model(str(other), pack=False).hf_model, "legal", 7, only=("q_proj",))
    write_adapter(adapter, other / "legal")
    assert (await told(other))[0] == "expired: it was made for another adapter; run `kvquilt gate`"
