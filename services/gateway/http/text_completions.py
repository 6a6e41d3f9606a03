"""Forms the answers of ``/v1/completions``: whole answers and chunks of them have one form."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Literal

from pydantic import BaseModel

from services.gateway.http.completions import finite
from services.gateway.http.forms import AnswerForm
from services.gateway.http.heard import CompletionUsage, Extension, Finish, Heard, finish_of
from shared.generation.told import TokenEvent


class TextLogprobs(BaseModel):
    """Of the tokens that were generated, the end mark included: it is empty. ``text_offset``: characters of
    the tokens in front of each; ``top_logprobs``: the likeliest tokens and the one that was chosen."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]] | None
    text_offset: list[int]


class TextChoice(BaseModel):
    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: Finish | None


class TextCompletion(BaseModel):
    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[TextChoice]
    usage: CompletionUsage | None = None
    kvquilt: Extension | None = None


class TextForm(AnswerForm):
    def whole(self, heard: Heard) -> TextCompletion:
        choices = [
            self._choice(
                self.head.choice(text),
                text.text,
                heard.tokens[self.head.choice(text)],
                finish=finish_of(text.finish_reason),
            )
            for text in heard.in_order
        ]
        told = self._of(choices)
        return told.model_copy(update={"usage": heard.usage, "kvquilt": heard.extension})

    def begun(self, choice: int) -> Sequence[TextCompletion]:
        return []

    def grown(self, choice: int, text: str, token: TokenEvent | None, begin: int) -> TextCompletion:
        return self._of([self._choice(choice, text, [token] if token else [], begin)])

    def ended(self, choice: int, finish: Finish) -> TextCompletion:
        return self._of([self._choice(choice, "", finish=finish)])

    def cost(self) -> TextCompletion:
        return self._of([])

    def _choice(
        self,
        index: int,
        text: str,
        tokens: Sequence[TokenEvent] = (),
        begin: int = 0,
        finish: Finish | None = None,
    ) -> TextChoice:
        asked = self.head.logprobs
        logprobs = _logprobs(tokens, asked.top, begin) if asked is not None and tokens else None
        return TextChoice(index=index, text=text, logprobs=logprobs, finish_reason=finish)

    def _of(self, choices: list[TextChoice]) -> TextCompletion:
        return TextCompletion(
            id=f"cmpl-{self.head.request_id}",
            object="text_completion",
            created=self.head.created,
            model=self.head.model,
            choices=choices,
            **self.of_usage,
        )


def _logprobs(tokens: Sequence[TokenEvent], top: int, begin: int) -> TextLogprobs:
    lens = (len(token.token) for token in tokens)
    return TextLogprobs(
        tokens=[token.token for token in tokens],
        token_logprobs=[finite(token.logprob) for token in tokens],
        top_logprobs=[_likeliest(token, top) for token in tokens] if top else None,
        text_offset=list(accumulate(lens, initial=begin))[: len(tokens)],
    )


def _likeliest(event: TokenEvent, top: int) -> dict[str, float]:
    """Of tokens that are spelt alike the likeliest one."""
    found: dict[str, float] = {}
    for token, (_, logprob) in list(zip(event.top_tokens, event.top_logprobs, strict=False))[:top]:
        found.setdefault(token, finite(logprob))
    found.setdefault(event.token, finite(event.logprob))
    return found
