"""Models on the page: which ones answer, that demo models are ones, what to ask them, and their sizes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml
from playwright.async_api import BrowserContext, Page, expect

from tandem.app.cli.server.choose import choose
from tandem.app.cli.server.facts import Machine
from tandem.app.served import parts
from tandem.app.settings import Settings
from tandem.engine import family
from tandem.policies.routing.objectives import OBJECTIVES
from tests.app.api.null_backend import NullBackend
from tests.app.page.window import DESK, PHONE, accessible, ask, fits, opened

pytestmark = pytest.mark.slow

DEFAULT = Path(__file__).parents[3] / "app" / "configs" / "local.yaml"
LONG_NAME = "Qwen2.5-7B-Instruct-with-a-long-name-q4_k_m"
WIDTHS = (320, 360, 390, 480, 640, 768, 800, 1023, 1024, 1100, 1280, 1440, 1600, 1920)
BEYOND = """() => [...document.querySelectorAll(
    ".settings-side :is(select, input, textarea, button, label, li, p), .examples button, .top *, .composer *"
  )].flatMap((each) => {
    const frame = each.closest("aside > details, .examples, .top, .composer").getBoundingClientRect();
    const { left, right, width } = each.getBoundingClientRect();
    return width > 1 && (left < frame.left - 0.5 || right > frame.right + 0.5) ? [each.outerHTML.slice(0, 90)] : [];
  })"""
"""Controls, and their labels, that stand beyond the frame around them; what is hidden is a pixel wide."""


def as_shipped(backend: NullBackend) -> None:
    """Have a backend tell what `tandem up` serves."""
    settings = Settings.model_validate(yaml.safe_load(DEFAULT.read_text())["applications"][0]["args"])
    backend.parts = parts(settings, "tandem")
    backend.weighs = list(OBJECTIVES)
    backend.lacks = dict.fromkeys(("cloud", "device", "speculative", "race", "sketch"), "")


def with_own_models(backend: NullBackend, folder: Path) -> None:
    """Have a backend tell what `tandem up --model A --drafter B` serves: no device; here without policy `auto`."""
    for name, model in ((LONG_NAME, "target"), ("small-drafter", "small")):
        shutil.copytree(family.path(model), folder / name)
    machine = Machine(cores=2, free_bytes=16e9)
    chosen = choose(str(folder / LONG_NAME), str(folder / "small-drafter"), machine=machine)
    backend.parts = parts(Settings.model_validate(chosen), LONG_NAME)
    backend.lacks = {"cloud": "", "speculative": ""}


async def test_demo_models_say_that_they_are_ones(page: Page, backend: NullBackend) -> None:
    as_shipped(backend)
    await page.reload()
    await expect(page.locator(".demo")).to_contain_text("They know only an invented encyclopedia")
    await expect(page.locator(".top")).to_contain_text("demo")
    await expect(page.get_by_label("Model", exact=True).locator("option")).to_have_text("null (5.26M)")
    await expect(page.get_by_role("list", name="Models that answer")).to_contain_text("drafts small, 1.21M")
    examples = page.get_by_role("list", name="Examples").get_by_role("button")
    told = [(await each.locator("small").first.inner_text()).split(":")[0] for each in await examples.all()]
    assert told == ["speculative", "race", "sketch", "device"]
    await accessible(page)
    await page.emulate_media(color_scheme="dark")
    await fits(page)
    await page.set_viewport_size(DESK)
    await examples.nth(1).click()
    await expect(page.locator(".answer.done")).to_have_count(1)
    job = backend.jobs[0]
    assert (job.mode, job.device, job.budget) == ("race", None, 1.0), (
        "a device that is not there is not asked for"
    )
    proposal = page.locator(".demo")
    await expect(proposal).to_contain_text("They know only an invented encyclopedia")
    await proposal.get_by_role("button").click()
    await expect(page.locator(".answer.done")).to_have_count(2)
    assert backend.jobs[1].mode == "speculative"
    await accessible(page)
    await ask(page, "Who are you?")
    await expect(page.locator(".answer.done")).to_have_count(3)
    assert backend.jobs[2].mode is None, "an example's mode is its own"


async def test_other_models_are_no_demo_and_have_questions_for_their_modes(
    page: Page, backend: NullBackend, tmp_path: Path
) -> None:
    with_own_models(backend, tmp_path)
    await page.reload()
    examples = page.get_by_role("list", name="Examples").get_by_role("button")
    await expect(examples.first).to_contain_text("speculative: A small model drafts")
    await expect(examples.first).to_contain_text("reverses a list")
    await expect(page.get_by_text("race:")).to_have_count(0)
    await expect(page.locator(".demo")).to_have_count(0)
    modes = await page.get_by_label("Mode", exact=True).locator("option").all_inner_texts()
    assert modes == ["Server's default", "cloud", "speculative"]
    await examples.first.click()
    await expect(page.locator(".answer.done")).to_be_visible()
    await expect(page.locator(".demo")).to_have_count(0)


async def test_a_mode_says_what_it_lacks(page: Page, backend: NullBackend) -> None:
    as_shipped(backend)
    assert backend.lacks is not None
    backend.lacks["race"] = "no device is up"
    await page.reload()
    await expect(page.get_by_label("Mode", exact=True).locator("option", has_text="race")).to_have_text(
        "race (no device is up)"
    )
    await expect(page.get_by_text("race: Device and cloud")).to_have_count(0)


@pytest.mark.parametrize("own", [False, True], ids=["shipped", "own models"])
async def test_controls_stay_within_their_frames(
    browser: BrowserContext, address: str, backend: NullBackend, tmp_path: Path, own: bool
) -> None:
    if own:
        with_own_models(backend, tmp_path)
    else:
        as_shipped(backend)
    page = await opened(browser, address)
    await expect(page.locator(".examples")).to_be_visible()
    await page.get_by_label("Compare with a second mode").check()
    await page.locator("aside details").evaluate_all("all => all.forEach((each) => { each.open = true; })")
    for width in WIDTHS:
        await page.set_viewport_size({"width": width, "height": 900})
        assert await page.evaluate(BEYOND) == [], width
        assert await page.evaluate("document.documentElement.scrollWidth") <= width
    asked = page.get_by_role("list", name="Examples").get_by_role("button")
    await asked.first.click()
    await expect(page.locator(".answer.done")).to_be_visible()
    for width in WIDTHS:
        await page.set_viewport_size({"width": width, "height": 900})
        assert await page.evaluate("document.documentElement.scrollWidth") <= width


async def test_views_of_the_server(page: Page, backend: NullBackend) -> None:
    as_shipped(backend)
    await ask(page)
    await expect(page.locator(".answer.done")).to_be_visible()
    await page.get_by_role("link", name="Models").click()
    row = page.get_by_role("row", name="target")
    await expect(row).to_contain_text("5.26M")
    await expect(row).to_contain_text("10.5 MB")
    await accessible(page)
    await page.get_by_role("link", name="Devices").click()
    await expect(page.get_by_role("row", name="pixel-1")).to_contain_text("pixel7pro-bloom560m (emulated)")
    await page.get_by_role("link", name="Status").click()
    await expect(page.get_by_text("Ready to answer")).to_be_visible()
    await expect(page.get_by_role("row", name="sketch")).to_contain_text("works")
    backend.missing = ["no verifier is up"]  # and the view is told without being asked again
    await expect(page.locator(".server")).to_contain_text("Not ready")
    await expect(page.locator(".server .error")).to_have_text("no verifier is up")
    backend.missing = []
    await page.get_by_role("link", name="Metrics").click()
    tile = page.locator(".tile", has_text="Answers")
    await expect(tile).to_contain_text("1")
    await expect(page.get_by_role("img", name="cloud 100 %")).to_be_visible()
    await page.emulate_media(color_scheme="dark")
    await accessible(page)
    for view in ("metrics", "status", "models", "devices", "fleet"):
        await page.set_viewport_size(DESK)
        await page.goto(f"{page.url.partition('#')[0]}#{view}")
        await expect(page.locator(f"nav a[href='#{view}']")).to_have_attribute("aria-current", "page")
        await fits(page)


async def test_quantiles_are_those_of_the_buckets(page: Page) -> None:
    buckets = [("0.1", 5), ("0.2", 15), ("0.4", 20), ("+Inf", 20)]
    lines = [f'x_bucket{{mode="{mode}",le="{le}"}} {count}' for le, count in buckets for mode in ("a", "b")]
    found = await page.evaluate(
        """async ([text, shares]) => {
          const { quantile, read } = await import("/page/metrics.js");
          return shares.map((share) => quantile({ at_s: 0, series: read(text) }, "x", share));
        }""",
        ["\n".join(["# HELP x of a", *lines]), [0.25, 0.5, 0.875, 1.0]],
    )
    assert found == pytest.approx([0.1, 0.15, 0.3, 0.4])


async def test_the_fleet_stands_on_a_phone(page: Page, backend: NullBackend) -> None:
    await page.set_viewport_size(PHONE)
    await page.get_by_role("link", name="Fleet").click()
    picture = page.locator(".picture")
    await expect(picture).to_be_visible()
    beyond = """(picture) => {
      const frame = picture.getBoundingClientRect();
      return [...picture.querySelectorAll("rect, text")].filter((each) => {
        const { left, right } = each.getBoundingClientRect();
        return left < frame.left || right > frame.right;
      }).length;
    }"""
    assert await picture.evaluate(beyond) == 0
    cell = page.get_by_role("row", name="verifier 1").get_by_role("cell").first
    box = await cell.bounding_box()
    assert box is not None
    assert box["x"] + box["width"] <= PHONE["width"]
    await fits(page)
