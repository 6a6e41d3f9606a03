"""What llama.cpp is given to compute, and how a peer's process is asked."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter

from cluster.models.gguf_file import GgufFile
from load_tests.peers.__main__ import main
from load_tests.peers.process import PeerProcess
from load_tests.peers.weights import likeliest, write_gguf
from shared.errors import InternalError
from shared.measuring.shapes import QWEN2_05B, SMOLLM2_135M, Shape, random_model

SMALL = {"hidden": 64, "layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 16, "mlp": 96, "vocab": 300}
SHAPES = [replace(shape, **SMALL) for shape in (SMOLLM2_135M, QWEN2_05B)]
WORKER = """
from load_tests.peers.answering import answer_lines
class Adds:
    version = "adds 0.1"
    def next_token(self, ids):
        return sum(ids)
    def prefill_s(self, ids):
        raise MemoryError("no room")
    def hit_s(self, context, question):
        raise SystemExit("killed")
answer_lines(Adds())
"""


@pytest.mark.parametrize(("quantisation", "error"), [("BF16", 0), ("F16", 1e-5), ("Q8_0", 0.02)])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.family)
def test_the_file_holds_the_weights(shape: Shape, quantisation: str, error: float, tmp_path: Path) -> None:
    """As the project's own reader of GGUF gives them back."""
    model = random_model(shape)
    path = tmp_path / "model.gguf"
    assert not write_gguf(model, path, GGMLQuantizationType[quantisation])
    file = GgufFile.open(path)
    assert file.architecture == shape.family
    weights = {name: x for name, x in model.state_dict().items() if name != "lm_head.weight"}
    assert len(file.tensors) == len(weights)
    names = {"embed_tokens": "token_embd", "layers.1.mlp.down_proj": "blk.1.ffn_down", "norm": "output_norm"}
    for name, told in names.items():
        found = torch.from_numpy(file.tensors[f"{told}.weight"].values())
        expected = weights[f"model.{name}.weight"].float()
        assert float((found - expected).abs().max()) <= error * float(expected.abs().max())


def test_a_family_whose_heads_are_turned_in_pairs_is_written_so(tmp_path: Path) -> None:
    model = random_model(SHAPES[0])
    write_gguf(model, path := tmp_path / "model.gguf", GGMLQuantizationType.BF16)
    file = GgufFile.open(path)
    told = file.tensors["blk.0.attn_q.weight"].values()
    rows = model.model.layers[0].self_attn.q_proj.weight.detach().float().numpy()
    assert np.array_equal(told[:4], rows[[0, 8, 1, 9]]), "row i of a head beside row i + head_dim / 2"
    assert np.array_equal(file.tensors["blk.0.attn_v.weight"].values()[:4], _value_rows(model)[:4])


def _value_rows(model: Any) -> Any:
    return model.model.layers[0].self_attn.v_proj.weight.detach().float().numpy()


def test_a_tokenizer_goes_along_where_it_has_as_many_tokens(tmp_path: Path) -> None:
    model = random_model(SHAPES[1])
    other = GGUFWriter(tmp_path / "other.gguf", "llama")
    other.add_tokenizer_model("gpt2")
    other.add_token_list([f"t{i}" for i in range(SMALL["vocab"])])
    other.write_header_to_file()
    other.write_kv_data_to_file()
    other.write_tensors_to_file()
    other.close()
    path = tmp_path / "model.gguf"
    assert write_gguf(model, path, GGMLQuantizationType.F16, tmp_path / "other.gguf")
    fields = GGUFReader(path).fields
    assert fields["tokenizer.ggml.model"].contents() == "gpt2"
    assert fields["tokenizer.ggml.tokens"].contents()[-1] == "t299"
    larger = random_model(replace(SHAPES[1], vocab=301))
    assert not write_gguf(larger, tmp_path / "larger.gguf", GGMLQuantizationType.F16, tmp_path / "other.gguf")


def test_the_likeliest_tokens_are_those_of_stock_transformers() -> None:
    model = random_model(SHAPES[1])
    logits = model(torch.tensor([[1, 2, 3]])).logits[0, -1]
    assert logits[likeliest(model, [1, 2, 3], 5)].tolist() == logits.sort(descending=True).values[:5].tolist()


@pytest.fixture
def peer() -> Iterator[PeerProcess]:
    with PeerProcess([sys.executable, "-c", WORKER]) as peer:
        yield peer


class TestAPeer:
    def test_says_what_it_is_and_answers(self, peer: PeerProcess) -> None:
        assert peer.version == "adds 0.1"
        assert [peer.ask("next_token", ids=ids) for ids in ([1], [2, 5])] == [1, 7]

    def test_that_cannot_goes_on(self, peer: PeerProcess) -> None:
        with pytest.raises(InternalError, match="MemoryError: no room"):
            peer.ask("prefill_s", ids=[1])
        assert peer.ask("next_token", ids=[2]) == 2

    def test_that_ends_says_why(self, peer: PeerProcess) -> None:
        with pytest.raises(InternalError, match="ended with 1: killed"):
            peer.ask("hit_s", context=[1], question=[2])
        with pytest.raises(InternalError, match="killed"):
            peer.ask("next_token", ids=[1])

    def test_that_cannot_begin_says_why(self) -> None:
        with pytest.raises(InternalError, match="ended with 1: no model"):
            PeerProcess([sys.executable, "-c", "import sys; sys.exit('no model')"])


@pytest.mark.parametrize(
    ("option", "told"),
    [
        (("--precision", "int4"), "expected some of bf16, int8, got int4"),
        (("--peers", "vllm"), "expected some of llama.cpp, openvino, got vllm"),
    ],
)
def test_what_does_not_exist_is_refused(
    option: tuple[str, str], told: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["--tools", "nowhere", *option])
    assert told in capfd.readouterr().err
