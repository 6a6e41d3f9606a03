"""Scores of an auxiliary model against the attention that stock transformers tell of themselves."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import (
    AutoModelForCausalLM,
    BertConfig,
    BertModel,
    BloomConfig,
    ByT5Tokenizer,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    MambaConfig,
    OPTConfig,
    PreTrainedConfig,
    PreTrainedTokenizerFast,
)

from shared.engine import EngineConfig, wrap_model
from shared.engine.kv.segment import Segment
from shared.errors import ConfigError, ContextTooLong, InvalidRequest, ModelUnsupported
from shared.generation.selection import Reading
from shared.selection.auxiliary import load_auxiliary
from shared.selection.scoring import EngineScorer, Scores
from shared.selection.stock import StockScorer
from tests.oracles import FAMILIES, VARIANTS, VOCAB, Chained, as_dtype, tiny_model
from tests.selection_runs import each_attention, eager, stitched_attention
from tests.token_families import tokenizer_of

pytestmark = pytest.mark.usefixtures("one_thread")

ORACLES: dict[Reading, Callable[..., list[torch.Tensor]]] = {
    Reading.EACH: each_attention,
    Reading.STITCHED: stitched_attention,
}
READINGS = list(Reading)


@lru_cache
def oracle_model(family: str) -> Any:
    return eager(tiny_model(family))


@lru_cache
def scorer_of(family: str, prefix: tuple[int, ...], config: EngineConfig | None = None) -> EngineScorer:
    return EngineScorer(_loaded(family), prefix, config)


@lru_cache
def _loaded(family: str) -> Any:
    return wrap_model(tiny_model(family))


def ids(num_tokens: int, seed: int) -> tuple[int, ...]:
    return tuple(random.Random(seed).choices(range(3, VOCAB), k=num_tokens))


def chained_segment(scorer: EngineScorer, chunk: Chained) -> Segment:
    """Link by link, as KV that is stored and loaded would be."""
    chain: list[Segment] = []
    for link in (*chunk.chain, chunk):
        chain += scorer.encode([link], chain)
    return chain[-1]


def assert_same(scores: Scores, expected: Sequence[torch.Tensor], tolerance: float = 1e-5) -> None:
    assert [len(s) for s in scores.chunks] == [len(e) for e in expected]
    for ours, theirs in zip(scores.chunks, expected, strict=True):
        assert ours.dtype == np.float32
        np.testing.assert_allclose(ours, theirs.numpy(), atol=tolerance, rtol=1e-3)


class TestScores:
    @pytest.mark.parametrize("reading", READINGS, ids=lambda r: r.value)
    @pytest.mark.parametrize("family", FAMILIES + VARIANTS)
    def test_are_the_stock_models_own_attention_in_every_family(self, family: str, reading: Reading) -> None:
        prefix, chunks, question = ids(5, 0), [ids(n, n) for n in (20, 1, 64, 33)], ids(9, 99)
        scorer = scorer_of(family, prefix)
        scores = scorer.score(scorer.encode(chunks), question, reading)
        assert_same(scores, ORACLES[reading](oracle_model(family), prefix, chunks, question))
        assert scores.reading is reading

    @pytest.mark.parametrize("reading", READINGS, ids=lambda r: r.value)
    def test_of_any_layer_are_the_stock_models_of_that_layer(self, reading: Reading) -> None:
        prefix, chunks, question = ids(5, 0), [ids(n, n) for n in (20, 1, 33)], ids(9, 99)
        for layer in range(tiny_model("llama3").config.num_hidden_layers):
            scorer = EngineScorer(_loaded("llama3"), prefix, layer=layer)
            scores = scorer.score(scorer.encode(chunks), question, reading)
            expected = ORACLES[reading](oracle_model("llama3"), prefix, chunks, question, layer)
            assert_same(scores, expected)

    @settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(
        family=st.sampled_from(("llama3", "qwen2", "phi3_partial")),
        reading=st.sampled_from(READINGS),
        prefix=st.sampled_from((0, 0, 1, 6)),
        chunks=st.lists(st.integers(0, 60), max_size=6),
        question=st.integers(1, 30),
        max_rows=st.sampled_from((3, 40, 2048)),
        seed=st.integers(0, 5),
    )
    def test_any_lengths_in_passes_of_any_size(
        self,
        family: str,
        reading: Reading,
        prefix: int,
        chunks: list[int],
        question: int,
        max_rows: int,
        seed: int,
    ) -> None:
        prefix_ids, question_ids = ids(prefix, seed), ids(question, seed + 1)
        chunk_ids = [ids(n, seed * 100 + i) for i, n in enumerate(chunks)]
        scorer = scorer_of(family, prefix_ids, EngineConfig(max_step_tokens=max_rows))
        scores = scorer.score(scorer.encode(chunk_ids), question_ids, reading)
        assert_same(scores, ORACLES[reading](oracle_model(family), prefix_ids, chunk_ids, question_ids))

    @pytest.mark.parametrize("backend", ["reference", "torch"])
    def test_any_backend_of_attention(self, backend: Any) -> None:
        prefix, chunks, question = ids(4, 0), [ids(17, 1), ids(30, 2)], ids(7, 3)
        scorer = scorer_of("qwen3", prefix, EngineConfig(backend=backend))
        for reading in READINGS:
            scores = scorer.score(scorer.encode(chunks), question, reading)
            assert_same(scores, ORACLES[reading](oracle_model("qwen3"), prefix, chunks, question))

    @pytest.mark.parametrize("reading", READINGS, ids=lambda r: r.value)
    @pytest.mark.parametrize("family", FAMILIES + VARIANTS)
    def test_of_chunks_behind_their_chains_are_those_over_prefix_chain_and_chunk(
        self, family: str, reading: Reading
    ) -> None:
        """Chains of several links, one with a sibling, and a chunk without one among them."""
        prefix, question = ids(5, 0), ids(9, 99)
        header, first, second = ids(7, 1), ids(33, 2), ids(20, 3)
        chains = [(header, first), (), (header,), (header, first, second)]
        chunks = [Chained.of(ids(n, 50 + n), chain) for n, chain in zip((24, 12, 40, 3), chains, strict=True)]
        scorer = scorer_of(family, prefix)
        segments = [chained_segment(scorer, chunk) for chunk in chunks]
        scores = scorer.score(segments, question, reading)
        assert_same(scores, ORACLES[reading](oracle_model(family), prefix, chunks, question))

    def test_one_segment_serves_every_order_and_stands_twice(self) -> None:
        prefix, question = ids(4, 0), ids(7, 3)
        a, b = ids(17, 1), ids(30, 2)
        scorer = scorer_of("qwen2", prefix)
        segment_a, segment_b = scorer.encode([a, b])
        for chunks, segments in (
            ([a, b, a], [segment_a, segment_b, segment_a]),
            ([b, a], [segment_b, segment_a]),
        ):
            scores = scorer.score(segments, question)
            assert_same(scores, stitched_attention(oracle_model("qwen2"), prefix, chunks, question))

    def test_in_bfloat16_they_are_as_near_to_the_truth_as_the_stock_model_is(self) -> None:
        stock = tiny_model("qwen2")
        prefix, question = ids(5, 0), ids(12, 1)
        chunks = [ids(60, 10 + i) for i in range(8)]
        scorer = EngineScorer(wrap_model(as_dtype(stock, torch.bfloat16)), prefix)
        for reading in READINGS:
            truth = torch.cat(ORACLES[reading](eager(stock), prefix, chunks, question))
            theirs = torch.cat(
                ORACLES[reading](eager(as_dtype(stock, torch.bfloat16)), prefix, chunks, question)
            )
            ours = torch.from_numpy(
                np.concatenate(scorer.score(scorer.encode(chunks), question, reading).chunks)
            )
            assert (ours - truth).norm() <= 1.25 * (theirs - truth).norm()

    def test_of_a_question_its_own_rows_are_computed_and_of_the_last_layer_no_mlp(self) -> None:
        hf_model, rows, mlps = tiny_model("llama3"), [], []
        scorer = EngineScorer(wrap_model(hf_model), ids(5, 0))
        segments = scorer.encode([ids(20, 1), ids(30, 2)])
        hf_model.model.embed_tokens.register_forward_hook(
            lambda module, inputs, output: rows.append(output.shape[1])
        )
        for index, layer in enumerate(hf_model.model.layers):
            layer.mlp.register_forward_hook(lambda module, inputs, output, index=index: mlps.append(index))
        scorer.score(segments, ids(9, 3), Reading.STITCHED)
        scorer.score(segments, ids(9, 3), Reading.EACH)
        assert rows == [9, 18]
        assert mlps == [0, 0]


SMALL: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
}
OTHERS: dict[str, PreTrainedConfig] = {
    "learned positions (GPT-2)": GPT2Config(
        vocab_size=VOCAB, n_embd=64, n_layer=3, n_head=4, n_positions=200
    ),
    "learned positions (OPT)": OPTConfig(
        **SMALL, ffn_dim=96, word_embed_proj_dim=64, max_position_embeddings=200
    ),
    "part of the head rotated (GPT-NeoX)": GPTNeoXConfig(
        **SMALL, intermediate_size=96, max_position_embeddings=200
    ),
    "ALiBi (Bloom)": BloomConfig(vocab_size=VOCAB, hidden_size=64, n_layer=3, n_head=4),
    "angles by length": LlamaConfig(
        **SMALL,
        intermediate_size=96,
        max_position_embeddings=200,
        rope_parameters={"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0},
    ),
}


@lru_cache
def other_model(kind: str) -> Any:
    torch.manual_seed(0)
    hf_model = AutoModelForCausalLM.from_config(
        OTHERS[kind], dtype=torch.float32, attn_implementation="eager"
    )
    for name, parameter in hf_model.named_parameters():
        if parameter.dim() > 1 and "emb" not in name:
            parameter.data.mul_(5)
    return hf_model.eval()


class TestModelsBeyondTheEngine:
    @pytest.mark.parametrize("kind", OTHERS)
    def test_are_read_chunk_by_chunk_as_the_stock_model_reads_them(self, kind: str) -> None:
        hf_model, question = other_model(kind), ids(9, 99)
        with pytest.raises(ModelUnsupported):
            wrap_model(copy.deepcopy(hf_model))
        for prefix in ((), ids(5, 0)):
            scorer = StockScorer(hf_model, prefix)
            chunks = [ids(n, n) for n in (20, 0, 1, 64)]
            segments = scorer.encode(chunks)
            for _ in range(2):  # what is asked leaves the segments as they were
                scores = scorer.score(segments, question, Reading.STITCHED)
                assert scores.reading is Reading.EACH
                assert_same(scores, each_attention(eager(hf_model), prefix, chunks, question))

    def test_know_the_same_limits(self) -> None:
        scorer = StockScorer(other_model("learned positions (GPT-2)"), ids(5, 0))
        with pytest.raises(ContextTooLong, match=r"chunks\[0\].*200 positions"):
            scorer.encode([ids(196, 0)])
        with pytest.raises(ContextTooLong, match="question"):
            scorer.score(scorer.encode([ids(190, 0)]), ids(6, 0))
        with pytest.raises(InvalidRequest, match="question: is empty"):
            scorer.score([], ())
        with pytest.raises(InvalidRequest, match=r"chunks\[0\]: a token id"):
            scorer.encode([(VOCAB,)])


class TestLimits:
    def test_a_context_beyond_the_models_positions_is_read_chunk_by_chunk_and_says_so(self) -> None:
        for limit in ({"max_position_embeddings": 50}, {"sliding_window": 50}):
            stock = tiny_model("mistral", **limit)
            scorer = EngineScorer(wrap_model(stock), ids(5, 0))
            chunks, question = [ids(20, 1), ids(17, 2)], ids(9, 3)
            scores = scorer.score(scorer.encode(chunks), question, Reading.STITCHED)
            assert scores.reading is Reading.EACH
            assert_same(scores, each_attention(oracle_model("mistral"), ids(5, 0), chunks, question))
            fitting = scorer.score(scorer.encode([chunks[0], chunks[1][:16]]), question, Reading.STITCHED)
            assert fitting.reading is Reading.STITCHED

    def test_a_chunk_that_is_too_long_by_itself_is_refused_by_name(self) -> None:
        scorer = EngineScorer(wrap_model(tiny_model("llama3", max_position_embeddings=50)), ids(5, 0))
        with pytest.raises(ContextTooLong, match=r"chunks\[1\] \(46 tokens\).*50 positions"):
            scorer.encode([ids(45, 0), ids(46, 1)])
        with pytest.raises(ContextTooLong, match=r"chunks\[0\] \(36 tokens\), the 10 tokens in front of it"):
            scorer.encode([ids(36, 0)], scorer.encode([ids(10, 1)]))
        with pytest.raises(ContextTooLong, match=r"chunks\[0\] \(45 tokens\) and the question"):
            scorer.score(scorer.encode([ids(45, 0)]), ids(1, 1))

    def test_an_empty_question_and_foreign_ids_are_refused_by_name(self) -> None:
        scorer = scorer_of("qwen2", ())
        with pytest.raises(InvalidRequest, match="question: is empty"):
            scorer.score(scorer.encode([ids(5, 0)]), ())
        with pytest.raises(InvalidRequest, match="question: a token id"):
            scorer.score([], (VOCAB,))
        with pytest.raises(InvalidRequest, match=r"chunks\[1\]: a token id"):
            scorer.encode([ids(5, 0), (-1,)])
        with pytest.raises(InvalidRequest, match="prefix: a token id"):
            EngineScorer(scorer.model, (VOCAB,))


class TestLoading:
    def save(self, path: Path, model: Any, tokenizer: Any) -> str:
        model.save_pretrained(path)
        if tokenizer is not None:
            tokenizer.save_pretrained(path)
        return str(path)

    @pytest.fixture
    def fast(self) -> PreTrainedTokenizerFast:
        return PreTrainedTokenizerFast(tokenizer_object=tokenizer_of("byte-level BPE"), bos_token="<s>")

    def test_a_model_and_its_tokenizer_are_read_in_the_type_asked_for(
        self, tmp_path: Path, fast: PreTrainedTokenizerFast
    ) -> None:
        path = self.save(tmp_path, tiny_model("llama3", vocab_size=len(fast)), fast)
        auxiliary = load_auxiliary(path, EngineConfig(dtype="float32"))
        assert auxiliary.scorer.model.spec.dtype is torch.float32
        assert auxiliary.prompts.prefix_ids[0] == fast.bos_token_id
        chunk = auxiliary.tokenizer.tokenize("the mayor of the mine").token_ids
        question = auxiliary.prompts.encode_question("who?")
        stock = eager(tiny_model("llama3", vocab_size=len(fast)))
        scores = auxiliary.scorer.score(auxiliary.scorer.encode([chunk]), question)
        assert_same(scores, each_attention(stock, auxiliary.prompts.prefix_ids, [chunk], question))
        assert load_auxiliary(path).scorer.model.spec.dtype in (torch.bfloat16, torch.float32)

    def test_a_model_that_the_engine_does_not_drive_is_read_by_its_own_code(
        self, tmp_path: Path, fast: PreTrainedTokenizerFast
    ) -> None:
        hf_model = AutoModelForCausalLM.from_config(
            GPT2Config(vocab_size=len(fast), n_embd=32, n_layer=2, n_head=2)
        )
        auxiliary = load_auxiliary(self.save(tmp_path, hf_model, fast), EngineConfig(dtype="float32"))
        assert isinstance(auxiliary.scorer, StockScorer)
        chunk, question = (
            auxiliary.tokenizer.tokenize("of the mine").token_ids,
            auxiliary.prompts.encode_question("who?"),
        )
        scores = auxiliary.scorer.score(auxiliary.scorer.encode([chunk]), question)
        assert_same(
            scores, each_attention(eager(hf_model.eval()), auxiliary.prompts.prefix_ids, [chunk], question)
        )

    def test_what_cannot_score_is_refused_with_the_reason(
        self, tmp_path: Path, fast: PreTrainedTokenizerFast
    ) -> None:
        size: dict[str, Any] = {"vocab_size": len(fast), "hidden_size": 32, "num_hidden_layers": 1}
        bert = self.save(
            tmp_path / "bert",
            BertModel(BertConfig(**size, num_attention_heads=2, intermediate_size=32)),
            fast,
        )
        with pytest.raises(InvalidRequest, match="not a causal language model"):
            load_auxiliary(bert)
        mamba = AutoModelForCausalLM.from_config(MambaConfig(**size, state_size=4))
        with pytest.raises(ModelUnsupported, match="MambaForCausalLM"):
            load_auxiliary(self.save(tmp_path / "mamba", mamba, fast))
        slow = self.save(tmp_path / "slow-1", tiny_model("llama"), ByT5Tokenizer())
        with pytest.raises(ModelUnsupported, match=r"slow-1.*gives no character offsets"):
            load_auxiliary(slow)
        with pytest.raises(ConfigError, match="no tokenizer"):
            load_auxiliary(self.save(tmp_path / "bare", tiny_model("llama"), None))
