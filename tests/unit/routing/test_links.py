"""What replicas ask of links that they share adds up, and nonsense adds nothing."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from shared.routing.costs import MOST_MS
from shared.routing.links import busy_ms, with_shared_links

JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["disk", "peer", "x"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["disk", "peer"]), inner),
    max_leaves=4,
)


def test_peers_and_the_object_store_share_the_network_and_disks_work_beside_it() -> None:
    assert busy_ms([("peer", 3.0), ("objects", 4.0), ("disk", 5.0)]) == 7.0
    assert busy_ms([]) == 0.0


@given(
    st.lists(st.fixed_dictionaries({}, optional={"load": JUNK, "loading": JUNK, "age_ms": JUNK}), max_size=4)
)
def test_whatever_a_replica_says_links_are_busy_for_a_time_that_there_is(
    notices: list[dict[str, Any]],
) -> None:
    for before, told in zip(notices, with_shared_links(notices), strict=True):
        assert "loading" not in told
        if isinstance(before.get("load"), dict):
            assert 0 <= told["load"]["loading_ms"] <= MOST_MS
        else:
            assert told.get("load") == before.get("load") or told["load"] != told["load"]
