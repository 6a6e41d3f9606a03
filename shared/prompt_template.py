"""The texts of a prompt: shared prefix, text around a chunk, text around the question; and the file by which
a model brings its own."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from shared.errors import ConfigError

TEMPLATE_FILE = "kvquilt.json"
_IN_FILE = ("prefix", "chunk", "question")


@dataclass(frozen=True, slots=True)
class PromptTemplate:
    """``origin``: what it is, for an operator. ``end_of_turn``: text with which the model's turn ends; the
    first token of it ends an answer. ``is_whole``: it says everything itself, BOS included.
    ``trims_question``: white space at the end of a question goes. ``controls``: text whose added tokens are
    special, besides those that the tokenizer calls so."""

    prefix: str = "Answer the question from the documents below.\n\n"
    chunk: str = "{text}\n\n"
    question: str = "Question: {question}\nAnswer:"
    origin: str = "default"
    end_of_turn: str = ""
    is_whole: bool = False
    trims_question: bool = False
    controls: str = ""

    def __post_init__(self) -> None:
        for name, slot in (("chunk", "{text}"), ("question", "{question}")):
            if getattr(self, name).count(slot) != 1:
                raise ValueError(f"{name}: must contain {slot} exactly once")

    @classmethod
    def of_model(cls, model: str) -> PromptTemplate | None:
        """Reads the template file of a model; None: it has none.

        Raises:
            ConfigError: the file is not a template.
        """
        path = Path(model) / TEMPLATE_FILE
        if not path.is_file():
            return None
        try:
            texts = json.loads(path.read_text(encoding="utf-8"))
            for name in texts:
                if name not in _IN_FILE:
                    raise ValueError(f"{name}: there are {', '.join(_IN_FILE)}")
            return cls(**texts, origin=TEMPLATE_FILE)
        except (ValueError, TypeError, AttributeError) as error:
            raise ConfigError(f"{TEMPLATE_FILE} of the model: {error}") from None

    def write(self, directory: Path) -> None:
        """Makes it the template of the model in ``directory``."""
        texts = {name: getattr(self, name) for name in _IN_FILE}
        (directory / TEMPLATE_FILE).write_text(json.dumps(texts, indent=2) + "\n", encoding="utf-8")
