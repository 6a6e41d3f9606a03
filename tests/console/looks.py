"""Looks at the views of the console in light, dark and on a phone: pictures, axe, and what is too wide."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from tests.console.watched import Watched

PATHS = '[data-fact$=".model"]'
"""Where this checkout is."""
MASK = "#808080"
SPILT = "all => all.filter(one => one.scrollWidth > one.clientWidth).map(one => one.innerText.slice(0, 80))"
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


def looks(on: Watched, name: str, out: Path) -> list[dict[str, Any]]:
    """Of every view."""
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
            expect(on.page.locator("#replicas tr").first).to_be_visible()
        found += look(on, view, name, out)
    return found


def look(on: Watched, view: str, name: str, out: Path) -> list[dict[str, Any]]:
    """A screenshot, and what axe finds there; nothing may be wider than the window, or than its panel."""
    on.page.mouse.move(0, 0)
    on.page.screenshot(
        path=str(out / f"{view}-{name}.png"),
        full_page=name != "phone",
        mask=[on.page.locator(PATHS)],
        mask_color=MASK,
    )
    wide = on.page.evaluate("document.documentElement.scrollWidth - innerWidth")
    assert wide <= 0, f"{view}, {name}: {wide} pixels too wide"
    spilt = on.page.locator(".panel:not(.table), .card").evaluate_all(SPILT)
    assert not spilt, f"{view}, {name}: {spilt}"
    response = Axe().run(on.page).response
    found = []
    for one in response["violations"]:
        where = [node["html"][:200] for node in one["nodes"]]
        found.append({"look": name, "view": view, "rule": one["id"], "help": one["help"], "where": where})
    passed = sorted(one["id"] for one in response["passes"])
    return [*found, {"look": name, "view": view, "passed": passed, "axe": response["testEngine"]["version"]}]
