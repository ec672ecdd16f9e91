"""A window of a browser, and what is done there over and over."""

from __future__ import annotations

from axe_playwright_python.async_playwright import Axe
from playwright.async_api import BrowserContext, Page, ViewportSize, expect

SAYS = """## Two towns

A **bridge** joins `Marworth` and [Elm](https://example.org/elm?a=1&b=2):

1. first the *river*
2. then the hill

```python
print("a < b & c")
```

<img src=x onerror="document.title='hacked'"> Done.
"""
"""An answer of the null backend, in Markdown."""
DESK: ViewportSize = {"width": 1280, "height": 900}
PHONE: ViewportSize = {"width": 360, "height": 740}


async def opened(browser: BrowserContext, address: str, size: ViewportSize = DESK) -> Page:
    page = await browser.new_page()
    await page.set_viewport_size(size)
    await page.goto(address)
    return page


async def ask(page: Page, question: str = "Tell me of two towns") -> None:
    """Ask a question, once the page knows which model to ask."""
    await expect(page.get_by_role("button", name="Send")).to_be_enabled()
    await page.get_by_label("Question", exact=True).fill(question)
    await page.keyboard.press("Enter")


async def accessible(page: Page) -> None:
    """Assert that axe finds nothing."""
    results = await Axe().run(page)
    assert results.violations_count == 0, results.generate_report()


async def fits(page: Page) -> None:
    """Assert that a phone shows the page's whole width, and that axe finds nothing there."""
    await page.set_viewport_size(PHONE)
    assert await page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    await accessible(page)
