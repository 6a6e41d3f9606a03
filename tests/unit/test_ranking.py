import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.ranking import fuse_rankings, fuse_scores

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


def test_the_first_of_one_ranking_beats_what_is_in_the_middle_of_both() -> None:
    dense = [("gold", 0.9), *((f"d{i}", 0.5 - i / 1000) for i in range(10)), ("both", 0.45), ("last", 0.4)]
    words = [("w", 9.0), *((f"w{i}", 8.0 - i / 100) for i in range(10)), ("both", 5.0), ("worst", 3.0)]
    depth = len(dense)
    fused = [key for key, _ in fuse_scores([dense, words], depth, (0.5, 0.5))]
    assert fused.index("gold") < fused.index("both")
    by_rank = [key for key, _ in fuse_rankings([[key for key, _ in r] for r in (dense, words)])]
    assert by_rank[0] == "both"


def test_a_ranking_that_is_shorter_than_asked_for_scores_what_it_lacks_zero() -> None:
    fused = dict(fuse_scores([[("a", 0.9), ("b", 0.6), ("c", 0.3)], [("b", 4.0), ("c", 2.0)]], 9, (0.5, 0.5)))
    assert fused == pytest.approx({"a": 0.5, "b": 0.25 + 0.5, "c": 0.25})


def test_scores_of_any_scale_and_origin_fuse_alike() -> None:
    words = [("b", 4.0), ("c", 2.0), ("a", 1.0)]
    dense = [("a", 0.9), ("b", 0.6), ("c", 0.3)]
    moved = [(key, 0.7 + score / 10) for key, score in dense]
    for depth in (3, 9):
        first, second = (fuse_scores([ranking, words], depth, (0.5, 0.5)) for ranking in (dense, moved))
        assert [key for key, _ in first] == [key for key, _ in second]
        assert dict(first) == pytest.approx(dict(second))


def test_weights_of_one_and_none_are_the_one_ranking() -> None:
    dense, words = [("a", 0.9), ("b", 0.6), ("c", 0.1)], [("c", 4.0), ("b", 2.0), ("a", 1.0)]
    assert [key for key, _ in fuse_scores([dense, words], 3, (1.0, 0.0))] == ["a", "b", "c"]
    assert [key for key, _ in fuse_scores([dense, words], 3, (0.0, 1.0))] == ["c", "b", "a"]


def test_equal_scores_and_empty_rankings_fuse() -> None:
    assert fuse_scores([[], [("a", 2.0), ("b", 2.0)]], 9, (0.5, 0.5)) == [("a", 0.5), ("b", 0.5)]
    assert fuse_scores([[], []], 9, (0.5, 0.5)) == []
