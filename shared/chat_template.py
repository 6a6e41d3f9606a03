"""Derives a prompt's pieces from the chat template of a tokenizer.

One conversation is rendered, a system message and a user message, in which sentinels stand for what is not
known yet; the rendering is split at them::

    <|im_start|>system          ┐
    {system}<|im_end|>          │ prefix
    <|im_start|>user            │
    {instruction}               ┘
    {text}                      ─ chunk, any number of them
    Question: {question}        ┐
    <|im_end|>                  │ question
    <|im_start|>assistant       ┘

Before that, everything is rendered as a sentinel of characters that are easily altered: a template that loses
one, alters it, repeats it or brings it in another order is refused, since what is read by the model would not
be what was asked. A template that knows no system role has the system text in front of the user's.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from shared.errors import ConfigError
from shared.piece_encoder import backend_of
from shared.prompt_config import PromptConfig
from shared.prompt_template import PromptTemplate

log = logging.getLogger(__name__)

CHAT = "chat template"
_REMEDY = "set prompt.template to default, or give the model a kvquilt.json"
_ALTERED_EASILY = "<b>&\"'\\ \t ÀÉß {{x}} {% y %} two  spaces\n\n\n# Z"
_SHOWN = 60


@dataclass(frozen=True, slots=True)
class Wording:
    """The words besides documents and question, with a chat template or without."""

    system: str | None
    instruction: str
    chunk: str
    question: str

    def told(self, config: PromptConfig) -> Wording:
        """The operator's words in place of these."""
        return Wording(
            self.system if config.system is None else config.system,
            self.instruction if config.instruction is None else config.instruction,
            self.chunk,
            self.question,
        )

    @property
    def opening(self) -> str:
        return f"{self.instruction}\n\n" if self.instruction.strip() else ""


_DOCUMENTS = "Answer the question from the documents below."
_DEFAULT = Wording(None, _DOCUMENTS, "{text}\n\n", "Question: {question}\nAnswer:")
_IN_CHAT = Wording(None, _DOCUMENTS, "{text}\n\n", "Question: {question}")
# arXiv:2410.07590, appendix C: the markers are special tokens that the model was trained with
_TURBORAG = Wording(
    "You are an accurate and reliable AI assistant capable of answering questions by referencing external "
    "documents. Please note that the external documents may not always be related to the question.",
    "The documents are as follows:",
    "<|doc_start|>{text}<|doc_end|>",
    "\n\nIf the information in the documents contain the correct answer, you will provide an accurate "
    "response. If the documents do not contain the answer, you will refuse to answer.\n\n"
    "Question: {question}\n",
)


def template_of(tokenizer: Any, brought: PromptTemplate | None, config: PromptConfig) -> PromptTemplate:
    """``brought``: by the model itself; it wins under ``auto``.

    Raises:
        ConfigError: the tokenizer cannot have the template that is asked for, or its chat template is not one
            that documents can be put into; names the piece that differs.
    """
    if config.template == "auto" and brought is not None:
        if config.system is not None or config.instruction is not None:
            log.warning("prompt.system and prompt.instruction are not used: the model brings its own prompt")
        return brought
    has_chat = bool(getattr(tokenizer, "chat_template", None))
    if config.template == "chat" and not has_chat:
        raise ConfigError("prompt.template: the tokenizer of this model has no chat template; use auto")
    if config.template == "turborag":
        _check_markers(tokenizer)
        if has_chat:
            return derived(tokenizer, _TURBORAG.told(config), config, f"turborag, {CHAT}")
        return _plain(_TURBORAG.told(config), "turborag")
    if has_chat and config.template != "default":
        return derived(tokenizer, _IN_CHAT.told(config), config, CHAT)
    return _plain(_DEFAULT.told(config), "default")


def derived(tokenizer: Any, wording: Wording, config: PromptConfig, origin: str) -> PromptTemplate:
    """
    Raises:
        ConfigError: the chat template does not render, or does not round-trip.
    """
    if backend_of(tokenizer) is None:
        raise ConfigError(
            f"model: {type(tokenizer).__name__} has no fast version (tokenizer.json), which its chat "
            "template needs; set prompt.template to default"
        )
    chat = Chat(tokenizer, config)
    wording = _with_place_for_system(chat, wording)
    _check_round_trip(chat, wording)
    sentinels = {name: _sentinel(name) for name in ("document 1", "document 2", "question")}
    first, second, question = sentinels.values()
    whole = chat.rendered(wording, first, second, question)
    padded = chat.rendered(wording, first, second, question + "  ")
    before, _, _, after = _split(whole, sentinels)
    before_chunk, _ = wording.chunk.split("{text}")
    before_question, _ = wording.question.split("{question}")
    prefix = before.removesuffix(before_chunk)
    for name, text in (("system text", wording.system), ("instruction", wording.instruction)):
        if text and text.strip() not in prefix:
            raise _differs(name, text.strip(), prefix)
    try:
        return PromptTemplate(
            prefix,
            wording.chunk,
            f"{before_question}{{question}}{after}",
            origin=origin,
            end_of_turn=chat.end_of_turn(),
            is_whole=True,
            trims_question=padded == whole,
            controls=chat.source,
        )
    except ValueError as error:
        raise ConfigError(f"chat template: {error}") from None


