"""Tokens of one tokenizer become those of another by the characters they stand for; nothing is lost, nothing
comes along."""

from __future__ import annotations

import json
import unicodedata
from functools import lru_cache

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from shared.errors import InvalidRequest, ModelUnsupported
from shared.prompt import PromptTokenizer
from shared.prompt_template import PromptTemplate
from shared.selection.mapping import UNTOUCHED, carry_picks, carry_ranks, carry_scores
from shared.selection.spans import SpanTokenizer, TokenSpans
from tests.token_families import FAMILIES, texts, tokenizer_of

PROPERTY = settings(
    max_examples=300, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
families = st.sampled_from(FAMILIES)


@lru_cache
def spans_by(family: str) -> SpanTokenizer:
    return SpanTokenizer(tokenizer_of(family), family)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[TokenSpans, TokenSpans, NDArray[np.bool_]]:
    """A text's tokens by two tokenizers, perhaps the same, and some of the first's."""
    text = draw(texts)
    source, target = spans_by(draw(families)).tokenize(text), spans_by(draw(families)).tokenize(text)
    seed, part = draw(st.integers(0, 99)), draw(st.sampled_from((0.02, 0.2, 0.7)))
    return source, target, np.random.default_rng(seed).random(len(source)) < part


def spans(tokens: TokenSpans) -> list[range]:
    return [range(a, b) for a, b in zip(tokens.starts.tolist(), tokens.ends.tolist(), strict=True)]


def touch(a: range, b: range) -> bool:
    return bool(set(a) & set(b))


def plain_twin(tokenizer: Tokenizer) -> Tokenizer:
    """Without the special pieces that a Unigram model would find in a text that spells them."""
    parts = json.loads(tokenizer.to_str())
    if isinstance(parts["model"]["vocab"], list):
        special = {token["content"] for token in parts["added_tokens"] if token["special"]}
        for token in parts["added_tokens"]:
            token["content"] = f"\ue000{token['content']}" if token["special"] else token["content"]
        for entry in parts["model"]["vocab"]:
            entry[0] = f"\ue000{entry[0]}" if entry[0] in special else entry[0]
    twin: Tokenizer = Tokenizer.from_str(json.dumps(parts))
    return twin


class TestSpans:
    @PROPERTY
    @given(texts, families)
    def test_are_those_of_the_slow_twin(self, text: str, family: str) -> None:
        """Character by character: who stands for it, and if nobody does, who takes it over."""
        tokenizer = plain_twin(tokenizer_of(family))
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.post_processor = None
        tokenizer.encode_special_tokens = True
        encoding, num_chars = tokenizer.encode(text, add_special_tokens=False), max(1, len(text))
        owners: list[set[int]] = [set() for _ in range(num_chars)]
        for token, (start, end) in enumerate(encoding.offsets):
            for char in range(start, end) if end > start else [min(start, num_chars - 1)]:
                owners[char].add(token)
        covered = [c for c in range(num_chars) if owners[c]]
        for char in set(range(num_chars)) - set(covered) if covered else []:
            in_front = max((c for c in covered if c < char), default=None)
            behind = min((c for c in covered if c > char), default=None)
            between = text[(-1 if in_front is None else in_front) + 1 : char + 1]
            changes = all(
                unicodedata.category(c)[0] == "M" or unicodedata.category(c) == "Cf" for c in between
            )
            taken_by = in_front if behind is None or (in_front is not None and changes) else behind
            assert taken_by is not None
            owners[char] = owners[taken_by]
        ours = spans_by(family).tokenize(text)
        assert ours.token_ids == tuple(encoding.ids)
        assert [
            {t for t, span in enumerate(spans(ours)) if char in span} for char in range(num_chars)
        ] == owners

    @pytest.mark.parametrize("family", FAMILIES)
    @PROPERTY
    @given(texts)
    def test_ids_are_those_that_prompts_are_made_of(self, family: str, text: str) -> None:
        prompts = PromptTokenizer(
            PreTrainedTokenizerFast(tokenizer_object=tokenizer_of(family)), PromptTemplate()
        )
        assert spans_by(family).tokenize(text).token_ids == prompts.encode(text)

    def test_a_dropped_space_belongs_to_the_word_behind_a_dropped_accent_to_the_letter_in_front(self) -> None:
        tokens = spans_by("WordPiece").tokenize("the e\u0301  the  ")
        assert spans(tokens) == [range(0, 3), range(3, 6), range(6, 13)]

    def test_bytes_of_an_emoji_all_stand_for_the_emoji(self) -> None:
        for family in ("byte-level BPE", "Unigram, byte fallback"):
            tokens = spans_by(family).tokenize("a😀a")
            assert spans(tokens).count(range(1, 2)) >= 3

    def test_what_looks_like_a_special_token_stays_text(self) -> None:
        assert len(spans_by("byte-level BPE").tokenize("<s>")) == 3
        assert len(spans_by("byte-level BPE").tokenize("<think>")) == 1

    def test_settings_of_the_tokenizer_given_are_left_alone(self) -> None:
        tokenizer = tokenizer_of("Unigram")
        SpanTokenizer(tokenizer, "u")
        assert tokenizer.truncation is not None
        assert tokenizer.padding is not None

    def test_half_a_surrogate_pair_is_refused(self) -> None:
        with pytest.raises(InvalidRequest, match="surrogate"):
            spans_by("WordPiece").tokenize("a\ud83d")

    def test_a_tokenizer_without_offsets_is_refused_by_name(self) -> None:
        class Slow:
            is_fast = False

        with pytest.raises(ModelUnsupported, match=r"'aux-1'.*Slow gives no character offsets"):
            SpanTokenizer(Slow(), "aux-1")


class TestMapping:
    @PROPERTY
    @given(pairs())
    def test_selects_every_token_that_a_picked_one_touches_and_no_other(
        self, pair: tuple[TokenSpans, TokenSpans, NDArray[np.bool_]]
    ) -> None:
        source, target, picked = pair
        chosen = [span for span, pick in zip(spans(source), picked, strict=True) if pick]
        expected = [any(touch(span, one) for one in chosen) for span in spans(target)]
        assert carry_picks(picked, source, target).tolist() == expected

    @PROPERTY
    @given(pairs())
    def test_everything_selects_everything_and_nothing_nothing(
        self, pair: tuple[TokenSpans, TokenSpans, NDArray[np.bool_]]
    ) -> None:
        source, target, _ = pair
        assert not carry_picks(np.zeros(len(source), dtype=bool), source, target).any()
        if len(source):
            assert carry_picks(np.ones(len(source), dtype=bool), source, target).all()

    @PROPERTY
    @given(pairs(), st.integers(0, 10))
    def test_more_picks_never_select_less(
        self, pair: tuple[TokenSpans, TokenSpans, NDArray[np.bool_]], seed: int
    ) -> None:
        source, target, picked = pair
        more = picked | (np.random.default_rng(seed).random(len(source)) < 0.3)
        assert not (carry_picks(picked, source, target) & ~carry_picks(more, source, target)).any()

    @PROPERTY
    @given(texts, families, st.integers(0, 10))
    def test_over_the_same_tokenizer_a_token_picks_itself_and_what_shares_a_character_with_it(
        self, text: str, family: str, seed: int
    ) -> None:
        tokens = spans_by(family).tokenize(text)
        picked = np.random.default_rng(seed).random(len(tokens)) < 0.3
        ours = carry_picks(picked, tokens, tokens)
        assert (ours | ~picked).all()
        alone = np.array(
            [sum(touch(span, other) for other in spans(tokens)) == 1 for span in spans(tokens)], dtype=bool
        )
        assert (ours == picked)[alone].all()

    @PROPERTY
    @given(pairs(), st.integers(0, 10))
    def test_ranks_and_scores_are_the_best_of_those_that_touch(
        self, pair: tuple[TokenSpans, TokenSpans, NDArray[np.bool_]], seed: int
    ) -> None:
        source, target, _ = pair
        scores = np.random.default_rng(seed).integers(0, 9, len(source)).astype(np.float32) / 8
        ranks = np.random.default_rng(seed).integers(0, 5, len(source))
        touching = [[i for i, one in enumerate(spans(source)) if touch(span, one)] for span in spans(target)]
        assert carry_scores(scores, source, target).tolist() == [
            max((float(scores[i]) for i in t), default=0.0) for t in touching
        ]
        assert carry_ranks(ranks, source, target).tolist() == [
            min((int(ranks[i]) for i in t), default=UNTOUCHED) for t in touching
        ]

    def test_a_word_of_one_tokenizer_is_the_pieces_of_the_other_with_their_space(self) -> None:
        text = "mayor Weiß"
        source, target = spans_by("WordPiece").tokenize(text), spans_by("byte-level BPE").tokenize(text)
        picked = np.array([start >= 5 for start in source.starts])
        selected = carry_picks(picked, source, target)
        assert (target.starts[selected] >= 5).all()
        assert (target.ends[~selected] <= 5).all()

    def test_a_text_of_no_token_and_one_of_a_single_token(self) -> None:
        empty, blank = spans_by("Unigram").tokenize(""), spans_by("WordPiece").tokenize(" \n")
        assert len(empty) == len(blank) == 0
        primary = spans_by("byte-level BPE").tokenize(" \n")
        assert not carry_picks(np.ones(0, dtype=bool), blank, primary).any()
        assert carry_picks(np.ones(0, dtype=bool), empty, empty).shape == (0,)
        one, other = spans_by("Unigram").tokenize("7"), spans_by("byte-level BPE").tokenize("7")
        assert len(other) == 1
        assert carry_picks(np.arange(len(one)) == 0, one, other).all()
