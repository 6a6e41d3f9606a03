"""Uses the console as people do, in headless Chromium: asks, compares, reads sources, brings a file in and
deletes it; by mouse, by keyboard, in light, dark and on a phone. Leaves screenshots and axe's report.

Runs in an environment of its own, with playwright and axe alone: ``flows.py http://127.0.0.1:8000 OUT``.
"""

from __future__ import annotations

import json
import shutil
import sys
import urllib.request
from pathlib import Path
from typing import Any

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, Request, expect, sync_playwright

QUESTION = "Who is the mayor of Almwick?"
EVIL = "# Evil <img src=x onerror=alert(1)>\n\nThe mayor of Evil is <script>alert(2)</script> Hobb Crane.\n"
PATHS = '[data-fact$=".model"]'
"""Where this checkout is."""
MASK = "#808080"
WITHIN_MS = 40_000
VIEWS = ("ask", "context", "collections", "cluster")
LOOKS: dict[str, dict[str, Any]] = {
    "light": {"color_scheme": "light", "viewport": {"width": 1280, "height": 860}},
    "dark": {"color_scheme": "dark", "viewport": {"width": 1280, "height": 860}},
    "phone": {
        "color_scheme": "light",
        "viewport": {"width": 390, "height": 844},
        "has_touch": True,
        "is_mobile": True,
    },
}


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
        if request.url.endswith("/chat/completions"):
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

    def show(self, view: str) -> None:
        self.page.goto(f"{self.address}/console/#{view}")
        expect(self.page.locator(f"#view-{view}")).to_be_visible()
        self.page.wait_for_load_state("networkidle")

    def check(self) -> None:
        assert not self.wrong, self.wrong


def asks_and_shows_what_the_api_told(on: Watched) -> None:
    page = on.page
    on.show("ask")
    page.get_by_label("Collection", exact=True).select_option("towns")
    page.get_by_label("Mode", exact=True).select_option("epic")
    page.get_by_label("Beside it", exact=True).select_option("full")
    page.get_by_label("Question", exact=True).fill(QUESTION)
    page.get_by_label("Question", exact=True).press("Enter")
    expect(page.locator(".lane .fall")).to_have_count(2, timeout=WITHIN_MS)
    for lane, told in zip(page.locator("#lanes .lane").all(), on.answers(2), strict=True):
        assert lane.locator("h2").inner_text() == told["kvquilt"]["mode"]
        shown = dict(
            zip(
                lane.locator(".figures dt").all_inner_texts(),
                lane.locator(".figures dd").all_inner_texts(),
                strict=True,
            )
        )
        usage, times = told["usage"], told["kvquilt"]["timings_ms"]
        assert number(shown["Prompt tokens"]) == usage["prompt_tokens"]
        assert number(shown["From stored KV"]) == usage["prompt_tokens_details"]["cached_tokens"]
        assert number(shown["Computed"]) == told["kvquilt"]["tokens"]["recomputed"]
        assert shown["First token"] == span_of(times["first_token"])
        for stage in ("retrieve", "queue", "load", "select", "select_wait", "prefill", "decode"):
            assert lane.locator(f"[data-stage={stage}]").inner_text() == span_of(times[stage]), stage
        source = told["kvquilt"]["context"][
            int(lane.locator(".cites button").first.inner_text().split()[0]) - 1
        ]
        lane.locator(".cites button").first.focus()
        expect(lane.locator(".source")).to_have_text(source["text"])


def shows_the_context(on: Watched) -> None:
    on.page.get_by_role("link", name="Context").click()
    for lane, told in zip(on.page.locator("#context-body .lane").all(), on.answers(2), strict=True):
        chunks = told["kvquilt"]["context"]
        texts = lane.locator(".chunk .text").all()
        assert [text.text_content() for text in texts] == [chunk["text"] for chunk in chunks]
        stored = told["kvquilt"]["mode"] != "full"
        marks = sum(len(chunk["spans"]) for chunk in chunks) if stored else 0
        assert lane.locator("mark").count() == marks
        assert marks > 0 or not stored
        usage, tokens = told["usage"], told["kvquilt"]["tokens"]
        shown = [number(text) for text in lane.locator(".figures dd").all_inner_texts()]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        assert shown == [cached, tokens["loaded"], tokens["recomputed"], tokens["selected"]]
        parts = lane.locator(".stack span").evaluate_all("all => all.map(one => Number(one.style.flexGrow))")
        assert min(parts) >= 0
        assert sum(parts) == usage["prompt_tokens"]


def brings_a_file_in_asks_about_it_and_deletes_it(on: Watched) -> None:
    page = on.page
    page.get_by_role("link", name="Collections").click()
    page.get_by_label("New collection", exact=True).fill("evil")
    page.get_by_role("button", name="Create").click()
    expect(page.locator("#store-title")).to_have_text("evil")
    files = [{"name": "evil.md", "mimeType": "text/markdown", "buffer": EVIL.encode()}]
    page.get_by_label("Drop files here").set_input_files(files)
    brought = page.locator("#members li", has_text="evil.md")
    expect(brought).to_contain_text("completed", timeout=WITHIN_MS)
    page.get_by_role("link", name="Ask").click()
    expect(page.locator("#collection option")).to_have_count(2)
    page.get_by_label("Collection", exact=True).select_option("evil")
    page.get_by_label("Mode", exact=True).select_option("reordered")
    page.get_by_label("Beside it", exact=True).select_option("")
    page.get_by_label("Question", exact=True).fill("Who is the mayor of Evil?")
    page.get_by_role("button", name="Ask", exact=True).click()
    expect(page.locator(".lane .fall")).to_have_count(1, timeout=WITHIN_MS)
    page.wait_for_load_state("networkidle")
    page.locator(".cites button").first.hover()
    expect(page.locator(".source")).to_contain_text("<script>alert(2)</script>")
    page.get_by_role("link", name="Context").click()
    expect(page.locator(".chunk .text").first).to_contain_text("<script>alert(2)</script>")
    assert page.locator("main script, main img").count() == 0, "text became markup"
    page.get_by_role("link", name="Collections").click()
    page.locator("#stores button", has_text="evil").click()
    page.locator("#members button").first.click()
    expect(page.locator("#members")).to_contain_text("No documents yet")
    page.get_by_role("button", name="Delete collection").click()
    page.get_by_role("button", name="Really delete?").click()
    expect(page.locator("#stores")).not_to_contain_text("evil")


