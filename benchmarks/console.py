"""Measures how soon the console shows a long run and many runs, and how smoothly they scroll.

``python -m benchmarks.console``: a run of a team is opened in a headless Chromium, at its end and at a turn in its
middle, and is scrolled back. Then the list is opened, and is scrolled while some of its runs begin and end.
"""

import asyncio
import itertools
import time
from datetime import timedelta
from statistics import median
from typing import Any

from playwright.async_api import Browser, Page, expect

from baton.starter.gateway.app import Gateway, create_app
from baton.starter.gateway.server import listen, serving
from benchmarks.environment import Baton, BenchmarkEnvironment
from tests.chaos.report import Report, arguments
from tests.harness.browser import open_page, running_browser

SIZE = 200
"""Characters of a reply."""

WINDOW = 20
"""Messages that a model reads."""

SCROLLS = 60
"""How often the page is scrolled by a screen."""

LIVE = 20
"""Runs that begin and end while the list is scrolled."""

FRAMES = """
([left, by]) => new Promise((resolve) => {
  const times = [];
  const frame = (now) => {
    times.push(now);
    if (left-- > 0) { scrollBy(0, by); requestAnimationFrame(frame); } else resolve(times);
  };
  requestAnimationFrame(frame);
})
"""


WATCH = """
() => {
  window.longest = 0;
  new PerformanceObserver((list) => {
    for (const entry of list.getEntries()) window.longest = Math.max(window.longest, entry.duration);
  }).observe({ type: "longtask" });
}
"""


async def shown(browser: Browser, url: str, page_shows: str) -> float:
    """The seconds from the navigation to the first message."""
    async with open_page(browser, "about:blank") as page:
        began = time.perf_counter()
        await page.goto(url)
        await expect(page.locator(page_shows).first).to_be_visible(timeout=120_000)
        return time.perf_counter() - began


async def scrolled(page: Page) -> tuple[float, float, int]:
    """The median and the longest milliseconds of a frame while it is scrolled, and the elements of the feed."""
    times: list[float] = await page.evaluate(FRAMES, [SCROLLS, -600])
    frames = [after - before for before, after in itertools.pairwise(times)]
    return median(frames), max(frames), await page.locator(".feed > article").count()


async def listed(browser: Browser, baton: Baton, url: str, runs: int) -> dict[str, Any]:
    """A row: the seconds until so many runs are listed, and how the list scrolls while LIVE more begin and end."""
    for number in range(runs - 1):  # the long run is listed, too
        spec = {"input": f"question {number}", "targets": [{"type": "agent", "name": "writer"}]}
        await baton.client.start_workflow(
            "query",
            {"spec": spec},
            id=f"later-{number}",
            task_queue=baton.task_queue,
            start_delay=timedelta(hours=1),
            static_summary=f"question {number}",
        )
    async with open_page(browser, "about:blank") as page:
        began = time.perf_counter()
        await page.goto(url)
        await expect(page.locator(f".run-row[aria-setsize='{runs}']").first).to_be_visible(timeout=60_000)
        row: dict[str, Any] = {"runs": runs, "listed_seconds": round(time.perf_counter() - began, 3)}
        await page.evaluate(WATCH)
        asking = asyncio.gather(*(baton.ask(1, SIZE) for _ in range(LIVE)))
        times: list[float] = []
        while not asking.done():
            times += await page.evaluate(FRAMES, [SCROLLS, 100 if len(times) // SCROLLS % 2 else -100])
        await asking
        frames = [after - before for before, after in itertools.pairwise(times)]
        row |= {"frame_ms": round(median(frames), 1), "frame_ms_most": round(max(frames), 1)}
        return row | {"longest_task_ms": round(await page.evaluate("window.longest"))}


async def main() -> None:
    """Measures and writes the results."""
    given = arguments(__doc__, turns=10_000, rounds=5, runs=300)
    report = Report("console", given)
    async with BenchmarkEnvironment.running() as env, Baton.running(env) as baton, running_browser() as browser:
        run_id = await baton.run_team(given["turns"], SIZE, WINDOW)
        listener = listen("127.0.0.1", 0)
        environ = {"BATON_HOME": str(baton.folder), "BATON_GATEWAY_NAMESPACES": "*"}
        gateway = Gateway.of(env.client, environ)
        async with serving(create_app(gateway), listener, gateway.settings):
            console = f"http://127.0.0.1:{listener.getsockname()[1]}/"
            url = f"{console}#/runs/{run_id}"
            middle = given["turns"] // 2
            places = {"": ".feed .said", f"?turn={middle}": f'article[aria-label$="turn {middle}"]'}
            row: dict[str, Any] = {"turns": given["turns"]}
            for name, (query, element) in zip(("newest", "middle"), places.items(), strict=True):
                seconds = [await shown(browser, f"{url}{query}", element) for _ in range(given["rounds"])]
                row[f"{name}_seconds"] = round(median(seconds), 3)
                row[f"{name}_seconds_most"] = round(max(seconds), 3)
            async with open_page(browser, url) as page:
                await expect(page.locator(".feed .said").first).to_be_visible()
                usual, most, elements = await scrolled(page)
                row |= {"frame_ms": round(usual, 1), "frame_ms_most": round(most, 1), "articles": elements}
            report.row(row)
            report.row(await listed(browser, baton, console, given["runs"]))
    report.write()


if __name__ == "__main__":
    asyncio.run(main())
