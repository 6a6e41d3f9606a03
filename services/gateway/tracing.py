"""Says what spans of an answer say, in the words of OpenTelemetry's conventions for generative AI."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shared.answer import Inquiry
from shared.generation.told import Usage
from shared.search import SearchHit
from shared.tracing import names
from shared.tracing.spans import Attributes, StageSpan

ANSWERING, RETRIEVING, PREFETCHING = "invoke_workflow kvquilt", "retrieval", "prefetch"


def asked_of(inquiry: Inquiry) -> Attributes:
    return {
        names.OPERATION: "invoke_workflow",
        names.PROVIDER: names.PROVIDER_NAME,
        names.AGENT_NAME: names.PROVIDER_NAME,
        names.DATA_SOURCE: inquiry.collection,
        names.NUM_QUESTIONS: len(inquiry.questions),
    }


def searched_of(inquiry: Inquiry, k: int) -> Attributes:
    return {
        names.OPERATION: "retrieval",
        names.PROVIDER: names.PROVIDER_NAME,
        names.DATA_SOURCE: inquiry.collection,
        names.RETRIEVAL_TOP_K: k,
        names.NUM_QUESTIONS: len(inquiry.questions),
    }


def found_by(stage: StageSpan, queries: Sequence[str], hits: Sequence[SearchHit]) -> None:
    stage.set({names.NUM_CHUNKS: len(hits)})
    if stage.with_content:
        documents = [{"id": hit.document_id, "score": hit.score} for hit in hits]
        asked = "\n".join(queries)
        stage.set({names.QUERY_TEXT: asked, names.RETRIEVED_DOCUMENTS: json.dumps(documents)})


@dataclass(frozen=True, slots=True)
class AnswerTrace:
    """The span of one answer."""

    stage: StageSpan

    def asks(self, inquiry: Inquiry) -> None:
        if self.stage.with_content:
            self.stage.set({names.INPUT_MESSAGES: _messages("user", inquiry.questions)})

    def answered(self, usage: Usage, first_token_s: float, said: Mapping[int, str]) -> None:
        """``said``: the answer to each question, of several samples the first that was whole."""
        self.stage.set(
            {
                names.INPUT_TOKENS: usage.prompt_tokens,
                names.CACHED_TOKENS: usage.reused_tokens,
                names.OUTPUT_TOKENS: usage.generated_tokens,
                names.FIRST_TOKEN_S: first_token_s,
                names.REUSE: usage.reuse.value if usage.reuse else "",
            }
        )
        if self.stage.with_content:
            self.stage.set({names.OUTPUT_MESSAGES: _messages("assistant", [said[i] for i in sorted(said)])})


def _messages(role: str, texts: Sequence[str]) -> str:
    return json.dumps([{"role": role, "parts": [{"type": "text", "content": text}]} for text in texts])
