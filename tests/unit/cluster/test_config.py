"""One YAML for everything."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cluster import applications
from cluster.compose import APPLICATIONS
from cluster.config import QuiltConfig, load_quilt
from cluster.models.settings import under
from cluster.paths import DEMO_MODEL, default_data_dir
from shared.config import load, merge_env, read_yaml, to_dict
from shared.errors import ConfigError
from shared.prompt import PromptTokenizer
from shared.prompt_config import PromptConfig


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = tmp_path / "model"
    directory.mkdir()
    (directory / "config.json").write_text("{}", encoding="utf-8")
    return directory


def test_nothing_given_is_the_demo_model_in_the_users_data_directory(tmp_path: Path) -> None:
    config = load_quilt({}, {"XDG_DATA_HOME": str(tmp_path)})
    assert config.model == str(DEMO_MODEL)
    assert config.data_dir == str(tmp_path / "kvquilt")


def test_shared_values_reach_the_sections_that_need_them(tmp_path: Path, model: Path) -> None:
    config = load_quilt({"data_dir": str(tmp_path), "model": str(model)}, {})
    assert config.generator.model == config.ingestion.model == str(model)
    assert config.kv_store.directory == str(tmp_path / "kv")
    assert config.retrieval.milvus_uri == str(tmp_path / "index.db")


@pytest.mark.parametrize(
    ("named", "served"),
    [
        ("demo", "demo"),
        (str(DEMO_MODEL), "demo"),
        ("smollm2", "smollm2"),
        ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B"),
        ("Qwen/Qwen3-0.6B@c1899de", "Qwen/Qwen3-0.6B"),
        ("./Qwen3-0.6B-Q8_0.gguf", "Qwen3-0.6B-Q8_0"),
        ("/models/served", "served"),
    ],
)
def test_callers_over_http_ask_for_the_model_by_the_name_that_the_operator_used(
    tmp_path: Path, named: str, served: str
) -> None:
    def elsewhere(model: str) -> str:
        return "/where/it/was/found"

    config = load_quilt({"data_dir": str(tmp_path), "model": named}, {}, resolve=elsewhere)
    assert config.gateway.http.model == served
    given = {"data_dir": str(tmp_path), "model": named, "gateway": {"http": {"model": "answers"}}}
    assert load_quilt(given, {}, resolve=elsewhere).gateway.http.model == "answers"


def test_a_section_wins_over_the_shared_value(tmp_path: Path) -> None:
    config = load_quilt({"data_dir": str(tmp_path), "retrieval": {"milvus_uri": "http://milvus:19530"}}, {})
    assert config.retrieval.milvus_uri == "http://milvus:19530"


def test_an_option_of_a_section_does_not_hide_that_the_section_is_none() -> None:
    values = under({"ingestion": {"kv_context": "none"}}, {"ingestion": 3, "model": "demo"})
    with pytest.raises(ConfigError, match="ingestion"):
        load_quilt(values, {}, resolve=str)


def test_the_prompt_reaches_those_that_make_prompts(tmp_path: Path, model: Path) -> None:
    (model / "quilt.yaml").write_text("prompt: {thinking: true, date: 2025-03-09}\n", encoding="utf-8")
    said = {"data_dir": str(tmp_path), "model": str(model), "prompt": {"system": "Be brief."}}
    config = load_quilt(said, {"KVQUILT_PROMPT__INSTRUCTION": "Read this."})
    prompt = PromptConfig(system="Be brief.", instruction="Read this.", date="2025-03-09", thinking=True)
    assert [config.prompt, config.generator.prompt, config.ingestion.prompt, config.selector.prompt] == [
        prompt
    ] * 4
    with pytest.raises(ConfigError, match=r"^prompt.date: must be a day"):
        load_quilt({"data_dir": str(tmp_path), "prompt": {"date": "today"}}, {})
    with pytest.raises(ConfigError, match=r"^prompt.template: 'jinja' is not one of auto, chat"):
        load_quilt({"data_dir": str(tmp_path), "prompt": {"template": "jinja"}}, {})


def test_what_suits_the_model_applies_until_the_operator_says_otherwise(tmp_path: Path, model: Path) -> None:
    (model / "quilt.yaml").write_text("ingestion: {chunk_tokens: 96}\ngateway: {k: 3}\n", encoding="utf-8")
    config = load_quilt({"data_dir": str(tmp_path), "model": str(model), "gateway": {"k": 5}}, {})
    assert config.ingestion.chunk_tokens == 96
    assert config.gateway.k == 5
    (model / "quilt.yaml").write_text("data_dir: /elsewhere\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="data_dir"):
        load_quilt({"model": str(model)}, {})


def test_adapters_may_lie_beside_the_model_that_names_them_or_where_the_stack_is_started(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in (model / "qa", tmp_path / "law"):
        place.mkdir()
    settings = "generator: {adapter: qa, engine: {adapters: {qa: qa, gone: nowhere}}}\n"
    (model / "quilt.yaml").write_text(settings, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    values = {"data_dir": str(tmp_path), "model": str(model)}
    brought = load_quilt(values, {}).generator
    assert (brought.adapter, brought.engine.adapters) == ("qa", {"qa": str(model / "qa"), "gone": "nowhere"})
    named = {"law": "law", "far": "/far/away"}
    own = values | {"generator": {"adapter": "law", "engine": {"adapters": named}}}
    both = load_quilt(own, {"KVQUILT_GENERATOR__ENGINE__DTYPE": "float32"}).generator
    assert both.adapter == "law"
    assert both.engine.adapters == brought.engine.adapters | named | {"law": str(tmp_path / "law")}
    with pytest.raises(ConfigError, match=r"generator\.adapter: 'tax' is none of engine\.adapters"):
        load_quilt(values | {"generator": {"adapter": "tax"}}, {})
    with pytest.raises(ConfigError, match=r"generator\.engine\.adapters: expected a mapping"):
        load_quilt(values | {"generator": {"engine": {"adapters": "qa"}}}, {})


def test_an_adapter_beside_the_model_is_served_where_requests_go_with_it(tmp_path: Path, model: Path) -> None:
    beside = model / "adapters" / "qa"
    beside.mkdir(parents=True)
    values = {"data_dir": str(tmp_path), "model": str(model)}
    assert load_quilt(values, {}).generator.engine.adapters == {}
    asked = load_quilt(values, {"KVQUILT_GENERATOR__ADAPTER": "qa"}).generator
    assert (asked.adapter, asked.engine.adapters) == ("qa", {"qa": str(beside)})
    own = {"adapter": "qa", "engine": {"adapters": {"qa": "/my/own", "law": "/law"}}}
    named = load_quilt(values | {"generator": own}, {}).generator
    assert named.engine.adapters == {"qa": "/my/own", "law": "/law"}
    with pytest.raises(ConfigError, match=r"generator\.adapter: 'tax' is none of engine\.adapters"):
        load_quilt(values | {"generator": {"adapter": "tax"}}, {})


def test_packets_may_lie_beside_the_model_and_go_with_isolated_chunks_alone(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in (model / "theirs", tmp_path / "ours"):
        place.mkdir()
    (model / "quilt.yaml").write_text("prompt: {packets: theirs}\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    values = {"data_dir": str(tmp_path), "model": str(model), "ingestion": {"kv_context": "none"}}
    brought = load_quilt(values, {})
    assert brought.prompt.packets == brought.generator.prompt.packets == str(model / "theirs")
    own = load_quilt(values | {"prompt": {"packets": "ours"}}, {})
    assert own.ingestion.prompt.packets == str(tmp_path / "ours")
    assert load_quilt(values | {"prompt": {"packets": ""}}, {}).prompt.packets == ""
    for name in ("named", "ours"):
        (model / "packets" / name).mkdir(parents=True)
    named = load_quilt(values | {"prompt": {"packets": "named"}}, {})
    assert named.generator.prompt.packets == str(model / "packets" / "named")
    assert load_quilt(values | {"prompt": {"packets": "ours"}}, {}).prompt.packets == str(tmp_path / "ours")
    with pytest.raises(ConfigError, match=r"^ingestion\.kv_context: packets .* set it to none"):
        load_quilt(values | {"ingestion": {"kv_context": "document"}}, {})
    with pytest.raises(ConfigError, match=r"^selector\.model: with packets .* set it to ''"):
        load_quilt(values | {"selector": {"model": str(model)}}, {})


def test_a_model_may_bring_its_auxiliary_and_who_asks_the_selector_is_told(
    tmp_path: Path, model: Path
) -> None:
    def loaded(resolve: Callable[[str], str] | None = None, **selector: str) -> QuiltConfig:
        values: dict[str, object] = {"data_dir": str(tmp_path), "model": str(model)}
        values |= {"selector": selector} if selector else {}
        return load_quilt(values, {}, resolve)

    auxiliary = model / "auxiliary"
    auxiliary.mkdir()
    (auxiliary / "config.json").write_text("{}", encoding="utf-8")
    without = loaded()
    assert without.selector.model == without.gateway.selector == without.ingestion.selector == ""
    assert without.generator.selector.application == ""
    (model / "quilt.yaml").write_text("selector: {model: auxiliary, threads: 3}\n", encoding="utf-8")
    for config in (loaded(), loaded(str)):
        assert (config.selector.model, config.selector.primary, config.selector.threads) == (
            str(auxiliary),
            str(model),
            3,
        )
        assert (
            config.gateway.selector
            == config.ingestion.selector
            == config.generator.selector.application
            == "selector"
        )
    off = loaded(model="")
    assert off.selector.model == off.gateway.selector == off.ingestion.selector == ""
    assert loaded(model="HuggingFaceTB/SmolLM2-135M").selector.model == "HuggingFaceTB/SmolLM2-135M"
    with pytest.raises(ConfigError, match=r"selector\.model: there is no directory"):
        loaded(model="./nowhere/to/be/found")


def test_an_operator_may_name_another_auxiliary_of_the_model(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loaded(named: str, resolve: Callable[[str], str] | None = None) -> str:
        values = {"data_dir": str(tmp_path), "model": str(model), "selector": {"model": named}}
        return load_quilt(values, {}, resolve).selector.model

    for place in (model / "usual", model / "tuned", model / "here", tmp_path / "here"):
        place.mkdir()
        (place / "config.json").write_text("{}", encoding="utf-8")
    (model / "unread").mkdir()
    (model / "quilt.yaml").write_text("selector: {model: usual}\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert loaded("tuned") == loaded("tuned", str) == str(model / "tuned")
    assert loaded("here") == str(tmp_path / "here")
    assert loaded(str(model / "usual")) == str(model / "usual")
    assert loaded("elsewhere") == "elsewhere"
    with pytest.raises(ConfigError, match=r"selector\.model: .*unread holds no config\.json"):
        loaded("unread")


def test_the_demo_model_brings_an_auxiliary_for_isolated_chunks(tmp_path: Path) -> None:
    values: dict[str, object] = {"data_dir": str(tmp_path), "ingestion": {"kv_context": "none"}}
    assert load_quilt(values, {}).selector.model == str(DEMO_MODEL / "auxiliary")
    tuned = load_quilt(values | {"selector": {"model": "auxiliary-gain"}}, {})
    assert tuned.selector.model == str(DEMO_MODEL / "auxiliary-gain")


def test_the_environment_wins_over_the_file(tmp_path: Path) -> None:
    environ = {
        "KVQUILT_GRPC_PORT": "9100",
        "KVQUILT_GATEWAY__K": "3",
        "KVQUILT_DATA_DIR": str(tmp_path / "b"),
    }
    config = load_quilt({"grpc_port": 9200, "data_dir": str(tmp_path / "a"), "gateway": {"k": 5}}, environ)
    assert (config.grpc_port, config.gateway.k, config.data_dir) == (9100, 3, str(tmp_path / "b"))


@pytest.mark.parametrize("text", ["You are: a: guide", "*token", "2026-13-01", 10**5 * "["])
def test_what_is_no_yaml_is_named_and_a_variable_not_quoted(text: str) -> None:
    with pytest.raises(ConfigError, match=r"quilt\.yaml: not valid YAML: "):
        read_yaml(f"system: {text}", "quilt.yaml")
    with pytest.raises(ConfigError, match=r"^KVQUILT_PROMPT__SYSTEM: not valid YAML") as error:
        merge_env({}, {"KVQUILT_PROMPT__SYSTEM": text})
    assert text[:6] not in error.value.detail


def test_log_settings_reach_every_service_and_one_service_may_differ(tmp_path: Path) -> None:
    values = {
        "data_dir": str(tmp_path),
        "log": {"level": "DEBUG"},
        "gateway": {"deployment": {"log": {"level": "ERROR"}}},
    }
    config = load_quilt(values, {})
    assert config.kv_store.deployment.log.level == "DEBUG"
    assert config.gateway.deployment.log.level == "ERROR"


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ({"grcp_port": 1}, r"grcp_port: unknown setting; did you mean 'grpc_port'"),
        (
            {"generator": {"reuze": "full"}},
            r"generator\.reuze: unknown setting; did you mean 'generator.reuse'",
        ),
        ({"gateway": {"k": "many"}}, r"gateway\.k: expected int"),
        ({"gateway": 3}, "gateway: expected a section"),
        ({"grpc_port": 0}, "grpc_port: must be 1 to 65535"),
        ({"grpc_port": 8000}, "http_port: is 8000, like grpc_port"),
        ({"log": {"level": "LOUD"}}, r"log\.level"),
        ({"model": "/does/not/exist"}, "model: there is no directory"),
    ],
)
def test_what_is_wrong_is_named(values: dict[str, object], names: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=names):
        load_quilt({"data_dir": str(tmp_path), **values}, {})


def test_a_directory_that_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"holds no config\.json"):
        load_quilt({"model": str(tmp_path)}, {})


def test_an_application_of_a_cluster_is_built_without_the_model(tmp_path: Path) -> None:
    missing = str(tmp_path / "forgotten")
    for name in APPLICATIONS:
        assert applications.build(name, {"data_dir": str(tmp_path), "model": missing})
    with pytest.raises(ConfigError, match="there is no directory"):
        PromptTokenizer.of_model(missing)


def test_a_hub_id_is_left_alone_and_a_relative_directory_made_absolute(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(model.parent)
    assert load_quilt({"model": "Qwen/Qwen2.5-0.5B"}, {}).model == "Qwen/Qwen2.5-0.5B"
    assert load_quilt({"model": "./model"}, {}).model == str(model)


def test_a_config_survives_json(tmp_path: Path) -> None:
    config = load_quilt({"data_dir": str(tmp_path)}, {})
    assert load(QuiltConfig, json.loads(json.dumps(to_dict(config)))) == config


def test_the_data_directory_is_the_chosen_one_else_xdgs_else_the_homes() -> None:
    assert default_data_dir({"KVQUILT_DATA_DIR": "/x", "XDG_DATA_HOME": "/y"}) == Path("/x")
    assert default_data_dir({"XDG_DATA_HOME": "/y"}) == Path("/y/kvquilt")
    assert default_data_dir({}) == Path.home() / ".local" / "share" / "kvquilt"


def test_reading_settings_takes_neither_torch_nor_ray() -> None:
    program = (
        "import sys, cluster.applications; print([m for m in ('torch', 'transformers', 'ray') "
        "if m in sys.modules])"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", program], check=True, capture_output=True, text=True
        ).stdout.strip()
        == "[]"
    )
