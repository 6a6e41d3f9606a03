"""The prompt of a model: shared prefix, text around a chunk, text around the question, and the tokenizer that
makes ids of them.

Where the template comes from: ``kvquilt.json`` in the model's directory ({"prefix": ..., "chunk":
"{text}...", "question": "...{question}..."}), else the tokenizer's chat template
(``shared.chat_template``), else the default. Special tokens of a template are tokens; in chunks and questions
they are text. Chunks and questions are tokenized alone, so that a chunk's ids do not depend on its
neighbours. Torch-free.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shared.chat_template import template_of
from shared.errors import ConfigError, InvalidRequest
from shared.identity import TokenIds
from shared.packets import PacketIds, read_facts
from shared.piece_encoder import PieceEncoder, backend_of
from shared.prompt_config import PromptConfig
from shared.prompt_template import PromptTemplate

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json")


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
    """Text to ids by a model's own tokenizer and template. ``packets``: between which chunks stand."""

    def __init__(self, tokenizer: Any, template: PromptTemplate, packets: PacketIds | None = None) -> None:
        self.tokenizer = tokenizer
        self.template = template
        self.packets = packets
        backend = backend_of(tokenizer)
        whole = "\0".join((template.prefix, template.chunk, template.question, template.controls))
        self.pieces = None if backend is None else PieceEncoder(backend, whole)
        self._chunk = self._around(template.chunk, "{text}")
        self._question = self._around(template.question, "{question}")
        prefix_ids = self._encode(self._marked(template.prefix))
        bos = () if tokenizer.bos_token_id is None else (int(tokenizer.bos_token_id),)
        begins = prefix_ids[:1] == bos
        self._bos = bos if begins or not template.is_whole else ()
        self._spelt: dict[int, str] = {}
        self.prefix_ids = prefix_ids if begins else self._bos + prefix_ids

    @classmethod
    def of_model(cls, model: str, config: PromptConfig | None = None) -> PromptTokenizer | None:
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

        brought = PromptTemplate.of_model(model)
        try:
            tokenizer = AutoTokenizer.from_pretrained(model)
        except (OSError, ValueError) as error:
            raise ConfigError(f"model: its tokenizer cannot be loaded: {error}") from error
        config = config or PromptConfig()
        template = template_of(tokenizer, brought, config)
        packets = read_facts(Path(config.packets)).ids if config.packets else None
        try:
            prompts = cls(tokenizer, template, packets)
        except Exception as error:  # tokenizers raises nothing else
            raise ConfigError(f"model: its tokenizer cannot be copied: {error}") from error
        prompts.check_specials()
        return prompts

    @property
    def backend(self) -> Any:
        """The ``tokenizers.Tokenizer`` underneath, for splitters that count tokens."""
        return self.tokenizer.backend_tokenizer

    def as_json(self) -> str:
        """The tokenizer in the form of ``tokenizers``."""
        text: str = self.backend.to_str()
        return text

    @property
    def hash(self) -> str:
        """32 hex digits over vocabulary, merges and normalisation, and the ids of packets."""
        made_of = self.as_json() + ("" if self.packets is None else f"\0{self.packets!r}")
        return hashlib.blake2b(made_of.encode(), digest_size=16).hexdigest()

    @property
    def end_ids(self) -> frozenset[int]:
        """Ids that end the model's turn, besides those that the model itself names."""
        found = None if self.pieces is None else self.pieces.leading(self.template.end_of_turn)
        return frozenset() if found is None else frozenset([found])

    def check_specials(self) -> None:
        """
        Raises:
            ConfigError: the tokenizer itself makes other ids of the template, so a special token of it would
                not reach the model.
        """
        if not self.template.is_whole:
            return
        question = self.template.question.replace("{question}", "why?")
        for name, text, ours in (
            ("prefix", self.template.prefix, self.prefix_ids),
            ("question", question, self.encode_question("why?")),
        ):
            theirs = tuple(self.tokenizer.encode(text, add_special_tokens=False))
            if theirs != ours:
                raise ConfigError(
                    f"chat template: the {name} {text!r} becomes the ids {ours}, but {theirs} by the "
                    "tokenizer itself; set prompt.template to default, or give the model a kvquilt.json"
                )

    def encode(self, text: str) -> TokenIds:
        """Ids of ``text`` alone, without special tokens; text that looks like a special token stays text."""
        return self._encode(text)

    def encode_prefix(self, text: str) -> TokenIds:
        """BOS, where prompts of the model begin with it, and the ids of ``text``."""
        return self._bos + self.encode(text)

    def encode_chunk(self, text: str) -> TokenIds:
        """Between packets, if there are any."""
        plain = self.encode_passage(text)
        return plain if self.packets is None else self.packets.around(plain)

    def encode_passage(self, text: str) -> TokenIds:
        """A chunk's ids without packets."""
        before, after = self._chunk
        return self._encode(before + text + after)

    def encode_question(self, question: str) -> TokenIds:
        if not question.strip():
            raise InvalidRequest("question: is empty")
        before, after = self._question
        return self._encode(
            before + (question.rstrip() if self.template.trims_question else question) + after
        )

    def decode(self, token_ids: Sequence[int]) -> str:
        text: str = self.tokenizer.decode(
            list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text

    def decode_one(self, token_id: int) -> str:
        """Decodes the token as in the middle of a text: behind itself, since some tokenizers take the space
        away from the first one."""
        text = self._spelt.get(token_id)
        if text is None:
            alone = self.decode((token_id,))
            text = self.decode((token_id, token_id)).removeprefix(alone) or alone
            self._spelt[token_id] = text
        return text

    def _around(self, template: str, slot: str) -> tuple[str, str]:
        before, after = template.split(slot)
        return self._marked(before), self._marked(after)

    def _marked(self, template: str) -> str:
        return template if self.pieces is None else self.pieces.marked(template)

    def _encode(self, text: str) -> TokenIds:
        if not text:
            return ()
        if self.pieces is not None:
            return tuple(self.pieces.encode(text).ids)
        return tuple(self.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True))
