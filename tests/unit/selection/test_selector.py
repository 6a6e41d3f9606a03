"""From text and a question to the primary's tokens, through both tokenizers, and what is told of it."""

from __future__ import annotations

import subprocess
import sys
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from shared.engine import EngineConfig
from shared.errors import InvalidRequest, ModelMismatch
from shared.generation.selection import Grouping, Reading
from shared.selection.grouping import group, num_asked, window_ranks
from shared.selection.mapping import carry_picks
from shared.selection.selector import PairedChunk, Selection, Selector
from shared.selection.spans import SpanTokenizer
from tests.oracles import tiny_model
from tests.selection_runs import auxiliary_of, eager, stitched_attention
from tests.token_families import CORPUS, texts, tokenizer_of

pytestmark = pytest.mark.usefixtures("one_thread")

ROOT = Path(__file__).resolve().parents[3]
PAIRS = (
    ("byte-level BPE", "Unigram"),
    ("Unigram, byte fallback", "byte-level BPE"),
    ("WordPiece", "byte-level BPE, prefix space"),
)
PASSAGES = [f"{CORPUS[i]} The mayor of town {i} is the founder of mine {i * 7}. " * 2 for i in (0, 2, 4, 7)]


@lru_cache
def selector_of(auxiliary: str, primary: str) -> Selector:
    return Selector(auxiliary_of(auxiliary), SpanTokenizer(tokenizer_of(primary), primary))


def select(
    selector: Selector, passages: list[str], ratio: float, grouping: Grouping = Grouping.BUDGET
) -> tuple[list[PairedChunk], Selection]:
    chunks = [selector.pair(text) for text in passages]
    return chunks, selector.select(chunks, selector.encode(chunks), "who is the mayor?", ratio, grouping)


def stock_scores(selector: Selector, tokenizer: str, chunks: list[PairedChunk]) -> NDArray[np.float32]:
    """By stock transformers, of all chunks in a row."""
    prompts = selector.auxiliary.prompts
    stock = eager(tiny_model("llama", vocab_size=tokenizer_of(tokenizer).get_vocab_size()))
    question = prompts.encode_question("who is the mayor?")
    scores: NDArray[np.float32] = torch.cat(
        stitched_attention(stock, prompts.prefix_ids, [c.auxiliary.token_ids for c in chunks], question)
    ).numpy()
    return scores


def mapped(picked_T: NDArray[np.bool_], chunks: list[PairedChunk]) -> list[NDArray[np.bool_]]:
    """Per chunk the primary's tokens that the picked ones of all chunks in a row touch."""
    masks, begin = [], 0
    for chunk in chunks:
        masks.append(
            carry_picks(picked_T[begin : begin + len(chunk.auxiliary)], chunk.auxiliary, chunk.primary)
        )
        begin += len(chunk.auxiliary)
    return masks


class TestSeveralQuestions:
    QUESTIONS = ("who is the mayor?", "where is the mine?", "市長")

    def test_have_a_selection_each_as_if_it_were_asked_alone(self) -> None:
        selector = selector_of(*PAIRS[0])
        chunks = [selector.pair(text) for text in PASSAGES]
        segments = selector.encode(chunks)
        together = [
            selector.select(chunks, segments, question, 0.3, Grouping.PAPER) for question in self.QUESTIONS
        ]
        for question, selection in reversed(list(zip(self.QUESTIONS, together, strict=True))):
            alone = selector.select(chunks, selector.encode(chunks), question, 0.3, Grouping.PAPER)
            assert all((a == b).all() for a, b in zip(selection.scores, alone.scores, strict=True))
            assert all((a == b).all() for a, b in zip(selection.chosen, alone.chosen, strict=True))
        chosen = {tuple(np.concatenate(selection.chosen).tolist()) for selection in together}
        assert len(chosen) > 1, "they do not look for the same"

    def test_are_read_as_each_of_them_can_be(self) -> None:
        """One of them is too long to be asked of all chunks at once."""
        pair = PAIRS[0]
        lens = [len(selector_of(*pair).pair(text).auxiliary) for text in PASSAGES]
        short, long = "who?", "who is the mayor " * 6
        prompts = selector_of(*pair).auxiliary.prompts
        room = len(prompts.prefix_ids) + sum(lens) + len(prompts.encode_question(long)) - 1
        selector = Selector(
            auxiliary_of(pair[0], max_position_embeddings=room), SpanTokenizer(tokenizer_of(pair[1]), pair[1])
        )
        chunks = [selector.pair(text) for text in PASSAGES]
        segments = selector.encode(chunks)
        read = [selector.select(chunks, segments, question, 0.2) for question in (short, long)]
        assert [selection.reading for selection in read] == [Reading.STITCHED, Reading.EACH]

    @pytest.mark.parametrize("ratio", [0.0, 0.2, 1.0])
    def test_none_may_be_empty(self, ratio: float) -> None:
        with pytest.raises(InvalidRequest, match="question"):
            selector_of(*PAIRS[0]).select([], [], " ", ratio)


