"""What a machine can do at most is measured by what it does fastest, within seconds."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from shared.measuring import rates


@pytest.mark.parametrize(
    ("bf16", "float32", "largest_bf16"), [(4e11, 2e11, 2048), (1e9, 7e10, 512), (1e7, 7e10, 256)], ids=str
)
def test_the_faster_kind_of_product_is_the_limit_and_the_slower_one_takes_no_minutes(
    monkeypatch: pytest.MonkeyPatch, bf16: float, float32: float, largest_bf16: int
) -> None:
    flops = {torch.bfloat16: bf16, torch.float32: float32}
    took_s: dict[tuple[torch.dtype, int], float] = {}

    def product(size: int, dtype: torch.dtype, device: str) -> Callable[[], object]:
        took_s[dtype, size] = 2 * size**3 / flops[dtype]
        return lambda: took_s[dtype, size]

    class Sum:
        def sum(self) -> float:
            return 0.5

    monkeypatch.setattr(rates, "_product", product)
    monkeypatch.setattr(rates, "_ones", lambda count, device: Sum())
    monkeypatch.setattr(rates, "best_s", lambda work, device: work())
    measured = rates.measure_rates()
    assert measured.flops == pytest.approx(max(bf16, float32))
    assert measured.bytes_per_s == 2**30
    assert max(size for dtype, size in took_s if dtype is torch.bfloat16) == largest_bf16
    assert took_s[torch.bfloat16, largest_bf16] < 1 or largest_bf16 == 256


def test_what_this_machine_does_is_told() -> None:
    measured = rates.measure_rates()
    assert measured.flops > 0
    assert measured.bytes_per_s > 0
    assert measured.limit_s(measured.flops, 0) == pytest.approx(1)
