"""Measures whether a question's passage is among the hits (recall, reciprocal rank) by meaning, by words
and by both, and how often a question is refused that has an answer, or has none.

    python -m load_tests.retrieval --documents DIR --json build/retrieval.json
    python -m load_tests.retrieval --data xquad.en.json

Questions are made of your documents: a sentence, keywords or a heading is held out of a passage, and the
passage is looked for by it. Documents about invented things come beside them, with written questions. A
quarter of the documents is not indexed: their questions have no answer, though the field is theirs. --data
takes questions that people asked about articles, in SQuAD's format, and leaves documents aside. Every number
has a 95 % interval (min, max). Nothing is chosen here: fusion and thresholds were, on other
documents (docs/retrieval.md).
"""

from __future__ import annotations

import argparse
import asyncio
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from load_tests.benchmark import at_least, json_option, new_parser, option, printed, say
from load_tests.reading.articles import read_articles
from load_tests.retrieval.bench import MODES, measure_ranks, measure_refusals, retrieval_of, search_all
from load_tests.retrieval.passages import (
    INVENTED,
    KINDS,
    WRITTEN,
    Query,
    QuerySet,
    from_articles,
    from_directory,
    invented,
)
from services.gateway.config import RefusalConfig
from services.retrieval.embedder import EmbedderSettings
from services.retrieval.transformer_embedder import MINILM
from shared.errors import InvalidRequest
from shared.measuring.report import Measurement, write_report
from shared.search import SearchMode


def measure(
    questions: QuerySet, name: str, settings: EmbedderSettings, threads: int, k: int
) -> Iterator[Measurement]:
    with (
        TemporaryDirectory(prefix="kvquilt-retrieval-") as directory,
        retrieval_of(settings, threads, Path(directory)) as service,
    ):
        say(f"{name}: {len(questions.queries)} questions over {questions.num_passages} passages")
        found = asyncio.run(search_all(service, questions, MODES, k))
    places = range(len(questions.queries))
    yield Measurement(f"{name}_passages", questions.num_passages, "passages")
    kinds = (name,) if name in (INVENTED, WRITTEN) else ("all", *KINDS)
    for kind in kinds:
        asked = [i for i in places if _looks_for(questions.queries[i], KINDS if kind == "all" else (kind,))]
        queries = [questions.queries[i] for i in asked]
        if queries:
            of_kind = {mode: [hits[i] for i in asked] for mode, hits in found.items()}
            yield from measure_ranks(kind, queries, of_kind, k)
    judged = [i for i in places if questions.queries[i].judges_refusal]
    hybrid = [found[SearchMode.HYBRID][i] for i in judged]
    yield from measure_refusals(name, [questions.queries[i] for i in judged], hybrid, RefusalConfig())


def _looks_for(query: Query, kinds: Sequence[str]) -> bool:
    return bool(query.chunk_id) and query.kind in kinds


def sample(questions: QuerySet, count: int, seed: int) -> QuerySet:
    """At most ``count`` questions of each sort: those that look for a passage, those that judge refusal
    with an answer, those without."""
    draw = random.Random(f"{seed} sample")
    drawn = draw.sample(questions.queries, len(questions.queries))
    sorts = [
        [q for q in drawn if q.judges_refusal and not q.chunk_id],
        [q for q in drawn if q.judges_refusal and q.chunk_id],
        [q for q in drawn if not q.judges_refusal and q.chunk_id],
    ]
    return replace(questions, queries=tuple(q for of_sort in sorts for q in of_sort[:count]))


def main() -> None:
    parser = new_parser("load_tests.retrieval", __doc__)
    parser.add_argument(
        "--documents", type=Path, metavar="DIR", help="Markdown, text, HTML or PDF; none: only invented ones"
    )
    parser.add_argument(
        "--data", type=Path, metavar="FILE", help="articles and questions about them, in SQuAD's format"
    )
    option(parser, "--questions", 1000, "most questions of each sort", type=at_least(1))
    option(parser, "--k", 8, "hits per question", type=at_least(1))
    option(parser, "--chunk-words", 200, "most words of a passage", type=at_least(40))
    option(parser, "--embedder", MINILM, "as retrieval.embedder")
    option(parser, "--threads", 0, "of the embedder; 0: all")
    option(parser, "--seed", 1, "of the questions and of the documents that are left out")
    json_option(parser)
    args = parser.parse_args()
    settings = EmbedderSettings(args.embedder)
    measurements = []
    for name, questions in _sets(args).items():
        chosen = sample(questions, args.questions, args.seed)
        measurements += printed(measure(chosen, name, settings, args.threads, args.k))
    if args.json:
        write_report(args.json, measurements)


def _sets(args: argparse.Namespace) -> dict[str, QuerySet]:
    """
    Raises:
        SystemExit: there is nothing to ask about; says what was wrong.
    """
    if args.data is not None:
        if args.documents is not None:
            raise SystemExit("--data: brings its own documents; leave --documents out")
        try:
            return {WRITTEN: from_articles(read_articles(args.data), args.chunk_words, args.seed)}
        except InvalidRequest as error:
            raise SystemExit(str(error)) from None
    sets = {INVENTED: invented(args.questions, args.seed)}
    if args.documents is not None:
        if not args.documents.is_dir():
            raise SystemExit(f"--documents: {args.documents} is not a directory")
        sets["documents"] = from_directory(args.documents, args.chunk_words, args.seed)
        if not sets["documents"].queries:
            raise SystemExit(
                f"--documents: {args.documents} gives no questions; it needs prose in .md or .txt"
            )
    return sets


if __name__ == "__main__":
    main()
