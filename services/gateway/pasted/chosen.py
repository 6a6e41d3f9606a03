"""Chooses what is placed for a pasted chunk: one that was computed behind text that was pasted too."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from services.gateway.pasted.known_chunks import BORDER
from shared.generation.described import ModelDescription
from shared.kv_types import Manifest, ManifestChunk, header_text
from shared.readers import SECTION_SEPARATOR
from shared.search import IndexedChunk, SearchHit

_MOST_LINES = 1024  # of headers, and short chunks, that are looked for; what is not is as if not pasted


@dataclass(frozen=True, slots=True)
class PastedChunk:
    """A chunk by its place in a document that says what was pasted."""

    manifest: Manifest
    number: int

    @property
    def parent(self) -> PastedChunk | None:
        """The chunk in front of it, if that is what it was computed behind."""
        before = PastedChunk(self.manifest, self.number - 1) if self.number else None
        return before if before is not None and before.chunk.chunk_id == self.chunk.parent_id else None

    @property
    def is_short(self) -> bool:
        return len(self.chunk.text.strip()) < BORDER

    @property
    def header_lines(self) -> list[str]:
        """Of its block, whose first chunk it is: the title, and each heading."""
        lines = header_text(self.manifest.title, self.chunk.heading).split("\n")
        return [heading for line in lines for heading in line.split(SECTION_SEPARATOR)]

    def says(self, text: str) -> bool:
        """Character by character; white space around it does not count."""
        return self.number < len(self.manifest.chunks) and self.chunk.text.strip() == text.strip()

    @property
    def chunk(self) -> ManifestChunk:
        return self.manifest.chunks[self.number]

    def hit(self, chained: bool) -> SearchHit:
        """``chained``: with what it was computed behind; otherwise it is the isolated chunk of its ids."""
        manifest, chunk = self.manifest, self.chunk
        indexed = IndexedChunk(
            chunk.chunk_id if chained else "",
            chunk.text,
            chunk.token_ids,
            chunk.heading,
            chunk.char_start,
            chunk.char_end,
            chunk.parent_id if chained else "",
            readers=manifest.readers_of(self.number),
        )
        made_for = manifest.made_for
        return SearchHit(
            indexed,
            manifest.document_id,
            manifest.title,
            manifest.model_fingerprint,
            1.0,
            manifest.metadata,
            prefix_hash=made_for.prefix,
            template_hash=made_for.template,
            kv_context=made_for.kv_context if chained else "",
        )


class ChainChooser:
    """Of one message after the other, in the order in which they were said. Linear in what was said."""

    def __init__(self, model: ModelDescription) -> None:
        self._model = model
        self._pasted: set[str] = set()
        """Identities of chunks whose texts were pasted, with the texts of all that they were computed
        behind."""
        self._said: list[str] = []
        self._ends: dict[str, float] = {}
        self._num_looked_for = 0

    def hears(self, text: str) -> None:
        """Of the next message; what is chosen is pasted in it."""
        self._said.append(text)
        self._ends.clear()

    def choose(self, candidates: Sequence[PastedChunk], end: int) -> SearchHit | None:
        """None: none of them was made for the model that is served. ``end``: of what says it, in the
        message."""
        served = self._model.made_for
        fitting = [one for one in candidates if not one.manifest.made_for.differs_from(served)]
        behind_pasted = [
            one
            for one in fitting
            if not one.manifest.made_for.stored_apart_from(served) and self._is_behind_pasted(one, end)
        ]
        fresh = {one.chunk.chunk_id for one in behind_pasted} - self._pasted
        self._pasted |= fresh
        if behind_pasted:  # of a document that says something twice, one after the other
            best = max(
                behind_pasted, key=lambda one: (bool(one.chunk.parent_id), one.chunk.chunk_id in fresh)
            )
            return best.hit(chained=True)
        return fitting[0].hit(chained=False) if fitting else None

    def _is_behind_pasted(self, one: PastedChunk, end: int) -> bool:
        """Chunks in front of it that are too short to be recognised are looked for by their text alone."""
        at: PastedChunk | None = one
        while at is not None:
            chunk = at.chunk
            if not chunk.parent_id or chunk.parent_id in self._pasted:
                return True
            if chunk.header_ids:
                return all(self._end_of(line) <= end for line in at.header_lines)
            at = at.parent
            if at is not None and not (at.is_short and self._end_of(at.chunk.text.strip()) <= end):
                return False
        return False

    def _end_of(self, line: str) -> float:
        """Returns where it first ends in this message; 0: an earlier one has it, infinite: none has."""
        if line not in self._ends and self._num_looked_for < _MOST_LINES:
            self._num_looked_for += 1
            *before, text = self._said
            at = text.find(line)
            here = at + len(line) if at >= 0 else math.inf
            self._ends[line] = 0 if any(line in earlier for earlier in before) else here
        return self._ends.get(line, math.inf)
