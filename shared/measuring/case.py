"""Says what one run measures (a model's shape, the sizes of a request), and makes engines and requests of
it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shared.engine import Engine, EngineConfig
from shared.engine.kv.source import SegmentSource
from shared.engine.model.model import LoadedModel
from shared.generation.asked import Chunk, GenerateRequest, SamplingParams
from shared.generation.modes import Recompute, ReuseMode
from shared.measuring.asking import random_ids
from shared.measuring.rates import Rates
from shared.measuring.shapes import Shape, build_model, random_adapter

CHUNK_LEN = 512
PREFIX_LEN = 16
ADAPTER = "random"
Ids = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Case:
    """``context``: tokens in chunks of ``chunk_len``, the last one of what is left over, behind a prefix;
    ``question``: tokens after them; ``decode``: tokens that are generated after the first one."""

    shape: Shape
    context: int = 4096
    question: int = 128
    decode: int = 32
    chunk_len: int = CHUNK_LEN
    prefix: int = PREFIX_LEN
    device: str = "cpu"
    threads: int = 0
    compile: bool = False

    def __post_init__(self) -> None:
        sizes = {
            "context": self.context,
            "chunk": self.chunk_len,
            "question": self.question,
            "decode": self.decode,
        }
        for option, value in sizes.items():
            if value < 1:
                raise ValueError(f"--{option}: must be at least 1, got {value}")

    @property
    def prompt_len(self) -> int:
        return self.prefix + self.context + self.question

    @property
    def chunk_lens(self) -> list[int]:
        whole, rest = divmod(self.context, self.chunk_len)
        return [self.chunk_len] * whole + [rest] * (rest > 0)

    @property
    def cold_flops(self) -> float:
        """Of a prefill of everything: its rows see half of the prompt on average."""
        return self.shape.flops(self.prompt_len, (self.prompt_len + 1) // 2)

    @property
    def stitched_flops(self) -> float:
        """Of the question's rows over KV that is there."""
        return self.shape.flops(self.question, self.prompt_len)

    def step_limit_s(self, batch: int, rates: Rates, weight_bytes: int = 2) -> float:
        """Of a step that decodes ``batch`` branches over the context, on average half decoded."""
        private = batch * (self.question + self.decode / 2) * self.shape.kv_bytes_per_token
        flops = batch * self.shape.flops(1, self.prompt_len)
        read = self.shape.bytes_read(self.prefix + self.context, weight_bytes)
        return rates.limit_s(flops, read + private)

    def prefix_ids(self) -> Ids:
        return random_ids(0, self.prefix, self.shape.vocab)

    def chunks(self) -> list[Ids]:
        return [random_ids(1 + i, length, self.shape.vocab) for i, length in enumerate(self.chunk_lens)]

    def questions(self, num_questions: int) -> list[Ids]:
        return [random_ids(10_000 + i, self.question, self.shape.vocab) for i in range(num_questions)]

    def prompt_ids(self) -> Ids:
        """As a model without stored KV sees it."""
        return self.prefix_ids() + tuple(t for chunk in self.chunks() for t in chunk) + self.questions(1)[0]

    def build_engine(
        self,
        source: SegmentSource | None = None,
        model: LoadedModel | None = None,
        adapter_rank: int = 0,
        **config: Any,
    ) -> Engine:
        """``model``: one of the shape, by default with random weights. ``adapter_rank``: of an adapter that
        is served too (``ADAPTER``), if it is not 0. ``config``: what of ``EngineConfig`` the case does not
        say. Nothing is drafted unless it does: random weights fall into loops, whose text is easily guessed.
        Nor is anything computed that is stored: what loading takes is measured."""
        ours: dict[str, Any] = {
            "dtype": "bfloat16",
            "device": self.device,
            "num_threads": self.threads,
            "compile": self.compile,
            "speculation": 0,
            "late_rows": 0,
        }
        model = model or build_model(self.shape, self.device, config.get("weights", "exact"))
        adapters = [random_adapter(model.linear_shapes, adapter_rank, ADAPTER)] if adapter_rank else []
        return Engine(model, EngineConfig(**ours | config), source, adapters=adapters)

    def request(
        self,
        name: str,
        chunks: Sequence[Chunk],
        questions: Sequence[Ids],
        reuse: ReuseMode = ReuseMode.REORDERED,
        num_tokens: int = 1,
        temperature: float = 0.0,
        recompute: Recompute | None = None,
        adapter: str = "",
    ) -> GenerateRequest:
        """Behind the case's prefix; end marks do not end it."""
        return GenerateRequest(
            name,
            self.prefix_ids(),
            tuple(chunks),
            tuple(questions),
            reuse,
            SamplingParams(max_tokens=num_tokens, temperature=temperature, ignore_eos=True),
            recompute=recompute or Recompute(),
            adapter=adapter,
        )
