"""Asks OpenVINO GenAI, in the environment that ``make peers`` makes. It batches continuously and keeps the KV
of prompts by their prefixes, in bfloat16.

    python -m load_tests.peers.openvino_worker MODEL.gguf CONTEXT SEQUENCES THREADS
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

import numpy as np
import openvino
import openvino_genai

from load_tests.peers.answering import answer_lines

_CACHE_GB = 2


class OpenVino:
    def __init__(self, path: str, room: int, count: int, threads: int) -> None:
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.enable_prefix_caching = True
        scheduler.cache_size = _CACHE_GB
        scheduler.max_num_batched_tokens = room
        scheduler.max_num_seqs = count
        properties = {
            "INFERENCE_PRECISION_HINT": "bf16",
            "KV_CACHE_PRECISION": "bf16",
            "INFERENCE_NUM_THREADS": threads,
        }
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(path, scheduler, "CPU", properties)

    @property
    def version(self) -> str:
        return f"OpenVINO GenAI {openvino_genai.__version__}"

    def next_token(self, ids: Sequence[int]) -> int:
        return self._generated([ids], 1)[0][0]

    def prefill_s(self, ids: Sequence[int]) -> float:
        began = time.perf_counter()
        self._generated([ids], 1)
        return time.perf_counter() - began

    def hit_s(self, context: Sequence[int], question: Sequence[int]) -> float:
        self._generated([context], 1)
        began = time.perf_counter()
        self._generated([[*context, *question]], 1)
        return time.perf_counter() - began

    def decode_s(self, context: Sequence[int], questions: Sequence[Sequence[int]], steps: int) -> float:
        prompts = [[*context, *question] for question in questions]
        self._generated(prompts, 1)  # from here on all of it is cached
        began = time.perf_counter()
        self._generated(prompts, 1)
        first = time.perf_counter()
        self._generated(prompts, 1 + steps)
        return (time.perf_counter() - first) - (first - began)

    def _generated(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> list[list[int]]:
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = num_tokens, True, False
        inputs = [openvino.Tensor(np.array([prompt])) for prompt in prompts]
        results = self._pipeline.generate(inputs, [config] * len(inputs))
        return [result.m_generation_ids[0] for result in results]


if __name__ == "__main__":
    model, *numbers = sys.argv[1:]
    answer_lines(OpenVino(model, *map(int, numbers)))
