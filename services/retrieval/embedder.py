"""Text to vectors: what the index needs of an embedder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

Vectors = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class EmbedderSettings:
    """From which an embedder can be loaded again: its model, and the texts in front of queries and documents
    (None: those that the model's files name)."""

    model: str
    query_prefix: str | None = None
    document_prefix: str | None = None


class Embedder(Protocol):
    """Unit vectors, [texts, dim] float32; equal texts get equal vectors. Blocking: callers run it in a thread
    of its own."""

    @property
    def identity(self) -> str:
        """Names the vector space: vectors of different identities must not be compared."""
        ...

    @property
    def dim(self) -> int: ...

    @property
    def languages(self) -> Sequence[str]:
        """Those that it was made for, as ISO 639 codes; empty: unknown."""
        ...

    def embed_queries(self, texts: Sequence[str]) -> Vectors: ...

    def embed_documents(self, texts: Sequence[str]) -> Vectors: ...

    def num_tokens(self, texts: Sequence[str]) -> int:
        """Of all texts, with what the tokenizer puts around each."""
        ...
