"""Answers that keep to a format, in the engine: every branch by its own grammar, whatever runs beside it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.engine import Engine, EngineConfig, LiveForest, wrap_model
from shared.errors import FailedPrecondition, InvalidRequest
from shared.generation.asked import Beams, Choice, ChoiceRule, GenerateRequest, SamplingParams
from shared.generation.forest import Append, ForestRequest, Fork, Grow, Merge, Prune, Rewind, Start
from shared.generation.modes import ReuseMode
from shared.generation.response_format import ResponseFormat
from shared.generation.told import ChosenEvent, FinishReason, ForestEvent, GrownEvent, RestedEvent
from tests.engine_runs import Prompts, Run, assert_alike, engine_of, run
from tests.json_model import EOS, as_json, decode, encode, slow_mask
from tests.oracles import tiny_model
from tests.quoting_model import quoting_model

pytestmark = pytest.mark.usefixtures("one_thread")

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[a-z]{1,5}$"},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "tags": {"type": "array", "items": {"enum": ["a", "ab", True, None]}, "maxItems": 3},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
FORM = ResponseFormat(json.dumps(PERSON))
NUMBER = ResponseFormat('{"type": "integer", "minimum": 10, "maximum": 99999}')


def new_engine(hf_model: Any = None, speculation: int = 0, **settings: Any) -> Engine:
    config = EngineConfig(late_rows=0, speculation=speculation, **settings)
    model = wrap_model(hf_model if hf_model is not None else tiny_model("qwen2"))
    return Engine(model, config, decode=decode, tokenizer=as_json)


@lru_cache
def engine(speculation: int = 0) -> Engine:
    return new_engine(quoting_model() if speculation else None, speculation)


def asks(prompts: Prompts, form: ResponseFormat | None = FORM, **sampling: Any) -> GenerateRequest:
    asked = {"max_tokens": 200, "ignore_eos": False, "response_format": form} | sampling
    return prompts.request(5, (20, 9), **asked)


def sampled(request: GenerateRequest, **changes: Any) -> GenerateRequest:
    return replace(request, sampling=replace(request.sampling, **changes))


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_every_answer_is_json_by_its_schema_and_ends_where_it_is_complete(temperature: float) -> None:
    prompts = Prompts(engine())
    request = prompts.request(
        5,
        (20, 9),
        (6, 11),
        max_tokens=200,
        ignore_eos=False,
        response_format=FORM,
        n=3,
        temperature=temperature,
    )
    (done,) = run(engine(), request)
    for path in done.branches():
        said = json.loads(done.text(*path))
        jsonschema.validate(said, PERSON)
        assert done.finish(*path).finish_reason is FinishReason.STOP
        assert EOS not in done.branch(*path).token_ids, "an object needs no mark behind its brace"


def test_an_end_mark_is_drawn_only_where_the_text_may_end() -> None:
    prompts, ends = Prompts(engine()), set()
    for seed in range(12):
        (done,) = run(engine(), asks(prompts, NUMBER, temperature=1.0, seed=seed))
        ids = done.branch().token_ids
        number = done.text()
        assert 10 <= int(number) <= 99999
        ends.add(ids[-1] == EOS)
    assert ends == {True, False}, "five digits need none, fewer do"


def test_what_max_tokens_cuts_says_so_and_was_becoming_json() -> None:
    (done,) = run(engine(), asks(Prompts(engine()), max_tokens=7))
    assert done.finish().finish_reason is FinishReason.LENGTH
    assert len(done.branch().token_ids) == 7
    state = engine()._grammars.of(FORM).begin()
    for token in done.branch().token_ids:
        assert slow_mask(state)[token]
        state.push(token)


def test_log_probabilities_are_those_of_all_tokens() -> None:
    prompts = Prompts(engine())
    (done,) = run(engine(), asks(prompts, top_logprobs=5, max_tokens=4))
    request = replace(done.request, request_id="again", questions=(done.request.questions[0],))
    assert isinstance(request, GenerateRequest)
    (free,) = run(engine(), sampled(request, response_format=None, max_tokens=1))
    first = done.tokens()[0]
    assert first.top_logprobs == free.tokens()[0].top_logprobs
    assert first.token_id != free.tokens()[0].token_id, "the model would have said something else"
    assert first.logprob < first.top_logprobs[0][1]


@settings(max_examples=4, deadline=None)
@given(
    temperature=st.sampled_from((0.0, 1.0, 3.0)),
    seed=st.integers(0, 99),
    mode=st.sampled_from((ReuseMode.FULL, ReuseMode.REORDERED, ReuseMode.COMPOSITE)),
    n=st.integers(1, 3),
)
def test_a_branch_says_what_it_says_alone(temperature: float, seed: int, mode: ReuseMode, n: int) -> None:
    """Law 5, and 6: of several questions, samples and formats in one batch, each is as its path alone."""
    n = n if temperature else 1
    prompts = Prompts(engine(), seed)
    common = {"ignore_eos": False, "max_tokens": 25, "temperature": temperature, "seed": seed, "n": n}
    requests = [
        prompts.request(5, (20, 9), (6, 11), mode, response_format=form, **common)
        for form in (FORM, None, NUMBER, ResponseFormat())
    ]
    for one in run(engine(), *requests):
        assert isinstance(one.request, GenerateRequest)
        for question, ids in enumerate(one.request.questions):
            (alone,) = run(engine(), replace(one.request, request_id="alone", questions=(ids,)))
            for sample in range(n):
                assert_alike(one.branch(question, sample), alone.branch(0, sample))
                assert one.text(question, sample) == alone.text(0, sample)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_branches_without_a_format_stay_bitwise_what_they_are_beside_free_ones(temperature: float) -> None:
    """Beside requests of the same rows, which keep to a format or do not."""

    def free_beside(form: ResponseFormat | None) -> Run:
        fresh = new_engine(batch_invariant=True)
        prompts = Prompts(fresh)
        free = prompts.request(5, (20, 9), max_tokens=12, temperature=temperature, top_logprobs=5)
        beside = asks(prompts, form, max_tokens=12, temperature=temperature)
        return run(fresh, free, beside)[0]

    with_format, without = free_beside(FORM), free_beside(None)
    assert with_format.branch() == without.branch()


@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 99), temperature=st.sampled_from((0.0, 1.0)), n=st.integers(1, 2))
def test_drafts_change_nothing(seed: int, temperature: float, n: int) -> None:
    """The context is full of the very JSON, so that drafts are right, wrong, and against the grammar."""
    quoted = encode('{"name": "abc", "age": 12, "tags": ["a", "ab", true]} {"name":"b","age":1}' * 2)
    results = []
    for speculation in (0, 8):
        one = new_engine(quoting_model(), speculation)
        prompts = Prompts(one, seed)
        request = prompts.request(
            5,
            (tuple(quoted), 9),
            ((*prompts.ids(3), *encode(': {"name')), 4),
            ignore_eos=False,
            max_tokens=60,
            response_format=FORM,
            n=n if temperature else 1,
            temperature=temperature,
            seed=seed,
        )
        results.append(run(one, request)[0])
    plain, drafted = results
    for path in plain.branches():
        assert_alike(plain.branch(*path), drafted.branch(*path))
        assert plain.text(*path) == drafted.text(*path)
        assert plain.finish(*path).finish_reason is drafted.finish(*path).finish_reason


def test_drafts_are_accepted_under_a_grammar() -> None:
    one = new_engine(quoting_model(), 8)
    prompts = Prompts(one)
    quoted = tuple(encode('"' + "ab" * 40))
    form = ResponseFormat('{"type": "string", "pattern": "^(ab)*$", "minLength": 60}')
    request = prompts.request(5, (quoted,), (5,), ignore_eos=False, max_tokens=50, response_format=form)
    (done,) = run(one, request)
    assert done.done.usage.accepted_tokens > 10


class TestForest:
    """Branches that are forked, rewound, appended to and merged in the middle of a text."""

    def forest(self, one: Engine) -> LiveForest:
        prompts = Prompts(one)
        request = prompts.request(5, (20, 9))
        return LiveForest(one, ForestRequest("forest", request.prefix_ids, request.chunks))

    def ids(self, told: Sequence[ForestEvent], branch: int) -> list[int]:
        return [e.token_id for e in told if isinstance(e, GrownEvent) and e.branch == branch]

    def text(self, told: Sequence[ForestEvent], branch: int) -> str:
        parts = [e for e in told if isinstance(e, GrownEvent | RestedEvent) and e.branch == branch]
        return "".join(e.text for e in parts)

    def reason(self, told: Sequence[ForestEvent], branch: int) -> FinishReason:
        (event,) = (e for e in told if isinstance(e, RestedEvent) and e.branch == branch)
        return event.finish_reason

    @settings(max_examples=4, deadline=None)
    @given(
        seed=st.integers(0, 99),
        cut=st.integers(1, 12),
        back=st.integers(0, 9),
        heat=st.sampled_from((0.0, 2.0)),
    )
    def test_forks_and_rewinds_go_on_as_their_path_does_alone(
        self, seed: int, cut: int, back: int, heat: float
    ) -> None:
        question = encode("ab")
        params = SamplingParams(temperature=heat, seed=seed, response_format=FORM, max_tokens=300)
        with self.forest(engine()) as forest:
            forest.do(Start(0, tuple(question)))
            grown = self.ids(forest.do(Grow(0, replace(params, max_tokens=cut))), 0)
            kept = max(0, len(grown) - back)
            told = forest.do(
                Fork(1, 0, len(question) + kept),
                Fork(2, 0),
                Rewind(0, len(grown) - kept) if kept < len(grown) else Fork(9, 0),
                Prune(2),
                Grow(0, params),
                Grow(1, params),
            )
            texts = {b: decode([*grown[:kept], *self.ids(told, b)]) for b in (0, 1)}
            for text in texts.values():
                jsonschema.validate(json.loads(text), PERSON)
            # the same tokens given, on a path of its own, and told to go on by the same numbers
            with self.forest(new_engine()) as other:
                other.do(Start(7, tuple(question)))
                alone = self.ids(other.do(Grow(7, replace(params, max_tokens=cut))), 7)
                if not heat:
                    assert alone == grown
                    again = self.ids(
                        other.do(
                            Rewind(7, len(alone) - kept) if kept < len(alone) else Fork(8, 7), Grow(7, params)
                        ),
                        7,
                    )
                    assert again == self.ids(told, 0) == self.ids(told, 1)

    def test_a_rest_of_max_tokens_is_no_end_of_the_text(self) -> None:
        params = SamplingParams(response_format=FORM, max_tokens=3)
        with self.forest(engine()) as forest:
            forest.do(Start(0, tuple(encode("ab"))))
            text = ""
            for _ in range(60):
                told = forest.do(Grow(0, params))
                text += decode(self.ids(told, 0))
                if self.reason(told, 0) is FinishReason.STOP:
                    break
            jsonschema.validate(json.loads(text), PERSON)
            told = forest.do(Grow(0, replace(params, max_tokens=200)))
            jsonschema.validate(json.loads(self.text(told, 0)), PERSON)

    def test_an_end_mark_ends_the_text_and_rewinding_behind_it_opens_it_again(self) -> None:
        params = SamplingParams(response_format=NUMBER, temperature=1.0)
        for seed in range(40):
            with self.forest(engine()) as forest:
                forest.do(Start(0, tuple(encode("ab"))))
                told = forest.do(Grow(0, replace(params, seed=seed)))
                grown = self.ids(told, 0)
                if grown[-1] != EOS or len(grown) < 3:
                    continue
                forest.do(Fork(1, 0), Rewind(0, 1))
                number = self.text(told, 0)
                after = self.text(forest.do(Grow(1, params)), 1)
                assert 10 <= int(after) <= 99999, "a new number"
                rest = self.ids(forest.do(Grow(0, params)), 0)
                assert 10 <= int(decode([*grown[:-2], *[t for t in rest if t != EOS]])) <= 99999
                assert number
                return
        raise AssertionError("no seed ended with a mark")

    def test_tokens_that_are_given_belong_to_the_text_if_they_fit(self) -> None:
        params = SamplingParams(response_format=FORM, max_tokens=200)
        with self.forest(engine()) as forest:
            forest.do(Start(0, tuple(encode("ab"))), Grow(0, replace(params, max_tokens=1)))
            forest.do(Append(0, tuple(encode('"name":"xyz","age":77,"tags"'))), Fork(1, 0))
            rest = decode(self.ids(forest.do(Grow(0, params)), 0))
            assert rest.lstrip().startswith(":")
            assert json.loads('{"name":"xyz","age":77,"tags"' + rest)["age"] == 77
            forest.do(Append(1, tuple(encode("  no json  "))))
            jsonschema.validate(json.loads(self.text(forest.do(Grow(1, params)), 1)), PERSON)

    def test_merged_branches_begin_a_new_text_unless_it_is_one(self) -> None:
        params = SamplingParams(response_format=FORM, max_tokens=200)
        for placed in (False, True):
            with self.forest(engine()) as forest:
                forest.do(Start(0, tuple(encode("ab"))), Fork(1, 0))
                forest.do(Grow(0, replace(params, max_tokens=3)), Append(1, tuple(encode("ab12"))))
                told = forest.do(Merge(2, (0, 1), placed=placed), Grow(2, params))
                jsonschema.validate(json.loads(self.text(told, 2)), PERSON)

    def test_without_a_format_it_grows_as_ever_and_the_text_is_over(self) -> None:
        params = SamplingParams(response_format=FORM, max_tokens=4)
        with self.forest(engine()) as forest, self.forest(new_engine()) as other:
            forest.do(Start(0, tuple(encode("ab"))))
            grown = self.ids(forest.do(Grow(0, params)), 0)
            free = self.ids(forest.do(Grow(0, SamplingParams(max_tokens=5))), 0)
            other.do(Start(0, (*encode("ab"), *grown)))
            assert self.ids(other.do(Grow(0, SamplingParams(max_tokens=5))), 0) == free

    def test_a_schema_that_is_none_is_refused_and_the_forest_lives(self) -> None:
        with self.forest(engine()) as forest:
            forest.do(Start(0, tuple(encode("ab"))))
            with pytest.raises(InvalidRequest, match="Unsatisfiable"):
                forest.do(Grow(0, SamplingParams(response_format=ResponseFormat('{"enum": []}'))))
            assert forest.do(Grow(0, SamplingParams(max_tokens=2)))


def test_thoughts_are_chosen_among_texts_of_the_format() -> None:
    request = replace(asks(Prompts(engine()), temperature=1.0, n=3), choose=Choice(ChoiceRule.MAJORITY))
    (done,) = run(engine(), request)
    assert any(isinstance(event, ChosenEvent) for event in done.events)
    for sample in range(3):
        jsonschema.validate(json.loads(done.text(0, sample)), PERSON)


def test_what_cannot_be_with_a_format_is_refused_when_it_comes() -> None:
    prompts = Prompts(engine())
    with pytest.raises(InvalidRequest, match="beams are not searched"):
        engine().submit(replace(asks(prompts), beams=Beams(2)), lambda event: None)
    with pytest.raises(InvalidRequest, match="ignore_eos"):
        asks(prompts, ignore_eos=True)
    with pytest.raises(InvalidRequest, match="Unsatisfiable"):
        engine().submit(asks(prompts, ResponseFormat('{"enum": []}')), lambda event: None)
    with pytest.raises(FailedPrecondition, match="no tokenizer"):
        engine_of().submit(asks(prompts), lambda event: None)
    assert not engine().step(), "nothing of it came in"


@pytest.mark.parametrize("speculation", [0, 8])
def test_a_grammar_that_breaks_ends_its_request_alone(speculation: int) -> None:
    """As of a pattern whose states the library gives up on."""
    one = new_engine(quoting_model() if speculation else None, speculation)
    prompts = Prompts(one)
    heavy = ResponseFormat('{"type": "string", "pattern": "^((a{1,1000}){1,1000}){60,1000}$"}')
    broken = asks(prompts, heavy)
    fine = asks(prompts, FORM, temperature=1.0)
    free = prompts.request(5, (20, 9), max_tokens=30)
    lost, kept, plain = run(one, broken, fine, free)
    assert isinstance(lost.error, InvalidRequest)
    assert "too much to follow" in lost.error.detail
    jsonschema.validate(json.loads(kept.text()), PERSON)
    assert len(plain.branch().token_ids) == 30
    run(one, replace(fine, request_id="later"))


def test_a_grammar_that_breaks_in_a_forest_ends_it() -> None:
    one = new_engine()
    heavy = ResponseFormat('{"type": "string", "pattern": "^((a{1,1000}){1,1000}){60,1000}$"}')
    prompts = Prompts(one)
    request = prompts.request(5, (20, 9))
    with LiveForest(one, ForestRequest("forest", request.prefix_ids, request.chunks)) as forest:
        forest.do(Start(0, tuple(encode("ab"))))
        with pytest.raises(InvalidRequest, match="too much to follow"):
            forest.do(Grow(0, SamplingParams(response_format=heavy, max_tokens=60)))
    (done,) = run(one, asks(prompts))
    jsonschema.validate(json.loads(done.text()), PERSON)
