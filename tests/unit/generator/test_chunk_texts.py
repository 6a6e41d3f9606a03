"""What chunks say and where their tokens are, by tokenizers of several families."""

from __future__ import annotations

import random
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from services.generator.chunk_texts import ChunkReader, spans_of
from shared.generation.pieces import Tokenized
from shared.prompt import PromptTokenizer
from shared.prompt_template import PromptTemplate
from tests.token_families import FAMILIES, tokenizer_of

TEXTS = (
    "Orla Venn built it.",
    "Über dem Fluß 🌉 — é́!",
    "x",
    "  two   spaces\n\nand lines ",
    "中文 mixed with latin",
)
TEMPLATE = PromptTemplate(prefix="P", chunk="<{text}>\n", question="?{question}!")


def prompt_tokenizer(family: str) -> PromptTokenizer:
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer_of(family), bos_token="<s>", eos_token="</s>"
    )
    return PromptTokenizer(tokenizer, TEMPLATE)


@pytest.mark.parametrize("family", FAMILIES)
def test_all_tokens_of_a_chunk_are_all_of_its_text_and_nothing_of_the_template(family: str) -> None:
    tokenizer = prompt_tokenizer(family)
    reader = ChunkReader(tokenizer)
    ids = [tokenizer.encode_chunk(text) for text in TEXTS]
    by_text = reader.chunks(list(TEXTS), ids)
    by_ids = reader.chunks([Tokenized(i, text) for i, text in zip(ids, TEXTS, strict=True)], ids)
    lens = [len(i) for i in ids]
    for chunks in (by_text, by_ids):
        told = spans_of(chunks, lens, range(sum(lens)), ())
        assert [[(s.start, s.end) for s in spans] for spans in told] == [[(0, len(text))] for text in TEXTS]


@pytest.mark.parametrize("family", FAMILIES)
def test_spans_of_any_tokens_cover_exactly_their_characters_with_their_mean_score(family: str) -> None:
    tokenizer = prompt_tokenizer(family)
    draw = random.Random(family)
    ids = [tokenizer.encode_chunk(text) for text in TEXTS]
    lens = [len(i) for i in ids]
    chunks = ChunkReader(tokenizer).chunks(list(TEXTS), ids)
    for _ in range(20):
        selected = sorted(draw.sample(range(sum(lens)), draw.randrange(sum(lens))))
        told = spans_of(chunks, lens, selected, [1.0] * sum(lens))
        start = 0
        for chunk, length, spans, text in zip(chunks, lens, told, TEXTS, strict=True):
            assert chunk is not None
            mine = [token - start for token in selected if start <= token < start + length]
            covered = {
                c - 1 for t in mine for c in range(chunk.tokens.starts[t], chunk.tokens.ends[t])
            } & set(range(len(text)))
            assert [c for s in spans for c in range(s.start, s.end)] == sorted(covered)
            assert all(s.score == 1.0 for s in spans)
            start += length


@pytest.mark.parametrize("family", FAMILIES)
def test_another_text_than_the_one_the_ids_were_made_of_is_no_text(family: str) -> None:
    tokenizer = prompt_tokenizer(family)
    reader = ChunkReader(tokenizer)
    assert (
        reader.chunk(Tokenized(tokenizer.encode_chunk("one"), "two"), tokenizer.encode_chunk("one")) is None
    )
    assert spans_of([None], [3], (0, 1), ()) == ((),)


def test_without_a_tokenizer_or_with_one_that_gives_no_offsets_there_is_no_text() -> None:
    class Letters:
        bos_token_id = 1

        def encode(self, text: str, **options: Any) -> list[int]:
            return [ord(c) for c in text]

        def decode(self, ids: list[int], **options: Any) -> str:
            return "".join(map(chr, ids))

    for reader in (ChunkReader(None), ChunkReader(PromptTokenizer(Letters(), TEMPLATE))):
        assert reader.chunk("abc", (1, 2, 3)) is None
        assert reader.question((97, 98)) is None
        assert reader.question("why?") == "why?"
