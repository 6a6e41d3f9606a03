"""What schemas become grammars, which are refused and why, and that the fast mask is the slow one."""

from __future__ import annotations

import builtins
import json
import threading
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.engine.decoding import grammars
from shared.engine.decoding.device_sampling import outcomes_on_device
from shared.engine.decoding.draws import Draw, Wanted
from shared.engine.decoding.grammar import GrammarState
from shared.engine.decoding.grammars import Grammars
from shared.engine.decoding.sampling import outcomes
from shared.errors import FailedPrecondition, InvalidRequest
from shared.generation.asked import SamplingParams
from shared.generation.response_format import MOST_DEPTH, ResponseFormat
from tests.json_model import EOS, as_json, encode, mask, slow_mask
from tests.oracles import VOCAB
from tests.pretend_gpu import pretend_gpu

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "tags": {"type": "array", "items": {"enum": ["a", "ab", True, None]}, "maxItems": 3},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
SCHEMAS: tuple[dict[str, Any], ...] = (
    PERSON,
    {"type": "object"},
    {"type": "integer"},
    {"type": "string", "pattern": "^[a-c]{2,5}é?$"},
    {"anyOf": [{"type": "null"}, {"type": "array", "items": {"type": "number"}}]},
    {"$ref": "#/$defs/tree", "$defs": {"tree": {"type": "array", "items": {"$ref": "#/$defs/tree"}}}},
)


def form(schema: object) -> ResponseFormat:
    return ResponseFormat(json.dumps(schema))


@pytest.fixture(scope="module")
def compiled() -> Grammars:
    return Grammars(as_json, VOCAB, {EOS})


@settings(max_examples=10, deadline=None)
@given(schema=st.sampled_from(SCHEMAS), choices=st.lists(st.integers(0, 1 << 30), max_size=14))
def test_the_mask_is_what_testing_every_token_says(
    compiled: Grammars, schema: dict[str, Any], choices: list[int]
) -> None:
    state = compiled.of(form(schema)).begin()
    for choice in choices:
        allowed = mask(state)
        np.testing.assert_array_equal(allowed, slow_mask(state))
        ids = np.flatnonzero(allowed)
        token = int(ids[choice % len(ids)])
        if token == EOS:
            break
        state.push(token)
        if state.complete:
            break


