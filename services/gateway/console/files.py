"""Serves the console's files, the same to everybody: a key is asked for by what the page asks for.

Nothing but what this gateway serves is loaded or spoken to, and no text can become markup: the browser
refuses both (Content-Security-Policy, Trusted Types).
"""

from __future__ import annotations

from pathlib import Path

from fastapi import FastAPI, Response
from fastapi.responses import RedirectResponse

from shared.errors import NotFound

PATH = "/console"
STATIC = Path(__file__).parent / "static"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",
}


def add_console(app: FastAPI) -> None:
    files = {path.name: path.read_bytes() for path in STATIC.iterdir() if path.suffix in _TYPES}

    @app.get(PATH, include_in_schema=False)
    async def console() -> Response:
        return RedirectResponse(f"{PATH}/", headers=HEADERS)

    @app.get(PATH + "/{name:path}", include_in_schema=False)
    async def file(name: str) -> Response:
        name = name or "index.html"
        if name not in files:
            raise NotFound("the console has no such file; it begins at /console/")
        return Response(files[name], media_type=_TYPES[Path(name).suffix], headers=HEADERS)
