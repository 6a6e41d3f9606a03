"""Runs every example of a page, and checks what each one shows. Runs in an environment of its own, with these
clients alone: ``examples.py PAGE http://127.0.0.1:8000``."""

from __future__ import annotations

import contextlib
import importlib.metadata
import io
import re
import sys
from pathlib import Path

_EXAMPLE = re.compile(r"^## (\w+)\n.*?^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_ADDRESS = "http://127.0.0.1:8000"
_PACKAGES = ("openai", "langchain-openai", "llama-index-llms-openai-like", "mcp")


def shown(code: str, name: str) -> list[str]:
    """Lines that the example prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, name, "exec"), {"__name__": "__main__"})
    return out.getvalue().splitlines()


def check(name: str, lines: list[str]) -> None:
    if name == "LangChain":
        whole, streamed, handed = lines
        assert "Sunday" in whole, whole
        assert whole == streamed
        assert "Sunday" in handed, handed
    elif name == "LlamaIndex":
        whole, streamed, sources = lines
        assert "Sunday" in whole, whole
        assert whole == streamed
        assert "tambach" in sources, sources
    else:
        tools, answer = lines
        assert tools == "['search', 'ask', 'list_documents']", tools
        assert "Sunday" in answer, answer


def main(page: str, address: str) -> None:
    print(*(f"{name} {importlib.metadata.version(name)}" for name in _PACKAGES), sep=", ")
    found = _EXAMPLE.findall(Path(page).read_text(encoding="utf-8"))
    assert [name for name, _ in found] == ["LangChain", "LlamaIndex", "MCP"]
    for name, code in found:
        lines = shown(code.replace(_ADDRESS, address), name)
        print(f"{name}: {lines}", flush=True)
        check(name, lines)


if __name__ == "__main__":
    main(*sys.argv[1:])
