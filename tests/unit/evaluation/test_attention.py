"""Attention under the three masks, against what each mask allows."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from cluster.evaluation.attention import AttentionCase, MaskKind, attention, study_of

CASE = AttentionCase((1, 2), ((3, 4, 5), (6, 7), (8, 9, 10, 11)), (12, 13))


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 48, "vocab_size": 64}
    config = LlamaConfig(**sizes, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1)
    config._attn_implementation = "eager"
    return LlamaForCausalLM(config).eval()


def between_chunks(weights_TT: np.ndarray[Any, Any]) -> float:
    borders = CASE.borders
    return float(
        sum(weights_TT[start:end, borders[1] : start].sum() for start, end in pairwise(borders[1:-1]))
    )


def test_pieces_stand_one_behind_the_other() -> None:
    assert CASE.borders == [0, 2, 5, 7, 11, 13]
    assert CASE.token_ids == list(range(1, 14))


@pytest.mark.parametrize("kind", MaskKind)
def test_rows_add_up_and_see_what_the_mask_allows(model: Any, kind: MaskKind) -> None:
    weights_TT = attention(model, CASE, kind)
    assert weights_TT.shape == (13, 13)
    assert weights_TT.sum(axis=1) == pytest.approx(np.ones(13), abs=1e-4)
    assert np.triu(weights_TT, 1).max() == 0
    assert (between_chunks(weights_TT) > 0.1) == (kind is MaskKind.CAUSAL)
    assert (weights_TT[-1] > 0).all()


def test_under_the_causal_mask_it_is_the_models_own(model: Any) -> None:
    with torch.no_grad():
        told = model(input_ids=torch.tensor([CASE.token_ids]), output_attentions=True)
    own_TT = np.mean([layer[0].mean(dim=0).numpy() for layer in told.attentions], axis=0)
    assert attention(model, CASE, MaskKind.CAUSAL) == pytest.approx(own_TT, abs=1e-5)


def test_composite_and_reordered_positions_differ_where_there_are_several_chunks(model: Any) -> None:
    one = AttentionCase(CASE.prefix_ids, CASE.chunks[:1], CASE.question_ids)
    for case, alike in ((one, True), (CASE, False)):
        a, b = (attention(model, case, kind) for kind in (MaskKind.COMPOSITE, MaskKind.REORDERED))
        assert np.allclose(a, b, atol=1e-5) == alike


def test_a_study_tells_where_attention_goes(model: Any) -> None:
    study = study_of(model, [CASE, CASE])
    assert study.inter_chunk + study.own_chunk + study.to_prefix == pytest.approx(1, abs=1e-4)
    assert study.inter_chunk > 0.1
    assert [picture.kind for picture in study.pictures] == list(MaskKind)
    for picture in study.pictures:
        assert sum(picture.of_question) == pytest.approx(1)
        assert len(picture.of_question) == len(CASE.chunks)
        assert len(picture.cells) == 13
    assert study.borders == pytest.approx([2 / 13, 5 / 13, 7 / 13, 11 / 13])
    assert {m.name for m in study.measurements()} == {
        "attention_inter_chunk",
        "attention_own_chunk",
        "attention_prefix",
    }


def test_pictures_of_long_texts_are_made_smaller(model: Any) -> None:
    chunk = tuple(range(2, 62))
    study = study_of(model, [AttentionCase((1,), (chunk, chunk), (1, 2, 3))])
    cells = np.array(study.pictures[0].cells)
    assert cells.shape == (72, 72)
    assert cells.sum(axis=1) == pytest.approx(np.ones(72), abs=1e-2)
