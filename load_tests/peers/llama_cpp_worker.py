"""Asks llama.cpp, in the environment that ``make peers`` makes.

python -m load_tests.peers.llama_cpp_worker MODEL.gguf CONTEXT SEQUENCES THREADS
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Sequence
from typing import Any

import llama_cpp
import numpy as np

from load_tests.peers.answering import answer_lines

_BATCH = 2048


class LlamaCpp:
    """One model with room for ``room`` tokens, which ``count`` sequences share."""

    def __init__(self, path: str, room: int, count: int, threads: int) -> None:
        llama_cpp.llama_backend_init()
        self._model = llama_cpp.llama_model_load_from_file(
            path.encode(), llama_cpp.llama_model_default_params()
        )
        if not self._model:
            raise RuntimeError(f"{path} cannot be loaded")
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_seq_max = room, _BATCH, count
        params.n_threads = params.n_threads_batch = threads
        params.kv_unified = True  # what several sequences have in common is there once
        self._context = llama_cpp.llama_init_from_model(self._model, params)
        if not self._context:
            raise RuntimeError("there is no room for its KV")
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))
        self._batch = llama_cpp.llama_batch_init(_BATCH, 0, 1)
        self._held: Sequence[int] = ()  # what the first sequence begins with

    @property
    def version(self) -> str:
        return f"llama-cpp-python {llama_cpp.__version__}"

    def next_token(self, ids: Sequence[int]) -> int:
        self._hold(())
        return self._append(0, ids, 0)

    def prefill_s(self, ids: Sequence[int]) -> float:
        self._hold(())
        began = time.perf_counter()
        self._append(0, ids, 0)
        return time.perf_counter() - began

    def hit_s(self, context: Sequence[int], question: Sequence[int]) -> float:
        self._hold(context)
        began = time.perf_counter()
        self._append(0, question, len(context))
        return time.perf_counter() - began

    def decode_s(self, context: Sequence[int], questions: Sequence[Sequence[int]], steps: int) -> float:
        self._hold(context)
        for sequence in range(1, len(questions)):
            llama_cpp.llama_memory_seq_cp(self._memory, 0, sequence, 0, len(context))
        tokens = [self._append(i, question, len(context)) for i, question in enumerate(questions)]
        ends = [len(context) + len(question) for question in questions]
        began = time.perf_counter()
        for step in range(steps):
            self._decode([(token, ends[i] + step, i, True) for i, token in enumerate(tokens)])
            tokens = [self._likeliest(row) for row in range(len(tokens))]
        return time.perf_counter() - began

    def _hold(self, ids: Sequence[int]) -> None:
        """From here on the first sequence has these tokens, and no other has any."""
        if not ids or self._held != ids:
            llama_cpp.llama_memory_clear(self._memory, True)
            if ids:
                self._append(0, ids, 0)
        else:
            llama_cpp.llama_memory_seq_rm(self._memory, 0, len(ids), -1)
            for sequence in range(1, llama_cpp.llama_n_seq_max(self._context)):
                llama_cpp.llama_memory_seq_rm(self._memory, sequence, -1, -1)
        self._held = ids

    def _append(self, sequence: int, ids: Sequence[int], first: int) -> int:
        """Returns the likeliest token behind them."""
        for begin in range(0, len(ids), _BATCH):
            rows = [
                (token, first + place, sequence, place == len(ids) - 1)
                for place, token in enumerate(ids[begin : begin + _BATCH], begin)
            ]
            self._decode(rows)
        return self._likeliest(-1)

    def _decode(self, rows: Sequence[tuple[int, int, int, bool]]) -> None:
        """Tokens, their positions, their sequences, whether it is asked what follows."""
        batch = self._batch
        batch.n_tokens = len(rows)
        for i, (token, position, sequence, asked) in enumerate(rows):
            batch.token[i], batch.pos[i], batch.logits[i] = token, position, asked
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = sequence
        if code := llama_cpp.llama_decode(self._context, batch):
            raise RuntimeError(f"llama_decode of {len(rows)} rows gave {code}")

    def _likeliest(self, row: int) -> int:
        found: Any = llama_cpp.llama_get_logits_ith(self._context, row)
        logits = ctypes.cast(found, ctypes.POINTER(ctypes.c_float))
        return int(np.ctypeslib.as_array(logits, (self._vocab,)).argmax())


if __name__ == "__main__":
    model, *numbers = sys.argv[1:]
    answer_lines(LlamaCpp(model, *map(int, numbers)))
