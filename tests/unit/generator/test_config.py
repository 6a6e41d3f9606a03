"""Settings of the generator."""

from __future__ import annotations

from typing import Any

import pytest

from services.generator.config import GeneratorConfig
from shared.config import load, to_dict
from shared.errors import ConfigError


def test_a_model_is_all_that_is_needed_and_plain_values_bring_the_settings_back() -> None:
    config = load(
        GeneratorConfig, {"model": "m", "engine": {"dtype": "float32"}, "deployment": {"num_replicas": 2}}
    )
    assert config.engine.dtype == "float32"
    assert load(GeneratorConfig, to_dict(config)) == config


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, "model: a value is required"),
        ({"model": ""}, "model: a directory"),
        ({"model": "m", "stop": ["\n\n", ""]}, "stop: a text is empty"),
        ({"model": "m", "resue": "full"}, "resue: unknown setting; did you mean 'reuse'"),
        ({"model": "m", "reuse": "magic"}, "reuse: 'magic' is not one of full, reordered, composite"),
        (
            {"model": "m", "reuse": "cacheclip"},
            "reuse: cacheclip needs a selector; name its application in selector.application",
        ),
        (
            {"model": "m", "selector": {"fallback": "cacheclip"}},
            "selector.fallback: 'cacheclip' is not one of",
        ),
        (
            {"model": "m", "selector": {"deadline_share": 1.5}},
            "selector.deadline_share: must be above 0 and at most 1",
        ),
        ({"model": "m", "selector": {"deadline_share": float("nan")}}, "selector.deadline_share"),
        ({"model": "m", "selector": {"timeout_s": 0}}, "selector.timeout_s: must be above 0"),
        ({"model": "m", "selector": {"grouping": "none"}}, "selector.grouping: 'none' is not one of"),
        ({"model": "m", "max_chunks": 0}, "max_chunks: must be at least 1"),
        ({"model": "m", "max_tokens": 9, "max_tokens_limit": 8}, "max_tokens: 9 is above max_tokens_limit"),
        ({"model": "m", "engine": {"dtype": "int4"}}, "engine.dtype: 'int4' is not one of"),
        ({"model": "m", "engine": {"resident_bytes": 0}}, "engine.resident_bytes: must be at least 1"),
        (
            {"model": "m", "adapter": "qa"},
            "adapter: 'qa' is none of engine.adapters (none is named there)",
        ),
        (
            {"model": "m", "adapter": "qa", "engine": {"adapters": {"law": "a", "tax": "b"}}},
            "adapter: 'qa' is none of engine.adapters (law, tax)",
        ),
        (
            {"model": "m", "engine": {"adapters": {"none": "a"}}},
            "engine.adapters: 'none' is no name of an adapter",
        ),
        (
            {"model": "m", "engine": {"adapters": {"qa": "a"}, "compile": True}},
            "engine.compile: compiled layers know no adapters",
        ),
        ({"model": "m", "engine": {"threads": 2}}, "engine.threads: unknown setting"),
    ],
)
def test_what_is_wrong_is_named(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as error:
        load(GeneratorConfig, values)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("values", "num_gpus"),
    [
        ({}, 0),
        ({"engine": {"device": "cuda"}}, 1),
        ({"engine": {"device": "cuda:0"}}, 1),
        ({"engine": {"device": "cuda"}, "deployment": {"num_gpus": 0.5}}, 0.5),
        ({"engine": {"device": "cpu"}, "deployment": {"num_gpus": 2}}, 2),
    ],
)
def test_the_gpus_that_ray_reserves_follow_from_the_device(values: dict[str, Any], num_gpus: float) -> None:
    config = load(GeneratorConfig, {"model": "m", **values})
    assert config.deployment.serve_options()["ray_actor_options"]["num_gpus"] == num_gpus


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:x", ""])
def test_a_device_that_torch_does_not_know_is_refused_by_name(device: str) -> None:
    with pytest.raises(ConfigError, match=r"engine\.device: .* is not one of cpu, cuda"):
        load(GeneratorConfig, {"model": "m", "engine": {"device": device}})
