"""Names the modules whose decisions are mutated, the tests nearest to each, and the mutants that nothing can
tell from the original."""

from __future__ import annotations

from dataclasses import dataclass

MAX_MUTANTS = 200

TARGETS: dict[str, tuple[str, ...]] = {
    "shared/engine/admission.py": ("engine/test_admission.py", "engine/test_chunk_reads.py"),
    "shared/engine/decoding/choice.py": ("engine/test_choosing.py", "engine/test_draws.py"),
    "shared/engine/decoding/draws.py": ("engine/test_draws.py",),
    "shared/engine/decoding/text.py": ("engine/test_text.py",),
    "shared/engine/kv/chunk_reads.py": ("engine/test_chunk_reads.py",),
    "shared/engine/kv/load_or_compute.py": ("engine/test_load_or_compute.py",),
    "shared/engine/kv/residency.py": ("engine/test_residency.py", "engine/test_floors.py"),
    "shared/engine/request_queue.py": ("engine/test_request_queue.py",),
    "shared/engine/scheduler.py": ("engine/test_scheduler.py",),
    "shared/routing/costs.py": ("routing/test_costs.py",),
    "shared/routing/residency.py": ("routing/test_residency.py",),
    "shared/routing/router.py": ("routing/test_router.py",),
    "shared/selection/grouping.py": ("selection/test_grouping.py",),
    "shared/selection/mapping.py": ("selection/test_mapping.py",),
    "shared/selection/selector.py": ("selection/test_selector.py",),
    "services/generator/replica_choice.py": ("generator/test_replica_choice.py",),
    "services/kv_store/documents/leftovers.py": ("kv_store/test_leftovers.py",),
    "services/kv_store/documents/pins.py": ("kv_store/test_pins.py",),
    "services/kv_store/documents/quotas.py": ("kv_store/test_quotas.py", "kv_store/test_principal_quotas.py"),
    "services/kv_store/tiers/eviction.py": ("kv_store/test_eviction.py", "kv_store/test_tier_floors.py"),
    "services/kv_store/tiers/promotion.py": ("kv_store/test_promotion.py",),
    "services/kv_store/tiers/tenant_queue.py": ("kv_store/test_tenant_queue.py",),
    "services/kv_store/upkeep/garbage.py": ("kv_store/test_garbage.py",),
}
"""Tests: below ``tests/unit``."""


@dataclass(frozen=True, slots=True)
class Equivalent:
    """``line``: the mutated one, without the white space around it."""

    module: str
    line: str
    reason: str


EQUIVALENT: tuple[Equivalent, ...] = (
    Equivalent(
        "services/generator/replica_choice.py",
        "request.route_held = 0 if cost is None else sum(tier >= Tier.RESIDENT for tier in cost.tiers)",
        "no tier has a name behind that of RESIDENT in the alphabet",
    ),
    Equivalent(
        "services/generator/replica_choice.py",
        "if nodes is self._nodes:",
        "what is told again is taken again, and changes nothing",
    ),
    Equivalent(
        "services/kv_store/tiers/tenant_queue.py",
        "continue",
        "where a floor is full, nothing older fits in either",
    ),
    Equivalent(
        "services/kv_store/tiers/eviction.py",
        "if num_bytes == 0:",
        "counting on past enough changes nothing of the answer",
    ),
    Equivalent(
        "services/kv_store/tiers/eviction.py",
        "for _ in range((_MOST_USES - 1) * len(self._main.sizes)):",
        "where no victim was found in fewer rounds, the caller asks again",
    ),
    Equivalent(
        "shared/engine/request_queue.py",
        "if job is None or len(self.prefilling) is _MAX_PREFILL_JOBS:",
        "there are never more than these",
    ),
    Equivalent(
        "shared/engine/request_queue.py",
        "seen = branch.seen() if not branch.segment.length else []",
        "it is in what checks an invariant, for tests",
    ),
    Equivalent(
        "shared/routing/residency.py",
        "return (report.epoch, report.seq) <= (lane.epoch, lane.seq)",
        "equal ones have been told apart the line before",
    ),
    Equivalent(
        "shared/selection/grouping.py",
        "return (_in_windows if form <= Grouping.PAPER else _in_sliding_windows)(picked_T, chunk_lens)",
        "of the two forms that come here, the other one's name is behind PAPER's in the alphabet",
    ),
    Equivalent(
        "shared/selection/mapping.py",
        "touched_T: NDArray[np.bool_] = carry_ranks(np.where(picked_S, 0, UNTOUCHED), source, target) <= 0",
        "no rank is below 0",
    ),
    Equivalent(
        "shared/selection/selector.py",
        "[carry_ranks(r, chunk.auxiliary, chunk.primary) for chunk, r in zip(chunks, ranks, strict=False)]",
        "ranks are split by the chunks, so that there are as many",
    ),
    Equivalent(
        "shared/engine/scheduler.py",
        "continue",
        "where no room is left, none is left for those behind either",
    ),
)
