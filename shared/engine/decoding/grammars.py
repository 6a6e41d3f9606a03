"""Compiles what texts have to keep to: JSON Schemas to grammars over a model's tokens.

What a schema may hold, and why one is refused, is in ``docs/structured-output.md``. A schema is tried first
in a process of its own (``schema_trial``), since the library does not bound what it does to prove that a text
exists; what has passed there is compiled here in about the same time. Callers wait, so none of them is the
engine's own thread, and what came of a schema is kept by its text.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shared.engine.decoding import schema_trial
from shared.engine.decoding.grammar import Grammar
from shared.errors import FailedPrecondition, InvalidRequest, KvquiltError, Unavailable
from shared.generation.response_format import FIELD, ResponseFormat

if TYPE_CHECKING:
    from llguidance import LLTokenizer

MOST_KEPT = 128
_CPU_S = 4
_PATIENCE_S = 60.0  # of a process that hardly gets a turn
_MEMORY_BYTES = 2 << 30
_OPTIONS: dict[str, Any] = {
    # a blank, or a new line and its indentation: a model that likes these would write nothing else
    "whitespace_pattern": r"(?: |\n[ \t]{0,16})?",
    "whitespace_flexible": True,
    "coerce_one_of": False,
    "lenient": False,
}
_LIMITS = {"max_items_in_row": 30_000, "step_max_items": 200_000, "verbose_errors": False}
_SHOWN = 240
_REMEDIES = (
    ("Unimplemented keys", "leave them out: no token can be refused for their sake"),
    ("Unsatisfiable", "no text satisfies it; make it possible"),
    ("does not exist", "refer to a schema of this document, such as #/$defs/NAME"),
    ("oneOf", "use anyOf, or ways that exclude each other by their type"),
    ("look-around", "write the pattern without it"),
)


class Grammars:
    """``tokenizer``: the model's, as the JSON of ``tokenizers``; None: it has none. ``vocab_size``: of its
    logits; ``eos_ids`` end a text. Any thread may ask; one compiles at a time."""

    def __init__(
        self, tokenizer: Callable[[], str] | None, vocab_size: int, eos_ids: Collection[int]
    ) -> None:
        self._tokenizer, self._vocab_size, self._eos_ids = tokenizer, vocab_size, sorted(eos_ids)
        self._vocabulary: LLTokenizer | None = None
        self._compiling = threading.Lock()
        self._kept_lock = threading.Lock()
        self._kept: OrderedDict[str, Grammar | KvquiltError] = OrderedDict()

    def of(self, form: ResponseFormat) -> Grammar:
        """
        Raises:
            InvalidRequest: names what in the schema cannot be, and what to do.
            FailedPrecondition: this service cannot keep to any.
            Unavailable: the machine has too much to do.
        """
        found = self._known(form.json_schema)
        if found is None:
            with self._compiling:
                found = self._known(form.json_schema) or self._compiled(form)
        if isinstance(found, KvquiltError):
            raise type(found)(found.detail)
        return found

    @property
    def num_kept(self) -> int:
        return len(self._kept)

    def _known(self, text: str) -> Grammar | KvquiltError | None:
        with self._kept_lock:
            found = self._kept.get(text)
            if isinstance(found, Grammar) and found.broken:
                del self._kept[text]
                return None
            if found is not None:
                self._kept.move_to_end(text)
            return found

    def _compiled(self, form: ResponseFormat) -> Grammar | KvquiltError:
        found: Grammar | KvquiltError
        try:
            found = _compile(form.schema, self._known_vocabulary())
        except (InvalidRequest, FailedPrecondition) as error:
            found = error
        with self._kept_lock:
            self._kept[form.json_schema] = found
            while len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
        return found

    def _known_vocabulary(self) -> LLTokenizer:
        """Made once: of a large vocabulary that takes a second."""
        if self._vocabulary is None:
            if self._tokenizer is None:
                raise FailedPrecondition(f"{FIELD}: this model has no tokenizer; leave it out")
            if not self._eos_ids:
                raise FailedPrecondition(f"{FIELD}: this model has no token that ends a text; leave it out")
            try:
                from llguidance import LLTokenizer
            except ImportError:
                raise FailedPrecondition(
                    f"{FIELD}: needs the package llguidance, which the generator does not have; install it, "
                    "or leave this out"
                ) from None
            try:
                self._vocabulary = LLTokenizer(
                    _with_logits(self._tokenizer(), self._vocab_size),
                    n_vocab=self._vocab_size,
                    eos_token=self._eos_ids,
                )
            except Exception as error:  # the library's own, of any kind
                raise FailedPrecondition(
                    f"{FIELD}: this model's tokenizer cannot be read as bytes ({_short(error)}); leave it out"
                ) from error
        return self._vocabulary


def _with_logits(tokenizer: str, vocab_size: int) -> str:
    """Without the tokens that were added to the tokenizer, and not to the model."""
    known = json.loads(tokenizer)
    added = known.get("added_tokens") or []
    return json.dumps(known | {"added_tokens": [token for token in added if token["id"] < vocab_size]})


def _compile(schema: dict[str, Any], vocabulary: LLTokenizer) -> Grammar:
    from llguidance import LLMatcher, LLParserLimits

    _try(schema)
    text = LLMatcher.grammar_from_json_schema(schema, overrides=_OPTIONS)  # type: ignore[arg-type]
    matcher = LLMatcher(vocabulary, text, log_level=0, limits=LLParserLimits(**_LIMITS))  # type: ignore[arg-type]
    grammar = Grammar(matcher)
    if matcher.is_error():
        raise _refusal("", matcher.get_error())
    if grammar.begin().bits() is None:
        raise _refusal("", "Unsatisfiable: no token of this model begins such a text")
    return grammar


def _try(schema: dict[str, Any]) -> None:
    asked = {"schema": schema, "options": _OPTIONS, "cpu_s": _CPU_S, "memory_bytes": _MEMORY_BYTES}
    try:
        process = subprocess.run(
            [sys.executable, "-I", str(Path(schema_trial.__file__))],
            input=json.dumps(asked),
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{FIELD}: the machine has too much to do to read the schema; retry") from None
    if process.returncode:
        raise InvalidRequest(
            f"{FIELD}: the schema takes more than {_CPU_S} s or {_MEMORY_BYTES >> 30} GiB to compile; use "
            "fewer patterns on one string, smaller repetitions and fewer ways (anyOf, allOf)"
        )
    told = json.loads(process.stdout)
    if told["error"]:
        raise _refusal(told["path"], told["error"])


def _refusal(path: str, says: str) -> InvalidRequest:
    remedy = next((remedy for sign, remedy in _REMEDIES if sign in says), "change or simplify it")
    return InvalidRequest(f"{FIELD}: {_short(path) or 'the schema'}: {_short(says)}; {remedy}")


def _short(text: object) -> str:
    """In one line, and such as any message can carry."""
    line = " ".join(str(text).split("\n<state>")[0].split())
    return line.encode(errors="replace").decode()[:_SHOWN]
