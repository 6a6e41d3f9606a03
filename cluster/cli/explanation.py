"""`kvquilt ask --explain`: the context with what was computed anew in it, by which scores, and what choosing
it took."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

from rich.console import Console
from rich.text import Text

from shared.answer import Retrieved
from shared.generation.selection import SelectionTimings
from shared.generation.told import SelectedEvent, TextSpan, Timings
from shared.search import SearchHit

_ANEW = "black on yellow"
ORIGINS = {
    "resident": "resident",
    "computed": "computed for this answer",
    "memory": "loaded from memory",
    "disk": "loaded from disk",
    "objects": "loaded from the object store",
    "peer": "loaded from another node",
    "loaded": "loaded",
}
"""In the words of a reader."""


def show_context(
    console: Console,
    hits: Retrieved,
    selections: Sequence[SelectedEvent],
    questions: Sequence[str],
    origins: Sequence[str] = (),
) -> None:
    """Once for every selection; without one, the chunks alone. ``origins``: of each chunk, where its KV came
    from (``Usage.chunk_origins``); none: nobody says."""
    for selected in selections or (SelectedEvent(()),):
        asked = (
            f" for “{questions[selected.question]}”"
            if selected.question is not None and len(questions) > 1
            else ""
        )
        console.print()
        console.print(
            Text(f"context, computed anew{asked}: {_counts(selected, hits.hits)}", "bold"), soft_wrap=True
        )
        bounds = [0, *accumulate(len(hit.chunk.token_ids) for hit in hits.hits)]
        for index, hit in enumerate(hits.hits):
            spans = selected.chunks[index] if selected.chunks else ()
            first, end = bounds[index], bounds[index + 1]
            num_anew = sum(first <= token < end for token in selected.tokens)
            heading = _heading(index, hit, num_anew, selected.scores[first:end])
            if len(origins) == len(hits.hits):
                heading.append(f"; KV {ORIGINS.get(origins[index], origins[index])}")
            console.print(heading, soft_wrap=True)
            console.print(_marked(hit.chunk.text, spans, brackets=not console.color_system), soft_wrap=True)
    for line in selection_lines(selections):
        console.print(Text(line, "dim"), soft_wrap=True)


def selection_lines(selections: Sequence[SelectedEvent]) -> Iterator[str]:
    """Of a selector: how it read, what it picked, where its time went."""
    for selected in selections:
        if selected.timings is not None:
            read = f", read {selected.reading}" if selected.reading else ""
            stages = ", ".join(f"{name} {ms:.1f}" for name, ms in in_ms(selected.timings).items())
            yield (
                f"selector: {selected.num_picked} of its tokens picked, {selected.num_grouped} in "
                f"groups{read}; {stages} ms"
            )


def hidden_line(timings: Timings) -> str:
    """Says how much of the choosing nobody had to wait for; empty if nobody was asked."""
    if not timings.select_s:
        return ""
    waited_ms = min(timings.select_wait_s, timings.select_s) * 1000
    took_ms = timings.select_s * 1000
    return (
        f"choosing took {took_ms:.1f} ms: {took_ms - waited_ms:.1f} hidden behind loading, "
        f"{waited_ms:.1f} waited for"
    )


def in_ms(timings: Timings | SelectionTimings) -> dict[str, float]:
    """Milliseconds by stage."""
    seconds = dataclasses.asdict(timings)
    return {name.removesuffix("_s"): round(value * 1000, 3) for name, value in seconds.items()}


def selection_json(selected: SelectedEvent, hits: Retrieved) -> dict[str, Any]:
    """Times in milliseconds; every span with its text."""
    values = dataclasses.asdict(selected)
    del values["timings"]
    if selected.timings is not None:
        values["timings_ms"] = in_ms(selected.timings)
    values["chunks"] = [
        [dataclasses.asdict(span) | {"text": hit.chunk.text[span.start : span.end]} for span in spans]
        for hit, spans in zip(hits.hits, selected.chunks, strict=False)
    ]
    return values


def _counts(selected: SelectedEvent, hits: Sequence[SearchHit]) -> str:
    num_tokens = sum(len(hit.chunk.token_ids) for hit in hits)
    layers = f", by layer {', '.join(map(str, selected.layers))}" if selected.layers else ""
    return f"{len(selected.tokens)} of {num_tokens} tokens{layers}"


def _heading(index: int, hit: SearchHit, num_anew: int, scores: Sequence[float]) -> Text:
    judged = f"; scores up to {max(scores):.2g}, {sum(scores):.2g} in all" if scores else ""
    where = f"{hit.document_id}{f' ({hit.chunk.heading})' if hit.chunk.heading else ''}"
    return Text(f"[{index + 1}] {where}: {num_anew} of {len(hit.chunk.token_ids)} tokens{judged}", "dim")


def _marked(text: str, spans: Sequence[TextSpan], brackets: bool) -> Text:
    """``brackets``: where colours are not seen."""
    marked, end = Text(), 0
    for span in spans:
        marked.append(text[end : span.start])
        anew = text[span.start : span.end]
        marked.append(f"⟦{anew}⟧" if brackets else anew, _ANEW)
        end = span.end
    return marked.append(text[end:])
