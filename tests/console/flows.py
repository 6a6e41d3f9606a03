"""Uses the console as people do, in headless Chromium: asks, compares, reads sources, brings a file in and
deletes it; by mouse, by keyboard, in light, dark and on a phone. Leaves screenshots and axe's report.

Runs in an environment of its own, with playwright and axe alone:
``python -m tests.console.flows http://127.0.0.1:8000 OUT``.
"""

from __future__ import annotations

import json
import shutil
import sys
import urllib.request
from pathlib import Path
from typing import Any

from playwright.sync_api import expect, sync_playwright

from tests.console.figures import number, parts_of, replicas_of, span_of
from tests.console.looks import LOOKS, look, looks
from tests.console.watched import Watched

QUESTION = "Who is the mayor of Almwick?"
OTHER_QUESTION = "Where is Almwick?"
EVIL = "# Evil <img src=x onerror=alert(1)>\n\nThe mayor of Evil is <script>alert(2)</script> Hobb Crane.\n"
WITHIN_MS = 40_000


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
        assert lane.locator(".chunk mark").count() == marks
        assert marks > 0 or not stored
        usage, tokens = told["usage"], told["kvquilt"]["tokens"]
        shown = [number(text) for text in lane.locator(".figures dd").all_inner_texts()]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        assert shown == [cached, tokens["loaded"], tokens["recomputed"], tokens["selected"]]
        origins = lane.locator(".chunk").evaluate_all("all => all.map(one => one.dataset.origin)")
        assert origins == [chunk["origin"] for chunk in chunks]
        parts = lane.locator(".stack span").evaluate_all("all => all.map(one => Number(one.style.flexGrow))")
        names = lane.locator("[data-part]").evaluate_all("all => all.map(one => one.dataset.part)")
        split = [part.inner_text().split(": ") for part in lane.locator("[data-part]").all()]
        assert [number(tokens) for _, tokens in split] == parts
        assert dict(zip(names, parts, strict=True)) == parts_of(told)


def shows_branches_as_the_api_told_them(on: Watched) -> None:
    """One question with samples, then two questions with samples."""
    page = on.page
    on.show("ask")
    page.get_by_label("Collection", exact=True).select_option("towns")
    page.get_by_label("Mode", exact=True).select_option("reordered")
    page.get_by_label("Beside it", exact=True).select_option("")
    page.get_by_label("Samples", exact=True).fill("2")
    page.get_by_label("Question", exact=True).click()
    expect(page.get_by_label("Temperature", exact=True)).to_have_value("0.8")
    for questions in ([QUESTION], [QUESTION, OTHER_QUESTION]):
        page.get_by_label("A question per line").set_checked(len(questions) > 1)
        page.get_by_label("Question", exact=True).fill("\n".join(questions))
        page.get_by_role("button", name="Ask", exact=True).click()
        branches = page.locator(".branch")
        expect(branches).to_have_count(2 * len(questions))
        expect(page.locator(".lane .fall")).to_have_count(1, timeout=WITHIN_MS)
        ((told, grown),) = zip(on.answers(1), on.branches(1), strict=True)
        shown = [branch.locator(".answer").text_content() for branch in branches.all()]
        assert shown == [grown[i].text.lstrip() for i in range(len(shown))]
        counts = [number(one.inner_text().split()[0]) for one in page.locator(".branch .tokens").all()]
        assert counts == [grown[i].num_tokens for i in range(len(shown))]
        assert sum(counts) == told["usage"]["completion_tokens"]
        cited = [one.inner_text() for one in page.locator(".branch .from").all()]
        by_choice = [
            [c["source"] + 1 for c in told["kvquilt"]["citations"] if c["choice"] == i] for i in grown
        ]
        assert cited == [f"cites {', '.join(map(str, one))}" if one else "" for one in by_choice]


def brings_a_file_in_asks_about_it_and_deletes_it(on: Watched) -> None:
    page = on.page
    page.reload()
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
    replicas = replicas_of(on.address)
    rows = on.page.locator("#replicas tr").all()
    assert [str(row.get_attribute("data-replica")) for row in rows] == [name for _, name in sorted(replicas)]
    assert {service for service, _ in replicas} >= {one["service"] for one in services}
    for row, (_, figures) in zip(rows, sorted(replicas.items()), strict=True):
        for figure in ("running", "waiting", "chunks"):
            shown_there = row.locator(f"[data-figure={figure}]").inner_text()
            assert shown_there == (f"{figures[figure]:,.0f}" if figure in figures else "–"), figure
    engines = [figures for (service, _), figures in replicas.items() if service == "generator"]
    assert any(engine["chunks"] > 0 for engine in engines)
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


def uses(on: Watched, name: str, out: Path) -> list[dict[str, Any]]:
    """All there is, in light; the rest of the looks is looked at. Returns what axe said."""
    asks_and_shows_what_the_api_told(on)
    shows_the_context(on)
    report = looks(on, name, out)
    shows_branches_as_the_api_told_them(on)
    report += look(on, "branches", name, out)
    if name == "light":
        brings_a_file_in_asks_about_it_and_deletes_it(on)
        shows_the_cluster_as_the_api_tells_it(on)
        is_used_by_keyboard_alone(on)
    on.check()
    return report


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
