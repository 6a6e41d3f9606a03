"""What is counted of a generator's requests."""

from __future__ import annotations

import pytest

from services.generator.metering import following, readings, verdict_readings
from shared.engine.decoding.drafting import DraftCounts
from shared.engine.kv.conversations import ConversationCounts
from shared.engine.kv.late_chunks import LateCounts
from shared.engine.stats import EngineStats
from shared.errors import DeadlineExceeded, InternalError
from shared.generation.asked import Chunk
from shared.generation.modes import ReuseMode
from shared.generation.told import (
    BranchDoneEvent,
    DoneEvent,
    FinishReason,
    GrownEvent,
    TierLoad,
    Timings,
    TokenEvent,
    Usage,
)
from shared.metrics import table
from shared.metrics.recorder import Metrics
from tests.unit.metrics.test_recorder import samples

CHUNKS = (Chunk("a", (1, 2, 3, 4)), Chunk("b", (5, 6, 7, 8, 9, 10)))
USAGE = Usage(
    prompt_tokens=12,
    reused_tokens=9,
    recomputed_tokens=3,
    generated_tokens=5,
    loaded_tokens=4,
    selected_tokens=2,
    reuse=ReuseMode.CACHECLIP,
)
TIMINGS = Timings(
    queue_s=0.4, load_s=0.02, first_token_s=1.0, decode_s=0.6, total_s=1.6, select_s=0.03, select_wait_s=0.01
)


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def token(sample: int = 0) -> TokenEvent:
    return TokenEvent(0, sample, 1, "x", -1.0)


def ended(sample: int, reason: FinishReason = FinishReason.STOP) -> BranchDoneEvent:
    return BranchDoneEvent(0, sample, reason, "", 3)


def test_a_whole_answer_with_two_samples() -> None:
    metrics, clock = Metrics(), Clock()
    with following(metrics, CHUNKS, clock=clock) as followed:
        for at_s, sample in ((101.0, 0), (101.0, 1), (101.2, 0), (101.4, 1), (101.6, 0)):
            clock.now_s = at_s
            followed.on(token(sample))
        followed.on(ended(0))
        followed.on(ended(1, FinishReason.LENGTH))
        clock.now_s = 101.7
        followed.on(DoneEvent(USAGE, TIMINGS))
    told = samples(metrics)
    assert told["kvquilt_time_to_first_token_seconds_sum"] == pytest.approx(1.0)
    assert told["kvquilt_time_to_first_token_seconds_count"] == 1
    assert told["kvquilt_inter_token_latency_seconds_count"] == 3
    assert told["kvquilt_inter_token_latency_seconds_sum"] == pytest.approx(1.0)
    assert told["kvquilt_request_time_per_output_token_seconds_sum"] == pytest.approx(0.3)
    assert told["kvquilt_e2e_request_latency_seconds_sum"] == pytest.approx(1.7)
    assert told["kvquilt_request_queue_time_seconds_sum"] == pytest.approx(0.4)
    assert told["kvquilt_request_prefill_time_seconds_sum"] == pytest.approx(0.6)
    assert told["kvquilt_request_decode_time_seconds_sum"] == pytest.approx(0.6)
    assert told["kvquilt_request_inference_time_seconds_sum"] == pytest.approx(1.2)
    assert told["kvquilt_request_success_total{finished_reason=stop}"] == 1
    assert told["kvquilt_request_success_total{finished_reason=length}"] == 1
    assert told["kvquilt_forest_width_sum"] == 2
    assert told["kvquilt_load_seconds_sum"] == 0.02
    assert told["kvquilt_select_wait_seconds_sum"] == 0.01
    assert told["kvquilt_requests_total{mode=cacheclip}"] == 1
    assert told["kvquilt_recompute_ratio_sum{mode=cacheclip}"] == pytest.approx(0.2)


def test_loads_are_told_by_tier() -> None:
    metrics = Metrics()
    loads = TierLoad("memory", 0.002, 3, 300), TierLoad("disk", 0.25, 1, 100)
    for told in (loads, loads[1:]):
        with following(metrics, CHUNKS) as followed:
            followed.on(DoneEvent(USAGE, TIMINGS, loads=told))
    told_by_tier = samples(metrics)
    assert told_by_tier["kvquilt_tier_load_seconds_sum{tier=memory}"] == pytest.approx(0.002)
    assert told_by_tier["kvquilt_tier_load_seconds_sum{tier=disk}"] == pytest.approx(0.5)
    assert told_by_tier["kvquilt_tier_load_seconds_count{tier=disk}"] == 2
    assert told_by_tier["kvquilt_loaded_chunks_total{tier=memory}"] == 3
    assert told_by_tier["kvquilt_loaded_bytes_total{tier=memory}"] == 300
    assert told_by_tier["kvquilt_loaded_bytes_total{tier=disk}"] == 200


