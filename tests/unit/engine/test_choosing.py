"""Parallel thoughts: which one is chosen, and that each is the sample it would be alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from shared.engine.decoding.choice import Thought, choose, final_answer
from shared.errors import InvalidRequest
from shared.generation.asked import Choice, ChoiceRule
from shared.generation.told import BranchDoneEvent, ChosenEvent
from tests.engine_runs import Prompts, Run, assert_equals_oracle, engine_of, run
from tests.oracles import tiny_model

MAJORITY = Choice(ChoiceRule.MAJORITY, "Answer:")
LIKELIEST = Choice(ChoiceRule.MEAN_LOGPROB)


def letters(ids: Sequence[int]) -> str:
    """Few different texts, so that short thoughts agree now and then."""
    return "".join("ab"[i % 2] for i in ids)


def chosen(one: Run, question: int = 0) -> ChosenEvent:
    (event,) = (e for e in one.events if isinstance(e, ChosenEvent) and e.question == question)
    return event


class TestFinalAnswers:
    @pytest.mark.parametrize(
        ("text", "answer"),
        [
            ("I think. Answer: 42", "42"),
            ("Answer: 41? No. Answer:  “Forty  Two”.\nMore talk", "“forty two”"),
            ("ANSWER: 42", ""),
            ("Answer:\n\n  Yes! \n", "yes"),
            ("Answer: ...", ""),
            ("no marker", ""),
        ],
    )
    def test_it_is_the_first_line_behind_the_last_marker(self, text: str, answer: str) -> None:
        assert final_answer(text, "Answer:") == answer

    def test_without_a_marker_it_is_the_whole_text(self) -> None:
        assert final_answer(" Two\n words. ", "") == "two words"


class TestRules:
    def test_most_votes_win_whatever_their_probability(self) -> None:
        thoughts = [Thought("Answer: a", -0.1), Thought("Answer: b.", -3.0), Thought("Answer: B", -2.0)]
        assert choose(4, thoughts, MAJORITY) == ChosenEvent(4, 1, "b", 2)

    def test_of_equally_many_the_first_to_appear_wins(self) -> None:
        thoughts = [Thought("none", 0.0), Thought("Answer: b", -3.0), Thought("Answer: a", -0.1)]
        assert choose(0, thoughts, MAJORITY) == ChosenEvent(0, 1, "b", 1)

    def test_without_any_final_answer_the_likeliest_wins(self) -> None:
        assert choose(0, [Thought("x", -2.0), Thought("y", -1.0)], MAJORITY) == ChosenEvent(0, 1)

    def test_of_equally_likely_ones_the_first_wins(self) -> None:
        assert choose(
            0, [Thought("x", -2.0), Thought("y", -1.0), Thought("z", -1.0)], LIKELIEST
        ) == ChosenEvent(0, 1)


class TestInTheEngine:
    def test_the_likeliest_thought_of_each_question_by_the_oracles_log_probabilities(self) -> None:
        engine = engine_of("qwen2")
        request = Prompts(engine, 1).request(questions=(9, 4), temperature=0.9, seed=3, n=5, max_tokens=7)
        (one,) = run(engine, replace(request, choose=LIKELIEST))
        assert_equals_oracle(one, tiny_model("qwen2"))
        for question in range(2):
            means = [torch.tensor(one.branch(question, sample).logprobs).mean().item() for sample in range(5)]
            assert chosen(one, question).sample == means.index(max(means))
            assert [one.finish(question, s).score for s in range(5)] == pytest.approx(means, abs=1e-5)

    def test_thoughts_are_the_samples_they_would_be_without_a_choice(self) -> None:
        engine = engine_of("qwen2", batch_invariant=True)
        request = Prompts(engine, 2).request(temperature=0.9, seed=3, n=4, ignore_eos=False)
        plain, thinking = run(engine, request, replace(request, request_id="thoughts", choose=LIKELIEST))
        assert plain.branches() == thinking.branches()
        assert not any(isinstance(e, ChosenEvent) for e in plain.events)

    def test_a_majority_counts_whole_texts_and_comes_after_the_last_of_its_thoughts(self) -> None:
        engine = engine_of("qwen2", decode=letters)
        request = Prompts(engine, 3).request(temperature=1.5, seed=1, n=9, max_tokens=2)
        (one,) = run(engine, replace(request, choose=Choice(ChoiceRule.MAJORITY)))
        texts = [one.text(0, sample) for sample in range(9)]
        event = chosen(one)
        assert event.votes == max(map(texts.count, texts)) > 1
        assert event.answer == texts[event.sample]
        assert event.sample == texts.index(event.answer)
        last = max(i for i, e in enumerate(one.events) if isinstance(e, BranchDoneEvent))
        assert one.events.index(event) == last + 1

    @pytest.mark.parametrize(
        ("sampling", "choice", "field"),
        [
            ({"n": 1, "temperature": 1.0}, LIKELIEST, "sampling.n"),
            ({"n": 2, "temperature": 0.0}, LIKELIEST, "sampling.temperature"),
            ({"n": 2, "temperature": 1.0}, MAJORITY, "choose"),
            ({"n": 2, "temperature": 1.0}, Choice(ChoiceRule.MEAN_LOGPROB, "x"), "choose.marker"),
        ],
    )
    def test_contradictions_name_the_field(
        self, sampling: dict[str, Any], choice: Choice, field: str
    ) -> None:
        engine = engine_of("qwen2")
        with pytest.raises(InvalidRequest) as refusal:
            run(engine, replace(Prompts(engine).request(**sampling), choose=choice))
        assert refusal.value.detail.startswith(field)
