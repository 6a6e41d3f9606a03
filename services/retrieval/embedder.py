"""Text to vectors: what the index needs of an embedder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

Vectors = npt.NDArray[np.float32]


class Embedder(Protocol):
    """Unit vectors, [texts, dim] float32; equal texts get equal vectors. Blocking: callers run it in a thread
    of its own."""

    @property
    def identity(self) -> str:
        """Names the vector space: vectors of different identities must not be compared."""
        ...

    @property
    def dim(self) -> int: ...

    def embed_queries(self, texts: Sequence[str]) -> Vectors: ...

    def embed_documents(self, texts: Sequence[str]) -> Vectors: ...
