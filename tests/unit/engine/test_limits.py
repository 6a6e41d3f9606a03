"""What the engine refuses, per request, and that it says why."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import Any

import pytest

from shared.errors import ContextTooLong, DeadlineExceeded, InvalidRequest, StorageFull
from shared.generation.asked import PrefillRequest
from shared.generation.modes import ReuseMode
from shared.generation.told import ChunkStoredEvent
from tests.engine_runs import Prompts, Run, Shelf, assert_equals_oracle, engine_of, run
from tests.oracles import ORACLES, VOCAB, tiny_model


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


def test_an_engine_that_is_closed_during_a_step_ends() -> None:
    """The step takes the news of it, so nothing is left to wake the engine with."""
    engine = engine_of()
    engine._inbox.post(engine.close)
    running = threading.Thread(target=engine.run, daemon=True)
    running.start()
    running.join(timeout=30)
    assert not running.is_alive()
