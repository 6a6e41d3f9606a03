"""Makes the tokenizer that a GGUF file describes."""

from __future__ import annotations

from typing import Any

from tokenizers import decoders, normalizers, pre_tokenizers
from transformers import AutoTokenizer

from cluster.models.gguf_file import GgufFile
from shared.errors import ConfigError, ModelUnsupported

# tokenizer.ggml.model: byte-level BPE, and SentencePiece
_KINDS = ("gpt2", "llama")
# tokenizer.ggml.pre: how text is cut before BPE. Those that transformers knows, and GPT-2's own, its default.
_CUTS = (
    "", "default", "gpt-2", "smollm", "llama3", "llama-v3", "llama-bpe", "falcon3", "tekken", "qwen2",
    "deepseek-r1-qwen", "gpt-4o", "smaug-bpe",
)  # fmt: skip
_DIGITS_APART = ("smollm",)
# tokens that end a turn, in files that name only the one that ends a text
_ENDS_OF_TURN = ("<|im_end|>", "<|eot_id|>", "<|end|>")


def tokenizer_of(file: GgufFile) -> Any:
    """
    Raises:
        ConfigError: there is none in the file, or it is damaged.
        ModelUnsupported: one that would cut text otherwise than the model's own; names it.
    """
    kind, cut = file.value("tokenizer.ggml.model"), file.value("tokenizer.ggml.pre", "")
    if kind is None or not file.value("tokenizer.ggml.tokens"):
        raise ConfigError(f"model: {file.path} holds no tokenizer; take a file with one")
    if kind not in _KINDS or (kind == "gpt2" and cut not in _CUTS):
        raise ModelUnsupported(
            f"model: {file.path}: tokenizer {' '.join(filter(None, (kind, cut)))!r} is not known here; give "
            "the model's own directory or hub id"
        )
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            str(file.path.parent), gguf_file=file.path.name, local_files_only=True, trust_remote_code=False
        )
    except (ValueError, KeyError, IndexError, TypeError, OSError) as error:
        raise ConfigError(f"model: the tokenizer of {file.path} cannot be read: {error}") from error
    if cut in _DIGITS_APART:  # transformers takes GPT-2's cut, which keeps them together
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
            ]
        )
    if kind == "llama" and not file.value("tokenizer.ggml.add_space_prefix", True):
        _begin_without_space(tokenizer.backend_tokenizer)
    return tokenizer


def _begin_without_space(backend: Any) -> None:
    """SentencePiece without the space that it puts in front of a text; transformers always puts one."""
    backend.normalizer = normalizers.Replace(" ", "▁")
    backend.pre_tokenizer = None
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )


def end_ids(file: GgufFile) -> list[int]:
    """Ids that end an answer: of the text's end, of a turn's, of a message's."""
    named = (file.value(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom"))
    tokens = file.value("tokenizer.ggml.tokens", [])
    by_text = (tokens.index(text) for text in _ENDS_OF_TURN if text in tokens)
    return sorted({int(token_id) for token_id in (*named, *by_text) if token_id is not None})
