"""Documents about invented things, and the facts that each of their sentences states."""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from services.training.names import NameMaker, Split

_WORLDS_FILE = Path(__file__).with_name("worlds.yaml")
_SLOT = re.compile(r"\{(\w+)\}")
_ARTICLE = re.compile(r"\ba (?=[aeiou])")


@dataclass(frozen=True, slots=True)
class Fact:
    value: str
    answer: str
    questions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Sentence:
    text: str
    fact_keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Section:
    heading: str
    sentences: tuple[Sentence, ...]


@dataclass(frozen=True, slots=True)
class CorpusDocument:
    kind: str
    name: str
    sections: tuple[Section, ...]
    facts: Mapping[str, Fact]

    @property
    def title(self) -> str:
        return capitalise(self.name)


@dataclass(frozen=True, slots=True)
class Kind:
    """All that can be said of one kind of thing; see the head of ``worlds.yaml``."""

    noun: str
    name: str
    facts: Mapping[str, Sequence[str]]
    sections: Mapping[str, Sequence[Sequence[str]]]
    fillers: Sequence[str]


@dataclass(frozen=True, slots=True)
class Style:
    """The freedom with which a document is written. ``name_sections``: the first sentence of every section
    names the thing; else that of the document alone is bound to."""

    back_reference: float = 0.25
    filler: float = 0.35
    omission: float = 0.1
    name_sections: bool = True

    @classmethod
    def draw(cls, rng: random.Random) -> Style:
        return cls(rng.choice((0.1, 0.25, 0.5)), rng.choice((0.3, 0.6)))


PLAIN = Style()


@dataclass(frozen=True, slots=True)
class Worlds:
    syllables: Mapping[str, Sequence[str]]
    choices: Mapping[str, Sequence[str]]
    kinds: Mapping[str, Kind]

    @classmethod
    @functools.cache
    def load(cls) -> Worlds:
        raw: dict[str, Any] = yaml.safe_load(_WORLDS_FILE.read_text(encoding="utf-8"))
        return cls(
            raw["syllables"], raw["choices"], {key: Kind(**kind) for key, kind in raw["kinds"].items()}
        )

    def names(self, rng: random.Random, split: Split) -> NameMaker:
        return NameMaker(rng, split, self.choices, self.syllables)

    def write(self, rng: random.Random, kind_key: str, split: Split, style: Style = PLAIN) -> CorpusDocument:
        """A new document about a ``kind_key``; names come from ``split``."""
        kind = self.kinds[kind_key]
        maker = self.names(rng, split)
        name = maker.ship() if kind_key == "ship" else maker.fill(kind.name)
        facts = {key: _fact(name, maker.draw(entry[0]), entry[1:]) for key, entry in kind.facts.items()}
        fillers = rng.sample(kind.fillers, len(kind.fillers))
        sections = tuple(
            _section(
                rng, kind.noun, heading, groups, name, facts, style, fillers, style.name_sections or not i
            )
            for i, (heading, groups) in enumerate(kind.sections.items())
        )
        stated = {key for section in sections for sentence in section.sentences for key in sentence.fact_keys}
        return CorpusDocument(
            kind_key, name, sections, {key: fact for key, fact in facts.items() if key in stated}
        )


def capitalise(text: str) -> str:
    return text[:1].upper() + text[1:]


def _polish(text: str) -> str:
    return capitalise(_ARTICLE.sub("an ", text))


def _fact(name: str, value: str, forms: Sequence[str]) -> Fact:
    answer, *questions = (form.replace("{n}", name).replace("{v}", value) for form in forms)
    return Fact(value, _polish(answer), tuple(_polish(question) for question in questions))


def _section(
    rng: random.Random,
    noun: str,
    heading: str,
    groups: Sequence[Sequence[str]],
    name: str,
    facts: Mapping[str, Fact],
    style: Style,
    fillers: list[str],
    named: bool,
) -> Section:
    sentences: list[Sentence] = []
    for group in groups:
        if sentences and rng.random() < style.omission:
            continue
        refers_back = bool(sentences or not named) and rng.random() < style.back_reference
        sentences.append(_sentence(rng.choice(group), f"the {noun}" if refers_back else name, facts))
    if rng.random() < style.filler:
        sentences.insert(rng.randint(1, len(sentences)), Sentence(fillers.pop()))
    return Section(heading, tuple(sentences))


def _sentence(template: str, subject: str, facts: Mapping[str, Fact]) -> Sentence:
    keys = tuple(key for key in _SLOT.findall(template) if key != "n")
    text = template.replace("{n}", subject)
    for key in keys:
        text = text.replace("{" + key + "}", facts[key].value)
    return Sentence(_polish(text), keys)
