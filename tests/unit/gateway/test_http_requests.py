"""What OpenAI's clients ask, as the gateway's own question; and what is refused, by its name over HTTP."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from services.gateway.http.requests import ChatRequest
from services.gateway.http.text_requests import TextRequest
from shared.answer import Inquiry, Refusal, RetrievalOptions
from shared.earlier_turns import EarlierTurn, Speaker
from shared.errors import InvalidRequest
from shared.generation.asked import SamplingParams
from shared.generation.modes import Recompute, ReuseMode
from shared.generation.orders import MODES_BY_NAME, Auto, Reuse

USER = {"role": "user", "content": "Who built the bridge?"}


def request(*messages: dict[str, Any], **parameters: Any) -> ChatRequest:
    body = {"model": "tiny", "messages": list(messages or (USER,)), "collection": "handbook"}
    asked = ChatRequest.model_validate(body | parameters)
    asked.check()
    return asked


def test_the_last_message_is_the_question_and_the_collection_is_the_one_named() -> None:
    assert request().inquiry() == Inquiry("handbook", ("Who built the bridge?",))


def test_every_parameter_becomes_what_grpc_calls_it() -> None:
    asked = request(
        max_tokens=7,
        temperature=1,
        top_p=0.5,
        seed=3,
        n=2,
        stop=["\n", "END"],
        mode="cacheclip",
        ratio=0.2,
        adapter="qa",
        top_k=4,
        refusal="strict",
        shadow=False,
        ignore_eos=True,
    )
    assert asked.inquiry() == Inquiry(
        "handbook",
        ("Who built the bridge?",),
        Reuse(ReuseMode.CACHECLIP, Recompute(0.2), adapter="qa"),
        SamplingParams(
            max_tokens=7, temperature=1.0, top_p=0.5, seed=3, n=2, stop=("\n", "END"), ignore_eos=True
        ),
        RetrievalOptions(4),
        refusal=Refusal.STRICT,
        no_shadow=True,
    )


def test_one_stop_string_may_stand_alone_and_both_names_of_the_limit_are_known() -> None:
    asked = request(stop="END", max_completion_tokens=5, max_tokens=5).inquiry()
    assert (asked.sampling.stop, asked.sampling.max_tokens) == (("END",), 5)


@pytest.mark.parametrize("mode", MODES_BY_NAME)
def test_every_mode_that_needs_no_list_of_tokens_can_be_named(mode: ReuseMode | Auto) -> None:
    assert request(mode=str(mode)).inquiry().reuse.mode is mode


def test_system_text_and_earlier_turns_stand_in_front_of_the_question() -> None:
    inquiry = request(
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Who is Orla Venn?"},
        {"role": "assistant", "content": "An engineer.", "refusal": None, "tool_calls": None},
        {"role": "developer", "content": "Be kind."},
        {
            "role": "user",
            "content": [{"type": "text", "text": "What did"}, {"type": "text", "text": "she do?"}],
        },
    ).inquiry()
    assert inquiry.questions == ("What did\nshe do?",)
    assert inquiry.preface == "Be brief.\nBe kind."
    assert inquiry.turns == (
        EarlierTurn(Speaker.USER, "Who is Orla Venn?"),
        EarlierTurn(Speaker.ASSISTANT, "An engineer."),
    )


def test_what_asks_for_nothing_and_what_changes_nothing_is_let_through() -> None:
    request(
        frequency_penalty=0.0,
        presence_penalty=0,
        logprobs=False,
        tools=[],
        tool_choice="none",
        response_format={"type": "text"},
        logit_bias=None,
        verbosity=None,
        user="somebody",
        metadata={"a": "b"},
    )


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"collection": None}, "collection: name the collection"),
        ({"tools": [{"type": "function"}]}, "tools: is not supported"),
        ({"top_logprobs": 2}, "top_logprobs: needs logprobs"),
        ({"collection": None, "documents": []}, "collection: name the collection"),
        ({"documents": [{"text": "x", "url": "y"}]}, "documents[0].url: is not supported"),
        ({"frequency_penalty": 0.5}, "frequency_penalty: is not supported"),
        ({"colection": "handbook"}, "colection: is not supported"),
        ({"best_of": 3}, "best_of: is not supported"),
        ({"stream_options": {"include_usage": True}}, "stream_options: needs stream"),
        ({"stream": True, "stream_options": {"include_obfuscation": True}}, "stream_options.include_obfus"),
        ({"mode": "tokens"}, "mode: 'tokens' is not one of full, reordered"),
        ({"mode": "fastest"}, "mode: 'fastest' is not one of"),
        ({"refusal": "polite"}, "refusal: 'polite' is not one of off, lenient, strict"),
        ({"max_tokens": 4, "max_completion_tokens": 5}, "max_tokens: is 4, but max_completion_tokens 5"),
        ({"temperature": -1.0}, "sampling.temperature: "),
        ({"n": 65}, "sampling.n: "),
        ({"seed": -1}, "sampling.seed: "),
        ({"stop": ["a", ""]}, "sampling.stop: "),
        ({"ratio": 1.5}, "recompute.ratio: "),
        ({"messages": []}, "messages: is empty"),
        ({"messages": [{"role": "tool", "content": "x"}, USER]}, "messages[0].role: 'tool' is not supported"),
        ({"messages": [USER, {"role": "assistant", "content": "x"}]}, "messages[1].role: is 'assistant'"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content: is required"),
        ({"messages": [USER | {"audio": {"id": "a"}}]}, "messages[0].audio: is not supported"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages[0].content[0]: 'image_url' is not supported, only text is",
        ),
    ],
)
def test_what_is_wrong_or_not_supported_is_refused_by_name(parameters: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        request(**parameters).inquiry()
    assert refused.value.detail.startswith(says)


def test_the_tenant_comes_by_a_header_or_in_the_body_but_is_one() -> None:
    header = {"x-kvquilt-tenant": "acme", "x-request-id": "r-7"}
    ctx = request().context(header)
    assert (ctx.tenant, ctx.request_id) == ("acme", "r-7")
    assert request(tenant="acme").context(header).tenant == "acme"
    assert request(tenant="other").context({}).tenant == "other"
    assert request().context({}).tenant == "default"
    with pytest.raises(InvalidRequest, match="tenant: is 'other', but 'acme' in the header x-kvquilt-tenant"):
        request(tenant="other").context(header)


def test_a_deadline_is_kept() -> None:
    assert 0 < request(deadline_ms=5_000).context({}).remaining_s <= 5
    assert [request().context({}).priority, request(priority=-7).context({}).priority] == [0, -7]


def test_tokens_of_a_stream_come_together_and_whole_answers_in_few_messages() -> None:
    def interval_ms(**body: object) -> int:
        return request(**body).context({}).stream_interval_ms

    assert interval_ms(stream=True) == 50
    assert [interval_ms(stream=True, stream_interval_ms=ms) for ms in (0, 200, 10_000)] == [0, 200, 10_000]
    assert interval_ms() == interval_ms(stream=False, stream_interval_ms=0) == 10_000


def test_documents_are_handed_over_and_log_probabilities_are_asked_for() -> None:
    documents = [{"title": "Bridge", "text": "Orla Venn built it"}, {"text": "1874"}]
    asked = request(collection=None, documents=documents, logprobs=True, top_logprobs=3).inquiry()
    assert asked.collection == ""
    assert [document.whole for document in asked.documents] == ["Bridge\n\nOrla Venn built it", "1874"]
    assert asked.sampling.top_logprobs == 3
    assert request(logprobs=True).inquiry().sampling.top_logprobs == 1, "or nothing would be spelt"


PASTED = {"role": "user", "content": f"{'Orla Venn built the bridge of Tambach in 1874. ' * 4}\n\nWho?"}


def test_without_a_collection_a_long_message_is_looked_through_with_its_earlier_turns() -> None:
    system, said = {"role": "system", "content": "Be brief."}, {"role": "assistant", "content": "Orla"}
    asked = request(system, PASTED, said, USER, collection=None).inquiry()
    assert (asked.pasted, asked.collection, asked.preface) == (True, "", "Be brief.")
    assert [(turn.speaker.value, turn.text) for turn in asked.turns] == [
        ("User", PASTED["content"]),
        ("Assistant", "Orla"),
    ]
    assert asked.questions == (USER["content"],)


def test_beside_a_collection_or_documents_or_where_one_says_so_nothing_is_looked_for() -> None:
    assert not request(PASTED).inquiry().pasted
    assert not request(PASTED, collection=None, documents=[{"text": "x"}]).inquiry().pasted
    assert not request(PASTED, pasted=False).inquiry().pasted
    with pytest.raises(InvalidRequest, match="collection: name the collection"):
        request(PASTED, collection=None, pasted=False).inquiry()


def test_whoever_asks_for_it_is_told_what_does_not_go_with_it() -> None:
    asked = request(PASTED, documents=[{"text": "x"}], pasted=True).inquiry()
    assert (asked.pasted, asked.collection, len(asked.documents)) == (True, "handbook", 1)
    assert request(USER, collection=None, pasted=True).inquiry().pasted, "short, and refused where it is seen"


def text_request(**parameters: Any) -> TextRequest:
    body = {"model": "tiny", "prompt": "Who built the bridge?", "collection": "handbook"}
    asked = TextRequest.model_validate(body | parameters)
    asked.check()
    return asked


def test_a_prompt_is_a_question_and_several_are_several() -> None:
    assert text_request().inquiry() == Inquiry("handbook", ("Who built the bridge?",))
    asked = text_request(prompt=["a", "b"], max_tokens=3, best_of=1, echo=False, suffix="").inquiry()
    assert (asked.questions, asked.sampling.max_tokens) == (("a", "b"), 3)


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"echo": True}, "echo: is not supported"),
        ({"suffix": "x"}, "suffix: is not supported"),
        ({"best_of": 2}, "best_of: is not supported"),
        ({"tools": [1]}, "tools: is not supported"),
        ({"collection": None}, "collection: name the collection"),
    ],
)
def test_what_prompts_may_not_ask_is_refused_by_name(parameters: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        text_request(**parameters).inquiry()
    assert refused.value.detail.startswith(says)


@pytest.mark.parametrize("prompt", [[1, 2], [[1, 2]]])
def test_token_ids_are_refused_as_such(prompt: list[Any]) -> None:
    with pytest.raises(ValidationError, match="token ids are not supported"):
        text_request(prompt=prompt)


WRONG = [5] * 1000


@pytest.mark.parametrize(
    ("body", "wrong"),
    [
        (ChatRequest, {"messages": WRONG}),
        (ChatRequest, {"messages": [{"role": "user", "content": WRONG}] * 1000}),
        (ChatRequest, {"messages": [], "documents": WRONG}),
        (ChatRequest, {"messages": [], "stop": WRONG}),
        (TextRequest, {"prompt": [{}] * 1000}),
        (TextRequest, {"prompt": "Who?", "stop": WRONG}),
    ],
)
def test_a_body_of_wrong_entries_is_refused_by_the_first(
    body: type[BaseModel], wrong: dict[str, Any]
) -> None:
    """Each would become an error of a kilobyte."""
    with pytest.raises(ValidationError) as refused:
        body.model_validate({"model": "tiny", "collection": "handbook"} | wrong)
    assert refused.value.error_count() <= 2
