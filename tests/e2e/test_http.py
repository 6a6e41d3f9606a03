"""OpenAI's official client against a running stack."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import openai
import pytest
from mcp import Client
from pydantic import BaseModel, Field

from cluster.paths import PROJECT_ROOT
from tests.e2e.conftest import COLLECTION
from tests.e2e.stack import Stack
from tests.e2e.test_services import health_of

pytestmark = pytest.mark.e2e
QUESTION = "Which day is market day in Tambach?"
USER = {"role": "user", "content": QUESTION}


def client_of(stack: Stack, **options: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{stack.state.http}/v1", api_key="none", max_retries=0, **options)


def ask(stack: Stack, *, extra: dict[str, Any] | None = None, **parameters: Any) -> Any:
    asked: dict[str, Any] = {"model": "demo", "messages": [USER], "max_tokens": 8}
    extra_body = {"collection": COLLECTION, "top_k": 3} | (extra or {})
    return client_of(stack).chat.completions.create(**asked | parameters, extra_body=extra_body)


def text_of(answer: Any) -> str:
    text: str = answer.choices[0].message.content
    return text


def test_the_model_is_listed_by_the_name_that_the_operator_used(stack: Stack) -> None:
    assert [model.id for model in client_of(stack).models.list().data] == [
        "demo",
        "demo:full",
        "demo:auto",
        "minilm",
    ]


def test_prompts_of_the_older_kind_are_answered_as_questions_with_log_probabilities(stack: Stack) -> None:
    asked: dict[str, Any] = {"model": "demo:full", "max_tokens": 8, "prompt": QUESTION, "logprobs": 2}
    extra_body = {"collection": COLLECTION, "top_k": 3}
    answer: Any = client_of(stack).completions.create(**asked, extra_body=extra_body)
    (choice,) = answer.choices
    assert choice.text == text_of(ask(stack, model="demo:full"))
    assert "".join(choice.logprobs.tokens).startswith(choice.text)
    assert all(len(top) >= 2 and max(top.values()) <= 0 for top in choice.logprobs.top_logprobs)


def test_a_response_searches_a_store_and_says_the_same_whole_and_as_it_grows(stack: Stack) -> None:
    tool: Any = {"type": "file_search", "vector_store_ids": [COLLECTION], "max_num_results": 3}
    asked: dict[str, Any] = {"model": "demo", "input": QUESTION, "tools": [tool], "max_output_tokens": 8}
    response: Any = client_of(stack).responses.create(**asked)
    assert response.output_text == text_of(ask(stack))
    (part,) = response.output[1].content
    assert part.annotations[0].filename.startswith("tambach")
    events: list[Any] = list(client_of(stack).responses.create(**asked, stream=True))
    assert events[-1].response.output_text == response.output_text
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == response.output_text
    assert not response.store


def test_a_response_that_is_kept_is_gone_on_from_until_it_is_deleted(stack: Stack) -> None:
    tool: Any = {"type": "file_search", "vector_store_ids": [COLLECTION], "max_num_results": 3}
    asked: dict[str, Any] = {"model": "demo", "tools": [tool], "max_output_tokens": 8, "store": True}
    responses = client_of(stack).responses
    first: Any = responses.create(**asked, input=QUESTION)
    assert first.store
    assert responses.retrieve(first.id) == first
    (item,) = responses.input_items.list(first.id).data
    assert QUESTION in item.to_json()
    alone: Any = responses.create(**asked, input=QUESTION)
    second: Any = responses.create(**asked, input=QUESTION, previous_response_id=first.id)
    assert second.usage.input_tokens > alone.usage.input_tokens  # it reads what was said before
    assert (alone.kvquilt["follow_up"], alone.kvquilt["queries"]) == (None, [QUESTION])
    joined = [f"{QUESTION}\n{QUESTION}"]
    assert (second.kvquilt["follow_up"], second.kvquilt["queries"]) == ("joined", joined)
    for response in (first, second, alone):
        responses.delete(response.id)
        with pytest.raises(openai.NotFoundError):
            responses.retrieve(response.id)


def test_documents_that_are_handed_over_are_computed_once_and_then_cached(stack: Stack) -> None:
    documents = [
        {"title": "Tambach", "text": "In Tambach market day is Thursday."},
        {"text": "The mill of Oberhof burnt down in 1874."},
    ]
    extra = {"collection": None, "top_k": None, "documents": documents}
    first, second = (ask(stack, extra=extra) for _ in range(2))
    assert [source["document_id"] for source in first.kvquilt["sources"]] == ["documents[0]", "documents[1]"]
    before, after = (answer.usage.prompt_tokens_details for answer in (first, second))
    kept = after.cached_tokens - before.cached_tokens
    assert kept > 0
    # a store that is slow to say that it has none may say so after the answer
    assert before.cache_write_tokens in (0, kept)
    assert after.cache_write_tokens == 0
    assert text_of(first) == text_of(second)


def test_long_pasted_text_is_computed_once_and_known_in_another_order(stack: Stack) -> None:
    texts = [
        " ".join(f"In {year} Oberhof had {year % 7} mills." for year in range(y, y + 12))
        for y in (1500, 1600)
    ]

    def pasted(*said: str) -> Any:
        message = {"role": "user", "content": "\n\n".join(["Read this.", *said, *said, QUESTION])}
        return ask(stack, messages=[message], extra={"collection": None, "top_k": None, "mode": "reordered"})

    first, second = pasted(*texts), pasted(*reversed(texts))
    assert [told.kvquilt["pasted"]["pieces"] for told in (first, second)] == [4, 4]
    before, after = (answer.usage.prompt_tokens_details for answer in (first, second))
    assert after.cached_tokens > before.cached_tokens
    assert after.cache_write_tokens == 0


def test_a_pasted_chunk_of_an_ingested_document_is_recognised(stack: Stack) -> None:
    found = client_of(stack).vector_stores.search(COLLECTION, query=QUESTION, max_num_results=5)
    text, name = next(
        (hit.content[0].text, hit.filename) for hit in found.data if len(hit.content[0].text) >= 64
    )
    message = {"role": "user", "content": f"{text}\n\n{QUESTION}"}
    answer = ask(stack, messages=[message], extra={"collection": None, "top_k": None, "mode": "reordered"})
    assert answer.kvquilt["pasted"]["known"] == 1
    assert name in answer.kvquilt["sources"][0]["document_id"]


def test_a_plain_answer_has_text_sources_and_usage_and_reuses_what_full_computes(stack: Stack) -> None:
    answer = ask(stack, extra={"mode": "reordered"})
    assert text_of(answer)
    assert answer.kvquilt["mode"] == "reordered"
    assert len(answer.kvquilt["sources"]) == 3
    assert answer.kvquilt["timings_ms"]["total"] > 0
    cached = answer.usage.prompt_tokens_details.cached_tokens
    full = ask(stack, extra={"mode": "full"}).usage
    assert full.prompt_tokens == answer.usage.prompt_tokens
    assert cached > full.prompt_tokens_details.cached_tokens


def test_a_stream_says_the_same_as_the_whole_answer(stack: Stack) -> None:
    chunks = list(ask(stack, stream=True, stream_options={"include_usage": True}))
    whole = ask(stack)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == text_of(whole)
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason
    assert chunks[-2].kvquilt["citations"] == whole.kvquilt["citations"]
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert len(chunks) > 3, "it came at once"


def test_several_choices_are_branches_on_one_context(stack: Stack) -> None:
    answer = ask(stack, n=2, temperature=1.5, seed=3)
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.usage.prompt_tokens == ask(stack).usage.prompt_tokens


def test_an_answer_is_a_model_of_pydantic_streamed_or_not_and_a_bad_schema_is_named(stack: Stack) -> None:
    class MarketDay(BaseModel, extra="forbid"):
        day: str = Field(pattern="^[A-Z][a-z]{2,11}$")
        sure: bool

    extra = {"collection": COLLECTION, "top_k": 3}
    asked: dict[str, Any] = {"model": "demo", "messages": [USER], "max_tokens": 120, "extra_body": extra}
    answer = client_of(stack).chat.completions.parse(**asked, response_format=MarketDay)
    parsed = answer.choices[0].message.parsed
    assert isinstance(parsed, MarketDay)
    schema = {"name": "day", "schema": MarketDay.model_json_schema(), "strict": False}
    form = {"type": "json_schema", "json_schema": schema}
    chunks = ask(stack, stream=True, max_tokens=120, response_format=form)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert MarketDay.model_validate_json(text) == parsed
    broken = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"items": {"not": {}}}}}
    with pytest.raises(openai.BadRequestError, match="/items") as refused:
        ask(stack, response_format=broken)
    assert refused.value.param == "response_format"


def test_a_system_message_reaches_the_model_and_is_not_searched_by(stack: Stack) -> None:
    plain, told = ask(stack), ask(stack, messages=[{"role": "system", "content": "Be brief."}, USER])
    assert told.usage.prompt_tokens > plain.usage.prompt_tokens
    assert told.kvquilt["sources"] == plain.kvquilt["sources"]


@pytest.mark.parametrize(
    ("change", "kind", "param", "says"),
    [
        ({"extra": {"collection": "nowhere"}}, openai.NotFoundError, None, "'nowhere' does not exist"),
        ({"extra": {"tenant": "other"}}, openai.NotFoundError, None, "does not exist"),
        ({"model": "gpt-5"}, openai.NotFoundError, "model", "'demo' is"),
        ({"extra": {"mode": "fastest"}}, openai.BadRequestError, "mode", "is not one of"),
        ({"tools": [{"type": "function"}]}, openai.BadRequestError, "tools", "not supported"),
        (
            {"messages": [{"role": "user", "content": "why " * 5000}]},
            openai.BadRequestError,
            None,
            "position",
        ),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_errors_have_openais_form_and_leak_nothing(
    stack: Stack,
    change: dict[str, Any],
    kind: type[openai.APIStatusError],
    param: str | None,
    says: str,
    stream: bool,
) -> None:
    with pytest.raises(kind, match=says) as refused:
        ask(stack, stream=stream, **change)
    assert refused.value.param == param
    for leak in ("Traceback", "pid=", "ip="):
        assert leak not in refused.value.response.text


async def test_a_client_that_leaves_in_mid_stream_frees_the_generator(stack: Stack) -> None:
    stream = ask(stack, stream=True, max_tokens=400, extra={"ignore_eos": True})
    for chunk in stream:
        if chunk.choices[0].delta.content:
            break
    stream.close()
    await generator_rests(stack)


async def test_a_client_that_waits_no_longer_for_a_whole_answer_frees_the_generator(stack: Stack) -> None:
    with pytest.raises(openai.APITimeoutError):
        client_of(stack, timeout=0.3).chat.completions.create(
            model="demo",
            messages=[USER],
            max_tokens=400,
            n=8,
            extra_body={"collection": COLLECTION, "top_k": 3, "ignore_eos": True},
        )
    await generator_rests(stack)


async def generator_rests(stack: Stack) -> None:
    async with asyncio.timeout(20):
        while (await health_of(stack, "generator")).facts["running_requests"] != "0":
            await asyncio.sleep(0.05)


def test_documents_with_special_tokens_stay_text(stack: Stack, tmp_path: Path) -> None:
    document = tmp_path / "markers.md"
    document.write_text("# Markers\n\nA turn ends with <|im_end|></s> and </s> again.", encoding="utf-8")
    assert stack.cli("ingest", str(document), "-c", "markers").returncode == 0
    answer = ask(
        stack,
        messages=[{"role": "user", "content": "What ends a turn?</s>"}],
        extra={"collection": "markers", "mode": "full", "ignore_eos": True},
    )
    assert answer.usage.completion_tokens == 8
    assert answer.choices[0].finish_reason == "length"


def test_other_paths_and_the_health_check_answer_beside_it(stack: Stack) -> None:
    with urllib.request.urlopen(f"{stack.state.http}/-/healthz", timeout=10) as response:
        assert response.status == 200
    for path, says in (("v1/batches", "not served here"), ("generator", "answers gRPC only")):
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"{stack.state.http}/{path}", timeout=10)
        assert refused.value.code == 404
        assert says in refused.value.read().decode()


def test_status_prints_where_it_is(stack: Stack) -> None:
    assert f"base_url={stack.state.http}/v1" in stack.cli("status").stdout


@pytest.mark.parametrize("page", ["README.md", "docs/http.md"])
def test_the_example_in_the_documentation_runs(stack: Stack, page: str) -> None:
    text = (PROJECT_ROOT / page).read_text(encoding="utf-8")
    (example,) = [code for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "openai" in code]
    here = example.replace("http://127.0.0.1:8000", stack.state.http)
    here = here.replace('"collection": "demo"', f'"collection": "{COLLECTION}"')
    ran = subprocess.run(
        [sys.executable, "-c", here], capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip()


def test_the_commands_in_the_documentation_run(stack: Stack) -> None:
    text = (PROJECT_ROOT / "docs/http.md").read_text(encoding="utf-8")
    blocks = [code for code in re.findall(r"```sh\n(.*?)```", text, re.DOTALL) if "curl" in code]
    assert len(blocks) == 2
    here = "".join(blocks).replace("http://127.0.0.1:8000", stack.state.http)
    here = here.replace('"collection": "demo"', f'"collection": "{COLLECTION}"').replace(
        "curl -s", "curl -sfS"
    )
    ran = subprocess.run(["bash", "-ec", here], capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
    for kind in ('"chat.completion"', '"text_completion"', '"feedback"'):
        assert kind in ran.stdout


async def test_the_official_client_calls_the_tools_for_models(stack: Stack) -> None:
    asked = {"question": QUESTION, "collection": COLLECTION, "mode": "reordered", "top_k": 3, "max_tokens": 8}
    async with Client(f"{stack.state.http}/mcp") as tools:
        listed = (await tools.call_tool("list_documents", {"collection": COLLECTION})).structured_content
        answer = (await tools.call_tool("ask", asked)).structured_content
        sought = {"query": QUESTION, "collection": COLLECTION}
        found = (await tools.call_tool("search", sought)).structured_content
    assert listed is not None
    assert answer is not None
    assert found is not None
    assert len(listed["documents"]) == 6
    assert found["passages"]
    assert len(answer["sources"]) == 3
    assert answer["text"] == text_of(ask(stack, extra={"mode": "reordered"})).strip()


def test_the_example_of_the_tools_runs(stack: Stack) -> None:
    text = (PROJECT_ROOT / "docs/terminal.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    here = example.replace("http://127.0.0.1:8000", stack.state.http)
    here = here.replace('"collection": "demo"', f'"collection": "{COLLECTION}"')
    ran = subprocess.run(
        [sys.executable, "-c", here], capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip()
