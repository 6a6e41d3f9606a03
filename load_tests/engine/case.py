"""What one run measures."""

from __future__ import annotations

import random
from dataclasses import dataclass

from shared.measuring.shapes import Shape

CHUNK_LEN = 512
PREFIX_LEN = 16
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
        for option, value in (
            ("context", self.context),
            ("chunk", self.chunk_len),
            ("question", self.question),
            ("decode", self.decode),
        ):
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

    def prefix_ids(self) -> Ids:
        return self._ids(self.prefix, 0)

    def chunks(self) -> list[Ids]:
        return [self._ids(length, 1 + i) for i, length in enumerate(self.chunk_lens)]

    def questions(self, num_questions: int) -> list[Ids]:
        return [self._ids(self.question, 10_000 + i) for i in range(num_questions)]

    def prompt_ids(self) -> Ids:
        """As a model without stored KV sees it."""
        return self.prefix_ids() + tuple(t for chunk in self.chunks() for t in chunk) + self.questions(1)[0]

    def _ids(self, length: int, seed: int) -> Ids:
        noise = random.Random(seed)
        return tuple(noise.randrange(self.shape.vocab) for _ in range(length))
