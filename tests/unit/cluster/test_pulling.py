"""What is brought from the hub, and what never is."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from cluster.models.pulling import HubFile, Snapshot, pull
from shared.engine.model.loader import read_config
from shared.errors import ConfigError, CorruptData, ModelUnsupported, NotFound, StorageFull, Unavailable
from tests.oracles import tiny_model

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class PretendHub:
    """A repository in memory. ``breaks_at``: the download that breaks off, once."""

    def __init__(self, files: Mapping[str, bytes], breaks_at: str = "") -> None:
        self.files = dict(files)
        self.breaks_at = breaks_at
        self.downloaded: list[str] = []

    def tags(self, hub_id: str) -> Mapping[str, str]:
        return {"v1.0": COMMIT}

    def snapshot(self, hub_id: str, commit: str) -> Snapshot:
        if commit != COMMIT:
            raise NotFound(f"model: {hub_id} has no such revision")
        return Snapshot(
            commit,
            tuple(
                HubFile(name, len(data), hashlib.sha256(data).hexdigest() if "safetensors" in name else "")
                for name, data in self.files.items()
            ),
        )

    def download(self, hub_id: str, commit: str, name: str, directory: Path) -> None:
        if name == self.breaks_at:
            self.breaks_at = ""
            raise Unavailable("model: the hub cannot be reached")
        self.downloaded.append(name)
        (directory / name).write_bytes(self.files[name])


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("repository")
    tiny_model("llama").save_pretrained(folder)
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    return files | {
        "modeling_mine.py": b"1 / 0",
        "pytorch_model.bin": b"pickle",
        "onnx/model.safetensors": b"",
    }


def check(directory: Path) -> None:
    read_config(str(directory))


class TestPulling:
    @pytest.mark.parametrize("revision", ["v1.0", COMMIT])
    def test_it_brings_weights_and_configuration_and_neither_code_nor_pickles(
        self, revision: str, repository: dict[str, bytes], tmp_path: Path
    ) -> None:
        hub = PretendHub(repository)
        target = pull(hub, "me/tiny", revision, tmp_path / "m", check)
        assert {path.name for path in target.iterdir()} == {
            "config.json",
            "generation_config.json",
            "model.safetensors",
            "pulled.json",
        }
        assert json.loads((target / "pulled.json").read_text(encoding="utf-8"))["commit"] == COMMIT
        again = PretendHub({})
        assert pull(again, "me/tiny", revision, target, check) == target

    @pytest.mark.parametrize("revision", ["main", "0123456"])
    def test_a_branch_is_refused(self, revision: str, repository: dict[str, bytes], tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"neither a commit .* nor a tag of me/tiny \(tags: v1\.0\)"):
            pull(PretendHub(repository), "me/tiny", revision, tmp_path / "m", check)

    def test_pickles_alone_are_refused(self, repository: dict[str, bytes], tmp_path: Path) -> None:
        files = {name: data for name, data in repository.items() if "safetensors" not in name}
        with pytest.raises(ConfigError, match=r"holds no safetensors.*pickles"):
            pull(PretendHub(files), "me/tiny", COMMIT, tmp_path / "m", check)
        with pytest.raises(ConfigError, match=r"holds no config\.json"):
            pull(PretendHub({"model.safetensors": b""}), "me/tiny", COMMIT, tmp_path / "m", check)

    def test_a_model_that_is_not_served_is_refused_before_its_weights_are_downloaded(
        self, repository: dict[str, bytes], tmp_path: Path
    ) -> None:
        config = json.loads(repository["config.json"]) | {"quantization_config": {"quant_method": "awq"}}
        hub = PretendHub(repository | {"config.json": json.dumps(config).encode()})
        with pytest.raises(ModelUnsupported, match="AWQ"):
            pull(hub, "me/tiny", COMMIT, tmp_path / "m", check)
        assert hub.downloaded == ["config.json"]

    def test_an_interrupted_one_goes_on_with_what_is_missing(
        self, repository: dict[str, bytes], tmp_path: Path
    ) -> None:
        hub = PretendHub(repository, breaks_at="model.safetensors")
        with pytest.raises(Unavailable):
            pull(hub, "me/tiny", COMMIT, tmp_path / "m", check)
        assert not (tmp_path / "m").exists()
        hub.downloaded.clear()
        pull(hub, "me/tiny", COMMIT, tmp_path / "m", check)
        assert "config.json" not in hub.downloaded
        assert "model.safetensors" in hub.downloaded

    def test_a_file_that_arrives_otherwise_than_the_hub_has_it_is_refused(
        self, repository: dict[str, bytes], tmp_path: Path
    ) -> None:
        hub = PretendHub(repository)
        told = hub.snapshot("me/tiny", COMMIT)
        hub.files["model.safetensors"] = bytes(len(repository["model.safetensors"]))
        hub.snapshot = lambda hub_id, commit: told  # type: ignore[method-assign]
        with pytest.raises(CorruptData, match=r"model\.safetensors of me/tiny arrived otherwise"):
            pull(hub, "me/tiny", COMMIT, tmp_path / "m", check)

    def test_no_space_is_told_before_the_weights_are_downloaded(
        self, repository: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        hub, usage = PretendHub(repository), shutil.disk_usage(tmp_path)
        monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1))
        with pytest.raises(StorageFull, match=r"are to be downloaded .*--to"):
            pull(hub, "me/tiny", COMMIT, tmp_path / "m", check)
        assert hub.downloaded == ["config.json"]

    def test_a_directory_with_something_else_in_it_is_not_touched(
        self, repository: dict[str, bytes], tmp_path: Path
    ) -> None:
        (tmp_path / "thesis.txt").write_text("years of work", encoding="utf-8")
        with pytest.raises(ConfigError, match="holds something else"):
            pull(PretendHub(repository), "me/tiny", COMMIT, tmp_path, check)
