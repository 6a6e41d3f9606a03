"""How the engine chooses tokens and when it stops."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import pytest
import torch
from scipy.stats import chisquare

from shared.engine import Engine
from shared.generation.asked import GenerateRequest
from shared.generation.told import FinishReason
from tests.engine_runs import Prompts, engine_of, run
from tests.oracles import reordered, tiny_model

pytestmark = pytest.mark.usefixtures("one_thread")

SAMPLES = 64


def letters(ids: Sequence[int]) -> str:
    """A tokenizer's decode in which every id is one letter, or for 250 and up half of one (a replacement
    character if alone)."""
    text, pending = "", False
    for token in ids:
        if token >= 250:
            text, pending = (text + "é", False) if pending else (text, True)
        else:
            text, pending = text + ("\ufffd" if pending else "") + chr(0x4E00 + token), False
    return text + ("\ufffd" if pending else "")


@lru_cache
def engine() -> Engine:
    return engine_of("qwen2", decode=letters)


@lru_cache
def exact_probabilities(request: GenerateRequest) -> torch.Tensor:
    """Of the first token, from the oracle's raw logits."""
    chunks = [c.token_ids for c in request.chunks]
    logits_GV = reordered(tiny_model("qwen2"), request.prefix_ids, chunks, request.questions[0], [0])
    return (logits_GV[0].double() / request.sampling.temperature).softmax(-1)


def first_tokens(request: GenerateRequest, num_seeds: int) -> Counter[int]:
    counts: Counter[int] = Counter()
    for seed in range(num_seeds):
        seeded = replace(
            request,
            request_id=f"{request.request_id}-{seed}",
            sampling=replace(request.sampling, seed=seed, n=SAMPLES),
        )
        (one,) = run(engine(), seeded)
        counts.update(one.branch(0, sample).token_ids[0] for sample in range(SAMPLES))
    return counts


def assert_drawn_from(counts: Counter[int], probabilities: torch.Tensor) -> None:
    """Chi-square over the tokens that are expected at least five times, the rest in one cell."""
    total = sum(counts.values())
    assert all(probabilities[token] > 0 for token in counts), "a token of probability zero was drawn"
    common = [i for i in range(len(probabilities)) if probabilities[i] * total >= 5]
    expected = [float(probabilities[i]) * total for i in common]
    observed = [float(counts[i]) for i in common]
    if total - sum(expected) > 1e-6:
        expected.append(total - sum(expected))
        observed.append(total - sum(observed))
    assert len(expected) > 2
    assert chisquare(observed, expected).pvalue > 1e-3


class TestSampling:
    def request(self, **sampling: object) -> GenerateRequest:
        return Prompts(engine(), seed=20).request(
            **{"temperature": 1.5, "max_tokens": 1, "top_logprobs": 0} | sampling
        )  # type: ignore[arg-type]

    def test_samples_follow_the_softmax_of_the_scaled_logits(self) -> None:
        request = self.request()
        assert_drawn_from(first_tokens(request, 24), exact_probabilities(request))

    def test_top_k_keeps_the_k_most_likely_and_rescales_them(self) -> None:
        request = self.request(top_k=7)
        exact = exact_probabilities(request)
        kept = torch.zeros_like(exact)
        kept[exact.topk(7).indices] = exact.topk(7).values
        assert_drawn_from(first_tokens(request, 12), kept / kept.sum())

    def test_top_p_keeps_the_smallest_set_that_reaches_p(self) -> None:
        request = self.request(top_p=0.6)
        exact = exact_probabilities(request)
        sorted_probabilities, order = exact.sort(descending=True)
        num_kept = int((sorted_probabilities.cumsum(0) < 0.6).sum()) + 1
        assert 3 < num_kept < 100
        kept = torch.zeros_like(exact)
        kept[order[:num_kept]] = sorted_probabilities[:num_kept]
        assert_drawn_from(first_tokens(request, 12), kept / kept.sum())

    @pytest.mark.parametrize("narrow", [{"top_k": 1}, {"top_p": 1e-6}])
    def test_narrowed_to_one_token_sampling_is_greedy(self, narrow: dict[str, float]) -> None:
        request = Prompts(engine(), seed=21).request(temperature=2.0, seed=9, **narrow)
        (sampled,) = run(engine(), request)
        (greedy,) = run(
            engine(),
            replace(request, request_id="greedy", sampling=replace(request.sampling, temperature=0.0)),
        )
        assert sampled.branch().token_ids == greedy.branch().token_ids

    def test_logprobs_are_of_the_raw_logits_whatever_the_sampling(self) -> None:
        request = self.request(temperature=0.3, top_k=2, top_logprobs=64)
        (one,) = run(engine(), request)
        raw = exact_probabilities(replace(request, sampling=replace(request.sampling, temperature=1.0))).log()
        (event,) = one.tokens()
        assert abs(event.logprob - float(raw[event.token_id])) < 1e-4
        assert len(event.top_logprobs) == 64
        assert all(abs(logprob - float(raw[token])) < 1e-4 for token, logprob in event.top_logprobs)
        assert [lp for _, lp in event.top_logprobs] == sorted(
            (lp for _, lp in event.top_logprobs), reverse=True
        )

    def test_no_top_logprobs_unless_asked_for(self) -> None:
        (one,) = run(engine(), self.request(top_logprobs=0))
        assert one.tokens()[0].top_logprobs == ()


