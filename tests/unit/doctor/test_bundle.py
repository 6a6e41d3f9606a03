"""A support bundle holds what an investigation needs, is its owner's alone, and has nothing that was
planted."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

from click.testing import CliRunner

from cluster.cli.main import main
from cluster.config import load_quilt
from cluster.doctor.bundle import write_bundle
from cluster.doctor.diagnosis import Diagnosis, Examined
from cluster.local.state import StackState
from shared.clients.health import ServiceHealth
from shared.tracing.kept import KeptSpan, SpanFile

TOKEN, KEY, SAID = "root:milvus-pass", "AKIA-very-secret", "Orla Venn signed the lease"
PLANTED = (TOKEN, KEY, SAID)


def installation(data_dir: Path) -> Examined:
    values = {
        "model": "demo",
        "data_dir": str(data_dir),
        "retrieval": {"milvus_token": TOKEN},
        "prompt": {"instruction": SAID},
    }
    state = StackState(1, "ready", "127.0.0.1:1", "", "", "demo", "")
    health = ServiceHealth(
        "gateway", ready=False, detail=f"cannot read '{SAID}' with {KEY}", facts={"n": "3"}
    )
    config = load_quilt(values, {}, resolve=str)
    return Examined(config, {"AWS_SECRET_ACCESS_KEY": KEY}, state, lambda: [health])


def test_what_was_planted_is_nowhere_in_it(tmp_path: Path) -> None:
    (tmp_path / "data" / "logs").mkdir(parents=True)
    (tmp_path / "data" / "logs" / "kvquilt.log").write_text(
        f"2026-11-23T07:00:00.123Z INFO    gateway: ready with {KEY} and {TOKEN}\n{SAID}\n"
        f"2026-11-23T07:00:00.123Z INFO    gateway: refused '{SAID}' request_id=r1\n"
    )
    told = {"gen_ai.retrieval.query.text": SAID, "kvquilt.chunks": 3, "kvquilt.request_id": "r1"}
    SpanFile(tmp_path / "data" / "traces", "gateway", 1 << 20).write(
        [KeptSpan("a" * 32, "b" * 16, "", "gateway", "retrieval", 1, 2, "", told)]
    )
    findings = [Diagnosis("object store", "fail", f"the key {KEY} is refused", "give another")]
    bundle = tmp_path / "bundle.tar.gz"
    written = write_bundle(bundle, installation(tmp_path / "data"), findings)
    assert bundle.stat().st_mode & 0o077 == 0
    with tarfile.open(bundle) as tar:
        texts = {m.name.partition("/")[2]: tar.extractfile(m).read().decode() for m in tar}  # type: ignore[union-attr]
    assert sorted(texts) == sorted(written)
    assert {"README.txt", "versions.json", "settings.json", "doctor.json", "status.json"} <= set(written)
    for name, text in texts.items():
        assert not any(planted in text for planted in PLANTED), name
    assert json.loads(texts["versions.json"])["ray"]
    assert json.loads(texts["settings.json"])["gateway"]["k"] == 8
    assert json.loads(texts["status.json"])[0]["facts"] == {"n": "3"}
    assert json.loads(texts["traces.jsonl"])["attributes"] == {
        "kvquilt.chunks": 3,
        "kvquilt.request_id": "r1",
    }
    assert "request_id=r1" in texts["logs/kvquilt.log"]
    assert "[1 lines left out]" in texts["logs/kvquilt.log"]


def test_a_wrong_setting_is_a_finding_and_the_exit_code_says_so(tmp_path: Path) -> None:
    (tmp_path / "quilt.yaml").write_text("gateway: {k: 0}\n")
    command = ["--data-dir", str(tmp_path), "doctor", "--config", str(tmp_path / "quilt.yaml"), "--json"]
    answer = CliRunner().invoke(main, command)
    assert answer.exit_code == 1
    (finding,) = json.loads(answer.stdout)
    assert finding["check"] == "settings"
    assert "gateway.k: must be at least 1" in finding["detail"]
