"""Which documents an answer is said to be read from."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from services.gateway.citations import MAX_CITATIONS, Citable
from shared.search import Block, SearchHit
from tests.unit.gateway.fakes import hit

QUESTION = "Who built the Orla bridge?"


def documents(answer: str, *texts: str) -> list[str]:
    return [
        c.document_id
        for c in Citable([hit(f"h{i}", text) for i, text in enumerate(texts)]).cite(answer, QUESTION)
    ]


def test_the_chunk_with_the_answers_words_is_cited() -> None:
    assert documents(
        "Tam Reed", "The Orla bridge was built by Kell.", "The bridge was built by Tam Reed."
    ) == ["h1.txt"]


def test_rare_words_weigh_more_than_words_found_everywhere() -> None:
    assert documents("the mason Tam Reed", "the mason", "the mason", "the mason", "Tam Reed") == ["h3.txt"]


def test_words_of_the_question_alone_do_not_make_a_source_while_the_answer_has_others() -> None:
    assert documents("Orla bridge Reed", "Orla bridge Orla bridge", "Reed") == ["h1.txt"]


def test_an_answer_in_the_questions_own_words_is_cited_by_them() -> None:
    assert documents("Orla", "Orla", "nothing") == ["h0.txt"]


def test_words_that_no_chunk_has_do_not_hide_those_of_the_question() -> None:
    assert documents("Yes, the Orla bridge.", "nothing", "The Orla bridge stands.") == ["h1.txt"]


def test_equal_support_goes_to_the_chunk_closer_to_the_question_then_to_the_better_hit() -> None:
    assert documents("Reed", "Reed", "Reed built the Orla bridge", "Reed") == ["h1.txt", "h0.txt", "h2.txt"]


def test_of_equals_the_better_hit_is_cited_first_wherever_it_stands() -> None:
    worse, better = replace(hit("h0", "Reed"), score=0.4), replace(hit("h1", "Reed"), score=0.9)
    assert [c.hit for c in Citable([worse, better]).cite("Reed", QUESTION)] == [1, 0]


@pytest.mark.parametrize(
    ("question", "answer", "right", "other"),
    [
        (
            "多比镇的镇长是谁?",
            "镇长是金维尔。",
            "多比镇在海边。它的镇长是金维尔,住在码头旁。",
            "镇上有一座矿山。",
        ),
        ("市長は誰ですか", "キム・ベイルです", "ドービーの市長はキム・ベイルである。", "町には鉱山がある。"),
        ("시장은 누구인가요?", "킴 베일입니다", "도비의 시장은 킴 베일이다.", "마을에는 광산이 있다."),
    ],
)
def test_scripts_without_spaces_have_sources_too(question: str, answer: str, right: str, other: str) -> None:
    context = Citable([hit("h0", other), hit("h1", right)])
    assert [c.document_id for c in context.cite(answer, question)] == ["h1.txt"]


def test_words_that_occur_nowhere_have_no_source() -> None:
    assert documents("Zanzibar", "Orla bridge", "Reed") == []
    assert documents("", "Orla bridge") == []


def test_a_document_is_cited_once_and_no_more_than_the_maximum() -> None:
    same = [hit("x", "Reed", "one.txt"), hit("y", "Reed", "one.txt")]
    assert [c.chunk_id for c in Citable(same).cite("Reed", QUESTION)] == ["x"]
    many = [hit(f"h{i}", "Reed") for i in range(9)]
    assert len(Citable(many).cite("Reed", QUESTION)) == MAX_CITATIONS


def test_a_citation_says_where_in_the_context_its_chunk_stands() -> None:
    (citation,) = Citable([hit("a", "no"), hit("b", "Reed", heading="History")]).cite("Reed", QUESTION)
    assert (citation.hit, citation.chunk_id, citation.heading) == (1, "b", "History")


def chunk_of(place: int, words: str, block: Block | None, document: str = "town.md") -> SearchHit:
    return hit(f"{document}-{place}", words, document, place=place, block=block)


BLOCK = Block(2, "Velbrin > Mayors", first=4, has_header=True)


@pytest.mark.parametrize(
    ("retrieved", "header", "chunks", "told"),
    [
        ((8,), True, (4, 5, 6, 7), "header + 4 chunks"),
        ((6, 8, 4), True, (5, 7), "header + 2 chunks"),
        ((4, 5, 6, 7, 8, 9), True, (), "header"),
        ((8, 5, 6, 7), False, (4,), "1 chunk"),
        ((4, 5, 6, 7, 8), False, (), ""),
        ((8, 2, 3, 9), False, (4, 5, 6, 7), "4 chunks"),
    ],
)
def test_a_citation_says_what_of_its_block_was_not_retrieved(
    retrieved: tuple[int, ...], header: bool, chunks: tuple[int, ...], told: str
) -> None:
    block = replace(BLOCK, has_header=header)
    hits = [chunk_of(place, "Reed" if place == 8 else "no", block) for place in retrieved]
    # another document has chunks of the same numbers
    hits += [chunk_of(place, "no", block, "other.md") for place in (4, 5)]
    (citation,) = Citable(hits).cite("Reed", QUESTION)
    assert (citation.block, citation.block_heading) == (2, "Velbrin > Mayors")
    assert (citation.conditioned_on_header, citation.conditioned_on_chunks) == (header, chunks)
    assert citation.conditioned_on == told


def test_where_no_stored_kv_is_used_nothing_is_conditioned() -> None:
    (citation,) = Citable([chunk_of(8, "Reed", BLOCK)]).cite("Reed", QUESTION, conditioned=False)
    assert (citation.block, citation.conditioned_on) == (2, "")


def test_a_document_without_blocks_has_neither() -> None:
    (citation,) = Citable([chunk_of(8, "Reed", None)]).cite("Reed", QUESTION)
    assert (citation.block, citation.block_heading, citation.conditioned_on) == (0, "", "")


def test_a_thousand_documents_that_say_what_the_answer_says_are_looked_at_once_for_each_word() -> None:
    """A caller brings both along, and all others wait for the gateway."""
    text = " ".join(f"w{i}" for i in range(150))
    context = [hit(f"h{i}", text) for i in range(1024)]
    began = time.thread_time()
    for _ in range(4):
        assert len(Citable(context).cite(text, QUESTION)) == MAX_CITATIONS
    assert time.thread_time() - began < 12, "0.3 s each, of 10 where each word looked through all documents"
