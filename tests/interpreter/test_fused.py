"""Fused norms and activations, and the rotation that is left out, against the stock modules."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch

from shared.engine import Engine, EngineConfig, wrap_model
from shared.engine.model.fused import FusedGatedMlp, FusedRmsNorm, JointLinear, fuse
from shared.generation.modes import ReuseMode
from tests.engine_runs import Prompts, assert_equals_oracle, run
from tests.oracles import as_dtype, tiny_model


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("family", "norms", "mlps"), [("qwen2", 5, 2), ("qwen3", 9, 2), ("phi3", 5, 0)])
def test_modules_are_replaced_and_compute_the_same(
    family: str, norms: int, mlps: int, dtype: torch.dtype
) -> None:
    """In bfloat16 both are about as far from what the same weights give in float32: three times as far at
    most, since the interpreter cuts what the kernels write to bfloat16 instead of rounding it."""
    stock = as_dtype(tiny_model(family), dtype).eval()
    fused = copy.deepcopy(stock)
    torch.manual_seed(0)
    with torch.no_grad():
        for weight in [p for name, p in stock.named_parameters() if "norm" in name]:
            weight.normal_()
        fused.load_state_dict(stock.state_dict())
        fuse(fused.model)
        modules = list(fused.modules())
        assert sum(isinstance(one, FusedRmsNorm) for one in modules) == norms
        assert sum(isinstance(one, FusedGatedMlp) for one in modules) == mlps
        assert sum(isinstance(one, JointLinear) for one in modules) == (0 if family == "phi3" else 6)
        assert fused.state_dict().keys() == stock.state_dict().keys()
        ids = torch.arange(3, 20)[None]
        theirs, ours = stock(ids).logits.float(), fused(ids).logits.float()
        exact = stock.float()(ids).logits
    if dtype is torch.float32:
        assert relative_error(ours, exact) < 1e-5
    else:
        assert relative_error(ours, exact) < 3 * relative_error(theirs, exact)


def relative_error(logits: torch.Tensor, exact: torch.Tensor) -> float:
    return float((logits - exact).pow(2).mean().sqrt() / exact.pow(2).mean().sqrt())


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "phi3_partial", "llama_yarn"])
def test_an_engine_over_them_equals_the_oracle(family: str) -> None:
    """Under YaRN positions of 0 still scale, and nothing is left out."""
    model = wrap_model(tiny_model(family))
    before = model.base_fingerprint
    del model.base_fingerprint  # a cached property: asked again of what is there then
    model.fuse()
    assert model.base_fingerprint == before
    engine = Engine(model, EngineConfig(backend="torch"))
    request = Prompts(engine, seed=1).request(prefix=7, chunks=(20, 33), questions=(9,), max_tokens=3)
    for reuse in (ReuseMode.FULL, ReuseMode.REORDERED):
        asked = replace(request, request_id=reuse.value, reuse=reuse)
        assert_equals_oracle(run(engine, asked)[0], tiny_model(family))
