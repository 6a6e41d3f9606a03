"""Chooses what ``cacheclip`` recomputes, by the auxiliary model, whose KV stands behind documents as the
selector's does: each context is read once, and each question is put to it once, whatever ratios and groupings
that serves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

from cluster.gate.ingested import Ingested
from cluster.gate.modes import ClipSetting
from shared.engine.kv.segment import Segment
from shared.engine.model.spec import ModelSpec
from shared.generation.selection import Reading, SelectionLink
from shared.selection.auxiliary import Auxiliary, load_auxiliary
from shared.selection.limits import Limits
from shared.selection.scoring import Scorer, Scores
from shared.selection.selector import PairedChunk, Selection, Selector
from shared.selection.spans import SpanTokenizer

_CONTEXTS, _QUESTIONS = 64, 4096
Ids = tuple[int, ...]
Chain = tuple[Ids, ...]
"""A chunk's ids, behind those of what it stands behind."""
Contexts = tuple[tuple[SelectionLink, ...], ...]


class Selections:
    """``spans``: of the model whose tokens are chosen."""

    def __init__(self, auxiliary: Auxiliary, spans: SpanTokenizer) -> None:
        self._selector = Selector(replace(auxiliary, scorer=_Remembering(auxiliary.scorer)), spans)
        scorer = auxiliary.scorer
        prefix_len = len(auxiliary.prompts.prefix_ids)
        self._limits = Limits(scorer.spec.vocab_size, scorer.spec.sight, prefix_len)
        self._read = lru_cache(_CONTEXTS)(self._read_anew)
        self._select = lru_cache(_QUESTIONS)(self._select_anew)

    @classmethod
    def of_models(cls, auxiliary: str, spans: SpanTokenizer) -> Selections:
        """Raises as ``load_auxiliary``."""
        return cls(load_auxiliary(auxiliary), spans)

    @property
    def fingerprint(self) -> str:
        return self._selector.auxiliary.scorer.fingerprint

    def select(
        self, ingested: Ingested, placed: tuple[int, ...], question: str, ratio: float, clip: ClipSetting
    ) -> Selection:
        """``placed``: numbers of the chunks, in the order of the prompt."""
        return self._select(ingested.texts, ingested.contexts, placed, question, ratio, clip)

    def _select_anew(
        self,
        texts: tuple[str, ...],
        contexts: Contexts,
        placed: tuple[int, ...],
        question: str,
        ratio: float,
        clip: ClipSetting,
    ) -> Selection:
        read = self._read(texts, contexts)
        paired, segments = [read[i][0] for i in placed], [read[i][1] for i in placed]
        return self._selector.select(paired, segments, question, ratio, clip.grouping, clip.reading)

    def placed(self, texts: Sequence[str], contexts: Contexts) -> Iterator[tuple[PairedChunk, Chain]]:
        """Chunks as both models read them, and each with what the auxiliary's KV of it stands behind."""
        for text, context in zip(texts, contexts, strict=True):
            paired = self._selector.pair(text)
            yield paired, self._chain(context, paired.auxiliary.token_ids)

    def _read_anew(self, texts: tuple[str, ...], contexts: Contexts) -> list[tuple[PairedChunk, Segment]]:
        made: dict[Chain, Segment] = {}
        return [(chunk, self._segment(chain, made)) for chunk, chain in self.placed(texts, contexts)]

    def _chain(self, context: Sequence[SelectionLink], token_ids: Ids) -> Chain:
        """The auxiliary's ids of a chunk behind those of what it stands behind. As for the selector, what
        cannot be read at once begins anew behind the first link."""
        scorer = self._selector.auxiliary.scorer
        links = [self._selector.link(link.text, link.token_ids) for link in context] if scorer.chains else []
        chain: Chain = ()
        for ids in (*filter(None, links), token_ids):
            fronts = (chain, chain[:1])
            fitting = (front for front in fronts if self._limits.fit(sum(map(len, front)) + len(ids)))
            chain = (*next(fitting, ()), ids)
        return chain

    def _segment(self, chain: Chain, made: dict[Chain, Segment]) -> Segment:
        """Of the last of ``chain``; all of them are in ``made`` afterwards."""
        segments: list[Segment] = []
        for end in range(1, len(chain) + 1):
            if chain[:end] not in made:
                (made[chain[:end]],) = self._selector.auxiliary.scorer.encode([chain[end - 1]], segments)
            segments.append(made[chain[:end]])
        return segments[-1]


class _Remembering(Scorer):
    """Scores each question over each context once."""

    def __init__(self, scorer: Scorer) -> None:
        self._scorer = scorer
        self._score = lru_cache(_QUESTIONS)(scorer.score)

    @property
    def spec(self) -> ModelSpec:
        return self._scorer.spec

    @property
    def fingerprint(self) -> str:
        return self._scorer.fingerprint

    @property
    def chains(self) -> bool:
        return self._scorer.chains

    def encode(self, chunks: Sequence[Sequence[int]], chain: Sequence[Segment] = ()) -> list[Segment]:
        return self._scorer.encode(chunks, chain)

    def score(
        self, chunks: Sequence[Segment], question_ids: Sequence[int], reading: Reading = Reading.STITCHED
    ) -> Scores:
        return self._score(tuple(chunks), tuple(question_ids), reading)
