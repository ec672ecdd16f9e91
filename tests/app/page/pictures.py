"""Pictures of the page for the documents, taken of an application that runs:

python -m tests.app.page.pictures http://127.0.0.1:8000
"""

from __future__ import annotations

import asyncio
import shutil
import sys
from pathlib import Path

from PIL import Image
from playwright.async_api import Browser, async_playwright

FOLDER = Path(__file__).parents[3] / "docs" / "pictures"
QUESTION = "Tell me about the town of Marworth."
ANSWERED_MS = 60_000
NAMES = ("welcome", "chat", "fleet", "metrics", "experiments", "phone")
MODES = {"Mode": "speculative", "Second mode": "sketch"}
"""Modes of two answers side by side, by the labels of their choices."""
SLOW = {"Mode": "device", "Second mode": "race"}
"""Modes whose answers take seconds at a phone, which is seen at work then."""
TRIES = 8
"""Questions until an answer comes from the replica of the API that the fleet's page is connected to."""
COLOURS = 96
"""Colours of a picture, which make a file of a third."""


async def take(browser: Browser, address: str, folder: Path) -> list[Path]:
    """Take the pictures: the questions that are offered, two modes side by side, the fleet while a phone answers,
    metrics, a sweep, and an answer on a phone."""
    desk = await browser.new_context(viewport={"width": 1280, "height": 800}, color_scheme="light")
    page, fleet = await desk.new_page(), await desk.new_page()
    await fleet.goto(f"{address}/#fleet")
    await fleet.locator(".picture").wait_for()
    shots = {name: folder / f"page-{name}.png" for name in NAMES}
    await page.goto(address)
    await page.locator(".examples button").first.wait_for()
    await page.screenshot(path=shots["welcome"])
    await page.get_by_label("Compare with a second mode").check()
    for label, mode in MODES.items():
        await page.get_by_label(label, exact=True).select_option(mode)
    await page.get_by_label("Question", exact=True).fill(QUESTION)
    await page.keyboard.press("Enter")
    await page.locator(".answer.done").nth(1).wait_for(timeout=ANSWERED_MS)
    await page.set_viewport_size({"width": 1280, "height": 1000})
    await page.evaluate("scrollTo(0, 0)")
    await page.screenshot(path=shots["chat"])
    device = page.get_by_label("Device", exact=True)
    phone = await device.locator("option", has_text="battery").first.get_attribute("value")
    await device.select_option(phone)
    for label, mode in SLOW.items():
        await page.get_by_label(label, exact=True).select_option(mode)
    at_work = fleet.locator(".picture .busy").first
    for turn in range(1, 1 + TRIES):
        await page.get_by_label("Question", exact=True).fill(QUESTION)
        await page.keyboard.press("Enter")
        done = asyncio.ensure_future(
            page.locator(".answer footer").nth(2 * turn + 1).wait_for(timeout=ANSWERED_MS)
        )
        seen = asyncio.ensure_future(at_work.wait_for(timeout=ANSWERED_MS))
        await asyncio.wait((done, seen), return_when=asyncio.FIRST_COMPLETED)
        if seen.done():
            await fleet.locator(".fleet").screenshot(path=shots["fleet"])
            done.cancel()
            break
        seen.cancel()
    await page.goto(f"{address}/#metrics")
    await page.locator(".tile").first.wait_for()
    await page.locator(".server").screenshot(path=shots["metrics"])
    await page.goto(f"{address}/#experiments")
    await page.get_by_label("Experiment", exact=True).select_option("dsd")
    await page.get_by_role("button", name="Run", exact=True).click()
    await page.get_by_text("Figures", exact=True).wait_for(timeout=ANSWERED_MS)
    await page.get_by_role("button", name="Run", exact=True).wait_for(timeout=ANSWERED_MS)
    await page.locator(".experiments").screenshot(path=shots["experiments"])
    await desk.close()
    small = await browser.new_context(viewport={"width": 390, "height": 800}, color_scheme="dark")
    page = await small.new_page()
    await page.goto(address)
    await page.get_by_text("Settings").click()
    await page.get_by_label("Mode", exact=True).select_option("speculative")
    await page.get_by_text("Settings").click()
    await page.get_by_label("Question", exact=True).fill(QUESTION)
    await page.keyboard.press("Enter")
    await page.locator(".answer.done").wait_for(timeout=ANSWERED_MS)
    await page.evaluate("scrollTo(0, 0)")
    await page.screenshot(path=shots["phone"])
    await small.close()
    for path in shots.values():
        with Image.open(path) as picture:
            fewer = picture.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
        fewer.save(path, optimize=True)
    return list(shots.values())


async def main(address: str) -> None:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=shutil.which("chromium"))
        for path in await take(browser, address.rstrip("/"), FOLDER):
            print(path)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
