"""Writes what was found as an HTML page: tables, quality against computed tokens, and attention under three
masks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from cluster.evaluation.arms import CLOSED, FULL
from cluster.evaluation.attention import AttentionStudy
from cluster.evaluation.evaluation import EvalResult
from cluster.evaluation.findings import Average, EvalRow, TaskFinding
from cluster.evaluation.show import averages_table, no_score, task_table, title
from shared.measuring.html_page import html_list, html_table, write_html
from shared.measuring.svg import Axis, Series, bar_chart, heat_map, line_chart

_SHOWN = ("suite", "length", "chunk_tokens", "seed", "dtype")


def write_page(path: Path, evaluated: EvalResult) -> None:
    settings = evaluated.settings
    model = str(settings["model"])
    about = [f"{name}: {settings[name]}" for name in _SHOWN if settings.get(name)]
    body = [f"<h1>Evaluation of {escape(model)}</h1>", html_list(about)]
    if evaluated.averages:
        body.append(html_table(averages_table(evaluated.averages)))
        body.append(_plots([_average_plot(one, evaluated.found) for one in evaluated.averages]))
    for finding in evaluated.found:
        body += [f"<h2>{escape(finding.task)}</h2>", f"<p>{escape(title(finding))}</p>"]
        body.append(html_table(task_table(finding)))
        if not finding.counts:
            body.append(f"<p>{escape(no_score(finding))}</p>")
        body.append(_plots([quality_plot(finding), *_cut_short_plot(finding)]))
    if evaluated.attention is not None:
        body += _attention(evaluated.attention)
    write_html(path, f"Evaluation of {model}", body)


def quality_plot(finding: TaskFinding) -> str:
    """Score against computed tokens, a line per mode and kind of KV; KL where scores say nothing."""
    if finding.counts:
        values = {row.mode: 100 * row.score.value for row in finding.rows}
        return _against_computed(f"{finding.task}: score", "%", finding.rows, values)
    kl = {row.mode: row.kl.value for row in finding.rows if row.mode != CLOSED}
    return _against_computed(f"{finding.task}: KL to full", "nats", finding.rows, kl)


def _cut_short_plot(finding: TaskFinding) -> list[str]:
    """CacheClip's study of numbers; none where nothing is asked for numbers, or scores say nothing."""
    values = {row.mode: 100 * row.cut_short for row in finding.rows if row.cut_short is not None}
    if not values or not finding.counts:
        return []
    return [_against_computed(f"{finding.task}: numbers cut short", "%", finding.rows, values)]


def _average_plot(average: Average, found: Sequence[TaskFinding]) -> str:
    counted = next(finding for finding in found if finding.task in average.tasks and finding.counts)
    values = {mode: 100 * score for mode, score in average.scores.items()}
    return _against_computed(average.name, "%", counted.rows, values)


def _against_computed(title: str, unit: str, rows: Sequence[EvalRow], values: Mapping[str, float]) -> str:
    x = Axis("computed of the context's tokens, %", 0.0, 105.0)
    by_way: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        if row.mode in values and row.mode != CLOSED:
            by_way[_way(row.mode)].append((100 * row.computed, values[row.mode]))
    series = [
        Series(way, sorted(points), color, dots=True) for color, (way, points) in enumerate(by_way.items())
    ]
    marks = {mode: values[mode] for mode in (FULL.label, CLOSED) if mode in values}
    series += (Series(f"as {mode}", [(0, at), (105, at)], 6, dashed=True) for mode, at in marks.items())
    y = Axis.over(unit, [*values.values(), 1e-3])
    return line_chart(title, x, y, series)


def _way(mode: str) -> str:
    """Without the ratio."""
    return " ".join(part for part in mode.split() if not part.endswith("%"))


def _attention(study: AttentionStudy) -> list[str]:
    shares = (
        f"Of the attention of chunks' tokens {study.inter_chunk:.1%} goes to other chunks, "
        f"{study.own_chunk:.1%} to their own, {study.to_prefix:.1%} to the prefix: causal, means over "
        f"layers, heads and {study.num_cases} cases. Below: one of them, {study.num_tokens} tokens, rows "
        "attend to columns; lines part prefix, chunks and question."
    )
    names = [f"chunk {i + 1}" for i in range(len(study.pictures[0].of_question))]
    bars = [(kind, picture.of_question) for kind, picture in zip("abc", study.pictures, strict=True)]
    letters = [f"({letter}) {picture.kind}" for letter, picture in zip("abc", study.pictures, strict=True)]
    maps = [
        heat_map(letter, picture.cells, study.borders)
        for letter, picture in zip(letters, study.pictures, strict=True)
    ]
    bar = bar_chart("Of the question's attention to chunks, each gets", "share", bars, names)
    return ["<h2>Attention</h2>", f"<p>{escape(shares)}</p>", _plots([*maps, bar])]


def _plots(plots: Sequence[str]) -> str:
    return f'<div class="plots">{"".join(plots)}</div>'
