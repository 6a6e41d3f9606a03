"""Defines what may be asked of ``/v1/completions``, and the ``Inquiry`` that it becomes.

A prompt is a question: it goes through the model's question template, behind the documents that were found by
it. Several prompts are asked over one context, which has what was found by any of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pydantic import Field, field_validator

from services.gateway.http.bodies import MAX_LOGPROBS, BodyList, BodyText, QuestionBody
from services.gateway.http.heard import AskedLogprobs
from shared.answer import Inquiry


class TextRequest(QuestionBody):
    neutral: ClassVar[Mapping[str, Sequence[object]]] = {
        **QuestionBody.neutral,
        "best_of": (1,),
        "echo": (False,),
        "suffix": ("",),
    }

    prompt: BodyText | BodyList[BodyText]
    logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)

    @field_validator("prompt", mode="before")
    @classmethod
    def _no_ids(cls, prompt: Any) -> Any:
        if isinstance(prompt, list) and any(isinstance(one, (int, list)) for one in prompt):
            raise ValueError(
                "token ids are not supported, since documents are searched by its text; send text"
            )
        return prompt

    @property
    def prompts(self) -> tuple[str, ...]:
        return (self.prompt,) if isinstance(self.prompt, str) else tuple(self.prompt)

    @property
    def names(self) -> Mapping[str, str]:
        if isinstance(self.prompt, str):
            return dict.fromkeys(("question", "questions", "questions[0]"), "prompt")
        places = {f"questions[{i}]": f"prompt[{i}]" for i in range(len(self.prompt))}
        return places | {"question": "prompt[0]", "questions": "prompt"}

    @property
    def asked_logprobs(self) -> AskedLogprobs | None:
        return None if self.logprobs is None else AskedLogprobs(self.logprobs)

    def inquiry(self) -> Inquiry:
        return self.asks(self.collection_named(), self.prompts, self.max_tokens)
