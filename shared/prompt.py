"""The prompt of a model: shared prefix, text around a chunk, text around the question, and the tokenizer that
makes ids of them.

A model directory may hold ``kvquilt.json`` ({"prefix": ..., "chunk": "{text}...", "question":
"...{question}..."}); without it the default template applies. Chunks and questions are tokenized alone and
without special tokens, so that a chunk's ids do not depend on its neighbours; the prefix begins with BOS
where the model has one. Torch-free.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared.errors import ConfigError, InvalidRequest

TEMPLATE_FILE = "kvquilt.json"
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json")


@dataclass(frozen=True, slots=True)
class PromptTemplate:
    prefix: str = "Answer the question from the documents below.\n\n"
    chunk: str = "{text}\n\n"
    question: str = "Question: {question}\nAnswer:"

    def __post_init__(self) -> None:
        for name, slot in (("chunk", "{text}"), ("question", "{question}")):
            if getattr(self, name).count(slot) != 1:
                raise ValueError(f"{name}: must contain {slot} exactly once")

    @classmethod
    def of_model(cls, model: str) -> PromptTemplate:
        """
        Raises:
            ConfigError: the model's template file is not a template.
        """
        path = Path(model) / TEMPLATE_FILE
        if not path.is_file():
            return cls()
        try:
            return cls(**json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, TypeError) as error:
            raise ConfigError(f"{TEMPLATE_FILE} of the model: {error}") from None


def num_positions(model: str) -> int:
    """Positions that a model directory or hub id has, or its sliding window, if that is less.

    Raises:
        ConfigError: its configuration cannot be read, or does not say.
    """
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(model)
        window = getattr(config, "sliding_window", None) or config.max_position_embeddings
        return min(int(config.max_position_embeddings), int(window))
    except (OSError, ValueError, AttributeError) as error:
        raise ConfigError(f"model: its configuration cannot be used: {error}") from error


class PromptTokenizer:
    """Text to ids by a model's own tokenizer and template."""

    def __init__(self, tokenizer: Any, template: PromptTemplate) -> None:
        self.tokenizer = tokenizer
        self.template = template
        self.prefix_ids = self.encode_prefix(template.prefix)

    @classmethod
    def of_model(cls, model: str) -> PromptTokenizer | None:
        """The tokenizer of a model directory or hub id; None for a directory without one (served by ids
        only).

        Raises:
            ConfigError: there is no such directory, or its tokenizer or template cannot be used.
        """
        if Path(model).is_absolute() and not Path(model).is_dir():
            raise ConfigError(f"model: there is no directory {model!r}")
        if Path(model).is_dir() and not any((Path(model) / name).is_file() for name in _TOKENIZER_FILES):
            return None
        from transformers import AutoTokenizer

        template = PromptTemplate.of_model(model)
        try:
            return cls(AutoTokenizer.from_pretrained(model), template)
        except (OSError, ValueError) as error:
            raise ConfigError(f"model: its tokenizer cannot be loaded: {error}") from error

    @property
    def backend(self) -> Any:
        """The ``tokenizers.Tokenizer`` underneath, for splitters that count tokens."""
        return self.tokenizer.backend_tokenizer

    @property
    def hash(self) -> str:
        """32 hex digits over vocabulary, merges and normalisation."""
        return hashlib.blake2b(self.backend.to_str().encode(), digest_size=16).hexdigest()

    def encode(self, text: str) -> tuple[int, ...]:
        """Ids of ``text`` alone, without special tokens; text that looks like a special token stays text."""
        return (
            tuple(self.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True))
            if text
            else ()
        )

    def encode_prefix(self, text: str) -> tuple[int, ...]:
        """BOS, where the model has one, and the ids of ``text``."""
        bos = () if self.tokenizer.bos_token_id is None else (int(self.tokenizer.bos_token_id),)
        return bos + self.encode(text)

    def encode_chunk(self, text: str) -> tuple[int, ...]:
        return self.encode(self.template.chunk.replace("{text}", text))

    def encode_question(self, question: str) -> tuple[int, ...]:
        if not question.strip():
            raise InvalidRequest("question: is empty")
        return self.encode(self.template.question.replace("{question}", question))

    def decode(self, token_ids: Sequence[int]) -> str:
        text: str = self.tokenizer.decode(
            list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text
