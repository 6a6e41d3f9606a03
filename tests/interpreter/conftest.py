"""Makes the interpreter's products independent of where their operands lie in memory."""

from __future__ import annotations

import numpy as np
import pytest
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle


@pytest.fixture(autouse=True)
def products_in_double(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter leaves ``tl.dot`` to NumPy's BLAS, which on some processors adds up a row in another
    order when the operands are aligned otherwise. In float64, rounded once, no order is left to be seen."""

    def create_dot(
        self: InterpreterBuilder, a: TensorHandle, b: TensorHandle, d: TensorHandle, *options: object
    ) -> TensorHandle:
        total = np.matmul(a.data, b.data, dtype=np.float64) + d.data
        return TensorHandle(total.astype(d.data.dtype), d.dtype.scalar)

    monkeypatch.setattr(InterpreterBuilder, "create_dot", create_dot)
