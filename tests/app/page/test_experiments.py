"""The page's experiments in a real browser."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Page, expect

from tandem.app.api.experiments import endpoints
from tests.app.api.null_backend import NullBackend
from tests.app.page.window import accessible, fits

pytestmark = pytest.mark.slow

SIMULATED_MS = 60_000
"""Longest wait for a simulation, in a process that begins first."""


async def test_experiments_run_and_are_compared(page: Page, backend: NullBackend) -> None:
    await page.get_by_role("link", name="Experiments").click()
    await accessible(page)
    await page.get_by_label("Requests", exact=True).fill("5")
    for alpha in ("0.9", "0.2"):
        await page.get_by_label("Share of drafts that are accepted", exact=True).fill(alpha)
        await page.get_by_role("button", name="Run", exact=True).click()
        await expect(page.get_by_role("article", name="Result")).to_have_count(
            1 if alpha == "0.9" else 2, timeout=SIMULATED_MS
        )
        await expect(page.get_by_role("button", name="Run", exact=True)).to_be_visible(timeout=SIMULATED_MS)
    both = page.get_by_role("img", name="Time per further token")
    await expect(both.locator("polyline")).to_have_count(2)
    await page.get_by_label("Sweep over").select_option("Mode")
    await page.get_by_label("Values, separated by commas").fill("cloud, device")
    await page.get_by_role("button", name="Run", exact=True).click()
    modes = page.get_by_role("article", name="Result 3")
    await expect(modes.get_by_role("img", name="Time to first token, mean").locator("circle")).to_have_count(
        2, timeout=SIMULATED_MS
    )
    await expect(page.get_by_role("button", name="Run", exact=True)).to_be_visible(timeout=SIMULATED_MS)
    await modes.get_by_role("button", name="Remove result 3").click()
    await page.get_by_label("Experiment", exact=True).select_option("dsd")
    await page.get_by_label("Round trip, ms: each of").fill("5, 50")
    await page.get_by_label("Users").fill("4")
    await page.get_by_role("button", name="Run", exact=True).click()
    swept = page.get_by_role("article", name="Result 3")
    await expect(
        swept.get_by_role("img", name="Time to first token, mean").locator("polyline")
    ).to_have_count(2, timeout=SIMULATED_MS)
    await expect(page.get_by_role("button", name="Run", exact=True)).to_be_visible(timeout=SIMULATED_MS)
    await swept.get_by_text("Figures", exact=True).click()
    await expect(swept.get_by_role("row")).to_have_count(5)
    await page.emulate_media(color_scheme="dark")
    await accessible(page)
    await fits(page)
    await page.get_by_label("Round trip, ms: each of").fill("5, far")
    await page.get_by_role("button", name="Run", exact=True).click()
    await expect(page.get_by_role("alert")).to_contain_text("devices.0.link.rtt_ms may be above 0")
    await page.get_by_role("button", name="Remove result 3").click()
    await expect(page.get_by_role("article", name="Result")).to_have_count(2)


async def test_an_experiment_is_cancelled(
    page: Page, backend: NullBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = asyncio.Event()

    async def endless(order: dict[str, object]) -> AsyncIterator[dict[str, object]]:
        try:
            yield {"type": "begun", "total": 8, "points": 1}
            yield {"type": "progress", "done": 3}
            await asyncio.Event().wait()
        finally:
            closed.set()

    monkeypatch.setattr(endpoints, "simulated", endless)
    await page.get_by_role("link", name="Experiments").click()
    await page.get_by_role("button", name="Run", exact=True).click()
    await expect(page.get_by_label("3 of 8 requests")).to_be_visible()
    await page.get_by_role("button", name="Cancel").click()
    await asyncio.wait_for(closed.wait(), 10)
    await expect(page.get_by_text("You cancelled this run.")).to_be_visible()
