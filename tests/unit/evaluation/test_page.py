"""The page: one file with tables and plots that loads nothing."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from cluster.evaluation.attention import AttentionStudy, MaskKind, MaskPicture
from cluster.evaluation.evaluation import EvalResult
from cluster.evaluation.findings import Average
from cluster.evaluation.page import quality_plot, write_page
from tests.unit.evaluation.test_findings import LABELS, found

RIGHT = dict(zip(LABELS, (0, 8, 4, 6), strict=True))
STUDY = AttentionStudy(
    0.03,
    0.6,
    0.37,
    2,
    40,
    [0.1, 0.5],
    [MaskPicture(kind, [[1.0, 0.0], [0.5, 0.5]], [0.7, 0.3]) for kind in MaskKind],
)
SETTINGS: dict[str, object] = {"suite": "ruler", "model": "a<b", "length": 2048}


def page(tmp_path: Path, evaluated: EvalResult) -> str:
    write_page(tmp_path / "deep" / "page.html", evaluated)
    return (tmp_path / "deep" / "page.html").read_text(encoding="utf-8")


def test_it_shows_tables_plots_and_attention_and_loads_nothing(tmp_path: Path) -> None:
    mean = Average("mean", ("t",), 1, dict.fromkeys(LABELS, 0.5))
    html = page(tmp_path, EvalResult([found(RIGHT)], [mean], SETTINGS, STUDY))
    assert "Evaluation of a&lt;b" in html
    assert "40.0 (" in html
    assert "3.0% goes to other chunks" in html
    assert html.count("<svg") == 7  # an average, two of a task, three masks, the question's attention
    assert "t: numbers cut short" in html
    assert html.count("<table>") == 2
    assert not re.search(r"<script|<link|<img|https?://(?!www\.w3\.org)|url\(", html)


def test_without_attention_there_is_no_such_part(tmp_path: Path) -> None:
    html = page(tmp_path, EvalResult([found(RIGHT)], [], SETTINGS))
    assert "Attention" not in html
    assert html.count("<svg") == 2


def test_where_scores_say_nothing_kl_is_drawn(tmp_path: Path) -> None:
    unread = found({**RIGHT, LABELS[0]: 7})
    html = page(tmp_path, EvalResult([unread], [], SETTINGS))
    assert "only KL is reported" in html
    assert html.count("<svg") == 1
    assert "t: KL to full" in quality_plot(unread)
    assert "t: score" in quality_plot(found(RIGHT))


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_points_stand_where_tokens_were_computed(share: float) -> None:
    finding = found(RIGHT)
    rows = [replace(row, computed=share) for row in finding.rows]
    dots = re.findall(r'cx="([\d.]+)"', quality_plot(replace(finding, rows=rows)))
    assert len(set(dots)) == 1
    assert len(dots) == 3  # closed book computes no context
