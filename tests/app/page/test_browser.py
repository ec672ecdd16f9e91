"""The page in a real browser: Debian's Chromium, or the one that `playwright install chromium` brings."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import pytest
from playwright.async_api import BrowserContext, Page, expect
from starlette.types import Send

from tandem.app.api.http import kept_streams
from tandem.app.api.http.settings import ApiSettings
from tandem.deployments.access.keys import Role
from tandem.deployments.request.job import Move
from tandem.deployments.request.tokenlog import Origin
from tandem.deployments.request.under_way import UnderWay
from tandem.engine.base import EngineStopped
from tandem.policies.reader.quality import buffers, stall_s
from tandem.policies.routing.collaboration import Reason
from tandem.policies.routing.objectives import OBJECTIVES, Candidate, Leaves
from tests.app.api.null_backend import NullBackend, times
from tests.app.api.stats.test_why import EXPECTED, FORECAST
from tests.app.page.pictures import take
from tests.app.page.weight import weigh
from tests.app.page.window import PHONE, SAYS, accessible, ask, fits, opened
from tests.cluster.proxy import proxy_to

pytestmark = pytest.mark.slow

MOST_BYTES = 200_000
SOON_MS = 1000.0
HARD = [
    "See https://example.org/a?b=c&d=e and <https://example.org> or www.example.org/x_y_z, mail me@example.org.",
    "a_b_c __bold__ *it* **bo*th*** ~~gone~~ `co de` \\*no\\* &amp; &copy; &nope; 2 < 3 > 1",
    "- [ ] open\n- [x] done\n  - deeper\n\n> said *so*\n> and\n\n***\n\nTitle\n=====\n\n1. one\n2. two",
    "| a | b |\n|:--|--:|\n| *x* | `y` |\n\n```js\nlet a = 1; // **no**\n```\n\n    indented code\n",
    '[a link](https://example.org/x_y "a title") ![alt text](https://example.org/i.png) [ref][r]\n\n[r]: https://example.org/r',
    "# On *b* and **bold** words\n\n- a `code` here\n- and ~~there~~ it is\n\n> a\n> quote _in_ it\n\n***both***",
    "Zürich 🗼 has é, e\u0301 and \ue000 in it; <b>no bold</b> <!-- none --> 日本語です。",
]
"""Markdown that a mark in the wrong place would change."""


async def test_an_answer_shows_who_wrote_it_and_when(page: Page) -> None:
    await page.get_by_label("Mode", exact=True).select_option("race")
    await page.get_by_label("Reading speed").fill("5")
    await ask(page)
    answer = page.get_by_role("region", name="Answer in mode race")
    await expect(answer.get_by_role("button", name="Copy")).to_be_visible()
    text = answer.locator(".text")
    await expect(text.get_by_role("heading", name="Two towns")).to_be_visible()
    await expect(text.locator("ol li")).to_have_text(["first the river", "then the hill"])
    await expect(text.locator("pre code")).to_have_text('print("a < b & c")\n')
    link = text.get_by_role("link", name="Elm")
    await expect(link).to_have_attribute("href", "https://example.org/elm?a=1&b=2")
    await expect(text.locator("strong .from-device")).to_have_text("bridge")
    assert SAYS[:38].endswith("joins `Marw")
    await expect(text.locator("p code .from-device")).to_have_text("Marw")
    await expect(text.locator("p code .from-cloud")).to_have_text("orth")
    await expect(text.locator(".handed")).to_have_text("orth")
    await expect(text.locator(".handed")).to_have_attribute("title", "cloud, handed over from device")
    await expect(answer.get_by_role("img", name="Handed over from device to cloud")).to_be_visible()
    await expect(answer.locator("figcaption")).to_contain_text("in 2 rounds of drafts.")
    await expect(answer.locator("figcaption")).to_contain_text("At a reading speed of 5 tokens/s the reader ")
    await expect(answer.locator("figcaption")).to_contain_text("By this browser's clock: first token after ")
    await expect(answer.locator("dl").first).to_contain_text("first token, server's clock")
    await expect(answer.locator("dl").first).to_contain_text(f"tokens{len(SAYS) + 1}")
    await expect(page.get_by_role("status")).to_have_text("The answer is complete.")


async def test_origins_change_nothing_of_the_text(page: Page) -> None:
    """Wherever runs end, the same elements have the same words, and every letter has its own colour:
    where all letters of the source are shown, each origin has those that the source has of it."""
    wrong, whole = await page.evaluate(
        """async ([texts, seeds]) => {
          const { rendered } = await import("/page/markdown.js");
          const bare = (nodes) => {
            const holder = document.createElement("div");
            holder.append(nodes);
            for (const span of holder.querySelectorAll("span")) span.replaceWith(...span.childNodes);
            holder.normalize();
            return holder.cloneNode(true);
          };
          const only = (said) => said.replace(/[^\\p{L}]/gu, "");
          const letters = (shown, runs, text, wrong) => {
            const all = [...text];
            const source = { "from-cloud": "", "from-draft": "", "from-device": "" };
            const seen = { ...source };
            for (const [origin, length] of runs) source[`from-${origin}`] += all.splice(0, length).join("");
            for (const [origin, said] of shown) seen[origin] += said;
            for (const origin in source) {
              const [a, b] = [only(source[origin]), only(seen[origin])];
              if (a !== b) wrong.push([origin, a, b]);
            }
          };
          const [wrong, whole] = [[], new Set()];
          for (const text of texts) {
            const length = [...text].length;
            const plain = bare(rendered(text, [["cloud", length]]));
            if (only(plain.textContent) === only(text)) whole.add(text);
            for (const seed of seeds) {
              let left = length, state = seed;
              const runs = [];
              while (left > 0) {
                state = (state * 1103515245 + 12345) % 2147483648;
                const part = Math.min(left, 1 + (state >> 8) % 9);
                runs.push([["cloud", "draft", "device"][state % 3], part]);
                left -= part;
              }
              const nodes = rendered(text, runs);
              const shown = [...nodes.querySelectorAll("span")].map((span) => [span.classList[0], span.textContent]);
              if (whole.has(text)) letters(shown, runs, text, wrong);
              if (!bare(nodes).isEqualNode(plain)) wrong.push(["elements", text, runs]);
            }
          }
          return [wrong, whole.size];
        }""",
        [[SAYS, *HARD], list(range(1, 60))],
    )
    assert wrong == []
    assert whole >= 3


async def test_thoughts_have_no_part_in_the_colours_of_the_answer(page: Page) -> None:
    chunks = [
        ({"reasoning_content": "hm"}, [["draft", 9]]),  # with the marks around
        ({"reasoning_content": ".", "content": "So"}, [["draft", 10], ["cloud", 2]]),
        ({"content": " 🗼!"}, [["cloud", 1], ["device", 2]]),
    ]
    found = await page.evaluate(
        """async (chunks) => {
          const { take, unanswered } = await import("/page/answer.js");
          const answer = unanswered("", "m", 0);
          for (const [delta, origins] of chunks) {
            take(answer, { choices: [{ delta, finish_reason: null }], tandem: { origins } }, 0);
          }
          return [answer.text, answer.thoughts, answer.runs];
        }""",
        chunks,
    )
    assert found == ["So 🗼!", "hm.", [["cloud", 3], ["device", 2]]]


async def test_what_a_model_writes_is_never_run(page: Page) -> None:
    await ask(page)
    await expect(page.locator(".text")).to_contain_text("<img src=x onerror=")
    assert await page.locator(".text img").count() == 0
    assert await page.title() == "Tandem"


async def test_stop_ends_the_work(page: Page, backend: NullBackend) -> None:
    backend.hold_after = 30
    await ask(page)
    await times(1, backend.held)
    await expect(page.locator(".text")).to_contain_text("A bri")
    await page.keyboard.press("Escape")
    await times(1, backend.closed)
    await expect(page.get_by_text("You stopped this answer.")).to_be_visible()
    await expect(page.get_by_role("button", name="Send")).to_be_visible()
    await expect(page.locator(".sums")).to_contain_text("without an unfinished answer")


async def test_what_came_before_the_page_was_left_is_kept(page: Page, backend: NullBackend) -> None:
    backend.hold_after = 30
    await ask(page, "First?")
    await times(1, backend.held)
    await expect(page.locator(".text")).to_contain_text("A bri")
    await page.reload()
    await times(1, backend.closed)
    await page.get_by_role("button", name="First?", exact=True).click()
    await expect(page.locator(".answer.stopped .text")).to_contain_text("A bri")


async def test_signs_of_life_are_no_events(
    page: Page, backend: NullBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = []

    async def counted(send: Send, piece: bytes) -> None:
        sent.append(piece)
        await send_piece(send, piece)

    send_piece = kept_streams._send_piece
    monkeypatch.setattr(kept_streams, "_send_piece", counted)
    monkeypatch.setattr(kept_streams, "KEEP_ALIVE_S", 0.01)
    backend.hold_after = 30
    await ask(page)
    await times(1, backend.held)
    while sent.count(kept_streams._KEEP_ALIVE) < 5:  # noqa: ASYNC110 (the server has no such event)
        await asyncio.sleep(0.01)
    backend.go.set()
    await expect(page.locator(".answer.done")).to_be_visible()
    assert await page.get_by_text("reconnected").count() == 0


@pytest.mark.parametrize("how", ["reset", "end", "silent"])
async def test_an_answer_outlives_its_connection(
    browser: BrowserContext, address: str, backend: NullBackend, how: str
) -> None:
    backend.hold_after = 30
    async with proxy_to(address.removeprefix("http://")) as proxy:
        page = await opened(browser, f"http://{proxy.address}")
        await ask(page)
        await times(1, backend.held)
        await expect(page.locator(".text")).to_contain_text("A bri")
        proxy.refusing = True
        proxy.cut(how)
        await expect(page.get_by_text("reconnected")).to_be_visible(timeout=30_000)
        backend.go.set()
        proxy.refusing = False
        # idle connections of the browser's may be silent, too, each for two seconds
        await expect(page.locator(".answer.done")).to_be_visible(timeout=30_000)
        await expect(page.locator(".text ol li")).to_have_text(["first the river", "then the hill"])
        await expect(page.locator("dl").first).to_contain_text(f"tokens{len(SAYS) + 1}")
        await page.close()
    assert len(backend.jobs) == 1


async def test_a_failure_is_told_beside_what_came(page: Page, backend: NullBackend) -> None:
    backend.fail_after = (30, EngineStopped("the last verifier is gone"))
    await ask(page)
    await expect(page.locator(".error")).to_have_text("the last verifier is gone")
    await expect(page.locator(".text")).to_contain_text("A bri")
    backend.fail_after = None
    await page.get_by_role("button", name="Answer again").click()
    await expect(page.locator(".text")).to_contain_text("Done.")
    assert await page.locator(".answer").count() == 1


@pytest.mark.parametrize("rate", [5.0, 40.0])
async def test_the_time_line_says_what_the_statistics_say(page: Page, rate: float) -> None:
    """Stalls and the fullest buffer, of groups of tokens that come at random."""
    draw = random.Random(rate)
    for _ in range(20):
        gaps = [draw.choice([0.0, 0.01, 0.4, 1.5]) for _ in range(30)]
        groups = [draw.randint(1, 6) for _ in gaps]
        arrivals = [
            {"at_s": at_s, "tokens": tokens, "runs": [["cloud", tokens]]}
            for at_s, tokens in zip(accumulate(gaps, initial=0.2), groups, strict=False)
        ]
        found = await page.evaluate(
            "async ([arrivals, rate]) => (await import('/page/timeline.js')).course(arrivals, rate)",
            [arrivals, rate],
        )
        times_s = [each["at_s"] for each in arrivals for _ in range(each["tokens"])]
        waited = sum(stall["to_s"] - stall["from_s"] for stall in found["stalls"])
        assert waited == pytest.approx(stall_s(times_s, rate), abs=0.001 * len(gaps))
        # between the arrivals of a group nothing is read
        last = [times_s.index(at_s) + times_s.count(at_s) - 1 for at_s in dict.fromkeys(times_s)]
        assert found["buffer"] == buffers(times_s, rate)[last].max()


async def test_a_devices_own_page_says_what_leaves_it(
    page: Page, backend: NullBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ready() -> dict[str, object]:
        return {"device": "pixel-1", "cloud": False, "split": True}

    monkeypatch.setattr(backend, "ready", ready)
    await page.reload()
    await expect(page.locator(".whose")).to_contain_text("the page of the device pixel-1 itself")
    await expect(page.locator(".whose")).to_contain_text(
        "Modes “device” and “split” keep your text on the device"
    )
    await expect(page.locator(".top")).to_contain_text("device pixel-1")


async def test_what_is_missing_is_told_until_it_is_there(page: Page, backend: NullBackend) -> None:
    backend.missing = ["no verifier is up"]
    await page.reload()
    await expect(page.get_by_text("The server is not ready: no verifier is up.")).to_be_visible()
    backend.missing = []
    await expect(page.get_by_text("The server is not ready")).to_be_hidden(timeout=20_000)


async def test_what_was_chosen_and_is_gone_is_left_to_the_server(page: Page, backend: NullBackend) -> None:
    await page.get_by_label("Device", exact=True).select_option("pixel-1")
    await page.get_by_label("Mode", exact=True).select_option("race")
    kept = "{...JSON.parse(localStorage['tandem.choices']), device: 'gone', mode: 'warp'}"
    await page.evaluate(f"localStorage['tandem.choices'] = JSON.stringify({kept})")
    await page.reload()
    await ask(page)
    await expect(page.locator(".answer.done")).to_be_visible()
    assert [(job.mode, job.device) for job in backend.jobs] == [(None, None)]


async def test_why_the_server_chose_a_mode(page: Page, backend: NullBackend) -> None:
    reason = Reason(2e-3, Candidate("cloud", None, EXPECTED), 3e-3, candidates=4)
    backend.forecast = FORECAST._replace(reason=reason)
    backend.weighs = ["balanced", "fast"]
    await page.reload()
    await page.get_by_label("In auto, prefer").select_option("fast")
    await page.get_by_label("In auto, may leave the device").select_option("hidden_states")
    await ask(page)
    mode = page.get_by_label("Mode", exact=True)
    await expect(mode.locator("option").first).to_have_text("auto")
    await expect(page.locator(".answer .mode")).to_have_text("auto: cloud")
    await expect(page.locator(".another")).to_contain_text(
        "The next best choice, cloud, would have taken about"
    )
    await page.get_by_text("Why device with phone").click()
    table = page.get_by_role("table")
    await expect(table.get_by_role("columnheader", name="next best: cloud")).to_be_visible()
    await expect(table.get_by_role("row", name="first token")).to_contain_text("500 ms (")
    await expect(page.locator(".why")).to_contain_text("The next best looked worse by 1000 µ$")
    (job,) = backend.jobs
    assert job.objective == replace(OBJECTIVES["fast"], privacy=Leaves.HIDDEN_STATES)
    await accessible(page)


async def test_why_an_answer_moved(page: Page, backend: NullBackend) -> None:
    backend.moves = [Move(12, "lost", "drafter"), Move(1, "full", "verifier"), Move(30, "lost", "drafter")]
    await ask(page)
    await expect(page.locator(".moved")).to_have_text(
        [
            "This answer moved 2 times, first after 12 tokens: the drafter was lost.",
            "This answer moved after 1 token: the verifier had no room.",
        ]
    )


async def test_what_was_replaced_is_told_where_no_mode_was_compared(page: Page, backend: NullBackend) -> None:
    backend.api = ApiSettings(privacy="replaced")
    await ask(page, "Write to Anna Schmidt, please.")
    await expect(page.locator(".answer.done")).to_be_visible()
    note = page.get_by_text("Private details replaced before sending")
    await expect(note).to_contain_text("name 2×")
    await expect(page.locator(".why")).to_have_count(0)


async def test_a_key_is_asked_for(page: Page, backend: NullBackend) -> None:
    _, secret = await backend.treasury.make("ada", Role.OPERATOR, {})
    await page.reload()
    alert = page.get_by_role("alert")
    await expect(alert).to_contain_text("needs an API key")
    await accessible(page)
    await alert.get_by_label("API key").fill("wrong")
    await page.keyboard.press("Enter")
    await expect(alert).to_contain_text("The server refused this key")
    await alert.get_by_label("API key").fill(secret)
    await page.keyboard.press("Enter")
    await expect(alert).to_be_hidden()
    await ask(page)
    await expect(page.locator(".answer.done")).to_be_visible()


async def test_conversations_are_kept_and_two_tabs_agree(
    page: Page, browser: BrowserContext, address: str, backend: NullBackend
) -> None:
    await ask(page, "First?")
    await expect(page.locator(".answer.done")).to_be_visible()
    other = await opened(browser, address)
    await other.get_by_role("button", name="First?", exact=True).click()
    await expect(other.locator(".answer.done .text")).to_contain_text("Done.")
    await ask(other, "Second?")
    await expect(other.locator(".answer.done")).to_have_count(2)
    await expect(page.locator(".answer.done")).to_have_count(2)
    said = [backend.tokenizer("null").decode(job.prompt) for job in backend.jobs]
    assert "Done." in said[1]
    await page.get_by_role("button", name="Edit question 1").click()
    await page.get_by_label("Change question 1").fill("Third?")
    await page.get_by_role("button", name="Ask again").click()
    await expect(page.locator(".question p")).to_have_text(["Third?"])
    await page.get_by_role("button", name="Delete: Third?").click()
    await page.reload()
    await expect(page.locator(".list li")).to_have_count(0)


async def test_two_modes_side_by_side(page: Page, backend: NullBackend) -> None:
    await page.get_by_label("Mode", exact=True).select_option("cloud")
    await page.get_by_label("Compare with a second mode").check()
    await page.get_by_label("Second mode", exact=True).select_option("speculative")
    await ask(page)
    await expect(page.locator(".answer.done")).to_have_count(2)
    assert {job.mode for job in backend.jobs} == {"cloud", "speculative"}
    left, right = [await page.locator(".answer").nth(i).bounding_box() for i in range(2)]
    assert left is not None
    assert right is not None
    assert left["y"] == right["y"]
    await page.get_by_role("radio", name="continue with this answer").nth(1).check()
    await accessible(page)


async def test_a_request_is_drawn_as_it_travels(page: Page, backend: NullBackend) -> None:
    backend.hold_after = 30
    await page.get_by_label("Mode", exact=True).select_option("race")
    await ask(page)
    await times(1, backend.held)
    way = page.get_by_role("img", name="30 tokens received, the last from device.")
    await expect(way).to_be_visible()
    await expect(way.locator("line.lit")).to_have_count(2)  # the reader's, and the device's
    await accessible(page)
    await page.emulate_media(reduced_motion="reduce")
    style = "element => getComputedStyle(element).animationName"
    assert await way.locator("line.lit").first.evaluate(style) == "none"
    backend.hold_after = 60
    backend.go.set()
    await expect(page.locator(".answer.done")).to_be_visible()
    await expect(page.locator(".journey")).to_have_count(0)


async def test_pictures_can_be_taken(
    browser: BrowserContext, address: str, backend: NullBackend, tmp_path: Path
) -> None:
    backend.working = [UnderWay(7, "ada", "race", {"target": "verifier 1"}, 12, "device")]
    backend.origins["sketch"] = (Origin.CLOUD, Origin.EXPANSION)
    assert browser.browser is not None
    found = await take(browser.browser, address, tmp_path)
    assert all(path.stat().st_size > 5_000 for path in found)


@pytest.mark.parametrize("colours", ["light", "dark"])
async def test_on_a_phone_and_for_a_screen_reader(
    browser: BrowserContext, address: str, colours: str
) -> None:
    page = await opened(browser, address, PHONE)
    await page.get_by_label("Colour scheme").select_option(colours)
    await accessible(page)
    await page.get_by_text("Settings").click()
    await page.get_by_label("Mode", exact=True).select_option("race")
    await page.get_by_text("More", exact=True).click()
    await ask(page)
    await expect(page.locator(".answer.done")).to_be_visible()
    await page.get_by_text("All figures").click()
    await fits(page)


async def test_what_was_chosen_goes_to_the_server(page: Page, backend: NullBackend) -> None:
    await page.get_by_label("Device", exact=True).select_option("pixel-1")
    await page.get_by_label("Mode", exact=True).select_option("race")
    await page.get_by_label("Reading speed").fill("40")
    await page.get_by_label("Send no faster than I read").check()
    await page.get_by_text("More", exact=True).click()
    await page.get_by_label("Race budget").fill("0.25")
    await page.get_by_label("Longest answer").fill("5")
    await page.get_by_label("Temperature").fill("0.5")
    await page.get_by_label("System message").fill("Be brief")
    await page.keyboard.press("Tab")
    await page.reload()  # choices are kept
    await ask(page)
    await expect(page.get_by_text("The answer ends here because")).to_be_visible()
    (job,) = backend.jobs
    assert (job.mode, job.device, job.budget) == ("race", "pixel-1", 0.25)
    sampling = job.sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.reader_rate) == (5, 0.5, 40.0)
    assert backend.tokenizer("null").decode(job.prompt).strip().startswith("Be brief")


async def test_keys_are_enough(page: Page, backend: NullBackend) -> None:
    await page.keyboard.press("Tab")
    await expect(page.get_by_role("link", name="To the question")).to_be_focused()
    await page.keyboard.press("/")
    question = page.get_by_label("Question", exact=True)
    await expect(question).to_be_focused()
    await page.keyboard.type("One/two")
    await page.keyboard.press("Shift+Enter")
    await page.keyboard.type("Three")
    await page.keyboard.press("Enter")
    await expect(page.locator(".question p")).to_have_text("One/two\nThree")
    await expect(page.locator(".answer.done")).to_be_visible()
    await expect(question).to_be_focused()


async def test_an_answer_is_copied_as_it_was_written(page: Page, browser: BrowserContext) -> None:
    await browser.grant_permissions(["clipboard-read", "clipboard-write"])
    await ask(page)
    await page.get_by_role("button", name="Copy").click()
    await expect(page.get_by_role("status")).to_have_text("Copied.")
    assert await page.evaluate("navigator.clipboard.readText()") == SAYS


@pytest.mark.alone
async def test_it_is_light_and_soon_seen(browser: BrowserContext, address: str) -> None:
    assert browser.browser is not None
    found = await weigh(browser.browser, address)
    print(found)
    assert found.compressed_bytes <= MOST_BYTES
    assert found.first_paint_ms[0] <= SOON_MS
