"""Each check says what it found, and what to do; none ends the others."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cluster.config import load_quilt
from cluster.doctor import machine, software, surroundings
from cluster.doctor.diagnosis import Diagnosis, Examined, Outcome, ok, run_checks, worst
from cluster.local.state import StackState
from shared.clients.health import ServiceHealth
from shared.errors import ConfigError


@pytest.fixture
def installation(tmp_path: Path) -> Callable[..., Examined]:
    def made(**values: Any) -> Examined:
        config = load_quilt({"model": "demo", "data_dir": str(tmp_path / "data"), **values}, {}, resolve=str)
        return Examined(config, {})

    return made


def running(found: Examined, *services: ServiceHealth) -> Examined:
    state = StackState(1, "ready", "127.0.0.1:9000", "http://127.0.0.1:8000", "", "demo", "")
    return replace(found, state=state, status=lambda: list(services))


def test_a_check_that_breaks_has_failed_and_the_others_go_on(
    installation: Callable[..., Examined],
) -> None:
    def refused(_: Examined) -> tuple[Outcome, str, str]:
        raise ConfigError("model: there is no directory x")

    def broken(_: Examined) -> tuple[Outcome, str, str]:
        raise KeyError("what nobody thought of")

    checks = {"refused": refused, "broken": broken, "well": lambda _: ok("fine")}
    findings = list(run_checks(checks, installation()))
    assert [finding.outcome for finding in findings] == ["fail", "fail", "ok"]
    assert findings[0].detail == "model: there is no directory x"
    assert findings[1].detail == "the check itself failed: KeyError"
    assert worst(findings) == "fail"
    assert worst([Diagnosis("a", "ok", ""), Diagnosis("b", "warn", "")]) == "warn"
    assert all(finding.remedy for finding in findings if finding.outcome != "ok")


class TestSoftware:
    def test_this_installation_is_well(self, installation: Callable[..., Examined]) -> None:
        for name in ("python", "packages", "torch", "kernels", "ray"):
            outcome, detail, _ = getattr(software, f"check_{name}")(installation())
            assert outcome in ("ok", "warn"), detail

    def test_another_version_than_is_tested_is_named(
        self, installation: Callable[..., Examined], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(software, "pinned_versions", lambda: {"numpy": "0.1", "ray": "0.2"})
        outcome, detail, remedy = software.check_packages(installation())
        assert outcome == "warn"
        assert "numpy" in detail
        assert "pip install" in remedy
        assert software.check_ray(installation())[0] == "warn"

    def test_a_missing_package_is_named(
        self, installation: Callable[..., Examined], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(software, "installed_versions", lambda: {"ray": "1"})
        outcome, detail, _ = software.check_packages(installation())
        assert outcome == "fail"
        assert detail.startswith("not installed: ")

    def test_an_old_python_is_refused(
        self, installation: Callable[..., Examined], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(software, "LEAST_PYTHON", (*sys.version_info[:2], 99))
        assert software.check_python(installation())[0] == "fail"


class TestMachine:
    def test_a_full_disk_fails_and_a_small_one_warns(
        self, installation: Callable[..., Examined], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        found = shutil.disk_usage("/")
        for free, outcome in ((1 << 20, "fail"), (1 << 30, "warn"), (1 << 40, "ok")):
            monkeypatch.setattr(shutil, "disk_usage", lambda _, free=free: found._replace(free=free))
            assert machine.check_disk(installation())[0] == outcome

    def test_a_data_directory_that_others_may_use_is_named(
        self, installation: Callable[..., Examined]
    ) -> None:
        found = installation()
        assert machine.check_permissions(found)[0] == "ok"
        found.data_dir.mkdir(mode=0o700)
        assert machine.check_permissions(found)[0] == "ok"
        (found.data_dir / "kv").mkdir(mode=0o755)
        outcome, detail, remedy = machine.check_permissions(found)
        assert (outcome, detail) == ("warn", "others may use kv")
        assert remedy.startswith("chmod")

    def test_doors_to_other_machines_are_named(self, installation: Callable[..., Examined]) -> None:
        assert machine.check_doors(installation())[0] == "ok"
        outcome, detail, _ = machine.check_doors(installation(grpc_host="0.0.0.0"))
        assert (outcome, detail) == ("warn", "grpc_host lets other machines in")

    def test_ports_of_the_running_stack_are_its_own(self, installation: Callable[..., Examined]) -> None:
        assert machine.check_free_ports(running(installation()))[0] == "ok"

    def test_the_clock_follows_that_of_the_file_system(
        self, installation: Callable[..., Examined], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert machine.check_clock(installation())[0] == "ok"
        monkeypatch.setattr(machine, "_FIRST_YEAR", 9999)
        assert machine.check_clock(installation())[0] == "fail"


class TestSurroundings:
    def test_a_model_that_is_not_here_is_named(
        self, installation: Callable[..., Examined], tmp_path: Path
    ) -> None:
        assert surroundings.check_model(installation())[0] == "ok"
        outcome, _, remedy = surroundings.check_model(installation(model="Qwen/Qwen2.5-0.5B"))
        assert outcome == "warn"
        assert "kvquilt models pull" in remedy
        empty = tmp_path / "empty"
        empty.mkdir()
        (empty / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
        outcome, detail, _ = surroundings.check_model(installation(model=str(empty)))
        assert outcome == "fail"
        assert "no *.safetensors" in detail

    def test_services_that_are_not_ready_are_named(self, installation: Callable[..., Examined]) -> None:
        well, ill = ServiceHealth("gateway", ready=True), ServiceHealth("generator", ready=False)
        assert surroundings.check_services(installation())[0] == "ok"
        assert surroundings.check_services(running(installation(), well))[0] == "ok"
        outcome, detail, _ = surroundings.check_services(running(installation(), well, ill))
        assert (outcome, detail) == ("fail", "not ready: generator")

    def test_without_object_store_and_collector_there_is_nothing_to_reach(
        self, installation: Callable[..., Examined]
    ) -> None:
        assert surroundings.check_object_store(installation())[0] == "ok"
        assert surroundings.check_collector(installation())[0] == "ok"

    def test_an_object_store_without_keys_says_what_to_set(
        self, installation: Callable[..., Examined], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from services.kv_store.s3.credentials import ENVIRONMENT

        for name in ENVIRONMENT:
            monkeypatch.delenv(name, raising=False)
        found = installation(kv_store={"objects": {"endpoint": "127.0.0.1:1", "secure": False}})
        outcome, detail, _ = surroundings.check_object_store(found)
        assert outcome == "fail"
        assert "credentials" in detail

    def test_keys_are_none_open_or_counted(
        self, installation: Callable[..., Examined], tmp_path: Path
    ) -> None:
        assert surroundings.check_keys(installation())[0] == "ok"
        assert surroundings.check_keys(installation(auth={"mode": "open"}))[0] == "warn"
        path = tmp_path / "keys.json"
        path.write_text(json.dumps({"version": 1, "keys": []}))
        found = installation(auth={"keys_file": str(path)})
        path.chmod(0o644)
        assert surroundings.check_keys(found)[0] == "warn"
        path.chmod(0o600)
        assert surroundings.check_keys(found) == (
            "fail",
            "no key is valid any more",
            "`kvquilt key create` makes one",
        )
