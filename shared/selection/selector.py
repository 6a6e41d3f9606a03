"""From a question and its chunks to the primary's tokens that are worth recomputing.

::

    text of a chunk ──┬─ auxiliary's tokens ── scores ── picked ── grouped ──┐
                      └─ primary's tokens ───────────────────────────────── mapped

Windows are runs of the auxiliary's tokens. Under ``budget`` windows are taken, best first, until the ratio of
the **primary's** tokens is met; the other forms pick the ratio's share of the auxiliary's tokens, and what
grouping leaves of them is what it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from shared.engine.kv.segment import Segment
from shared.errors import InvalidRequest, ModelMismatch
from shared.generation.selection import Grouping, Reading
from shared.selection.auxiliary import Auxiliary
from shared.selection.grouping import Mask, group, num_asked, until, window_ranks
from shared.selection.mapping import carry_picks, carry_ranks, carry_scores
from shared.selection.spans import SpanTokenizer, TokenSpans

ItemT = TypeVar("ItemT", bound=np.generic)


@dataclass(frozen=True, slots=True)
class PairedChunk:
    """One text as both models read it."""

    auxiliary: TokenSpans
    primary: TokenSpans


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """
    chosen: per chunk, which of the primary's tokens to recompute.
    scores: per chunk, of each of the primary's tokens the best score of the auxiliary's tokens that share a
    character with it.
    reading: how the chunks were scored; None: they were not, since the ratio left nothing to choose. Scores
    are 0 then.
    num_picked: the auxiliary's tokens that the ratio asked for.
    num_grouped: the auxiliary's tokens that grouping left of them, or took.
    """

    chosen: tuple[Mask, ...]
    scores: tuple[NDArray[np.float32], ...]
    reading: Reading | None
    num_picked: int
    num_grouped: int

    @property
    def num_chosen(self) -> int:
        """The number of tokens that are really recomputed."""
        return sum(int(mask.sum()) for mask in self.chosen)


class Selector:
    """``primary``: the tokenizer of the model whose tokens are chosen. For one thread."""

    def __init__(self, auxiliary: Auxiliary, primary: SpanTokenizer) -> None:
        self.auxiliary = auxiliary
        self._primary = primary

    def pair(self, text: str, token_ids: Sequence[int] | None = None) -> PairedChunk:
        """``text``: exactly what the primary's tokens of the chunk were made of, its template included.
        ``token_ids``: these, to be compared.

        Raises:
            InvalidRequest: the text is not Unicode.
            ModelMismatch: the primary's tokenizer makes other tokens of it.
        """
        primary = self._primary.tokenize_chunk(text)
        if token_ids is not None and primary.token_ids != tuple(token_ids):
            raise ModelMismatch(
                "chunks: the primary's tokenizer makes other token ids of a chunk's text than the "
                "chunk has, so its tokens cannot "
                "be found in the text; give the text as it was tokenized, template included"
            )
        return PairedChunk(self.auxiliary.tokenizer.tokenize(text), primary)

    def link(self, text: str, token_ids: Sequence[int]) -> tuple[int, ...]:
        """The auxiliary's ids of what chunks stand behind. ``token_ids``: the primary's of ``text``, or of
        its beginning, as which it is then read.

        Raises:
            InvalidRequest: the text is not Unicode.
            ModelMismatch: the primary's tokenizer makes other tokens of it.
        """
        primary = self._primary.tokenize_chunk(text)
        num_tokens = len(token_ids)
        if not num_tokens or primary.token_ids[:num_tokens] != tuple(token_ids):
            raise ModelMismatch(
                "chunks: the primary's tokenizer makes other token ids of what stands in front of a chunk; "
                "give the text as it was tokenized, template included"
            )
        if num_tokens < len(primary):
            text = text[: int(primary.ends[num_tokens - 1])]
        return self.auxiliary.tokenizer.tokenize(text).token_ids

    def encode(self, chunks: Sequence[PairedChunk], chain: Sequence[Segment] = ()) -> list[Segment]:
        """The auxiliary's KV of chunks that are not stored; see ``Scorer.encode``."""
        return self.auxiliary.scorer.encode([chunk.auxiliary.token_ids for chunk in chunks], chain)

    def select(
        self,
        chunks: Sequence[PairedChunk],
        segments: Sequence[Segment],
        question: str,
        ratio: float,
        grouping: Grouping = Grouping.BUDGET,
        reading: Reading = Reading.STITCHED,
    ) -> Selection:
        """``segments``: the auxiliary's KV of the chunks, one each; none are needed where ``is_open`` says
        so.

        Raises:
            InvalidRequest: the ratio is no number from 0 to 1, the question is empty, or a segment is not
                that of its chunk.
            ContextTooLong: a single chunk with the question is longer than the auxiliary model can read.
        """
        question_ids = self.auxiliary.prompts.encode_question(question)
        lens = [len(chunk.auxiliary) for chunk in chunks]
        num_picked = num_asked(ratio, sum(lens))
        if not is_open(chunks, ratio):
            return self._unread(chunks, ratio == 1, num_picked)
        for index, (segment, length) in enumerate(zip(segments, lens, strict=True)):
            if segment.length != length:
                raise InvalidRequest(
                    f"segments[{index}]: holds {segment.length} tokens, but the chunk has {length}"
                )
        scores = self.auxiliary.scorer.score(segments, question_ids, reading)
        scores_T = np.concatenate(scores.chunks)
        if grouping is Grouping.BUDGET:
            chosen, grouped_T = _within_budget(chunks, window_ranks(scores_T, lens), ratio)
        else:
            grouped_T = group(scores_T, lens, ratio, grouping)
            chosen = tuple(
                carry_picks(picked, chunk.auxiliary, chunk.primary)
                for chunk, picked in zip(chunks, _split(grouped_T, lens), strict=True)
            )
        return Selection(
            chosen,
            tuple(
                carry_scores(s, chunk.auxiliary, chunk.primary)
                for chunk, s in zip(chunks, scores.chunks, strict=True)
            ),
            scores.reading,
            num_picked,
            int(grouped_T.sum()),
        )

    def _unread(self, chunks: Sequence[PairedChunk], everything: bool, num_picked: int) -> Selection:
        chosen = tuple(np.full(len(chunk.primary), everything) for chunk in chunks)
        return Selection(
            chosen, tuple(np.zeros(len(m), dtype=np.float32) for m in chosen), None, num_picked, num_picked
        )