class TestEnding:
    def greedy(self, seed: int = 22, **sampling: object) -> GenerateRequest:
        return Prompts(engine(), seed=seed).request(**{"max_tokens": 24} | sampling)  # type: ignore[arg-type]

    def test_max_tokens_ends_with_length(self) -> None:
        (one,) = run(engine(), self.greedy())
        assert one.finish().finish_reason is FinishReason.LENGTH
        assert one.finish().generated_tokens == len(one.tokens()) == 24
        assert one.done.usage.generated_tokens == 24

    def test_the_streamed_text_is_the_decoded_text(self) -> None:
        (one,) = run(engine(), self.greedy())
        assert one.text() == letters(one.branch().token_ids)

    def test_an_unfinished_character_is_held_back(self) -> None:
        # Sampling hot makes half-characters (ids of 250 and up) likely; none may be streamed as a replacement
        # and then corrected.
        (one,) = run(engine(), self.greedy(temperature=5.0, seed=24, n=8, max_tokens=60))
        ids = [one.branch(0, sample).token_ids for sample in range(8)]
        assert any(token >= 250 for branch in ids for token in branch)
        for sample in range(8):
            assert one.text(0, sample) == letters(ids[sample])

    def test_a_stop_string_ends_before_it_appears_in_the_text(self) -> None:
        (free,) = run(engine(), self.greedy())
        text = free.text()
        stop = text[10:13]  # spans three tokens
        request = self.greedy(stop=(stop,))
        (stopped,) = run(engine(), replace(request, request_id="stopped"))
        assert stopped.finish().finish_reason is FinishReason.STOP
        assert stopped.text() == text[: text.index(stop)]
        assert stop not in stopped.text()
        assert len(stopped.tokens()) < 24

    def test_the_first_of_several_stop_strings_decides(self) -> None:
        (free,) = run(engine(), self.greedy())
        text = free.text()
        (stopped,) = run(engine(), replace(self.greedy(stop=(text[15:17], text[6:8])), request_id="stopped"))
        assert stopped.text() == text[: min(text.index(text[15:17]), text.index(text[6:8]))]

    def test_text_held_back_for_a_stop_string_that_never_completes_is_delivered_at_the_end(self) -> None:
        (free,) = run(engine(), self.greedy())
        text = free.text()
        (one,) = run(engine(), replace(self.greedy(stop=(text[-2:] + "never",)), request_id="held"))
        assert one.finish().finish_reason is FinishReason.LENGTH
        assert one.text() == text

    def test_an_eos_id_ends_with_stop_and_ignore_eos_goes_on(self) -> None:
        prompts = Prompts(engine(), seed=22)
        request = prompts.request(max_tokens=24)
        (free,) = run(engine(), request)
        ids = free.branch().token_ids
        eos = next(token for index, token in enumerate(ids) if index >= 3)
        model = tiny_model("qwen2", eos_token_id=[eos, 256])
        with_eos = engine_of(hf_model=model, decode=letters)
        (ignoring,) = run(with_eos, replace(request, request_id="ignoring"))
        assert ignoring.branch().token_ids == ids
        (stopped,) = run(
            with_eos,
            replace(request, request_id="stopped", sampling=replace(request.sampling, ignore_eos=False)),
        )
        assert stopped.finish().finish_reason is FinishReason.STOP
        assert stopped.branch().token_ids == ids[: ids.index(eos) + 1]
        assert eos not in [ord(c) - 0x4E00 for c in stopped.text()], "the end mark is no text"

    def test_branches_end_each_in_their_own_time(self) -> None:
        prompts = Prompts(engine(), seed=23)
        request = prompts.request(questions=(9, 9), max_tokens=20)
        (free,) = run(engine(), request)
        eos = free.branch(0).token_ids[4]
        with_eos = engine_of(hf_model=tiny_model("qwen2", eos_token_id=eos), decode=letters)
        (one,) = run(with_eos, replace(request, sampling=replace(request.sampling, ignore_eos=False)))
        for question in range(2):
            ids = free.branch(question).token_ids
            cut = ids.index(eos) + 1 if eos in ids else len(ids)
            assert one.branch(question).token_ids == ids[:cut]
        assert len(one.branch(0).token_ids) <= 5
