"""Writes pages of a report as HTML: one file each, no scripts, nothing loaded from elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from rich.table import Table

_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; max-width: 1180px; margin: 2rem auto; padding: 0 1rem; color: #222; background: #fff }
table { border-collapse: collapse; margin: .8rem 0; font-variant-numeric: tabular-nums }
td, th { padding: .2rem .7rem .2rem 0; text-align: right; white-space: nowrap; border-bottom: 1px solid #8883 }
td:first-child, th:first-child { text-align: left }
.plots { display: flex; flex-wrap: wrap; gap: 1rem } svg { max-width: 100%; height: auto }
@media (prefers-color-scheme: dark) { body { color: #ddd; background: #181818 } }
"""  # noqa: E501


def write_html(path: Path, title: str, body: Sequence[str]) -> None:
    """``body``: pieces of HTML."""
    path.parent.mkdir(parents=True, exist_ok=True)
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style>'
    path.write_text(
        f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(body)}</body></html>\n',
        encoding="utf-8",
    )


def html_table(table: Table) -> str:
    """The terminal's own table, cell by cell."""
    cells = zip(*(column.cells for column in table.columns), strict=True)
    head = "".join(f"<th>{escape(str(column.header))}</th>" for column in table.columns)
    lines = ("".join(f"<td>{escape(str(cell))}</td>" for cell in row) for row in cells)
    return f"<table><tr>{head}</tr>" + "".join(f"<tr>{line}</tr>" for line in lines) + "</table>"


def html_list(lines: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>"
