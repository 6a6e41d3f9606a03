"""What questions told of chains, against all that was ever told."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shared.routing.chains import KnownChains

TOLD = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 900), st.integers(0, 30)), max_size=60)


@given(told=TOLD)
def test_a_chain_goes_as_far_back_as_was_told(told: list[tuple[int, int, int]]) -> None:
    """Parents are smaller keys, as identities are made of what is in front of them."""
    chains, known = KnownChains(), dict[int, tuple[int, int]]()
    for key, num_tokens, parent in told:
        parent %= key
        chains.tell(key, num_tokens, parent or None)
        known[key] = num_tokens, parent
    for key in range(1, 31):
        expected: list[tuple[int, int]] = []
        parent = known.get(key, (0, 0))[1]
        while parent in known:
            expected.insert(0, (parent, known[parent][0]))
            parent = known[parent][1]
        assert chains.chain(key) == tuple(expected)


def test_what_was_told_of_longest_ago_is_forgotten() -> None:
    chains = KnownChains(capacity=3)
    for key in (1, 2, 3, 1, 4):
        chains.tell(key, 10 * key, key - 1 or None)
    assert chains.chain(4) == ((3, 30),), "2 was forgotten"
    assert chains.chain(2) == ()


def test_a_circle_ends() -> None:
    chains = KnownChains()
    chains.tell(1, 10, 2)
    chains.tell(2, 10, 1)
    assert 0 < len(chains.chain(1)) <= 64