@settings(max_examples=10, deadline=None)
@given(schema=st.sampled_from(SCHEMAS), choices=st.lists(st.integers(0, 1 << 30), min_size=1, max_size=14))
def test_a_state_that_was_rewound_copied_or_drafted_is_that_of_its_tokens(
    compiled: Grammars, schema: dict[str, Any], choices: list[int]
) -> None:
    grammar = compiled.of(form(schema))
    state, ids = grammar.begin(), []
    for choice in choices:
        possible = np.flatnonzero(mask(state))
        ids.append(int(possible[choice % len(possible)]))
        if ids[-1] == EOS:
            ids.pop()
            break
        state.push(ids[-1])
        if state.complete:
            break
    for length in range(len(ids) + 1):
        alone = grammar.begin()
        for token in ids[:length]:
            alone.push(token)
        rewound = state.before(len(ids) - length)
        assert rewound is not None
        drafted = [grammar.begin(), *grammar.begin().along([*ids, 1, 1])][length]
        assert drafted is not None
        for one in (rewound, drafted):
            assert one.complete == alone.complete
            if not one.complete:
                np.testing.assert_array_equal(mask(one), mask(alone))
    assert [*grammar.begin().along([*ids, 1, 1])][len(ids) :] == [None, None], "no text has a special token"
    assert state.before(len(ids) + 1) is None


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({"not": {"type": "string"}}, r'the schema: Unimplemented keys: \["not"\]; leave them out'),
        ({"type": "array", "items": {"uniqueItems": True}}, r'/items: .*uniqueItems"\]; leave them out'),
        (
            {"properties": {"a/b": {"$ref": "#/$defs/x"}}, "$defs": {"x": {"if": {}, "type": "object"}}},
            r"/\$defs/x: Unimplemented keys",
        ),
        ({"properties": {"a": {"$ref": "https://example.com/x.json"}}}, r"/properties/a/\$ref: .*\$defs"),
        ({"$ref": "other.json#/x"}, r"/\$ref: refers to another document"),
        ({"$ref": "#/$defs/none"}, r"does not exist; refer to a schema of this document"),
        ({"enum": []}, "Unsatisfiable.*; no text satisfies it"),
        (
            {
                "type": "object",
                "required": ["a"],
                "properties": {"a": {"minimum": 5, "maximum": 3, "type": "integer"}},
            },
            r"/properties/a: Unsatisfiable",
        ),
        ({"type": "string", "pattern": "^abc$", "maxLength": 2}, "Unsatisfiable schema: Regex is empty"),
        ({"type": "string", "pattern": "(?=a)b"}, "look-around.*write the pattern without it"),
        ({"type": "string", "pattern": "("}, "unclosed group; change or simplify"),
        ({"type": "string", "format": "klingon"}, "Unknown format: klingon"),
        ({"type": "strng"}, "Invalid type: strng"),
        ({"oneOf": [{"type": "string"}, {"type": "string", "maxLength": 3}]}, "use anyOf"),
        ({"$ref": "#"}, "no text that ends"),
        (
            {
                "$ref": "#/$defs/a",
                "$defs": {
                    "a": {"type": "object", "properties": {"x": {"$ref": "#/$defs/a"}}, "required": ["x"]}
                },
            },
            "requires itself inside itself; make that optional",
        ),
        ({"type": "array", "minItems": 1, "items": {"$ref": "#"}}, "requires itself"),
        ({"x-guidance": {"lenient": True}, "not": {}}, "/x-guidance: is not supported"),
        ({"type": "string", "description": "\ud800", "format": "\ud800"}, "change or simplify it"),
        # the search for a text that satisfies all of these ends nowhere
        (
            {"allOf": [{"type": "string", "pattern": f"(a|b)*a(a|b){{{k}}}"} for k in range(5, 25)]},
            "takes more than .* to compile",
        ),
    ],
)
def test_what_no_text_can_keep_to_is_refused_with_its_place_and_what_to_do(
    compiled: Grammars, schema: dict[str, Any], says: str
) -> None:
    with pytest.raises(InvalidRequest, match=says) as refused:
        compiled.of(form(schema))
    assert refused.value.detail.startswith("sampling.response_format: ")
    refused.value.detail.encode()
    with pytest.raises(InvalidRequest, match=says):
        compiled.of(form(schema))


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "items": {"$ref": "#"}},
        {"anyOf": [{"type": "array", "minItems": 1, "items": {"$ref": "#"}}, {"type": "null"}]},
        {"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["named elsewhere"]},
        {"type": "object", "properties": {"$ref": {"type": "string"}, "not": {"type": "string"}}},
        {"title": "T", "description": "d", "default": 1, "examples": [2], "type": "integer"},
    ],
)
def test_schemas_that_some_text_satisfies_begin(compiled: Grammars, schema: dict[str, Any]) -> None:
    assert mask(compiled.of(form(schema)).begin()).any()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "not JSON"),
        ("[]", "no object"),
        ('{"maximum": NaN}', "NaN is no number"),
        (
            json.dumps({"const": None}).replace("null", "[" * 200 + "]" * 200),
            f"more than {MOST_DEPTH} levels",
        ),
        ("[" * 100_000, f"more than {MOST_DEPTH} levels"),
    ],
)
def test_what_is_no_schema_at_all_is_refused_by_the_value(text: str, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        ResponseFormat(text)


def test_a_schema_with_thousands_of_optional_members_can_be_followed(compiled: Grammars) -> None:
    many = {"type": "object", "properties": {f"a{i}": {"type": "null"} for i in range(1500)}}
    state = compiled.of(form(many)).begin()
    for token in encode('{"a7":null,"'):
        assert mask(state)[token]
        state.push(token)


def test_compiled_and_refused_schemas_are_kept_up_to_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[object] = []
    monkeypatch.setattr(grammars, "MOST_KEPT", 3)
    real = grammars._try
    monkeypatch.setattr(grammars, "_try", lambda schema: (tried.append(schema), real(schema)))
    kept = Grammars(as_json, VOCAB, {EOS})
    first = kept.of(form({"const": 0}))
    assert kept.of(form({"const": 0})) is first
    for _ in range(2):
        with pytest.raises(InvalidRequest):
            kept.of(form({"enum": []}))
    assert len(tried) == 2
    for number in range(1, 4):
        kept.of(form({"const": number}))
    assert kept.num_kept == 3
    assert kept.of(form({"const": 0})) is not first, "the one asked for longest ago went"


def test_threads_that_ask_for_one_schema_compile_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[object] = []
    monkeypatch.setattr(grammars, "_try", tried.append)
    kept = Grammars(as_json, VOCAB, {EOS})
    threads = [threading.Thread(target=kept.of, args=(form({"type": "null"}),)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(tried) == 1


def test_tokens_that_the_model_has_no_logit_for_are_left_out(compiled: Grammars) -> None:
    def larger() -> str:
        known = json.loads(as_json())
        one = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        known["added_tokens"].append({"id": VOCAB, "content": "<|pad|>", "special": True} | one)
        return json.dumps(known)

    ours = Grammars(larger, VOCAB, {EOS}).of(form(PERSON)).begin()
    np.testing.assert_array_equal(mask(ours), mask(compiled.of(form(PERSON)).begin()))


def test_without_the_package_or_a_tokenizer_formats_are_refused_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(FailedPrecondition, match="no tokenizer"):
        Grammars(None, VOCAB, {EOS}).of(ResponseFormat())
    with pytest.raises(FailedPrecondition, match="no token that ends"):
        Grammars(as_json, VOCAB, ()).of(ResponseFormat())
    with pytest.raises(FailedPrecondition, match="cannot be read as bytes"):
        Grammars(lambda: "{}", VOCAB, {EOS}).of(ResponseFormat())
    real = builtins.__import__

    def missing(name: str, *args: Any) -> Any:
        if name == "llguidance":
            raise ImportError(name)
        return real(name, *args)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(FailedPrecondition, match="needs the package llguidance"):
        Grammars(as_json, VOCAB, {EOS}).of(ResponseFormat())


class TestDraws:
    """Rows of a step, some of which keep to a grammar."""

    def rows(
        self, compiled: Grammars, seed: int
    ) -> tuple[torch.Tensor, list[Wanted], list[GrammarState | None]]:
        logits_BV = torch.randn(6, VOCAB, generator=torch.Generator().manual_seed(seed)) * 4
        states = [None, compiled.of(form(PERSON)).begin(), compiled.of(form({"type": "integer"})).begin()] * 2
        params = [
            SamplingParams(temperature=t, top_k=k, top_p=p, seed=seed, top_logprobs=3)
            for t, k, p in ((0, 0, 1), (1, 0, 1), (0.7, 40, 1), (1, 0, 0.5), (0, 0, 1), (2, 5, 0.9))
        ]
        wanted = [Wanted((Draw(p, 0, 3, s), Draw(p, 1, 3, s))) for p, s in zip(params, states, strict=True)]
        return logits_BV, wanted, states

    @pytest.mark.parametrize("seed", range(4))
    def test_draw_what_the_model_says_of_the_allowed_tokens_alone(
        self, compiled: Grammars, seed: int
    ) -> None:
        logits_BV, wanted, states = self.rows(compiled, seed)
        masked_BV = logits_BV.clone()
        for row_V, state in zip(masked_BV, states, strict=True):
            if state is not None:
                row_V[~torch.from_numpy(slow_mask(state))] = float("-inf")
        free = [Wanted(tuple(Draw(d.params, d.path, d.position) for d in one.draws)) for one in wanted]
        ours, oracle, without = (
            outcomes(logits_BV, wanted),
            outcomes(masked_BV, free),
            outcomes(logits_BV, free),
        )
        logprobs_BV = logits_BV.log_softmax(-1)
        for b, (one, expected) in enumerate(zip(ours, oracle, strict=True)):
            assert [s.token_id for s in one.sampled] == [s.token_id for s in expected.sampled]
            for sampled in one.sampled:
                assert sampled.logprob == logprobs_BV[b, sampled.token_id], "of raw logits"
            assert [s.top_logprobs for s in one.sampled] == [s.top_logprobs for s in without[b].sampled]
            if states[b] is None:
                assert one == without[b], "bitwise as without the others"

    @pytest.mark.parametrize("seed", range(4))
    def test_are_the_same_on_a_gpu_which_the_host_waits_for_once(
        self, compiled: Grammars, seed: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        logits_BV, wanted, _ = self.rows(compiled, seed)
        assert outcomes_on_device(logits_BV, wanted) == outcomes(logits_BV, wanted)
        with pretend_gpu(monkeypatch) as gpu:
            there = logits_BV.to("cuda")
            gpu.crossings.clear()
            found = outcomes(there, wanted)
            assert [c.name for c in gpu.crossings if c.waits] == ["cpu"]
        assert found == outcomes(logits_BV, wanted)