class Chat:
    """Renders messages, with the same date whenever it is asked."""

    def __init__(self, tokenizer: Any, config: PromptConfig) -> None:
        from transformers.utils.chat_template_utils import _compile_jinja_template

        try:
            self.source: str = tokenizer.get_chat_template()
            self._template = _compile_jinja_template(self.source)
        except Exception as error:  # somebody else's program
            raise ConfigError(f"chat template: it cannot be read: {error}; {_REMEDY}") from error
        self._variables = {
            **tokenizer.special_tokens_map,
            "strftime_now": config.today.strftime,
            "date_string": config.today.strftime("%d %b %Y"),
            "enable_thinking": config.thinking,
            "thinking": config.thinking,
            "tools": None,
            "documents": None,
        }

    def rendered(self, wording: Wording, first: str, second: str, question: str) -> str:
        """The prompt of two documents, up to where the answer begins."""
        documents = wording.chunk.replace("{text}", first) + wording.chunk.replace("{text}", second)
        asked = wording.question.replace("{question}", question)
        messages = [{"role": "user", "content": wording.opening + documents + asked}]
        if wording.system is not None:
            messages = [{"role": "system", "content": wording.system}, *messages]
        try:
            return self.render(messages, add_generation_prompt=True)
        except Exception as error:
            raise ConfigError(f"chat template: it refuses its messages: {error}; {_REMEDY}") from error

    def end_of_turn(self) -> str:
        """The text that follows an answer; empty: not known."""
        answer, question = "kvquilt-answer", "kvquilt-question"
        roles = {"user": question, "assistant": answer}
        messages = [{"role": role, "content": roles[role]} for role in ("user", "assistant", "user")]
        try:
            _, _, tail = self.render(messages, add_generation_prompt=False).partition(answer)
            tail, _, _ = tail.partition(question)
        except Exception as error:
            log.info("chat template: it refuses an answer, so the end of one is not known: %s", error)
            return ""
        return tail.lstrip()

    def render(self, messages: list[dict[str, str]], add_generation_prompt: bool) -> str:
        """Raises whatever the template does."""
        text: str = self._template.render(
            messages=messages, add_generation_prompt=add_generation_prompt, **self._variables
        )
        return text


def _with_place_for_system(chat: Chat, wording: Wording) -> Wording:
    """Templates without a system role refuse a system message, or leave it out."""
    if wording.system is None:
        return wording
    sentinel = _sentinel("system text")
    try:
        if _core("system text") in chat.rendered(replace(wording, system=sentinel), "1", "2", "3"):
            return wording
    except ConfigError:
        pass
    parts = [text for text in (wording.system, wording.instruction) if text.strip()]
    return replace(wording, system=None, instruction="\n\n".join(parts))


def _check_round_trip(chat: Chat, wording: Wording) -> None:
    """
    Raises:
        ConfigError: names the piece.
    """
    names = ["instruction", "document 1", "document 2", "question"]
    if wording.system is not None:
        names = ["system text", *names]
    sentinels = {name: _sentinel(name) for name in names}
    probe = replace(
        wording,
        system=sentinels.get("system text"),
        instruction=sentinels["instruction"],
    )
    rendered = chat.rendered(probe, *(sentinels[name] for name in names[-3:]))
    *_, opened, between, asked, _ = _split(rendered, sentinels)
    before, after = wording.chunk.split("{text}")
    before_question, _ = wording.question.split("{question}")
    for name, expected, found in (
        ("text in front of the documents", "\n\n" + before, opened),
        ("text between two documents", after + before, between),
        ("text in front of the question", after + before_question, asked),
    ):
        if found != expected:
            raise _differs(name, expected, found)


def _split(rendered: str, sentinels: Mapping[str, str]) -> list[str]:
    """Returns the text in front of, between and behind the sentinels.

    Raises:
        ConfigError: one of them is not there exactly once, as it was, and in its place.
    """
    for name, sentinel in sentinels.items():
        if (core := _core(name)) not in rendered:
            raise ConfigError(f"chat template: the {name} is lost, the template leaves it out; {_REMEDY}")
        if (times := rendered.count(core)) > 1:
            raise ConfigError(f"chat template: the {name} is repeated, it comes {times} times; {_REMEDY}")
        if sentinel not in rendered:
            raise _differs(name, sentinel, rendered[rendered.index(core) :][: len(sentinel)])
    parts, end, last = [], 0, ""
    for name, sentinel in sentinels.items():
        begin = rendered.index(sentinel)
        if begin < end:
            raise ConfigError(
                f"chat template: the order is changed, the {name} comes in front of the {last}; {_REMEDY}"
            )
        parts.append(rendered[end:begin])
        end, last = begin + len(sentinel), name
    return [*parts, rendered[end:]]


def _core(name: str) -> str:
    return f"[kvquilt: {name}]"


def _sentinel(name: str) -> str:
    return f"{_core(name)}{_ALTERED_EASILY}"


def _differs(name: str, expected: str, found: str) -> ConfigError:
    """Shows the texts from where they differ."""
    same = next((i for i, pair in enumerate(zip(expected, found, strict=False)) if pair[0] != pair[1]), 0)
    begin = max(0, same - 10)
    shown = [repr(text[begin:][:_SHOWN]) for text in (expected, found)]
    return ConfigError(
        f"chat template: the {name} is altered: expected {shown[0]}, the template makes {shown[1]}; {_REMEDY}"
    )


def _plain(wording: Wording, origin: str) -> PromptTemplate:
    system = f"{wording.system}\n\n" if wording.system and wording.system.strip() else ""
    return PromptTemplate(system + wording.opening, wording.chunk, wording.question, origin=origin)


def _check_markers(tokenizer: Any) -> None:
    before, after = _TURBORAG.chunk.split("{text}")
    for marker in (before, after):
        if marker not in tokenizer.get_added_vocab():
            raise ConfigError(
                f"prompt.template: turborag marks documents by the token {marker}, which this model's "
                "tokenizer does not have; use a model that was trained with it"
            )
