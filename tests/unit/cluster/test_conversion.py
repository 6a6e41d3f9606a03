"""GGUF files become the models that they were made from."""

from __future__ import annotations

import contextlib
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter, dequantize, quantize
from transformers import AutoModelForCausalLM, AutoTokenizer

from cluster.models.cache import ModelCache
from cluster.models.families import plan_of
from cluster.models.gguf_file import GgufFile
from shared.errors import ConfigError, ModelUnsupported
from shared.prompt import PromptTokenizer
from tests.gguf_files import PIECES, SENTENCE_TOKENS, SPECIALS, TOKENS, gguf_model, write_gguf

F32, Q8_0, Q4_1 = GGMLQuantizationType.F32, GGMLQuantizationType.Q8_0, GGMLQuantizationType.Q4_1
IDS = torch.arange(20).reshape(1, -1) * 7 % len(TOKENS)
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def converted(tmp_path: Path, model: Any, *args: Any, **options: Any) -> Path:
    return ModelCache(tmp_path / "cache").converted(write_gguf(tmp_path / "m.gguf", model, *args, **options))


def logits(model: Any) -> torch.Tensor:
    with torch.inference_mode():
        found: torch.Tensor = model.float()(IDS, position_ids=IDS.argsort(1) * 50).logits
    return found