def is_open(chunks: Sequence[PairedChunk], ratio: float) -> bool:
    """Whether the ratio leaves anything to choose, so that the model must be asked.

    Raises:
        InvalidRequest: the ratio is no number from 0 to 1.
    """
    return num_asked(ratio, sum(len(chunk.auxiliary) for chunk in chunks)) > 0 and ratio < 1


def _within_budget(
    chunks: Sequence[PairedChunk], ranks_T: NDArray[np.int64], ratio: float
) -> tuple[tuple[Mask, ...], Mask]:
    """The primary's tokens of the best windows, and these windows. A token that two windows touch comes with
    the better one."""
    ranks = _split(ranks_T, [len(chunk.auxiliary) for chunk in chunks])
    primary_lens = [len(chunk.primary) for chunk in chunks]
    carried_T = np.concatenate(
        [carry_ranks(r, chunk.auxiliary, chunk.primary) for chunk, r in zip(chunks, ranks, strict=True)]
    )
    chosen_T = until(carried_T, num_asked(ratio, len(carried_T)))
    last = carried_T[chosen_T].max(initial=-1)
    return tuple(_split(chosen_T, primary_lens)), ranks_T <= last


def _split(array_T: NDArray[ItemT], lens: Sequence[int]) -> list[NDArray[ItemT]]:
    return [array_T[begin:end] for begin, end in pairwise([0, *accumulate(lens)])]