def test_prompts_tokens_add_up_over_where_they_came_from() -> None:
    metrics = Metrics()
    with following(metrics, CHUNKS) as followed:
        followed.on(DoneEvent(USAGE, TIMINGS))
    told = samples(metrics)
    by_source = {
        source: told[f"kvquilt_prompt_tokens_by_source_total{{source={source}}}"]
        for source in ("local_compute", "local_cache_hit", "external_kv_transfer")
    }
    assert by_source == {"local_compute": 3, "local_cache_hit": 5, "external_kv_transfer": 4}
    assert sum(by_source.values()) == told["kvquilt_prompt_tokens_total"] == 12
    assert told["kvquilt_prompt_tokens_cached_total"] == 9
    assert told["kvquilt_prefix_cache_hits_total"] == 5
    assert told["kvquilt_external_prefix_cache_queries_total"] == 7
    assert told["kvquilt_external_prefix_cache_hits_total"] == 4


def test_a_token_that_was_loaded_and_computed_anew_counts_once() -> None:
    metrics = Metrics()
    usage = Usage(
        prompt_tokens=12, reused_tokens=3, recomputed_tokens=9, generated_tokens=1, loaded_tokens=10
    )
    with following(metrics, CHUNKS) as followed:
        followed.on(DoneEvent(usage, TIMINGS))
    told = samples(metrics)
    assert told["kvquilt_prompt_tokens_by_source_total{source=local_compute}"] == 9
    assert told["kvquilt_prompt_tokens_by_source_total{source=external_kv_transfer}"] == 3
    assert told["kvquilt_prompt_tokens_by_source_total{source=local_cache_hit}"] == 0


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (DeadlineExceeded("late"), "abort"),
        (InternalError("broke"), "error"),
        (GeneratorExit(), "abort"),
    ],
)
def test_one_that_does_not_complete_is_counted_once(error: BaseException, reason: str) -> None:
    metrics = Metrics()

    def broken_off() -> None:
        with following(metrics, CHUNKS) as followed:
            followed.on(token())
            raise error

    with pytest.raises(type(error)):
        broken_off()
    told = samples(metrics)
    assert told[f"kvquilt_request_success_total{{finished_reason={reason}}}"] == 1
    assert told["kvquilt_time_to_first_token_seconds_count"] == 1
    assert "kvquilt_prompt_tokens_total" not in told


def test_a_live_forest_has_a_width_and_no_first_token() -> None:
    metrics = Metrics()
    with following(metrics, CHUNKS, grows=True) as followed:
        for branch in (1, 2, 1):
            followed.on(GrownEvent(branch, 1, "x", -1.0))
        followed.on(DoneEvent(USAGE, TIMINGS))
    told = samples(metrics)
    assert told["kvquilt_forest_width_sum"] == 2
    assert told["kvquilt_generation_tokens_total"] == 5
    assert "kvquilt_time_to_first_token_seconds_count" not in told
    assert "kvquilt_e2e_request_latency_seconds_count" not in told


def test_the_engine_as_of_its_last_step() -> None:
    metrics = Metrics()
    stats = EngineStats(
        resident_chunk_ids=("a", "b"),
        resident_bytes=600,
        private_bytes=50,
        running=3,
        paused=1,
        waiting=2,
        num_steps=9,
        used_bytes=250,
        capacity_bytes=1000,
        num_pauses=4,
        drafts=DraftCounts(5, 30, 12),
        late=LateCounts(3, 200, 64),
        conversation_bytes=70,
        conversations=ConversationCounts(4, 2, 96),
    )
    metrics.ask(lambda: readings(stats, private_capacity=500, bytes_per_token=10))
    told = samples(metrics)
    assert told["kvquilt_num_requests_running"] == 3
    assert told["kvquilt_num_requests_waiting"] == 3
    assert told["kvquilt_num_requests_waiting_by_reason{reason=deferred}"] == 1
    assert told["kvquilt_kv_cache_usage_perc"] == pytest.approx(0.2)
    assert told["kvquilt_cache_config_info{block_size=16,num_gpu_blocks=9}"] == 1
    assert told["kvquilt_num_preemptions_total"] == 4
    assert told["kvquilt_spec_decode_num_drafts_total"] == 5
    assert told["kvquilt_late_chunks_total"] == 3
    assert told["kvquilt_late_tokens_total"] == 200
    assert told["kvquilt_late_tokens_in_vain_total"] == 64
    assert told["kvquilt_spec_decode_num_draft_tokens_total"] == 30
    assert told["kvquilt_spec_decode_num_accepted_tokens_total"] == 12
    assert told["kvquilt_resident_chunks"] == 2
    assert told["kvquilt_conversation_turns_total{outcome=hit}"] == 4
    assert told["kvquilt_conversation_turns_total{outcome=miss}"] == 2
    assert told["kvquilt_conversation_tokens_total"] == 96
    assert told["kvquilt_conversation_bytes"] == 70


def test_a_verdict_is_in_one_state() -> None:
    metrics = Metrics()
    metrics.ask(lambda: verdict_readings("suspended"))
    told = {name: value for name, value in samples(metrics).items() if name.startswith("kvquilt_verdict")}
    assert told[f"kvquilt_{table.VERDICT.name}{{state=suspended}}"] == 1
    assert sum(told.values()) == 1
    assert len(told) == 4
