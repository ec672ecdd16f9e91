"""Weight of the page, and when it is first seen, of an application that runs:

python -m tests.app.page.weight http://127.0.0.1:8000
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from statistics import median
from typing import NamedTuple

from playwright.async_api import Browser, async_playwright

LOADS = 5
LOADED = """async () => {
  await new Promise((seen) => new PerformanceObserver((_, self) => { self.disconnect(); seen(); })
    .observe({ type: "paint", buffered: true }));
  const all = [...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")];
  const own = all.filter(({ name }) => !/\\/(v1|readyz)/.test(name));
  const paints = performance.getEntriesByType("paint").map(({ startTime }) => startTime);
  return [own.length, own.reduce((sum, { encodedBodySize }) => sum + encodedBodySize, 0), Math.min(...paints)];
}"""


class Weight(NamedTuple):
    """Loads of the page with nothing in the browser's store.

    files: files of the page that were loaded.
    compressed_bytes: bytes of their bodies as they came.
    first_paint_ms: times from the request to the first paint, the soonest first.
    """

    files: int
    compressed_bytes: int
    first_paint_ms: list[float]


async def weigh(browser: Browser, address: str) -> Weight:
    """Load the page several times, each in a new context."""
    loads: list[tuple[int, int, float]] = []
    for _ in range(LOADS):
        context = await browser.new_context()
        page = await context.new_page()
        await page.goto(address, wait_until="networkidle")
        loads.append(await page.evaluate(LOADED))
        await context.close()
    files, compressed_bytes, _ = loads[0]
    return Weight(files, compressed_bytes, sorted(paint for _, _, paint in loads))


async def main(address: str) -> None:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=shutil.which("chromium"))
        found = await weigh(browser, address.rstrip("/"))
        print(json.dumps({**found._asdict(), "first_paint_ms": median(found.first_paint_ms)}))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
