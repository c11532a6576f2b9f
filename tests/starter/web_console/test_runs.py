"""The list of runs in a browser: it is live and filtered, and the page has only the rows in view."""

import asyncio
from datetime import timedelta

import pytest
from playwright.async_api import Browser, Page, Route, expect

from baton.testing import Reply
from tests.harness.browser import open_page
from tests.harness.environment import Environment, line
from tests.harness.gateway import GatewayServer
from tests.starter.web_console.test_acts import ended, served, start

pytestmark = pytest.mark.full

MANY = 300
LIVE = 20

MAX_ROWS = 60
"""The most rows that the page may have at a time, however long the list is."""

WATCH = """() => {
  window.most = 0;
  const count = () => { window.most = Math.max(window.most, document.querySelectorAll(".run-row").length); };
  new MutationObserver(count).observe(document.body, { childList: true, subtree: true });
  count();
}"""


async def rows(page: Page) -> list[str]:
    """The questions of the runs in the page."""
    return await page.locator(".run-link").all_inner_texts()


@pytest.mark.slow
async def test_a_run_appears_moves_on_and_ends_without_a_reload(browser: Browser, env: Environment) -> None:
    async with served(env) as gateway, open_page(browser, gateway.url) as page:
        await expect(page.get_by_role("heading", name="No runs yet")).to_be_visible()
        gateway.env.script(line("one", "a"), line("two", "The answer."))
        run = await start(gateway, "court", "Is the harbour open?")
        row = page.locator(".run-row", has_text="Is the harbour open?")
        await expect(row).to_contain_text("Waits for you")
        await expect(row).to_contain_text("1 wait")
        await expect(row).to_contain_text("court · sequential · by local")
        await expect(page).to_have_title("(1) Runs · Baton")
        await gateway.post(f"/runs/{run}/reply", {"text": "Yes."})
        await ended(gateway, run)
        await expect(row).to_contain_text("Completed")
        await expect(row).to_contain_text("3 turns")
        await expect(page).to_have_title("Runs · Baton")
        await row.get_by_role("link").click()
        await page.wait_for_url(f"**/#/runs/{run}")


async def test_the_list_is_filtered_and_the_address_keeps_the_filters(browser: Browser, env: Environment) -> None:
    async with served(env) as gateway, open_page(browser, gateway.url) as page:
        gateway.env.script(line("one", "a"), line("two", "b"))
        await gateway.finished(await start(gateway, "duo", "Why is the sea salty?"))
        await gateway.finished(await start(gateway, "agent/one", "Who is there?"))
        await expect(page.locator(".run-row")).to_have_count(2)
        await page.get_by_label("Team", exact=True).select_option("duo")
        await expect(page.locator(".run-row")).to_have_count(1)
        assert await rows(page) == ["Why is the sea salty?"]
        assert page.url.endswith("#/?team=duo")
        await page.reload()
        await expect(page.locator(".run-row")).to_have_count(1)
        await page.get_by_label("Text").fill("nothing like this")
        await expect(page.get_by_role("heading", name="No run fits")).to_be_visible()
        await page.get_by_role("link", name="Show all runs").click()
        await expect(page.locator(".run-row")).to_have_count(2)
        for label, value, count in (("Phase", "Completed", 2), ("Phase", "Failed", 0), ("Started", "3600", 0)):
            await page.get_by_label(label, exact=True).select_option(value)
            await expect(page.locator(".run-row")).to_have_count(count)


@pytest.mark.slow
async def test_older_runs_are_read_on_and_stay_in_the_list_while_newer_ones_begin(
    browser: Browser, env: Environment
) -> None:
    async def with_small_pages(route: Route) -> None:
        await route.continue_(url=route.request.url.replace("limit=300", "limit=2"))

    async with served(env) as gateway, open_page(browser, gateway.url) as page:
        gateway.env.answer = lambda _: Reply(text="a")
        for number in range(5):
            await gateway.finished(await start(gateway, "agent/one", f"question {number}"))
        await listed(gateway, 5)
        await page.route("**/runs?*", with_small_pages)
        await page.reload()
        older = page.get_by_role("button", name="Show older")
        for count in (2, 4):
            await expect(page.locator(".run-row")).to_have_count(count)
            await older.click()
        await expect(page.locator(".run-row")).to_have_count(5)
        await expect(older).to_have_count(0)
        for number in (5, 6, 7):
            await start(gateway, "agent/one", f"question {number}")
            await expect(page.locator(".run-row")).to_have_count(number + 1)
        assert await rows(page) == [f"question {number}" for number in range(7, -1, -1)]
        await page.get_by_label("Text").fill("question 1")
        await expect(page.locator(".run-row")).to_have_count(1)


