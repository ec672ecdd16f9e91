"""The page's files as they are served: complete, small, of the right types, and with nothing from elsewhere."""

from __future__ import annotations

import gzip
import re
import tomllib
from pathlib import Path

import httpx
import pytest

from tandem.app.page.files import FILES

ROOT = Path(__file__).parents[3]
MOST_BYTES = 200_000
TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".html": "text/html"}


def served() -> list[Path]:
    return sorted(path for path in FILES.rglob("*") if path.suffix in TYPES)


def text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@pytest.fixture
async def page(http: httpx.AsyncClient) -> httpx.Response:
    return await http.get("/")


async def test_every_file_has_its_type_and_the_policy(http: httpx.AsyncClient) -> None:
    for path in served():
        reply = await http.get(f"/page/{path.relative_to(FILES)}")
        assert reply.status_code == 200
        assert reply.headers["content-type"].partition(";")[0] == TYPES[path.suffix]
        assert reply.headers.get("content-encoding") == "gzip" or len(reply.content) < 500
        assert reply.text == text(path)
        assert "script-src 'self'" in reply.headers["content-security-policy"]


async def test_the_page_may_load_nothing_from_elsewhere_and_run_nothing_else(page: httpx.Response) -> None:
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    policy = dict(part.split(" ", 1) for part in page.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert {policy[f"{what}-src"] for what in ("script", "style", "img", "connect")} == {"'self'"}
    assert policy["require-trusted-types-for"] == "'script'"
    assert page.headers["x-content-type-options"] == "nosniff"
    assert not re.search(r"<script(?![^>]* src=)|\son\w+=|\sstyle=", page.text)


async def test_the_links_of_the_page(page: httpx.Response, http: httpx.AsyncClient) -> None:
    links = re.findall(r'(?:href|src)="([^"#]+)"', page.text)
    assert len(links) > 10
    for link in links:
        assert (await http.get(f"/{link}")).status_code == 200, link


async def test_a_browser_asks_whether_its_copy_is_still_the_one(http: httpx.AsyncClient) -> None:
    for path in ("/", "/page/main.js"):
        tag = (await http.get(path)).headers["etag"]
        assert (await http.get(path, headers={"if-none-match": tag})).status_code == 304
    assert (await http.head("/")).status_code == 200


@pytest.mark.parametrize("path", ["nothing.js", "../files.py", "%2e%2e/files.py", "", "vendor/"])
async def test_other_files_are_not_served(http: httpx.AsyncClient, path: str) -> None:
    reply = await http.get(f"/page/{path}")
    assert reply.status_code == 404
    assert reply.json()["error"]["code"] == "not_found"


def test_all_of_it_is_small() -> None:
    assert sum(len(gzip.compress(path.read_bytes())) for path in served()) <= MOST_BYTES


def test_modules_import_what_there_is() -> None:
    for path in served():
        for name in re.findall(r'^import .* from "(.+)";$', text(path), re.MULTILINE):
            assert (path.parent / name).is_file(), f"{path.name} imports {name}"


def test_the_wheel_has_every_file() -> None:
    """A file that no pattern matches would be missing where the package is installed."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = settings["tool"]["setuptools"]["package-data"]["tandem.app.page"]
    found = {path for pattern in patterns for path in FILES.parent.glob(pattern)}
    assert found == set(served())