class TestSelect:
    @settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(
        pair=st.sampled_from(PAIRS),
        passages=st.lists(st.one_of(texts, st.sampled_from(("", "7"))), max_size=4),
        ratio=st.floats(0, 1),
        grouping=st.sampled_from(list(Grouping)),
    )
    def test_any_text_any_pair_of_tokenizers_any_ratio(
        self, pair: tuple[str, str], passages: list[str], ratio: float, grouping: Grouping
    ) -> None:
        """Counts are what was done, and under a budget the ratio of the primary's tokens is met within one
        window."""
        chunks, selection = select(selector_of(*pair), passages, ratio, grouping)
        assert (
            [len(m) for m in selection.chosen]
            == [len(s) for s in selection.scores]
            == [len(c.primary) for c in chunks]
        )
        assert sum(map(len, selection.chosen)) == sum(len(c.primary) for c in chunks)
        assert selection.num_picked == num_asked(ratio, sum(len(c.auxiliary) for c in chunks))
        assert all(
            selector_of(*pair).pair(text, c.primary.token_ids)
            for text, c in zip(passages, chunks, strict=True)
        )
        asked = num_asked(ratio, sum(map(len, selection.chosen)))
        reachable = sum(len(c.primary) for c in chunks if len(c.auxiliary))
        if grouping is Grouping.BUDGET and selection.reading is not None:
            assert min(asked, reachable) <= selection.num_chosen

    @pytest.mark.parametrize("pair", PAIRS, ids=" to ".join)
    def test_a_budget_is_met_within_one_window_of_the_best(self, pair: tuple[str, str]) -> None:
        chunks, selection = select(selector_of(*pair), PASSAGES, 0.2)
        asked = num_asked(0.2, sum(map(len, selection.chosen)))
        largest = max(
            int(carry_picks(np.arange(len(c.auxiliary)) // 8 == w, c.auxiliary, c.primary).sum())
            for c in chunks
            for w in range(-(-len(c.auxiliary) // 8))
        )
        assert asked <= selection.num_chosen < asked + largest
        assert selection.reading is Reading.STITCHED
        for chosen, scores, chunk in zip(selection.chosen, selection.scores, chunks, strict=True):
            assert (scores > 0).all()
            assert len(chosen) == len(chunk.primary)

    @pytest.mark.parametrize("grouping", [Grouping.PAPER, Grouping.SLIDING], ids=lambda g: g.value)
    def test_the_papers_forms_map_what_grouping_left_of_the_stock_models_own_attention(
        self, grouping: Grouping
    ) -> None:
        pair, ratio = PAIRS[0], 0.5
        selector = selector_of(*pair)
        chunks, selection = select(selector, PASSAGES, ratio, grouping)
        grouped = group(
            stock_scores(selector, pair[0], chunks), [len(c.auxiliary) for c in chunks], ratio, grouping
        )
        for chosen, expected in zip(selection.chosen, mapped(grouped, chunks), strict=True):
            assert (chosen == expected).all()
        assert selection.num_grouped == grouped.sum() > 0
        assert selection.num_picked == num_asked(ratio, sum(len(c.auxiliary) for c in chunks))

    @pytest.mark.parametrize("pair", PAIRS[:2], ids=" to ".join)
    def test_a_budget_takes_windows_one_by_one_until_enough_of_the_primarys_tokens_are_mapped(
        self, pair: tuple[str, str]
    ) -> None:
        selector = selector_of(*pair)
        chunks, selection = select(selector, PASSAGES, 0.3)
        ranks_T = window_ranks(stock_scores(selector, pair[0], chunks), [len(c.auxiliary) for c in chunks])
        num_windows, expected = 0, mapped(ranks_T < 0, chunks)
        while sum(int(m.sum()) for m in expected) < num_asked(0.3, sum(map(len, selection.chosen))):
            num_windows += 1
            expected = mapped(ranks_T < num_windows, chunks)
        assert all((ours == theirs).all() for ours, theirs in zip(selection.chosen, expected, strict=True))
        assert selection.num_grouped == int((ranks_T < num_windows).sum())
        assert selection.num_chosen == sum(int(m.sum()) for m in expected)

    @pytest.mark.parametrize("grouping", list(Grouping), ids=lambda g: g.value)
    def test_ratio_1_and_0_need_no_scores(self, grouping: Grouping) -> None:
        for ratio, everything in ((1.0, True), (0.0, False)):
            _, selection = select(selector_of(*PAIRS[0]), PASSAGES, ratio, grouping)
            assert all((mask == everything).all() for mask in selection.chosen)
            assert selection.reading is None
        _, of_blanks = select(
            selector_of("WordPiece", "byte-level BPE, prefix space"), ["  \n "], 1.0, grouping
        )
        assert of_blanks.chosen[0].all()
        assert len(of_blanks.chosen[0])

    def test_the_same_request_is_answered_alike(self) -> None:
        (_, one), (_, other) = (select(selector_of(*PAIRS[0]), PASSAGES, 0.3) for _ in range(2))
        assert all((a == b).all() for a, b in zip(one.chosen, other.chosen, strict=True))

    def test_a_context_too_long_for_the_auxiliary_says_how_it_was_read(self) -> None:
        auxiliary = auxiliary_of("byte-level BPE", config=EngineConfig(), max_position_embeddings=300)
        selector = Selector(auxiliary, SpanTokenizer(tokenizer_of("Unigram"), "u"))
        assert select(selector, PASSAGES, 0.2)[1].reading is Reading.EACH
        assert select(selector, PASSAGES[:1], 0.2)[1].reading is Reading.STITCHED


class TestBadInput:
    def test_is_refused_by_name(self) -> None:
        selector = selector_of(*PAIRS[0])
        chunks = [selector.pair(text) for text in PASSAGES[:2]]
        segments = selector.encode(chunks)
        with pytest.raises(InvalidRequest, match="question: is empty"):
            selector.select(chunks, segments, " \n", 0.2)
        for ratio in (-0.1, 1.1, float("nan")):
            with pytest.raises(InvalidRequest, match="recompute_ratio"):
                selector.select(chunks, segments, "who?", ratio)
        with pytest.raises(ModelMismatch, match="token ids"):
            selector.pair("the mayor", (1, 2, 3))
        with pytest.raises(InvalidRequest, match=r"segments\[0\]"):
            selector.select(chunks, segments[::-1], "who?", 0.2)


def test_the_library_needs_no_service() -> None:
    code = (
        "import sys, shared.selection.selector; sys.exit(bool({'ray', 'grpc', 'protos', 'pyarrow'} "
        "& set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


@pytest.mark.parametrize(("auxiliary", "primary"), PAIRS)
def test_what_chunks_stand_behind_is_read_as_far_as_the_primary_reads_it(
    auxiliary: str, primary: str
) -> None:
    selector, text = selector_of(auxiliary, primary), PASSAGES[0]
    tokenized, tokens_of = selector.pair(text).primary, selector.auxiliary.tokenizer.tokenize
    ids, half = tokenized.token_ids, len(tokenized) // 2
    assert selector.link(text, ids) == tokens_of(text).token_ids
    beginning = text[: int(tokenized.ends[half - 1])]
    assert len(beginning) < len(text)
    assert selector.link(text, ids[:half]) == tokens_of(beginning).token_ids
    for wrong in ((), ids[1:], (*ids[: half - 1], ids[half])):
        with pytest.raises(ModelMismatch, match="in front of a chunk"):
            selector.link(text, wrong)


def test_every_chunk_needs_its_segment() -> None:
    selector = selector_of(*PAIRS[0])
    chunks = [selector.pair(text) for text in PASSAGES]
    with pytest.raises(ValueError, match="zip"):
        selector.select(chunks, selector.encode(chunks)[:-1], "who is the mayor?", 0.2)
