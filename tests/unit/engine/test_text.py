"""Text of growing tokens: whole characters, and never a part of what may become a stop string."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.engine.decoding.text import Decode, Growth, TextStream
from shared.generation.asked import SamplingParams
from shared.generation.told import FinishReason


def of_bytes(ids: Sequence[int]) -> str:
    """A token is a byte; an unfinished character is shown as a replacement."""
    return bytes(ids).decode(errors="replace")


def of_words(ids: Sequence[int]) -> str:
    """A token is a word; as of many tokenizers, the first one of a text loses the blank in front of it."""
    return "".join((" one", " two", " three", "STOP", "ST", "OP", " end")[i] for i in ids).removeprefix(" ")


def of_pieces(text: str, size: int) -> Decode:
    """Tokens are the runs of so many characters of ``text``, in order."""
    return lambda ids: "".join(text[i * size : (i + 1) * size] for i in ids)


def push(stream: TextStream, ids: Sequence[int]) -> list[str]:
    return [stream.push(token_id) for token_id in ids]


def test_a_character_is_told_when_its_last_byte_is_there() -> None:
    assert push(TextStream(of_bytes, ()), "né".encode()) == ["n", "", "é"]


def test_what_never_became_a_character_is_told_at_the_end() -> None:
    stream = TextStream(of_bytes, ())
    assert push(stream, "né".encode()[:-1]) == ["n", ""]
    assert stream.finish() == "\ufffd"
    assert stream.finish() == ""


def test_a_token_that_is_decoded_otherwise_at_the_beginning_keeps_its_blank() -> None:
    assert push(TextStream(of_words, ()), [0, 1, 2]) == ["one", " two", " three"]


def test_a_stop_string_within_a_token_ends_the_text_in_front_of_it() -> None:
    stream = TextStream(of_words, ("STOP",))
    assert push(stream, [0, 3]) == ["one", ""]
    assert stream.stopped
    assert stream.finish() == ""


def test_a_stop_string_across_tokens_is_held_back_until_it_is_certain() -> None:
    stream = TextStream(of_words, ("STOP",))
    assert push(stream, [0, 4]) == ["one", ""]
    assert not stream.stopped
    assert push(stream, [5]) == [""]
    assert stream.stopped


def test_what_was_held_back_in_vain_is_told_with_what_follows() -> None:
    stream = TextStream(of_words, ("STOP",))
    assert push(stream, [0, 4, 1]) == ["one", "", "ST two"]
    assert push(stream, [4]) == [""]
    assert stream.finish() == "ST"
    assert not stream.stopped


SAID = "The gate is a function of the model. "


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (SAID + SAID, SAID),
        (SAID + "It ends." + " " + SAID, SAID + "It ends. "),
        (SAID + "The gate is a door of the house.", SAID + "The gate is a door of the house."),
        ("- the default of it is `off`\n- the default of it is `off`\n", "- the default of it is `off`\n"),
        ("No. No. No. It is not.", "No. No. No. It is not."),  # too short to tell
        (SAID + SAID[:30], SAID),  # cut off while it is said again
        (SAID + SAID[:9], SAID + SAID[:9]),
    ],
)
def test_a_sentence_that_was_said_ends_the_text_where_it_begins_again(text: str, told: str) -> None:
    for size in range(1, 12):  # a token may end one sentence and begin the next
        stream, shown = TextStream(of_pieces(text, size), (), stop_repeated=True), ""
        for i in range(-(-len(text) // size)):
            if not stream.stopped:
                shown += stream.push(i)
        assert shown + stream.finish() == told
        assert stream.stopped is (told != text)


def test_of_several_stop_strings_the_first_in_the_text_counts() -> None:
    stream = TextStream(of_words, ("two", " tw"))
    assert push(stream, [0, 1]) == ["one", ""]
    assert stream.stopped


def test_without_a_tokenizer_there_is_no_text() -> None:
    stream = TextStream(None, ())
    assert (push(stream, [1, 2]), stream.finish()) == (["", ""], "")


@given(
    text=st.text("abé🙂", max_size=30), stops=st.lists(st.text("abé🙂", min_size=1, max_size=4), max_size=3)
)
def test_the_text_is_what_is_in_front_of_the_first_stop_string_to_complete(
    text: str, stops: list[str]
) -> None:
    stream, told = TextStream(of_bytes, stops), ""
    for byte in text.encode():
        told += stream.push(byte)
        assert text.startswith(told)
        if stream.stopped:
            break
    told += stream.finish()
    ends = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    assert stream.stopped == bool(ends)
    assert told == (text[: min(begin for end, begin in ends if end == min(ends)[0])] if ends else text)


@pytest.mark.parametrize("stop", ["aab", "aaab"])
def test_an_overlapping_beginning_is_not_forgotten(stop: str) -> None:
    stream = TextStream(of_bytes, (stop,))
    assert "".join(push(stream, b"xaaaab")) == "x" + "a" * (5 - len(stop))
    assert stream.stopped


MARK, STOP = 6, 3


def ends(ids: Sequence[int], **more: Any) -> list[tuple[str, FinishReason | None]]:
    """What a branch of these tokens says of each of them."""
    growth = Growth(SamplingParams(max_tokens=4), TextStream(of_words, ("STOP",)), {MARK}, **more)
    return [growth.add(token_id) for token_id in ids]


def test_a_branch_ends_at_its_limit() -> None:
    assert [reason for _, reason in ends([0, 1, 2, 0])] == [None, None, None, FinishReason.LENGTH]


def test_a_branch_ends_at_an_end_mark_which_is_no_text() -> None:
    assert ends([0, MARK]) == [("one", None), ("", FinishReason.STOP)]


def test_a_branch_ends_at_a_stop_string() -> None:
    assert ends([0, STOP]) == [("one", None), ("", FinishReason.STOP)]


def test_a_branch_ends_where_its_grammar_is_complete() -> None:
    class Two:
        """Complete behind two tokens."""

        num_tokens = 0

        def push(self, token_id: int) -> None:
            self.num_tokens += 1

        @property
        def complete(self) -> bool:
            return self.num_tokens == 2

    assert ends([0, 1], grammar=Two()) == [("one", None), (" two", FinishReason.STOP)]


@pytest.mark.parametrize(("num_characters", "repeated"), [(23, False), (24, True)])
def test_a_text_that_ends_within_a_repetition_leaves_it_out_if_it_is_long_enough(
    num_characters: int, repeated: bool
) -> None:
    sentence = "The lease was signed by Ada in May."
    stream = TextStream(lambda ids: "".join(map(chr, ids)), (), stop_repeated=True)
    begun = sentence[:num_characters]
    text = "".join(stream.push(ord(c)) for c in f"{sentence} {begun}") + stream.finish()
    assert (text.strip(), stream.stopped) == (sentence if repeated else f"{sentence} {begun}", repeated)


def test_a_text_may_repeat_itself_unless_it_is_told_not_to() -> None:
    sentence = "The lease was signed by Ada in May."
    stream = TextStream(lambda ids: "".join(map(chr, ids)), ())
    assert "".join(stream.push(ord(c)) for c in f"{sentence} {sentence}") == f"{sentence} {sentence}"
    assert not stream.stopped
