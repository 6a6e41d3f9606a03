"""Draws contexts to ask about, each a function of its number and the seed; names are those that training
never saw."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from services.training.contexts import Context, ContextShape, Passage, TrainingQuestion
from services.training.corpus import Style, Worlds
from services.training.cross_chunk import draw_cross_chunk, draw_documents
from services.training.names import Split
from shared.errors import InvalidRequest

QUESTIONS_PER_CONTEXT = 8
_OF_MANY = (6, 4)  # questions about a context of many documents: spread, single
_PATIENCE = 200
Count = Callable[[str], int]


@dataclass(frozen=True, slots=True)
class Shapes:
    """From how many and how large passages a context is drawn, bounds included. ``documents``: of contexts of
    many documents, in place of ``passages``. ``passage_tokens``: passages are filled up to so many with
    paragraphs about other things; 0: they are not. ``context_tokens``: of the longest context,
    ``chunk_tokens``:
    of the longest passage; 0: any."""

    passages: tuple[int, int] = (4, 6)
    chars: tuple[int, int] = (160, 300)
    documents: tuple[int, int] = (5, 9)
    passage_tokens: int = 0
    context_tokens: int = 0
    chunk_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Trial:
    """One context and what is asked about it. ``many``: it is one of many documents."""

    number: int
    context: Context
    many: bool = False

    @property
    def name(self) -> str:
        return f"many {self.number}" if self.many else str(self.number)

    def kind_name(self, kind: str) -> str:
        """Of its answers to questions of one kind."""
        return f"{kind}_many" if self.many else str(kind)

    @property
    def passages(self) -> tuple[Passage, ...]:
        return self.context.passages

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(passage.text for passage in self.context.passages)

    @property
    def questions(self) -> tuple[TrainingQuestion, ...]:
        return self.context.questions


def draw_trial(
    seed: int, number: int, shapes: Shapes, many: bool = False, count: Count | None = None
) -> Trial:
    """``count``: tokens of a passage, for what of ``shapes`` is in tokens.

    Raises:
        InvalidRequest: contexts of these shapes are too long.
    """
    in_context = True
    for attempt in range(_PATIENCE):
        rng = random.Random(f"{seed} quality {'many ' * many}{number}{f' {attempt}' * bool(attempt)}")
        context = _draw(rng, shapes, many)
        if count is None:
            return Trial(number, context, many)
        if shapes.passage_tokens:
            passages = tuple(_filled(rng, p, shapes.passage_tokens, count) for p in context.passages)
            context = replace(context, passages=passages)
        lens = [count(passage.text) for passage in context.passages]
        in_context = not shapes.context_tokens or sum(lens) <= shapes.context_tokens
        if in_context and (not shapes.chunk_tokens or max(lens) <= shapes.chunk_tokens):
            return Trial(number, context, many)
    if in_context:
        raise InvalidRequest(
            f"--chunk-tokens: of {_PATIENCE} contexts each had a passage of more than {shapes.chunk_tokens} "
            "tokens; raise it, or lower --chars or --passage-tokens"
        )
    raise InvalidRequest(
        f"--context-tokens: {_PATIENCE} contexts were longer than {shapes.context_tokens} tokens; raise it, "
        "or lower --passages, --documents or --passage-tokens"
    )


def draw_trials(
    seed: int, num_spread: int, shapes: Shapes, many: bool = False, count: Count | None = None
) -> Iterator[Trial]:
    """Whole contexts until at least ``num_spread`` questions need evidence from two chunks; the others come
    with them."""
    number = asked = 0
    while asked < num_spread:
        trial = draw_trial(seed, number, shapes, many, count)
        yield trial
        asked += sum(is_spread(question) for question in trial.questions)
        number += 1


def is_spread(question: TrainingQuestion) -> bool:
    return len(question.evidence) > 1


def _draw(rng: random.Random, shapes: Shapes, many: bool) -> Context:
    worlds = Worlds.load()
    if many:
        num_documents, chars = rng.randint(*shapes.documents), rng.randint(*shapes.chars)
        return draw_documents(rng, worlds, chars, Split.HELD_OUT, num_documents, _OF_MANY)
    shape = ContextShape(rng.randint(*shapes.passages), rng.randint(*shapes.chars))
    return draw_cross_chunk(rng, worlds, shape, Split.HELD_OUT, QUESTIONS_PER_CONTEXT)


def _filled(rng: random.Random, passage: Passage, num_tokens: int, count: Count) -> Passage:
    """With paragraphs about things of other kinds behind it, as long as they fit."""
    worlds = Worlds.load()
    kinds = [kind for kind in worlds.kinds if kind != passage.document.kind]
    text = passage.text
    while True:
        document = worlds.write(rng, rng.choice(kinds), Split.HELD_OUT, Style.draw(rng))
        for section in document.sections:
            longer = f"{text}\n\n{' '.join(sentence.text for sentence in section.sentences)}"
            if count(longer) > num_tokens:
                return replace(passage, text=text)
            text = longer
