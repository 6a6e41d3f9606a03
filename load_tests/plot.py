"""Draws a report as SVG: how many times better than the baseline, one bar per measurement."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from pathlib import Path

from shared.measuring.report import Measurement

_LEFT, _WIDTH, _ROW, _TOP = 260, 520, 26, 48


def write_plot(path: Path, measurements: Sequence[Measurement], title: str) -> None:
    """Bars on a logarithmic scale: a bar to the right of the line at 1 is better than the baseline."""
    rows = [m for m in measurements if m.ratio]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_svg(rows, title), encoding="utf-8")


def _svg(rows: Sequence[Measurement], title: str) -> str:
    logs = [math.log2(m.ratio or 1) for m in rows]
    low, high = min([0.0, *logs]), max([1.0, *logs])

    def x(log: float) -> float:
        return _LEFT + (log - low) / (high - low) * _WIDTH

    height = _TOP + _ROW * len(rows) + 12
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_LEFT + _WIDTH + 90}" height="{height}" '
        'font-family="sans-serif" '
        'font-size="12">',
        f'<text x="10" y="20" font-size="14">{html.escape(title)}: times better than the baseline of '
        "the same run</text>",
        f'<line x1="{x(0):.1f}" y1="{_TOP - 10}" x2="{x(0):.1f}" y2="{height - 8}" stroke="#888"/>',
    ]
    for i, (m, log) in enumerate(zip(rows, logs, strict=True)):
        y, left, right = _TOP + i * _ROW, min(x(0), x(log)), max(x(0), x(log))
        width, colour = max(right - left, 1), "#3a7" if log >= 0 else "#c55"
        parts += [
            f'<text x="{_LEFT - 8}" y="{y + 12}" text-anchor="end">{html.escape(m.name)}</text>',
            f'<rect x="{left:.1f}" y="{y}" width="{width:.1f}" height="16" fill="{colour}"/>',
            f'<text x="{right + 6:.1f}" y="{y + 12}">{m.ratio:.2f} × ({m.value:.4g} '
            f"{html.escape(m.unit)})</text>",
        ]
    return "\n".join([*parts, "</svg>", ""])
