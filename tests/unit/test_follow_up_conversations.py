"""Conversations that follow-ups are measured by, and what is made of hits."""

from __future__ import annotations

from load_tests.follow_ups.__main__ import findings
from load_tests.follow_ups.conversations import conversations
from shared.earlier_turns import Speaker


def test_every_follow_up_means_what_was_spoken_of_last_and_does_not_name_it() -> None:
    documents, talks = conversations(30, seed=3)
    assert len(documents) == len(talks) == 30
    for document, talk in zip(documents, talks, strict=True):
        name = document.document_id
        assert name.casefold() not in talk.follow_up.casefold()
        assert name.casefold() in talk.named.casefold()
        *_, asked, answered = talk.turns
        assert (asked.speaker, answered.speaker) == (Speaker.USER, Speaker.ASSISTANT)
        assert name.casefold() in asked.text.casefold()
        assert talk.named not in asked.text
        assert talk.chunk_id in {chunk.chunk_id for chunk in document.chunks}
    assert 5 < sum(len(talk.turns) == 4 for talk in talks) < 25  # another thing was spoken of first
    assert conversations(30, seed=3) == (documents, talks)


def test_recall_is_told_with_its_interval_beside_that_of_the_question_as_it_is() -> None:
    found = {"last": [True, False] * 20, "rewrite": [True] * 40, "failed": [False] * 40}
    told = {one.name: one for one in findings(found, 3)}
    assert (told["recall@3_last"].value, told["recall@3_last"].n) == (0.5, 40)
    assert told["recall@3_last"].min is not None
    assert 0.3 < told["recall@3_last"].min < 0.5
    assert (told["recall@3_rewrite"].value, told["recall@3_rewrite"].baseline) == (1.0, 0.5)
    assert told["rewrite_failed"].value == 0.0
