"""Asks stock ``transformers``, as its own ``generate`` would run it: the baseline."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import DynamicCache

from shared.measuring.case import Case
from shared.measuring.rates import now_s
from shared.measuring.shapes import random_model


class Stock:
    def __init__(self, case: Case) -> None:
        if case.threads:
            torch.set_num_threads(case.threads)
        self._case = case
        self._model = random_model(case.shape, case.device)
        self._prompt = torch.tensor([case.prompt_ids()], device=case.device)
        self._context: Any = None

    @torch.inference_mode()
    def cold_prefill_s(self, batch: int = 1, context: int | None = None) -> float:
        """To the first tokens of ``batch`` prompts, with nothing cached; on a GPU by its flash kernel, or not
        at all. ``context``: other than the case's."""
        case = self._case if context is None else replace(self._case, context=context)
        prompts = torch.tensor([case.prompt_ids()] * batch, device=case.device)
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION) if case.device != "cpu" else nullcontext():
            started = now_s(case.device)
            self._step(prompts, DynamicCache())
            return now_s(case.device) - started

    @torch.inference_mode()
    def exact_hit_s(self) -> float:
        """To the first token, with KV of the very same prefix and chunks in the very same order in the
        cache."""
        case, cache = self._case, self._cached_context()
        started = now_s(case.device)
        self._step(self._prompt[:, -case.question :], cache)
        elapsed = now_s(case.device) - started
        cache.crop(-case.question)
        return elapsed

    @torch.inference_mode()
    def decode_rate(self, num_questions: int) -> float:
        """Tokens per second after the first ones, in a batch whose rows repeat the context."""
        case, cache = self._case, copy.deepcopy(self._cached_context())
        cache.batch_repeat_interleave(num_questions)
        tokens = self._step(torch.tensor(case.questions(num_questions), device=case.device), cache)
        started = now_s(case.device)
        for _ in range(case.decode):
            tokens = self._step(tokens, cache)
        return num_questions * case.decode / (now_s(case.device) - started)

    def _cached_context(self) -> Any:
        if self._context is None:
            self._context = DynamicCache()
            self._step(self._prompt[:, : -self._case.question], self._context)
        return self._context

    def _step(self, ids_BT: torch.Tensor, cache: Any) -> torch.Tensor:
        """The next token of every row [B, 1]."""
        logits = self._model(ids_BT, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
        tokens: torch.Tensor = logits[:, -1].argmax(-1, keepdim=True)
        return tokens
