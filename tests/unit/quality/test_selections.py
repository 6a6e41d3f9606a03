"""What is chosen for a measurement is what the selector would choose."""

from __future__ import annotations

import numpy as np

from cluster.gate.ingested import Ingested
from cluster.gate.modes import ClipSetting
from cluster.gate.selections import Selections
from shared.generation.selection import Grouping, Reading, SelectionLink
from shared.selection.selector import Selector
from shared.selection.spans import SpanTokenizer
from tests.selector_runs import QUESTION, Document, engine_auxiliary, primary, with_template


def test_chunks_are_read_behind_their_documents() -> None:
    document, auxiliary = Document(), engine_auxiliary()
    chain = document.chain
    links = tuple(
        SelectionLink(with_template(text), ids) for text, ids in zip(chain.texts, chain.links, strict=True)
    )
    texts = tuple(with_template(text) for text in document.passages)
    contexts = tuple(links[: i + 1] for i in range(len(texts)))
    spans = SpanTokenizer(primary(), "primary")
    selections = Selections(auxiliary, spans)
    clip = ClipSetting(Grouping.BUDGET, Reading.STITCHED)
    placed = (2, 0, 3)
    chosen = selections.select(Ingested((), (), texts, contexts), placed, QUESTION, 0.2, clip)
    alone = selections.select(Ingested((), (), texts, ((),) * len(texts)), placed, QUESTION, 0.2, clip)

    library = Selector(auxiliary, spans)
    segments = document.segments(auxiliary)
    expected = library.select(
        [library.pair(texts[i]) for i in placed], [segments[i] for i in placed], QUESTION, 0.2
    )
    assert all(map(np.array_equal, chosen.scores, expected.scores))
    assert not all(map(np.array_equal, chosen.scores, alone.scores))
