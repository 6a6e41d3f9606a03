"""Draws small charts as inline SVG: lines over two axes, stacked bars, and heat maps.

Own code, since a page of four plots needs 200 lines of it: matplotlib would bring 40 MB and fonts, plotly 4
MB of script per page, and both would have to be in whatever environment a load test runs in.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

COLORS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#777777")
WIDTH, HEIGHT = 560, 300
LEFT, RIGHT, TOP, BOTTOM = 64, 12, 28, 44
LEGEND_ROW = 16
_FAINTEST = 0.004  # of a heat map's cells; what is below is not drawn


@dataclass(frozen=True, slots=True)
class Series:
    """``points``: (x, y), in order of x. ``color``: index into the palette; ``dashed`` lines are for
    reference."""

    name: str
    points: Sequence[tuple[float, float]]
    color: int = 0
    dashed: bool = False
    dots: bool = False


@dataclass(frozen=True, slots=True)
class Axis:
    """``log``: only positive values are drawn. ``low``, ``high``: what is visible."""

    label: str
    low: float
    high: float
    log: bool = False

    @classmethod
    def over(cls, label: str, values: Sequence[float], log: bool = False) -> Axis:
        """All of ``values``; from 0 on unless logarithmic."""
        seen = [value for value in values if value > 0 or not log] or [1.0]
        if not log:
            return cls(label, 0.0, max(seen) * 1.05 or 1.0)
        low, high = min(seen), max(seen)
        return cls(label, low / 1.2, max(high, low * 1.5) * 1.2, log=True)

    def place(self, value: float) -> float:
        """0 at the low end, 1 at the high end; clipped."""
        if self.log:
            share = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return min(1.0, max(0.0, share))

    def ticks(self) -> list[float]:
        if not self.log:
            step = _nice((self.high - self.low) / 5)
            return [i * step for i in range(math.ceil(self.low / step), math.floor(self.high / step) + 1)]
        decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        wide = self.high / self.low > 300
        found = [m * 10.0**d for d in decades for m in ((1,) if wide else (1, 2, 5))]
        return [value for value in found if self.low <= value <= self.high]


def line_chart(title: str, x: Axis, y: Axis, series: Sequence[Series]) -> str:
    parts = [*_frame(title, x, y)]
    for line in series:
        color = COLORS[line.color % len(COLORS)]
        points = [(_x(x.place(px)), _y(y.place(py))) for px, py in line.points]
        path = " ".join(f"{px:.1f},{py:.1f}" for px, py in points)
        dash = ' stroke-dasharray="5 4"' if line.dashed else ""
        parts.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="1.8"{dash}/>')
        if line.dots:
            parts += [f'<circle cx="{px:.1f}" cy="{py:.1f}" r="2.8" fill="{color}"/>' for px, py in points]
    named = {line.name: (line.color, line.dashed) for line in series if line.name}
    entries = [(name, color, dashed) for name, (color, dashed) in named.items()]
    return _svg([*parts, *_legend(entries)], len(entries))


def bar_chart(
    title: str, y_label: str, bars: Sequence[tuple[str, Sequence[float]]], part_names: Sequence[str]
) -> str:
    """One stacked bar per entry: its name, and a value per part."""
    y = Axis.over(y_label, [sum(values) for _, values in bars])
    x = Axis("", 0.0, max(1, len(bars)))
    drawn = [*_frame(title, x, y, x_ticks=False)]
    width = (WIDTH - LEFT - RIGHT) / max(1, len(bars)) * 0.6
    for index, (name, values) in enumerate(bars):
        middle, below = _x(x.place(index + 0.5)), 0.0
        for part, value in enumerate(values):
            top, bottom = _y(y.place(below + value)), _y(y.place(below))
            color = COLORS[part % len(COLORS)]
            drawn.append(
                f'<rect x="{middle - width / 2:.1f}" y="{top:.1f}" width="{width:.1f}" '
                f'height="{bottom - top:.1f}" fill="{color}"/>'
            )
            below += value
        drawn.append(_text(middle, HEIGHT - BOTTOM + 16, name, "middle"))
    entries = [(name, part, False) for part, name in enumerate(part_names)]
    return _svg([*drawn, *_legend(entries)], len(entries))


def heat_map(title: str, values: Sequence[Sequence[float]], borders: Sequence[float]) -> str:
    """A square of rows of cells, the darker the larger. ``borders``: lines across it, as shares of its
    side. The darkest is the 99th percentile, so that a few large ones do not hide the rest."""
    side, top = WIDTH * 0.6, 24.0
    ranked = sorted(value for row in values for value in row)
    most = ranked[int(0.99 * (len(ranked) - 1))] or 1.0
    cell = side / len(values)
    parts = [_text(0, 14, title, "start")]
    for i, row in enumerate(values):
        for j, value in enumerate(row):
            if (shade := min(1.0, value / most)) > _FAINTEST:
                at = f'x="{j * cell:.1f}" y="{top + i * cell:.1f}"'
                size = f'width="{cell:.2f}" height="{cell:.2f}"'
                parts.append(f'<rect {at} {size} fill="{COLORS[0]}" fill-opacity="{math.sqrt(shade):.2f}"/>')
    for border in borders:
        across = f'x1="0" x2="{side:.1f}" y1="{top + border * side:.1f}" y2="{top + border * side:.1f}"'
        down = f'y1="{top:.1f}" y2="{top + side:.1f}" x1="{border * side:.1f}" x2="{border * side:.1f}"'
        parts += [f'<line {line} stroke="#8886" stroke-width="0.7"/>' for line in (across, down)]
    frame = f'<rect x="0" y="{top}" width="{side:.1f}" height="{side:.1f}" fill="none" stroke="#888"/>'
    size = f'viewBox="0 0 {side:.0f} {top + side + 4:.0f}" width="{side:.0f}"'
    return f'<svg {size} role="img" font-size="12" fill="currentColor">{"".join(parts)}{frame}</svg>'


def _frame(title: str, x: Axis, y: Axis, x_ticks: bool = True) -> list[str]:
    parts = [f'<text x="{LEFT}" y="16" font-weight="600">{escape(title)}</text>']
    for value in y.ticks():
        height = _y(y.place(value))
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{height:.1f}" y2="{height:.1f}" stroke="#8883"/>'
        )
        parts.append(_text(LEFT - 6, height + 4, f"{value:g}", "end"))
    if x_ticks:
        parts += [
            _text(_x(x.place(value)), HEIGHT - BOTTOM + 16, f"{value:g}", "middle") for value in x.ticks()
        ]
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, x.label, "middle"))
    parts.append(
        f'<text transform="translate(14 {HEIGHT / 2:.0f}) rotate(-90)" '
        f'text-anchor="middle">{escape(y.label)}</text>'
    )
    return parts


def _legend(entries: Sequence[tuple[str, int, bool]]) -> list[str]:
    """Name, color and whether dashed, one row each, below the chart."""
    parts = []
    for row, (name, color, dashed) in enumerate(entries):
        at = HEIGHT + 12 + row * LEGEND_ROW
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        line = f'x1="{LEFT}" x2="{LEFT + 22}" y1="{at - 4}" y2="{at - 4}"'
        parts.append(f'<line {line} stroke="{COLORS[color % len(COLORS)]}" stroke-width="3"{dash}/>')
        parts.append(_text(LEFT + 28, at, name, "start"))
    return parts


def _svg(parts: Sequence[str], rows: int) -> str:
    height = HEIGHT + rows * LEGEND_ROW + 8
    inner = "".join(parts)
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" role="img" font-size="12" '
        f'fill="currentColor">{inner}</svg>'
    )


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _x(share: float) -> float:
    return LEFT + share * (WIDTH - LEFT - RIGHT)


def _y(share: float) -> float:
    return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)


def _nice(step: float) -> float:
    """The next of 1, 2, 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= step * 0.999)