def shows_the_cluster_as_the_api_tells_it(on: Watched) -> None:
    on.page.get_by_role("link", name="Cluster").click()
    expect(on.page.locator("#services .card").first).to_be_visible()
    with urllib.request.urlopen(f"{on.address}/v1/status") as response:
        services = json.load(response)["data"]
    with urllib.request.urlopen(f"{on.address}/v1/tiers") as response:
        tiers = json.load(response)["data"]
    rows = on.page.locator("#tiers tr").all()
    shown = [(row.locator("th").inner_text(), number(row.locator("td").nth(1).inner_text())) for row in rows]
    assert shown == [(tier["tier"], tier["num_chunks"]) for tier in tiers]
    assert on.page.locator("#services h2").all_inner_texts() == [one["service"] for one in services]
    for one in services:
        for name in set(one["facts"]) & {"fingerprint", "device", "resident_chunks", "documents"}:
            fact = on.page.locator(f'[data-fact="{one["service"]}.{name}"]')
            assert fact.text_content() == one["facts"][name], name


def is_used_by_keyboard_alone(on: Watched) -> None:
    """From the top of the page: the key's field is passed, the question is asked, a source is read."""
    page = on.page
    on.show("ask")
    page.reload()
    expect(page.locator("#collection option")).to_have_count(1)
    for _ in range(30):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.id") == "question":
            break
    page.keyboard.type(QUESTION)
    page.keyboard.press("Enter")
    expect(page.locator(".lane .fall")).to_have_count(1, timeout=WITHIN_MS)
    for _ in range(12):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.closest('.cites') !== null"):
            break
    expect(page.locator(".source")).to_be_visible()


def looks(on: Watched, name: str, out: Path) -> list[dict[str, Any]]:
    """A screenshot of every view, and what axe finds there; nothing may be wider than the window."""
    found = []
    for view in VIEWS:
        on.page.evaluate(f"location.hash = '{view}'")
        expect(on.page.locator(f"#view-{view}")).to_be_visible()
        on.page.wait_for_load_state("networkidle")
        if view == "collections":
            on.page.locator("#stores button").first.click()
            expect(on.page.locator("#members li").first).to_be_visible()
            on.page.wait_for_load_state("networkidle")
        if view == "cluster":
            expect(on.page.locator("#tiers tr").first).to_be_visible()
        on.page.mouse.move(0, 0)
        on.page.screenshot(
            path=str(out / f"{view}-{name}.png"),
            full_page=name != "phone",
            mask=[on.page.locator(PATHS)],
            mask_color=MASK,
        )
        wide = on.page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert wide <= 0, f"{view}, {name}: {wide} pixels too wide"
        response = Axe().run(on.page).response
        for one in response["violations"]:
            where = [node["html"][:200] for node in one["nodes"]]
            found.append({"look": name, "view": view, "rule": one["id"], "help": one["help"], "where": where})
        passed = sorted(one["id"] for one in response["passes"])
        found.append({"look": name, "view": view, "passed": passed, "axe": response["testEngine"]["version"]})
    return found


def uses(on: Watched, name: str, out: Path) -> list[dict[str, Any]]:
    """All there is, in light; the rest of the looks is looked at. Returns what axe said."""
    asks_and_shows_what_the_api_told(on)
    shows_the_context(on)
    report = looks(on, name, out)
    if name == "light":
        brings_a_file_in_asks_about_it_and_deletes_it(on)
        shows_the_cluster_as_the_api_tells_it(on)
        is_used_by_keyboard_alone(on)
    on.check()
    return report


def number(text: str) -> int:
    return int(text.replace(",", ""))


def span_of(ms: float) -> str:
    return f"{ms / 1000:.2f} s" if ms >= 1000 else f"{ms:.1f} ms"


def main(address: str, folder: str) -> None:
    out = Path(folder)
    out.mkdir(parents=True, exist_ok=True)
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    report: list[dict[str, Any]] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for name, look in LOOKS.items():
            on = Watched(browser, address, **look)
            on.page.set_default_timeout(30_000)
            try:
                report += uses(on, name, out)
            except Exception:
                on.page.screenshot(path="build/console-failed.png")
                print(f"{name}: build/console-failed.png shows where; {on.wrong}", flush=True)
                raise
            print(f"{name}: fine", flush=True)
        browser.close()
    (out / "axe.json").write_text(json.dumps(report, indent=1) + "\n")
    violations = [one for one in report if "rule" in one]
    assert not violations, json.dumps(violations, indent=1)
    print(f"axe finds nothing in {len(report)} pages; screenshots are in {out}")


if __name__ == "__main__":
    main(*sys.argv[1:])
