"""A cross-encoder that reads a query and a chunk together: slower than comparing vectors, and a better
judge of the few that were found."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError

from services.retrieval.transformer_embedder import num_positions
from shared.errors import ConfigError
from shared.indexable import text_of
from shared.search import SearchHit

_PAIRS_PER_STEP = 16


class Reranker(Protocol):
    """Blocking: callers run it in a thread of its own."""

    @property
    def identity(self) -> str: ...

    def scores(self, query: str, texts: Sequence[str]) -> list[float]:
        """Scores how well each text answers the query; larger is better."""
        ...


class CrossEncoder:
    """Any sequence classification model of one label. Of a text that is too long the beginning is read.

    Raises:
        ConfigError: the path holds no such model.
    """

    def __init__(self, path: str | Path, num_threads: int = 0) -> None:
        import transformers

        root = Path(path)
        transformers.utils.logging.disable_progress_bar()
        self._num_threads = num_threads or len(os.sched_getaffinity(0))
        try:
            self._tokenizer: Any = transformers.AutoTokenizer.from_pretrained(str(root))
            model: Any = transformers.AutoModelForSequenceClassification.from_pretrained(
                str(root), dtype=torch.float32
            )
        except (OSError, ValueError, SafetensorError) as error:
            raise ConfigError(
                f"reranker: {root.name!r} is not a sequence classification model: {error}"
            ) from None
        if model.config.num_labels != 1:
            raise ConfigError(
                f"reranker: {root.name!r} has {model.config.num_labels} labels; a cross-encoder that ranks "
                "has one"
            )
        self._model = model.eval()
        self._max_len = min(self._tokenizer.model_max_length, num_positions(model))
        self.identity = root.name

    @torch.inference_mode()
    def scores(self, query: str, texts: Sequence[str]) -> list[float]:
        torch.set_num_threads(self._num_threads)  # belongs to the calling thread
        scores = [0.0] * len(texts)
        in_order = sorted(range(len(texts)), key=lambda i: len(texts[i]))  # little padding
        for begin in range(0, len(texts), _PAIRS_PER_STEP):
            step = in_order[begin : begin + _PAIRS_PER_STEP]
            batch = self._tokenizer(
                [query] * len(step),
                [texts[i] for i in step],
                truncation="longest_first",
                max_length=self._max_len,
                padding=True,
                return_tensors="pt",
            )
            for i, logit in zip(step, self._model(**batch).logits[:, 0].tolist(), strict=True):
                scores[i] = logit
        return scores


@dataclass(frozen=True, slots=True)
class Reranking:
    """``by`` reads at least the first ``depth`` of what was found."""

    by: Reranker
    depth: int

    def ordered(self, query: str, hits: Sequence[SearchHit]) -> tuple[SearchHit, ...]:
        """In the order, and with the scores, that the cross-encoder gives them."""
        scores = self.by.scores(query, [text_of(hit) for hit in hits])
        judged = [replace(hit, score=score) for hit, score in zip(hits, scores, strict=True)]
        return tuple(sorted(judged, key=lambda hit: -hit.score))
