"""Watches a page of the console: what it asks, what the API answers, and all that goes wrong on it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from playwright.sync_api import Browser, Page, Request, expect


@dataclass
class Branch:
    """A choice of a stream."""

    text: str = ""
    num_tokens: int = 0

    def grow(self, choice: dict[str, Any]) -> None:
        logprobs = choice.get("logprobs") or {}
        self.text += choice.get("text") or choice.get("delta", {}).get("content") or ""
        self.num_tokens += len(logprobs.get("token_logprobs") or logprobs.get("content") or ())


class Watched:
    """A page, and all that goes wrong on it: its error log, its dialogs, its requests to elsewhere."""

    def __init__(self, browser: Browser, address: str, **look: Any) -> None:
        self.address, self.wrong = address, list[str]()
        self.page: Page = browser.new_context(**look).new_page()
        self._questions: list[Request] = []
        self.page.on(
            "console", lambda said: said.type in ("error", "warning") and self.wrong.append(said.text)
        )
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("dialog", lambda shown: (self.wrong.append(shown.message), shown.dismiss()))
        self.page.on("request", self._local)
        self.page.on("request", self._asked)

    def _local(self, request: Request) -> None:
        if not request.url.startswith(self.address):
            self.wrong.append(f"asked {request.url}")

    def _asked(self, request: Request) -> None:
        if request.url.endswith("/completions"):
            self._questions.append(request)

    def answers(self, num: int) -> list[dict[str, Any]]:
        """Of the last ``num`` questions, as the API told them."""
        told = []
        for request in self._questions[-num:]:
            response = request.response()
            assert response is not None
            lines = response.text().split("\n\n")
            events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
            answer = next(one["kvquilt"] for one in events if one.get("kvquilt"))
            told.append(
                {"kvquilt": answer, "usage": next(one["usage"] for one in events if one.get("usage"))}
            )
        assert len(told) == num
        return told

    def branches(self, num: int) -> list[dict[int, Branch]]:
        """Of the last ``num`` questions what each choice grew to, by its number."""
        told = []
        for request in self._questions[-num:]:
            response = request.response()
            assert response is not None
            grown: dict[int, Branch] = {}
            lines = (line for line in response.text().split("\n\n") if line.startswith("data: {"))
            for choice in (choice for line in lines for choice in json.loads(line[6:])["choices"]):
                grown.setdefault(choice["index"], Branch()).grow(choice)
            told.append(dict(sorted(grown.items())))
        return told

    def show(self, view: str) -> None:
        self.page.goto(f"{self.address}/console/#{view}")
        expect(self.page.locator(f"#view-{view}")).to_be_visible()
        self.page.wait_for_load_state("networkidle")

    def check(self) -> None:
        assert not self.wrong, self.wrong
