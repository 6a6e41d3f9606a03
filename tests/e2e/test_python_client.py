"""Every example of docs/python-client.md, in its order, against a running system."""

from __future__ import annotations

import re
import sys

import pytest

from cluster.paths import PROJECT_ROOT
from shared import python_client
from tests.e2e.stack import Stack

pytestmark = pytest.mark.e2e
_EXAMPLE = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def test_the_examples_run(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KVQUILT_TARGET", stack.target)
    monkeypatch.setitem(sys.modules, "kvquilt_client", python_client)
    page = (PROJECT_ROOT / "docs" / "python-client.md").read_text(encoding="utf-8")
    documents, deleting, question, streamed, forest = _EXAMPLE.findall(page)
    shown = []
    for example in (documents, deleting, question, streamed, forest):
        exec(compile(example, "docs/python-client.md", "exec"), {})
        shown.append(capsys.readouterr().out)
    assert shown[0].splitlines() == ["market.txt 1", "market.txt Market day in Tambach is Friday."]
    assert shown[1] == "('old.txt',)\n"
    assert "market.txt" in shown[2]
    assert shown[3]
    assert len(shown[4].splitlines()) >= 2
