"""Sizes of a system: against what the store writes, other arithmetic, and what the queue's formula says."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.cli.main import main
from cluster.sizing.decoder import Decoder, read_decoder
from cluster.sizing.plan import SystemPlan, size_of
from shared.errors import ConfigError
from shared.kv_buffers import ENCODINGS
from shared.kv_format import SealKey, SealKeys, inspect_chunk
from shared.measuring.shapes import QWEN2_7B, Shape
from shared.request import RequestContext
from tests.kv_chunks import chunk_bytes, chunk_id_of, origin_of
from tests.kv_stores import KnownNodes, agent_on, in_pieces


def decoder_of(shape: Shape) -> Decoder:
    return Decoder(
        shape.layers, shape.hidden, shape.heads, shape.kv_heads, shape.head_dim, shape.mlp, shape.vocab
    )


QWEN = decoder_of(QWEN2_7B)
CONFIG = {
    "num_hidden_layers": 28,
    "hidden_size": 3584,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "intermediate_size": 18944,
    "vocab_size": 152064,
    "torch_dtype": "bfloat16",
}


async def test_a_chunk_takes_what_the_store_writes(tmp_path: Path) -> None:
    chunk_id = chunk_id_of(0)
    data, ctx = chunk_bytes(chunk_id), RequestContext.create(tenant="acme")
    agent = agent_on(tmp_path, "home", KnownNodes(), keys=SealKeys([SealKey(b"k" * 32)]))
    await agent.put(ctx, chunk_id, len(data), in_pieces(data), origin_of(chunk_id))
    path = Path((await agent.open(ctx, [chunk_id]))[0].path)
    header, stored_bytes = inspect_chunk(path).header, path.stat().st_size
    await agent.close()
    layers, kv_heads = header.num_layers, header.num_kv_heads
    same = Decoder(layers, 8, 1, kv_heads, header.head_dim, 8, max(header.token_ids) + 1, header.dtype)
    assert same.chunk_bytes(header.num_tokens, header.encoding) == pytest.approx(stored_bytes, abs=256)


def test_sizes_are_those_of_the_benchmarks_and_of_the_documented_encodings() -> None:
    assert QWEN.kv_bytes_per_token == QWEN2_7B.kv_bytes_per_token == 57_344
    assert QWEN.flops(512, 256) == QWEN2_7B.flops(512, 256)
    assert QWEN.bytes_read(1, 4096) == QWEN2_7B.bytes_read(4096)
    bodies = {"exact": 29_360_128, "int8": 14_966_784, "int4": 9_175_040}  # docs/encodings.md
    for encoding in ENCODINGS:
        frame = QWEN.chunk_bytes(512, encoding) - bodies[encoding]
        assert 3_000 < frame < 25_000


def test_documents_and_prices_are_multiplied_out() -> None:
    plan = SystemPlan(documents=10, document_tokens=1025, chunk_tokens=512, cached_share=0.5)
    size = size_of(QWEN, plan, "exact")
    assert size.num_chunks == 30
    assert size.stored_bytes == 30 * size.chunk_bytes
    assert size.stored_per_month == pytest.approx(size.stored_bytes / 1e9 * (0.023 + 0.5 * 0.08))
    hours = QWEN.flops(512, 256) / 300e12 / 3600
    assert (size.prefill_h, size.prefill_price) == pytest.approx((30 * hours, 30 * hours * 3.0))
    assert size.break_even is not None
    assert size.break_even * size.prefill_price == pytest.approx(size.stored_per_month)


def test_loading_and_prefill_go_side_by_side() -> None:
    plan = SystemPlan(chunks=8, hit_share=0.75, question_tokens=64, load_gb_s=5, tflops=300)
    size = size_of(QWEN, plan, "int8")
    assert size.reusing.load_ms == pytest.approx(2 * size.chunk_bytes / 5e9 * 1e3)
    assert size.reusing.least_ttft_ms == max(size.reusing.load_ms, size.reusing.prefill_ms)
    assert size.full.load_ms == 0
    assert size.full.prefill_ms == pytest.approx(QWEN.flops(4096 + 64, 2048) / 300e12 * 1e3)
    recomputing = size_of(QWEN, replace(plan, recompute=0.2), "int8")
    assert recomputing.reusing.prefill_ms == pytest.approx(QWEN.flops(64 + 819, 4096) / 300e12 * 1e3)


@settings(deadline=None, max_examples=50)  # it writes files
@given(rate=st.floats(0.01, 10_000), ttft_ms=st.floats(20, 5_000), answer=st.integers(1, 2_000))
def test_the_fewest_replicas_whose_queues_are_short_enough(rate: float, ttft_ms: float, answer: int) -> None:
    plan = SystemPlan(rate=rate, ttft_ms=ttft_ms, answer_tokens=answer)
    for serving in (size_of(QWEN, plan, "exact").reusing, size_of(QWEN, plan, "exact").full):
        if serving.replicas is None:
            assert serving.least_ttft_ms >= ttft_ms
            continue

        def ttft_with(replicas: int, busy_s: float, least_ms: float) -> float:
            used = rate * busy_s / replicas
            return float("inf") if used >= 1 else least_ms + used * busy_s / (2 * (1 - used)) * 1e3

        busy_s, least_ms = serving.busy_ms / 1e3, serving.least_ttft_ms
        assert ttft_with(serving.replicas, busy_s, least_ms) <= ttft_ms * (1 + 1e-9)
        if serving.replicas > 1:
            assert ttft_with(serving.replicas - 1, busy_s, least_ms) >= ttft_ms * (1 - 1e-9)


def test_a_model_is_read_from_its_configuration(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    assert read_decoder(tmp_path) == read_decoder(tmp_path / "config.json") == QWEN
    inner = {"text_config": CONFIG, "vocab_size": 1}
    (tmp_path / "config.json").write_text(json.dumps(inner))
    assert read_decoder(tmp_path) == QWEN


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ("{", "cannot be read"),
        ("[]", "cannot be read"),
        (json.dumps({**CONFIG, "hidden_size": 0}), "does not say hidden_size"),
        (json.dumps({**CONFIG, "num_experts": 8}), "mixtures of experts"),
    ],
)
def test_what_is_no_dense_decoder_is_refused(tmp_path: Path, config: str, told: str) -> None:
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(ConfigError, match=told):
        read_decoder(tmp_path)


def invoke(*args: str) -> Result:
    return CliRunner().invoke(main, ["size", *args])


def test_the_command_tells_people_and_programs(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    model = ("--model", str(tmp_path / "config.json"))
    told: dict[str, Any] = json.loads(invoke(*model, "--documents", "7", "--output", "json").stdout)
    assert [one["encoding"] for one in told["sizes"]] == list(ENCODINGS)
    assert told["plan"]["documents"] == 7
    assert told["sizes"][0]["stored_bytes"] == told["sizes"][0]["chunk_bytes"] * 7 * 16
    text = invoke(*model, "--encoding", "int8", "--ttft-ms", "5").stdout
    assert "15.0 MB" in text
    assert "none: " in text  # replicas
    assert "int4" not in text


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (("--rate", "0"), "--rate: must be above 0"),
        (("--rate", "nan"), "--rate: must be above 0"),
        (("--rate", "inf"), "--rate: must be at most"),
        (("--hit-share", "1.5"), "--hit-share: must be from 0 to 1"),
        (("--documents", "-1"), "--documents: must be at least 1"),
        (("--storage-price", "-0.1"), "--storage-price: must not be negative"),
        (("--model", "no/such/model"), "--model: there is no directory no/such/model"),
        (("--model", "Qwen/Qwen2-7B"), "--model: Qwen/Qwen2-7B is not here"),
    ],
)
def test_nonsense_is_refused_by_its_option(args: tuple[str, ...], told: str) -> None:
    result = invoke("--model", "demo", *args)
    assert result.exit_code == 2
    assert told in result.stderr
