"""Applications that another cluster serves: which can be, who is told, what is deployed then."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from cluster.cli.session import Session
from cluster.compose import deployed, serve_config
from cluster.config import QuiltConfig, load_quilt
from cluster.local.state import RunDirectory, StackState
from cluster.local.supervisor import USERS_FIRST, check_gpus, drain_steps
from shared.config import load, to_dict
from shared.errors import ConfigError

THERE = "gpus.example:9000"
KEEPING = ("kv_store", "generator")


def at(*names: str, address: str = THERE, **values: Any) -> dict[str, Any]:
    return {"applications": {name: {"address": address} for name in names}, **values}


def loaded(tmp_path: Path, **values: Any) -> QuiltConfig:
    return load_quilt({"data_dir": str(tmp_path), **values}, {})


@pytest.mark.parametrize(
    ("elsewhere", "here"),
    [
        ((), ("kv_store", "retrieval", "generator", "ingestion", "gateway")),
        (("retrieval",), ("kv_store", "generator", "ingestion", "gateway")),
        (KEEPING, ("retrieval", "ingestion", "gateway")),
        ((*KEEPING, "selector"), ("retrieval", "ingestion", "gateway")),
        ((*KEEPING, "retrieval", "ingestion"), ("gateway",)),
        ((*KEEPING, "selector", "retrieval", "ingestion"), ("gateway",)),
    ],
)
def test_what_has_an_address_is_not_deployed_and_who_calls_it_is_told(
    elsewhere: tuple[str, ...], here: tuple[str, ...], tmp_path: Path
) -> None:
    values = {"data_dir": str(tmp_path), "selector": {"model": ""}} | at(*elsewhere)
    values = {name: value for name, value in values.items() if name not in elsewhere}
    config = load_quilt(values, {})
    assert deployed(config) == here
    addresses = dict.fromkeys(elsewhere, THERE)
    for app in serve_config(values, config)["applications"]:
        own = app["args"].get(app["name"], {})
        told = app["name"] in ("gateway", "ingestion")
        assert own.get("addresses", {}) == (addresses if told else {})
        if told:
            assert own["selector"] == ("selector" if "selector" in elsewhere else "")
    assert [names for names, _ in drain_steps(config)] == [n & {*here} for n in USERS_FIRST if n & {*here}]
    assert load(QuiltConfig, json.loads(json.dumps(to_dict(config)))) == config


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ("gpus.example:9000", "gpus.example:9000"),
        ("grpc://10.0.0.7:443", "10.0.0.7:443"),
        ("[fd00::7]:9000", "[fd00::7]:9000"),
        ("", None),
    ],
)
def test_an_address_is_host_and_port(given: str, address: str | None, tmp_path: Path) -> None:
    assert loaded(tmp_path, **at("retrieval", address=given)).gateway.addresses.get("retrieval") == address


@pytest.mark.parametrize("given", ["gpus.example", "http://a:1", "a:0", "a:65536", "a:b", "a b:1", ":9000"])
def test_what_is_no_address_is_named(given: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^applications\.retrieval\.address: must be host:port, got"):
        loaded(tmp_path, **at("retrieval", address=given))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (at("retrieval", address="https://a:1"), r"applications\.retrieval\.address: .* grpcs://host:port"),
        (at("gateway"), r"applications\.gateway: nobody here calls .* `kvquilt --target"),
        (at("retriever"), r"applications\.retriever: unknown application; known here: kv_store, gen"),
        ({"applications": {"retrieval": "a:1"}}, r"applications\.retrieval: expected a section"),
        ({"applications": {"retrieval": {"port": 1}}}, r"applications\.retrieval\.port: unknown setting"),
        ({"applications": 3}, "applications: expected a section"),
        (at("generator"), r"applications\.generator\.address: .*; name applications\.kv_store\.address too"),
        (at("kv_store"), r"applications\.kv_store\.address: generators write .* own node's store; name appl"),
        (at("selector"), r"name applications\.kv_store\.address and applications\.generator\.address too"),
        (at("ingestion", *KEEPING), r"applications\.ingestion\.address: .*name applications\.retrieval\.add"),
        (
            at("retrieval", retrieval={"deployment": {"num_replicas": 2}}),
            r"^retrieval\.deployment\.num_replicas: has no effect, since retrieval .* at gpus\.example:9000",
        ),
        (
            at("retrieval", retrieval={"milvus_uri": "http://m:1"}),
            r"^retrieval\.milvus_uri: has no effect, .* leave the address out",
        ),
        (
            at(*KEEPING, selector={"model": "HuggingFaceTB/SmolLM2-135M"}),
            r"^selector\.model: .* name applications\.selector\.address instead",
        ),
    ],
)
def test_what_cannot_work_is_refused_with_the_remedy(
    values: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        loaded(tmp_path, **values)


def test_what_suits_the_model_counts_only_for_what_runs_here(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}", encoding="utf-8")
    suits = "generator: {reuse: cacheclip}\nselector: {model: a/b}\ningestion: {chunk_tokens: 96}\n"
    (model / "quilt.yaml").write_text(suits, encoding="utf-8")
    assert "selector" in deployed(loaded(tmp_path, model=str(model)))
    config = loaded(tmp_path, model=str(model), **at(*KEEPING))
    assert deployed(config) == ("retrieval", "ingestion", "gateway")
    assert (config.gateway.selector, config.ingestion.chunk_tokens) == ("", 96)


def test_gpus_of_another_cluster_are_not_looked_for_here(tmp_path: Path) -> None:
    check_gpus(loaded(tmp_path, **at(*KEEPING)), 0)


def test_the_command_line_asks_an_application_where_it_is(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    out = Console(file=io.StringIO())
    with run.lock():
        addresses = {"retrieval": THERE}
        run.write(StackState(1, "ready", "127.0.0.1:9000", "h", "log", "m", "", addresses=addresses))
        here = Session(tmp_path, True, "", "", out, out)
        assert (here.target_of("retrieval"), here.target_of("ingestion")) == (THERE, here.target)
        chosen = Session(tmp_path, True, "other:9000", "", out, out)
        assert chosen.target_of("retrieval") == chosen.target == "other:9000"
