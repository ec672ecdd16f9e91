"""The page's fleet in a real browser, and operators' orders for it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from playwright.async_api import BrowserContext, Page, expect

from tandem.cluster.link.link import LinkProfile
from tandem.deployments.access.keys import Role
from tandem.deployments.request.under_way import UnderWay
from tests.app.api.null_backend import UP, NullBackend, times
from tests.app.page.window import accessible, ask, fits, opened
from tests.cluster.proxy import proxy_to

pytestmark = pytest.mark.slow


async def test_the_fleet_as_it_changes(page: Page, backend: NullBackend) -> None:
    await page.get_by_role("link", name="Fleet").click()
    picture = page.get_by_role("img", name="1 devices, 2 replicas. No answer is in progress.")
    await expect(picture).to_be_visible()
    await expect(page.get_by_role("row", name="verifier 1")).to_contain_text("75 % of 96 blocks")
    await expect(page.get_by_role("row", name="pixel-2")).to_contain_text("missing")
    backend.working = [
        UnderWay(7, "ada", "race", {"target": "verifier 1", "device": "pixel-1"}, 12, "device")
    ]
    await expect(page.get_by_role("row", name="ada")).to_contain_text("verifier 1, pixel-1")
    await expect(page.locator(".picture .box.busy")).to_have_count(2)
    await accessible(page)
    await page.emulate_media(color_scheme="dark")
    await accessible(page)
    backend.working = []
    await expect(page.locator(".picture .box.busy")).to_have_count(0)
    await fits(page)
    await page.get_by_role("link", name="Chat").click()
    await expect(page.get_by_label("Question", exact=True)).to_be_visible()


async def test_operators_take_parts_of_the_fleet_away(page: Page, backend: NullBackend) -> None:
    (one,) = UP.pools["verifier"]
    backend.snapshot = replace(UP, pools={"verifier": (one, replace(one, name="verifier 2"))})
    await page.get_by_role("link", name="Fleet").click()
    await page.get_by_role("button", name="Drain verifier 1").click()
    await expect(page.get_by_role("button", name="Resume verifier 1")).to_be_visible()
    await page.get_by_role("button", name="Drain verifier 2").click()
    await expect(page.get_by_role("alert")).to_contain_text("verifier 2 is the last replica")
    await page.get_by_role("button", name="Stop pixel-1").click()
    await expect(page.get_by_role("row", name="pixel-1")).to_contain_text("stopped")
    await page.get_by_role("button", name="Start pixel-1").click()
    await page.get_by_role("button", name="Cut the link of pixel-1").click()
    await expect(page.get_by_role("row", name="pixel-1")).to_contain_text("link cut")
    await page.get_by_role("button", name="Restore the link of pixel-1").click()
    await page.get_by_role("row", name="pixel-1").get_by_text("Throttle", exact=True).first.click()
    await accessible(page)
    form = page.get_by_role("row", name="pixel-1")
    await form.get_by_label("Round trip, ms").fill("80")
    await form.get_by_label("Packet loss, %").fill("2")
    await form.get_by_role("button", name="Throttle", exact=True).click()
    await expect(page.get_by_role("row", name="pixel-1")).to_contain_text("link throttled")
    assert backend.ordered.devices.link("pixel-1").profile == LinkProfile(rtt_s=0.08, loss=0.02)
    await fits(page)


async def test_the_fleet_is_for_operators(page: Page, backend: NullBackend) -> None:
    await backend.treasury.make("ada", Role.OPERATOR, {})
    _, secret = await backend.treasury.make("bob", Role.USER, {})
    await page.goto(f"{page.url}#fleet")
    await page.reload()
    alert = page.get_by_role("alert")
    await alert.get_by_label("API key").fill(secret)
    await page.keyboard.press("Enter")
    await expect(page.locator(".fleet")).to_contain_text("this needs an operator's key")


async def test_links_and_batteries_are_told(
    page: Page, backend: NullBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = {"down_bytes_per_s": 2_500_000.0, "up_bytes_per_s": 625_000.0, "loss": 0.02}

    async def devices() -> list[dict[str, object]]:
        return [{**one, "link": link} for one in await NullBackend.devices(backend)]

    monkeypatch.setattr(backend, "devices", devices)
    await page.get_by_role("link", name="Fleet").click()
    row = page.get_by_role("row", name="pixel-1")
    for told in ("10 ms", "20 Mbit/s down, 5 Mbit/s up", "2 %", "1 of 4", "50 %"):
        await expect(row.get_by_role("cell", name=told, exact=True)).to_be_visible()
    await expect(page.locator(".picture")).to_contain_text("10 ms, 2 % lost")


async def test_an_answer_goes_on_while_its_parts_are_taken_away(page: Page, backend: NullBackend) -> None:
    backend.hold_after = 30
    await page.get_by_label("Mode", exact=True).select_option("race")
    await ask(page)
    await times(1, backend.held)
    await page.get_by_role("link", name="Fleet").click()
    own = page.get_by_role("region", name="Your last answer")
    await expect(own.locator(".text")).to_contain_text("A bri")
    await page.get_by_role("button", name="Cut the link of pixel-1").click()
    await expect(page.get_by_role("row", name="pixel-1")).to_contain_text("link cut")
    backend.go.set()
    await expect(own.locator(".answer.done .text .handed")).to_have_text("orth")
    await accessible(page)
    await page.get_by_role("link", name="Chat").click()
    await expect(page.locator(".answer.done .text")).to_contain_text("Done.")


async def test_the_fleet_outlives_its_connection(
    browser: BrowserContext, address: str, backend: NullBackend
) -> None:
    async with proxy_to(address.removeprefix("http://")) as proxy:
        page = await opened(browser, f"http://{proxy.address}/#fleet")
        await expect(page.get_by_role("row", name="drafter 1")).to_be_visible()
        proxy.refusing = True
        proxy.cut("reset")
        await expect(page.locator(".error")).to_have_text("The connection to the server is lost.")
        backend.snapshot = replace(UP, pools={"verifier": UP.pools["verifier"]})
        proxy.refusing = False
        await expect(page.get_by_role("row", name="drafter 1")).to_be_hidden()
        await expect(page.locator(".error")).to_be_hidden()
        await page.close()
