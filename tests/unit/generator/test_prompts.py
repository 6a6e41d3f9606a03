"""Pieces of a request become checked ids."""

from __future__ import annotations

from typing import Any

import pytest

from services.generator.prompts import Prompts
from shared.errors import InvalidRequest
from shared.generation.pieces import Piece, Tokenized
from shared.packets import PacketIds
from shared.prompt import PromptTokenizer
from shared.prompt_template import PromptTemplate

VOCAB = 300


class Letters:
    """The least of a tokenizer: one id per character, BOS 1."""

    bos_token_id = 1

    def encode(self, text: str, **options: Any) -> list[int]:
        assert options == {"add_special_tokens": False, "split_special_tokens": True}
        return [ord(c) for c in text]


@pytest.fixture
def with_text() -> Prompts:
    template = PromptTemplate(prefix="P", chunk="<{text}>", question="?{question}!")
    return Prompts(PromptTokenizer(Letters(), template), VOCAB)


@pytest.fixture
def between_packets() -> Prompts:
    """Ids 300 and 301 in front of a chunk, 302 behind it."""
    template, packets = PromptTemplate(chunk="<{text}>", question="?{question}!"), PacketIds(VOCAB, 2, 1)
    return Prompts(PromptTokenizer(Letters(), template, packets), VOCAB, packets)


@pytest.fixture
def ids_only() -> Prompts:
    return Prompts(None, VOCAB)


def ids(text: str) -> tuple[int, ...]:
    return tuple(map(ord, text))


def test_text_goes_through_the_template(with_text: Prompts) -> None:
    assert with_text.prefix(None) == (1, ord("P"))
    assert with_text.chunks(["a"]) == (ids("<a>"),)
    assert with_text.questions(["a", "b"]) == (ids("?a!"), ids("?b!"))


def test_a_prefix_given_as_text_replaces_the_template_and_keeps_bos(with_text: Prompts) -> None:
    assert with_text.prefix("xy") == (1, *ids("xy"))


def test_ids_are_used_as_they_are(with_text: Prompts) -> None:
    assert with_text.prefix((5, 6)) == (5, 6)
    assert with_text.prefix(()) == ()
    assert with_text.chunks([(7,), (VOCAB - 1,)]) == ((7,), (VOCAB - 1,))
    assert with_text.questions([(8, 9)]) == ((8, 9),)


def test_chunks_stand_between_packets_however_they_come(between_packets: Prompts) -> None:
    whole = (300, 301, *ids("<a>"), 302)
    told = Tokenized(whole, "a")
    assert between_packets.chunks(["a", ids("<a>"), whole, told]) == (whole,) * 4
    assert between_packets.question("q", "a") == ids("?a!")
    assert between_packets.prefix("a") == (1, *ids("a"))
    with pytest.raises(InvalidRequest, match=r"chunks\[0\].token_ids\[1\]: -1 is outside"):
        between_packets.chunks([(300, 5, -1)])
    for empty in ((), (300, 301, 302), "  "):
        with pytest.raises(InvalidRequest, match=r"chunks\[0\]: is empty"):
            between_packets.chunks([empty])
    with pytest.raises(InvalidRequest, match=r"q.token_ids\[0\]: 300 is outside"):
        between_packets.question("q", (300,))


def test_a_model_without_tokenizer_has_no_prefix_of_its_own_and_takes_ids(ids_only: Prompts) -> None:
    assert ids_only.prefix(None) == ()
    assert ids_only.questions([(1, 2)]) == ((1, 2),)


@pytest.mark.parametrize("method", ["prefix", "chunks", "questions"])
def test_text_without_a_tokenizer_is_refused(ids_only: Prompts, method: str) -> None:
    piece = "hello"
    with pytest.raises(InvalidRequest, match="no tokenizer"):
        getattr(ids_only, method)(piece if method == "prefix" else [piece])


@pytest.mark.parametrize("wrong", [VOCAB, 2**32 - 1])
def test_an_id_outside_the_vocabulary_is_named(ids_only: Prompts, wrong: int) -> None:
    with pytest.raises(InvalidRequest, match=rf"chunks\[1\]\.token_ids\[2\]: {wrong} .*0 to 299"):
        ids_only.chunks([(1,), (1, 2, wrong)])
    with pytest.raises(InvalidRequest, match=r"questions\[0\]\.token_ids\[0\]"):
        ids_only.questions([(wrong,)])
    with pytest.raises(InvalidRequest, match=r"prefix\.token_ids\[0\]"):
        ids_only.prefix((wrong,))


@pytest.mark.parametrize("empty", ["", " \n", ()])
def test_empty_chunks_and_questions_are_named(with_text: Prompts, empty: Piece) -> None:
    with pytest.raises(InvalidRequest, match=r"chunks\[1\]: is empty"):
        with_text.chunks([(3,), empty])
    with pytest.raises(InvalidRequest, match=r"questions\[1\]: is empty"):
        with_text.questions([(3,), empty])


def test_no_question_at_all_is_refused(with_text: Prompts) -> None:
    with pytest.raises(InvalidRequest, match="questions: at least one"):
        with_text.questions([])
