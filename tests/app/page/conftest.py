"""Fixtures: the API on a null backend that says SAYS, and a window of a browser that shows its page."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from playwright.async_api import BrowserContext, ConsoleMessage, Error, Page, async_playwright, expect

from tandem.deployments.request.tokenlog import Origin
from tests.app.api.conftest import address, http
from tests.app.api.null_backend import NullBackend
from tests.app.page.window import SAYS, opened

__all__ = ["address", "http"]

expect.set_options(timeout=30_000)  # on a busy machine; playwright's default is 5 s


@pytest.fixture
async def backend(tmp_path: Path) -> AsyncIterator[NullBackend]:
    """Races begin at the device and are handed over after 38 tokens."""
    backend = NullBackend(says=SAYS, ledger=tmp_path / "ledger.sqlite", context=4096)
    backend.origins["race"] = (Origin.DEVICE,) * 38 + (Origin.CLOUD,) * 1000
    await backend.treasury.open()
    yield backend
    await backend.treasury.close()


@pytest.fixture
async def browser() -> AsyncIterator[BrowserContext]:
    """A browser's window, whose pages must cause neither errors nor breaches of their policy."""
    found: list[str] = []

    def note(message: ConsoleMessage) -> None:
        if message.type == "error" and "Failed to load resource" not in message.text:  # of refused requests
            found.append(message.text)

    async with async_playwright() as playwright:
        try:
            browser = await playwright.chromium.launch(executable_path=shutil.which("chromium"))
        except Error as error:
            pytest.skip(f"no browser: {error.message.splitlines()[0]}")
        context = await browser.new_context()
        context.set_default_timeout(20_000)
        context.on("console", note)
        context.on("weberror", lambda error: found.append(str(error.error)))
        yield context
        await browser.close()
    assert found == []


@pytest.fixture
async def page(browser: BrowserContext, address: str) -> Page:
    return await opened(browser, address)
