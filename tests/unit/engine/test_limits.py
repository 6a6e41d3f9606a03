"""What the engine refuses, at load or per request, and that it says why."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    CohereConfig,
    GPT2Config,
    GPTJConfig,
    LlamaConfig,
    Phi3Config,
)

from shared.engine import load_model, wrap_model
from shared.errors import ContextTooLong, DeadlineExceeded, InvalidRequest, ModelUnsupported, StorageFull
from shared.generation.asked import PrefillRequest
from shared.generation.modes import ReuseMode
from shared.generation.told import ChunkStoredEvent
from shared.selection.stock import load_stock
from tests.engine_runs import Prompts, Run, Shelf, assert_equals_oracle, engine_of, run
from tests.oracles import ORACLES, VOCAB, tiny_config, tiny_model

_SMALL: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
}
_LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0] * 8,
    "long_factor": [4.0] * 8,
    "factor": 4.0,
}
_UNSUPPORTED = {
    "dynamic NTK": (
        tiny_config("llama", rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}),
        "dynamic",
    ),
    "longrope": (
        Phi3Config(
            **_SMALL,
            pad_token_id=0,
            rope_parameters=_LONGROPE,
            original_max_position_embeddings=64,
            max_position_embeddings=256,
        ),
        "longrope",
    ),
    "interleaved": (CohereConfig(**_SMALL, pad_token_id=0), "interleaved"),
    "interleaved in its own way": (
        GPTJConfig(vocab_size=VOCAB, n_embd=64, n_layer=1, n_head=4, rotary_dim=8, n_positions=128),
        "gptj",
    ),
    "ALiBi": (BloomConfig(vocab_size=VOCAB, hidden_size=64, n_layer=1, n_head=4), "bloom"),
    "absolute": (GPT2Config(vocab_size=VOCAB, n_embd=64, n_layer=1, n_head=4, n_positions=128), "gpt2"),
}


class TestModels:
    @pytest.mark.parametrize("name", _UNSUPPORTED)
    def test_a_rotation_that_cannot_be_reproduced_is_refused_with_its_name(self, name: str) -> None:
        config, word = _UNSUPPORTED[name]
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
        with pytest.raises(ModelUnsupported) as refusal:
            wrap_model(model)
        assert word in refusal.value.detail.lower()

    def test_a_model_that_is_not_causal_is_refused(self) -> None:
        from transformers import AutoModel

        with pytest.raises(ModelUnsupported):
            wrap_model(AutoModel.from_config(LlamaConfig(**_SMALL), dtype=torch.float32).eval())

    @pytest.mark.parametrize("kept", [0, 5, 0.5])
    def test_weights_that_are_truncated_are_refused_by_the_models_name(
        self, kept: float, tmp_path: Path
    ) -> None:
        tiny_model("llama").save_pretrained(tmp_path)
        weights = tmp_path / "model.safetensors"
        whole = weights.read_bytes()
        weights.write_bytes(whole[: int(kept * len(whole)) if kept < 1 else int(kept)])
        for load in (load_model, lambda path: load_stock(path, "float32", "cpu", (1,))):
            with pytest.raises(InvalidRequest, match=f"model: the weights of '{tmp_path}' cannot be loaded"):
                load(str(tmp_path))

    def test_equal_models_have_equal_fingerprints_and_others_do_not(self) -> None:
        prints = [
            wrap_model(tiny_model(family, seed, **changes)).fingerprint
            for family, seed, changes in (
                ("llama", 0, {}),
                ("llama", 0, {}),
                ("llama", 1, {}),
                ("llama_linear", 0, {}),
                ("llama", 0, {"rope_parameters": {"rope_type": "default", "rope_theta": 2e4}}),
                ("llama", 0, {"rms_norm_eps": 1e-3}),
            )
        ]
        assert prints[0] == prints[1]
        assert len(set(prints)) == 5


class TestRequests:
    def test_a_request_beyond_the_positions_is_refused_and_one_that_just_fits_is_served(self) -> None:
        model = {"max_position_embeddings": 64}
        engine = engine_of(hf_model=tiny_model("llama3", **model))
        prompts = Prompts(engine, seed=30)
        # the last token needs no position
        fits = prompts.request(prefix=4, chunks=(20, 20), questions=(10,), max_tokens=11)
        assert_equals_oracle(run(engine, fits)[0], tiny_model("llama3", **model))
        for request in (
            prompts.request(prefix=4, chunks=(20, 21), questions=(10,), max_tokens=11),
            prompts.request(prefix=4, chunks=(20, 20), questions=(5, 11), max_tokens=11),
            prompts.request(prefix=4, chunks=(20, 20), questions=(10,), max_tokens=12),
            prompts.request(
                prefix=4, chunks=(20, 20), questions=(10,), max_tokens=12, reuse=ReuseMode.COMPOSITE
            ),
            prompts.request(prefix=4, chunks=(20, 20), questions=(10,), max_tokens=12, reuse=ReuseMode.FULL),
        ):
            with pytest.raises(ContextTooLong, match="64"):
                engine.submit(request, lambda event: None)

    @pytest.mark.parametrize(
        "mode", [mode for mode in ReuseMode if mode.value in ORACLES], ids=lambda m: m.value
    )
    def test_a_request_beyond_the_sliding_window_is_refused_and_a_shorter_one_is_served(
        self, mode: ReuseMode
    ) -> None:
        engine = engine_of(hf_model=tiny_model("mistral", sliding_window=64))
        prompts = Prompts(engine, seed=31)
        fits = prompts.request(prefix=4, chunks=(20, 20), questions=(10,), max_tokens=9, reuse=mode)
        assert_equals_oracle(run(engine, fits)[0], tiny_model("mistral", sliding_window=64))
        too_long = prompts.request(prefix=4, chunks=(20, 20), questions=(20,), max_tokens=20, reuse=mode)
        with pytest.raises(ContextTooLong, match="window"):
            engine.submit(too_long, lambda event: None)

    @pytest.mark.parametrize(
        "pieces",
        [
            {"questions": ()},
            {"questions": ((),)},
            {"questions": ((5, VOCAB),)},
            {"questions": ((5, -1),)},
            {"chunks": ((7, VOCAB),)},
            {"chunks": ((),)},
            {"prefix": (VOCAB + 5,)},
        ],
        ids=str,
    )
    def test_pieces_that_cannot_be_are_refused(self, pieces: dict[str, Any]) -> None:
        engine = engine_of("qwen2")
        request = Prompts(engine, seed=32).request(**{"chunks": (5,)} | pieces)
        with pytest.raises(InvalidRequest):
            engine.submit(request, lambda event: None)

    def test_stop_strings_need_a_decoder(self) -> None:
        engine = engine_of("qwen2")
        with pytest.raises(InvalidRequest, match="stop"):
            engine.submit(Prompts(engine).request(stop=("x",)), lambda event: None)

    def test_a_deadline_in_the_past_fails_and_leaves_nothing(self) -> None:
        engine = engine_of("qwen2")
        prompts = Prompts(engine, seed=33)
        late = replace(prompts.request(), deadline_s=time.monotonic() - 1)
        (one, other) = run(engine, late, prompts.request())
        assert isinstance(one.error, DeadlineExceeded)
        assert other.done
        assert engine.stats().private_bytes == 0

    def test_a_request_without_chunks_or_prefix_is_served(self) -> None:
        engine = engine_of("qwen2")
        (one,) = run(engine, Prompts(engine, seed=34).request(prefix=(), chunks=(), questions=(1,)))
        assert_equals_oracle(one, tiny_model("qwen2"))


def stored_events(one: Run) -> list[ChunkStoredEvent]:
    """In the order of the request: chunks become durable in any order."""
    return sorted((e for e in one.events if isinstance(e, ChunkStoredEvent)), key=lambda e: e.index)


class TestStoredKv:
    def prefilled(self, shelf: Shelf) -> tuple[Any, Prompts, PrefillRequest]:
        engine = engine_of("qwen2", source=shelf)
        prompts = Prompts(engine, seed=35)
        prefix = prompts.ids(7)
        chunks = tuple(prompts.chunk(prefix, prompts.ids(n)) for n in (20, 1, 33))
        return engine, prompts, PrefillRequest("prefill", prefix, chunks)

    def test_prefill_stores_every_chunk_once_and_says_so(self) -> None:
        shelf = Shelf()
        engine, _, request = self.prefilled(shelf)
        (first,) = run(engine, request)
        assert stored_events(first) == [ChunkStoredEvent(i, existed=False) for i in range(3)]
        assert sorted(shelf.kv) == sorted(c.chunk_id for c in request.chunks)
        fresh = engine_of("qwen2", source=shelf)
        (second,) = run(fresh, request)
        assert stored_events(second) == [ChunkStoredEvent(i, existed=True) for i in range(3)]
        assert len(shelf.saves) == 3

    @pytest.mark.parametrize("mode", [ReuseMode.REORDERED, ReuseMode.COMPOSITE], ids=lambda m: m.value)
    def test_loaded_kv_answers_like_the_oracle_and_counts_as_reused(self, mode: ReuseMode) -> None:
        shelf = Shelf()
        engine, prompts, prefill = self.prefilled(shelf)
        run(engine, prefill)
        fresh = engine_of("qwen2", source=shelf)
        request = prompts.request(prefill.prefix_ids, [c.token_ids for c in prefill.chunks], reuse=mode)
        (one,) = run(fresh, request)
        assert_equals_oracle(one, tiny_model("qwen2"))
        assert one.done.usage.reused_tokens >= 54
        assert (
            one.done.usage.prompt_tokens
            == one.done.usage.reused_tokens + one.done.usage.recomputed_tokens
            == 7 + 54 + 9
        )

    def test_corrupt_kv_is_recomputed_and_written_back(self) -> None:
        shelf = Shelf()
        engine, prompts, prefill = self.prefilled(shelf)
        run(engine, prefill)
        shelf.saves.clear()
        broken = prefill.chunks[2].chunk_id
        shelf.corrupt.add(broken)
        fresh = engine_of("qwen2", source=shelf)
        request = prompts.request(prefill.prefix_ids, [c.token_ids for c in prefill.chunks])
        (one,) = run(fresh, request)
        assert_equals_oracle(one, tiny_model("qwen2"))
        fresh.shut_down()  # it is written back after the answer
        assert shelf.saves == [(broken, True)]
        assert broken not in shelf.corrupt

    def test_a_prefill_that_cannot_be_stored_fails_with_the_reason(self) -> None:
        shelf = Shelf()
        shelf.failure = StorageFull("no space left")
        engine, _, request = self.prefilled(shelf)
        (one,) = run(engine, request)
        assert isinstance(one.error, StorageFull)

    def test_an_answer_does_not_fail_because_kv_cannot_be_written_back(self) -> None:
        shelf = Shelf()
        shelf.failure = StorageFull("no space left")
        engine, prompts, _ = self.prefilled(shelf)
        (one,) = run(engine, prompts.request())
        assert_equals_oracle(one, tiny_model("qwen2"))