async def test_a_list_whose_newest_page_has_only_new_runs_begins_anew(browser: Browser, env: Environment) -> None:
    may_answer = asyncio.Event()
    may_answer.set()

    async def with_small_pages(route: Route) -> None:
        await may_answer.wait()
        await route.continue_(url=route.request.url.replace("limit=300", "limit=2"))

    async with served(env) as gateway, open_page(browser, gateway.url) as page:
        gateway.env.answer = lambda _: Reply(text="a")
        for number in range(4):
            await gateway.finished(await start(gateway, "agent/one", f"question {number}"))
        await listed(gateway, 4)
        await page.route("**/runs?*", with_small_pages)
        await page.reload()
        older = page.get_by_role("button", name="Show older")
        await older.click()
        await expect(page.locator(".run-row")).to_have_count(4)
        may_answer.clear()  # as while nobody looks at the page
        for number in range(4, 8):
            await gateway.finished(await start(gateway, "agent/one", f"question {number}"))
        await listed(gateway, 8)
        may_answer.set()
        await expect(page.get_by_text("question 7", exact=True)).to_be_visible()
        for count in (2, 4, 6, 8):
            await expect(page.locator(".run-row")).to_have_count(count)
            assert await rows(page) == [f"question {number}" for number in range(7, 7 - count, -1)]
            if count < 8:
                await older.click()


@pytest.mark.slow
async def test_a_run_that_ends_on_an_older_page_ends_in_the_list_and_leaves_a_filtered_one(
    browser: Browser, env: Environment
) -> None:
    async def with_small_pages(route: Route) -> None:
        url = route.request.url
        await route.continue_(url=url if "startedAfter" in url else url.replace("limit=300", "limit=1"))

    async with served(env) as gateway, open_page(browser, gateway.url) as page:
        gateway.env.script(line("one", {"text": "a", "held": True}), line("two", {"text": "b", "held": True}))
        runs = [await start(gateway, f"agent/{name}", f"question of {name}") for name in ("one", "two")]
        while len((await gateway.get("/runs?phase=Running"))["runs"]) < 2:
            await asyncio.sleep(0.1)
        await page.route("**/runs?*", with_small_pages)
        async with open_page(browser, f"{gateway.url}/#/?phase=Running") as filtered:
            await filtered.route("**/runs?*", with_small_pages)
            for each in (page, filtered):
                await each.reload()
                await each.get_by_role("button", name="Show older").click()
                await expect(each.locator(".run-row")).to_have_count(2)
            await gateway.post(f"/runs/{runs[0]}/cancel", {})
            row = page.locator(".run-row", has_text="question of one")
            await expect(row).to_contain_text("Canceled")
            await expect(filtered.locator(".run-row")).to_have_count(1)
        async with page.expect_request(lambda request: "/progress" in request.url and runs[0] not in request.url):
            pass


async def listed(gateway: GatewayServer, count: int) -> None:
    """Waits until so many runs are listed."""
    while len((await gateway.get("/runs"))["runs"]) < count:
        await asyncio.sleep(0.1)


@pytest.mark.slow
async def test_of_three_hundred_live_runs_the_page_has_only_the_rows_in_view(
    browser: Browser, env: Environment
) -> None:
    async with served(env) as gateway:
        gateway.env.script(line("one", {"text": "a", "held": True}), line("two", "b"))
        ids = await start_many(gateway)
        async with open_page(browser, gateway.url) as page:
            await expect(page.locator(f".run-row[aria-setsize='{MANY}']").first).to_be_visible()
            await page.evaluate(WATCH)
            for run in ids:
                await gateway.post(f"/runs/{run}/resume")
            gateway.env.model.release()
            for _ in range(20):
                await page.mouse.wheel(0, 1_500)
                await page.evaluate("() => new Promise(requestAnimationFrame)")
            await expect(page.get_by_text("question 0", exact=True)).to_be_visible()
            last = page.locator(".run-row").last
            assert await last.get_attribute("aria-posinset") == str(MANY)
            await page.mouse.wheel(0, -100_000)
            await expect(page.locator(".run-row .phase-completed").first).to_be_visible()
            assert 0 < await page.evaluate("window.most") < MAX_ROWS


async def start_many(gateway: GatewayServer) -> list[str]:
    """Starts MANY runs: LIVE of them, the newest, are paused in their first turn, and the others begin in an hour.

    Returns the ids of the paused ones, once all are listed.
    """
    env = gateway.env
    for number in range(MANY - LIVE):
        spec = {"input": f"question {number}", "targets": [{"type": "team", "name": "duo"}]}
        await env.client.start_workflow(
            "query",
            {"spec": spec},
            id=f"later-{number}-{env.task_queue}",
            task_queue=env.task_queue,
            start_delay=timedelta(hours=1),
            static_summary=f"question {number}",
        )

    async def paused(number: int) -> str:
        run = await start(gateway, "duo", f"question {number}")
        await gateway.post(f"/runs/{run}/pause")
        return run

    ids = [await paused(number) for number in range(MANY - LIVE, MANY)]
    while len((await gateway.get(f"/runs?limit={MANY}"))["runs"]) < MANY:
        await asyncio.sleep(0.2)
    return ids
