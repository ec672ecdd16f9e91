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
ANSWERED_MS = 30_000
FIRST_DEVICE = 2
"""Place of the first one in the list, behind what leaves the choice to the server."""
COLOURS = 96
"""Colours of a picture, which make a file of a third."""


async def take(browser: Browser, address: str, folder: Path) -> list[Path]:
    """Take the pictures: two modes side by side, the fleet while they answer, a sweep, and an answer on a phone."""
    desk = await browser.new_context(viewport={"width": 1200, "height": 760}, color_scheme="light")
    page, fleet = await desk.new_page(), await desk.new_page()
    await page.goto(address)
    await page.get_by_label("Mode", exact=True).select_option("race")
    await page.get_by_label("Compare with a second mode").check()
    await page.get_by_label("Second mode", exact=True).select_option("speculative")
    device = page.get_by_label("Device", exact=True)
    await device.locator("option").nth(FIRST_DEVICE).wait_for(state="attached")
    await device.select_option(index=FIRST_DEVICE)
    await fleet.goto(f"{address}/#fleet")
    await page.get_by_label("Question", exact=True).fill(QUESTION)
    await page.keyboard.press("Enter")
    await fleet.locator(".picture .busy").first.wait_for()
    shots = [folder / f"page-{name}.png" for name in ("fleet", "chat", "phone", "experiments")]
    await fleet.locator(".fleet").screenshot(path=shots[0])
    await page.locator(".answer.done").nth(1).wait_for(timeout=ANSWERED_MS)
    await page.set_viewport_size({"width": 1200, "height": 1000})
    await page.evaluate("scrollTo(0, 0)")
    await page.screenshot(path=shots[1])
    await page.goto(f"{address}/#experiments")
    await page.get_by_label("Experiment", exact=True).select_option("dsd")
    await page.get_by_role("button", name="Run", exact=True).click()
    await page.get_by_text("Figures", exact=True).wait_for(timeout=ANSWERED_MS)
    await page.get_by_role("button", name="Run", exact=True).wait_for(timeout=ANSWERED_MS)
    await page.locator(".experiments").screenshot(path=shots[3])
    await desk.close()
    phone = await browser.new_context(viewport={"width": 390, "height": 800}, color_scheme="dark")
    page = await phone.new_page()
    await page.goto(address)
    await page.get_by_text("Settings").click()
    await page.get_by_label("Mode", exact=True).select_option("speculative")
    await page.get_by_text("Settings").click()
    await page.get_by_label("Question", exact=True).fill(QUESTION)
    await page.keyboard.press("Enter")
    await page.locator(".answer.done").wait_for(timeout=ANSWERED_MS)
    await page.evaluate("scrollTo(0, 0)")
    await page.screenshot(path=shots[2])
    await phone.close()
    for path in shots:
        with Image.open(path) as picture:
            fewer = picture.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
        fewer.save(path, optimize=True)
    return shots


async def main(address: str) -> None:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=shutil.which("chromium"))
        for path in await take(browser, address.rstrip("/"), FOLDER):
            print(path)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
