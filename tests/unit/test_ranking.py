from hypothesis import given
from hypothesis import strategies as st

from shared.ranking import fuse_rankings

rankings = st.lists(st.lists(st.integers(0, 20), unique=True, max_size=10), max_size=4)


@given(rankings)
def test_scores_are_the_sums_of_reciprocal_ranks(given_rankings: list[list[int]]) -> None:
    fused = dict(fuse_rankings(given_rankings))
    assert fused.keys() == {key for ranking in given_rankings for key in ranking}
    for key, score in fused.items():
        expected = sum(1 / (60 + ranking.index(key) + 1) for ranking in given_rankings if key in ranking)
        assert abs(score - expected) < 1e-12


@given(rankings)
def test_best_scores_come_first(given_rankings: list[list[int]]) -> None:
    scores = [score for _, score in fuse_rankings(given_rankings)]
    assert scores == sorted(scores, reverse=True)


@given(st.lists(st.integers(), unique=True))
def test_one_ranking_keeps_its_order(ranking: list[int]) -> None:
    assert [key for key, _ in fuse_rankings([ranking])] == ranking


def test_what_both_rankings_like_beats_what_one_likes_most() -> None:
    assert fuse_rankings([["a", "b"], ["c", "b"]])[0][0] == "b"


def test_equal_scores_keep_the_order_of_first_appearance() -> None:
    assert [key for key, _ in fuse_rankings([["x"], ["y"]])] == ["x", "y"]


def test_a_key_counts_once_per_ranking() -> None:
    assert dict(fuse_rankings([["a", "b", "a"]])) == dict(fuse_rankings([["a", "b"]]))
