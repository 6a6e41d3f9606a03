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
    """``context``: tokens in chunks of ``chunk_len``, behind a prefix; ``question``: tokens after them;
    ``decode``: tokens that are generated after the first one."""

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
        if self.context < self.chunk_len or self.context % self.chunk_len:
            raise ValueError(
                f"--context: must be a multiple of {self.chunk_len} (whole chunks), got {self.context}"
            )
        for name in ("question", "decode"):
            if getattr(self, name) < 1:
                raise ValueError(f"--{name}: must be at least 1, got {getattr(self, name)}")

    @property
    def prompt_len(self) -> int:
        return self.prefix + self.context + self.question

    def prefix_ids(self) -> Ids:
        return self._ids(self.prefix, 0)

    def chunks(self) -> list[Ids]:
        return [self._ids(self.chunk_len, 1 + i) for i in range(self.context // self.chunk_len)]

    def questions(self, num_questions: int) -> list[Ids]:
        return [self._ids(self.question, 10_000 + i) for i in range(num_questions)]

    def prompt_ids(self) -> Ids:
        """As a model without stored KV sees it."""
        return self.prefix_ids() + tuple(t for chunk in self.chunks() for t in chunk) + self.questions(1)[0]

    def _ids(self, length: int, seed: int) -> Ids:
        noise = random.Random(seed)
        return tuple(noise.randrange(self.shape.vocab) for _ in range(length))
