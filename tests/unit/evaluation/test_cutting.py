"""What of a case's documents is placed in front of its question."""

from __future__ import annotations

import pytest

from cluster.evaluation.cases import EvalDocument
from cluster.evaluation.cutting import without_middle
from shared.errors import ContextTooLong
from tests.unit.evaluation.words import word_cutter

DOCUMENTS = [EvalDocument(" ".join(f"{name}{i}." for i in range(40)), name) for name in "ab"]


def test_chunks_of_all_documents_are_placed_in_order_where_they_fit() -> None:
    cut = word_cutter(200).cut(DOCUMENTS, "Who is it?", 10)
    assert cut.placed == tuple(range(len(cut.texts)))
    assert " ".join(cut.texts) == " ".join(document.text for document in DOCUMENTS)
    assert [source.title for source in cut.sources] == ["a", "b"]
    assert [cut.texts[i] for source in cut.sources for i in source.passages] == list(cut.texts)
    assert [cut.document_of[i] for i in range(len(cut.texts))] == [
        number for number, source in enumerate(cut.sources) for _ in source.passages
    ]
    assert cut.num_tokens == 80


def test_what_is_too_long_loses_its_middle() -> None:
    room = 50
    cut = word_cutter(2 + 6 + 10 + room).cut(DOCUMENTS, "Who is it?", 10)
    assert cut.num_tokens <= room
    assert 0 in cut.placed
    assert len(cut.texts) - 1 in cut.placed
    missing = sorted(set(range(len(cut.texts))) - set(cut.placed))
    assert missing == list(range(missing[0], missing[-1] + 1))


def test_where_not_one_chunk_fits_the_option_is_named() -> None:
    with pytest.raises(ContextTooLong, match=r"--length: 20 tokens leave 2 .* raise it, or lower --max-tok"):
        word_cutter(20).cut(DOCUMENTS, "Who is it?", 10)


@pytest.mark.parametrize(
    ("lens", "room", "kept"),
    [
        ([], 5, ()),
        ([3, 3], 6, (0, 1)),
        ([3, 3, 3], 6, (0, 2)),
        ([3, 3, 3, 3], 9, (0, 1, 3)),
        ([9, 1], 5, ()),
    ],
)
def test_pieces_are_kept_from_both_ends(lens: list[int], room: int, kept: tuple[int, ...]) -> None:
    assert without_middle(lens, room) == kept
