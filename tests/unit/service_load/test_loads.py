from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from load_tests.service.command import _parser, main, plan_of
from load_tests.service.loads import Corpus, TokenPlan
from load_tests.service.plan import read_questions
from load_tests.service.setting import Setting
from shared.errors import InvalidRequest
from shared.measuring.shapes import SHAPES

PLAN = TokenPlan(k=3, chunk_len=8, corpus=20, question_len=5, vocab=50, seed=4)


def popularity(zipf: float, num_requests: int = 4000) -> list[float]:
    """How often each chunk is in a context."""
    corpus = Corpus(replace(PLAN, zipf=zipf, k=1))
    counts = Counter(chunk for number in range(num_requests) for chunk in corpus.context(number))
    return [counts[i] / num_requests for i in range(PLAN.corpus)]


def test_a_context_holds_k_different_chunks_in_any_order() -> None:
    contexts = [Corpus(PLAN).context(number) for number in range(200)]
    assert all(len(context) == len(set(context)) == 3 for context in contexts)
    assert any(context != sorted(context) for context in contexts)


def test_popularity_follows_zipf() -> None:
    shares = popularity(zipf=1.0)
    harmonic = sum(1 / (i + 1) for i in range(PLAN.corpus))
    for rank in (1, 2, 4):
        assert shares[rank - 1] == pytest.approx(1 / rank / harmonic, rel=0.15)
    flat = popularity(zipf=0.0)
    assert max(flat) < 1.5 / PLAN.corpus


def test_the_same_number_makes_the_same_request() -> None:
    one, other = Corpus(PLAN), Corpus(PLAN)
    assert one.chunks == other.chunks
    assert [one.context(n) for n in range(-5, 5)] == [other.context(n) for n in range(-5, 5)]
    assert one.questions(3) == other.questions(3) != one.questions(4)
    assert Corpus(replace(PLAN, seed=5)).chunks != one.chunks


def test_ids_are_below_the_vocabulary_and_lengths_are_as_planned() -> None:
    corpus = Corpus(replace(PLAN, num_questions=2))
    assert {len(chunk) for chunk in corpus.chunks} == {8}
    assert [len(question) for question in corpus.questions(0)] == [5, 5]
    assert max(max(chunk) for chunk in corpus.chunks) < 50


def test_questions_are_read_from_json_or_line_by_line(tmp_path: Path) -> None:
    (tmp_path / "q.json").write_text('[{"question": "Who?", "answer": "I"}, {"question": "Why?"}]')
    (tmp_path / "q.txt").write_text("Who?\n\n Why?\n")
    assert read_questions(tmp_path / "q.json") == read_questions(tmp_path / "q.txt") == ("Who?", "Why?")
    (tmp_path / "q.txt").write_text("\n")
    for name in ("q.txt", "missing.txt"):
        with pytest.raises(InvalidRequest, match=name):
            read_questions(tmp_path / name)


def test_options_become_what_is_asked() -> None:
    args = _parser().parse_args(
        ["--shape", "smollm2-135m", "--rate", "auto", "--reuse", "full,reordered", "--slo", "ttft:2x"]
    )
    setting, plan = Setting.of_options(args), plan_of(args)
    assert (setting.level, setting.tokens.vocab) == ("generate", 49_152)
    tokens = setting.tokens
    assert (tokens.k, tokens.chunk_len, tokens.question_len, tokens.num_generated) == (8, 512, 64, 16)
    assert (plan.rates, plan.reuse, plan.slo.fraction) == ((), ("full", "reordered"), 0.9)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ("--rate never", "--rate"),
        ("--slo fast", "--slo"),
        ("--reuse magic", "--reuse"),
        ("--k 9 --corpus 8", "--k"),
        ("--generated 0", "--generated"),
        ("--warmup 1", "--warmup"),
        ("--duration 0", "--duration"),
        ("--trace /nonexistent", "--trace"),
        ("--questions /nonexistent --level answer", "--questions"),
    ],
)
def test_a_wrong_option_is_named_before_anything_is_started(
    options: str, named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--target", "127.0.0.1:1", *options.split()]) == 2
    assert named in capsys.readouterr().err


def test_shapes_are_those_of_the_public_models() -> None:
    smollm, qwen = SHAPES["smollm2-135m"], SHAPES["qwen2-0.5b"]
    weights = smollm.layers * smollm.layer_weights + smollm.hidden * smollm.vocab
    assert weights == pytest.approx(134.5e6, rel=0.002)
    assert (smollm.kv_bytes_per_token, qwen.kv_bytes_per_token) == (23_040, 12_288)
