"""Files of the page, as a browser gets them: with a policy of what they may load, and compressed.

They are plain modules, which run as they are. package.json names the checker of their types, and the libraries of which
`static/vendor` has copies.
"""

from __future__ import annotations

from pathlib import Path

from fastapi import FastAPI, Request, Response
from starlette.middleware.gzip import GZipMiddleware
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

FILES = Path(__file__).with_name("static")
POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self'",
    "connect-src": "'self'",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
    "require-trusted-types-for": "'script'",
    "trusted-types": "lit-html dompurify",
}
"""Directives of the Content-Security-Policy: nothing from elsewhere, and no script but the page's files."""
HEADERS = {
    "content-security-policy": "; ".join(f"{what} {sources}" for what, sources in POLICY.items()),
    "cross-origin-opener-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cache-control": "no-cache",  # a browser asks whether its copy is still the one
}


class PageFiles(StaticFiles):
    """The folder's files, with HEADERS."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers.update(HEADERS)
        return response


def add_page(api: FastAPI) -> None:
    """Serve the page at `/`, and its files below `/page`."""
    files = PageFiles(directory=FILES)

    async def page(request: Request) -> Response:
        return await files.get_response("index.html", request.scope)

    api.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)(page)
    api.mount("/page", GZipMiddleware(files))