def as_stored(model: Any, kind: GGMLQuantizationType) -> Any:
    """The model with the weights that a file of that quantisation stands for, in bfloat16."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2 and kind != F32:
                values = dequantize(quantize(parameter.numpy(), kind), kind)
                parameter.copy_(torch.from_numpy(np.array(values)))
            parameter.copy_(parameter.to(torch.bfloat16))
    return model


class TestWeights:
    @pytest.mark.parametrize(
        ("family", "changes"),
        [
            ("llama", {}),
            ("llama", {"tie_word_embeddings": True}),
            ("llama", {"attention_bias": True, "mlp_bias": True}),
            ("llama", {"head_dim": 32}),
            ("mistral", {"sliding_window": 64}),
            ("qwen2", {}),
            ("qwen3", {}),
            ("phi3", {}),
            ("phi3_partial", {}),
        ],
    )
    def test_every_family_computes_what_its_model_computes(
        self, family: str, changes: dict[str, Any], tmp_path: Path
    ) -> None:
        settings = {"attention.sliding_window": changes.get("sliding_window")}
        directory = converted(tmp_path, gguf_model(family, **changes), settings=settings)
        found = AutoModelForCausalLM.from_pretrained(directory)
        expected = as_stored(gguf_model(family, **changes), F32)
        assert found.dtype == torch.bfloat16
        assert type(found) is type(expected)
        assert found.state_dict().keys() == expected.state_dict().keys()
        for name, tensor in expected.state_dict().items():
            assert torch.equal(found.state_dict()[name].float(), tensor), name
        assert torch.allclose(logits(found), logits(expected), atol=1e-4)

    @pytest.mark.parametrize("kind", [Q8_0, Q4_1, GGMLQuantizationType.Q5_0, GGMLQuantizationType.BF16])
    def test_quantised_weights_become_what_they_stand_for(
        self, kind: GGMLQuantizationType, tmp_path: Path
    ) -> None:
        directory = converted(tmp_path, gguf_model("llama"), kind)
        found = AutoModelForCausalLM.from_pretrained(directory).state_dict()
        for name, tensor in as_stored(gguf_model("llama"), kind).state_dict().items():
            assert torch.equal(found[name].float(), tensor), name

    @pytest.mark.parametrize(
        ("rope", "settings"),
        [
            (
                {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0},
                {"rope.scaling.type": "linear", "rope.scaling.factor": 2.0},
            ),
            (
                {
                    "rope_type": "yarn",
                    "rope_theta": 1e4,
                    "factor": 8.0,
                    "original_max_position_embeddings": 2500,
                },
                {
                    "rope.scaling.type": "yarn",
                    "rope.scaling.factor": 8.0,
                    "rope.scaling.original_context_length": 2500,
                },
            ),
            (LLAMA3, {}),
        ],
        ids=["linear", "yarn", "llama3"],
    )
    def test_stretched_positions_are_the_models(
        self, rope: dict[str, Any], settings: dict[str, Any], tmp_path: Path
    ) -> None:
        extra = {"rope_freqs.weight": rope_freqs(16)} if rope is LLAMA3 else {}
        model = gguf_model("llama", rope_parameters=rope)
        directory = converted(tmp_path, model, settings=settings, extra=extra)
        found = AutoModelForCausalLM.from_pretrained(directory)
        theirs, ours = model.model.rotary_emb, found.model.rotary_emb
        assert torch.allclose(theirs.inv_freq, ours.inv_freq, rtol=1e-6)
        assert theirs.attention_scaling == ours.attention_scaling


class TestTokenizer:
    def test_it_cuts_as_the_models_own_and_knows_special_tokens_and_the_chat_template(
        self, tmp_path: Path
    ) -> None:
        tokenizer = AutoTokenizer.from_pretrained(converted(tmp_path, gguf_model("llama")))
        assert tokenizer.convert_ids_to_tokens(list(range(len(TOKENS)))) == list(TOKENS)
        assert tokenizer.tokenize("the  12") == ["the", "Ġ", "Ġ", "1", "2"]  # smollm: digits alone
        assert tokenizer.tokenize("<|im_end|>") == ["<|im_end|>"]
        assert set(SPECIALS) <= set(tokenizer.all_special_tokens)
        assert tokenizer.apply_chat_template([{"content": "the"}], tokenize=False).endswith("the<|im_end|>")

    def test_another_cut_is_kept_as_it_is(self, tmp_path: Path) -> None:
        tokenizer = AutoTokenizer.from_pretrained(converted(tmp_path, gguf_model("llama"), cut="llama-bpe"))
        assert tokenizer.tokenize("12") == ["12"]

    def test_an_answer_ends_with_its_text_or_its_turn(self, tmp_path: Path) -> None:
        model = AutoModelForCausalLM.from_pretrained(converted(tmp_path, gguf_model("llama")))
        assert model.generation_config.eos_token_id == [0, 2]


# what SentencePiece's tokenizers get wrong when they are converted carelessly
HARD_TEXTS = (
    *("", " ", "the lamp", " the lamp", "  the  lamp   ", "hello\thello\n\nthe lamp\r\n", "a\n b", "12 112"),
    *("ééé é", "łódź", "Ünïcödé", "漢字 ひらがな", "\U0001f999\U0001f3fd\u200d♂️", "مرحبا", "e\u0301"),
    *("\u00a0the", "\u200bthe", "a▁b", "▁the", "<0x0A>", "<unk>", "<s>the</s>", "the<|user|>lamp"),
    *("[INST] the [/INST]", "aaaa    aaaaa", "lllllllo" * 9),
)


class TestSentencePieces:
    @pytest.mark.parametrize("family", ["llama", "phi3"])
    def test_ids_are_those_of_transformers_own_conversion(self, family: str, tmp_path: Path) -> None:
        tokenizer = sentence_pieces(tmp_path, family)
        theirs = AutoTokenizer.from_pretrained(str(tmp_path), gguf_file="m.gguf")
        for text in HARD_TEXTS:
            assert tokenizer(text)["input_ids"] == theirs(text)["input_ids"], text
            assert tokenizer.decode(tokenizer(text)["input_ids"]) == theirs.decode(theirs(text)["input_ids"])
        assert tokenizer.convert_ids_to_tokens(range(len(SENTENCE_TOKENS))) == list(SENTENCE_TOKENS)
        assert tokenizer.tokenize("a<|user|>") == ["▁a", "<|user|>"]
        assert tokenizer("the")["input_ids"][0] == tokenizer.bos_token_id == 1

    @pytest.mark.parametrize("space_prefix", [None, True, False])
    def test_pieces_are_put_together_by_their_scores_and_the_rest_is_bytes(
        self, space_prefix: bool | None, tmp_path: Path
    ) -> None:
        tokenizer = sentence_pieces(tmp_path, "llama", space_prefix=space_prefix)
        for text in HARD_TEXTS:
            if "<" in text or text.startswith((" ", "▁")):
                continue  # special tokens; where Metaspace puts no second space
            prefix = "" if space_prefix is False else "▁"
            ids = tokenizer(text, add_special_tokens=False)["input_ids"]
            assert tokenizer.convert_ids_to_tokens(ids) == put_together(text, prefix), text
            assert tokenizer.decode(ids) == text.replace("▁", " ")

    def test_special_tokens_in_documents_are_text(self, tmp_path: Path) -> None:
        sentence_pieces(tmp_path, "llama")
        (directory,) = (tmp_path / "cache").glob("m-*")
        tokenizer = PromptTokenizer.of_model(str(directory))
        assert tokenizer is not None
        for text in HARD_TEXTS[2:]:
            special = set(tokenizer.encode_chunk(text)) & {0, 1, 2, SENTENCE_TOKENS.index("<|user|>")}
            assert not special, text

    def test_one_without_scores_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"the tokenizer of .*m\.gguf cannot be read.*scores"):
            sentence_pieces(tmp_path, "llama", scores=False)


def sentence_pieces(tmp_path: Path, family: str, **options: Any) -> Any:
    """The tokenizer of the model that a file with SentencePiece's becomes."""
    model = gguf_model(family, vocab_size=len(SENTENCE_TOKENS))
    return AutoTokenizer.from_pretrained(converted(tmp_path, model, tokenizer="llama", **options))


def put_together(text: str, prefix: str) -> list[str]:
    """SentencePiece's BPE by its definition: of all neighbours, the leftmost of the best pieces first."""
    score = {piece: -i for i, piece in enumerate(PIECES)}
    parts = list(prefix + text.replace(" ", "▁")) if text else []
    while pairs := [(-score[a + b], i) for i, (a, b) in enumerate(pairwise(parts)) if a + b in score]:
        _, i = min(pairs)
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    return [
        piece
        for part in parts
        for piece in ([part] if part in score else (f"<0x{byte:02X}>" for byte in part.encode()))
    ]


class TestRefusals:
    @pytest.mark.parametrize(
        ("options", "error", "says"),
        [
            ({"architecture": "gemma3"}, ModelUnsupported, "family 'gemma3'.*served are Llama, Mistral"),
            ({"settings": {"expert_count": 8}}, ModelUnsupported, "llama.expert_count is 8"),
            ({"settings": {"attention.head_count_kv": [2, 1]}}, ModelUnsupported, "differs from layer to"),
            ({"settings": {"attention.value_length": 8}}, ModelUnsupported, "different length"),
            ({"settings": {"rope.dimension_count": 8}}, ModelUnsupported, "rope.dimension_count is 8 of 16"),
            ({"settings": {"rope.scaling.type": "longrope"}}, ModelUnsupported, "'longrope'"),
            ({"settings": {"rope.scaling.type": "yarn"}}, ModelUnsupported, "original_context_length"),
            ({"settings": {"block_count": None}}, ConfigError, "lacks llama.block_count"),
            ({"settings": {"attention.head_count": 3}}, ConfigError, "not go together .*64.*multiple.*3"),
            ({"settings": {"embedding_length": 32}}, ConfigError, "its settings say"),
            ({"settings": {"block_count": 3}}, ConfigError, "lacks model.layers.2"),
            ({"settings": {"block_count": 1}}, ModelUnsupported, r"does not have \(model.layers.1"),
            ({"without": ("model.norm.weight",)}, ConfigError, "lacks model.norm.weight"),
            ({"without": ("model.embed_tokens.weight",)}, ConfigError, "lacks token_embd.weight"),
            ({"extra": {"blk.0.attn_sinks": np.ones(4, np.float32)}}, ModelUnsupported, "blk.0.attn_sinks"),
            ({"extra": {"rope_freqs.weight": np.ones(8, np.float32) * 3}}, ModelUnsupported, "rope_freqs"),
            ({"tokenizer": None}, ConfigError, "no tokenizer"),
            ({"tokenizer": "rwkv"}, ModelUnsupported, "tokenizer 'rwkv smollm'"),
            ({"cut": "of-next-year"}, ModelUnsupported, "tokenizer 'gpt2 of-next-year'"),
        ],
    )
    def test_what_would_become_another_model_is_refused_by_name(
        self, options: dict[str, Any], error: type[Exception], says: str, tmp_path: Path
    ) -> None:
        with pytest.raises(error, match=says) as refusal:
            converted(tmp_path, gguf_model("llama"), **options)
        assert str(tmp_path / "m.gguf") in str(refusal.value)
        assert not list((tmp_path / "cache").glob("*.partial")) + list((tmp_path / "cache").glob("m-*"))

    @pytest.mark.parametrize(("number", "architecture"), [(0, "llama"), (2, None)])
    def test_a_part_of_a_model_says_so_and_how_the_whole_is_made(
        self, number: int, architecture: str | None, tmp_path: Path
    ) -> None:
        path = tmp_path / "m-0000x-of-00003.gguf"
        writer = GGUFWriter(path, architecture or "llama")
        if architecture is None:
            writer.kv_data[0].clear()  # as llama.cpp leaves it out of all parts but the first
        writer.add_uint16("split.no", number)
        writer.add_uint16("split.count", 3)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        with pytest.raises(ConfigError, match=rf"is part {number + 1} of 3 .*llama-gguf-split --merge"):
            GgufFile.open(path)

    @pytest.mark.parametrize("part", [0, 3, 10, 30, 0.01, 0.3, 0.9, 0.999])
    def test_a_file_that_ends_early_is_told_from_one_that_is_no_gguf(
        self, part: float, tmp_path: Path
    ) -> None:
        path = write_gguf(tmp_path / "m.gguf", gguf_model("llama"))
        whole = path.read_bytes()
        path.write_bytes(whole[: part if isinstance(part, int) else int(part * len(whole))])
        says = "is not a GGUF file" if part in (0, 3) else "is truncated or damaged.*download it again"
        with pytest.raises(ConfigError, match=says):
            ModelCache(tmp_path / "cache").converted(path)

    def test_wrong_bytes_in_its_head_are_an_error_of_ours_or_change_nothing_that_counts(
        self, tmp_path: Path
    ) -> None:
        path = write_gguf(tmp_path / "m.gguf", gguf_model("llama"))
        whole = path.read_bytes()
        for at in range(4, 6000, 149):
            path.write_bytes(whole[:at] + b"\xff" * 3 + whole[at + 3 :])
            with contextlib.suppress(ConfigError, ModelUnsupported):
                plan_of(GgufFile.open(path))

    @pytest.mark.parametrize(("kind", "told"), [(9, "Q8_1"), (99, "type 99")])
    def test_a_quantisation_that_cannot_be_undone_is_named(
        self, kind: int, told: str, tmp_path: Path
    ) -> None:
        path = write_gguf(tmp_path / "m.gguf", gguf_model("llama"), Q8_0)
        name = b"blk.0.ffn_down.weight"
        data = bytearray(path.read_bytes())
        at = data.index(name) + len(name) + 4 + 2 * 8  # behind the number of dimensions, and two of them
        assert data[at] == 8
        data[at] = kind
        path.write_bytes(data)
        with pytest.raises(ModelUnsupported, match=f"quantised as {told}.*Q4_K_M"):
            ModelCache(tmp_path / "cache").converted(path)


def rope_freqs(head_dim: int) -> np.ndarray[Any, Any]:
    """As llama.cpp's converter derives them from ``LLAMA3``."""
    factors = []
    for i in range(0, head_dim, 2):
        wavelength = 2 * math.pi * LLAMA3["rope_theta"] ** (i / head_dim)  # type: ignore[operator]
        if wavelength < 8192 / 4:
            factors.append(1.0)
        elif wavelength > 8192 / 1:
            factors.append(32.0)
        else:
            smooth = (8192 / wavelength - 1) / (4 - 1)
            factors.append(1 / ((1 - smooth) / 32 + smooth))
    return np.array(factors, dtype=np.float32)
