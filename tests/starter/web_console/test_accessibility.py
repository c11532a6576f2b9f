"""The console for everybody: by keyboard, on a phone, in the dark, with high contrast, and for screen readers."""

from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, expect

from tests.harness.browser import findings, open_page
from tests.harness.environment import Environment, Json, call, line
from tests.harness.gateway import GatewayServer, key_file
from tests.starter.web_console.test_acts import ended, served, start, waiting

pytestmark = pytest.mark.full

VIEWS: dict[str, Json] = {
    "light": {},
    "dark": {"scheme": "dark"},
    "narrow": {"width": 400, "height": 800},
    "high contrast": {"contrast": "more"},
    "forced colors": {"forced_colors": "active", "scheme": "dark"},
}

LIGHT = "rgb(250, 250, 248)"
DARK = "rgb(18, 19, 23)"

INSIDE = ("DIALOG", "BODY")
"""Where the focus may be while a dialog is open: in it, or in the browser's own controls."""

PATHS = ["", "start/team/duo", "chat/agent/one"]


async def prepared(gateway: GatewayServer) -> str:
    """A run that has ended, and one that waits for approval, whose id is returned."""
    gateway.env.script(line("one", "a"), line("two", "b"), line("buyer", call("send", input="desks", pieces=2)))
    await ended(gateway, await start(gateway, "duo"))
    run = await start(gateway, "buyer", "Buy desks.")
    await waiting(gateway)
    return run


@pytest.mark.slow
@pytest.mark.parametrize("options", VIEWS.values(), ids=VIEWS)
async def test_no_page_has_a_serious_finding_or_scrolls_sideways(
    browser: Browser, env: Environment, options: Json
) -> None:
    async with served(env) as gateway:
        run = await prepared(gateway)
        for path in [*PATHS, f"runs/{run}"]:
            async with open_page(browser, f"{gateway.url}/#/{path}", **options) as page:
                await settled(page, path)
                assert await findings(page, colors="forced_colors" not in options) == [], f"#/{path}"
                wide = await page.evaluate("document.documentElement.scrollWidth - innerWidth")
                assert wide <= 0, f"#/{path} is {wide} px too wide"


@pytest.mark.parametrize("width", [360, 400, 520])
async def test_the_bar_of_a_caller_with_a_key_fits_a_phone(
    browser: Browser, served_env: Environment, tmp_path: Path, width: int
) -> None:
    name = "ann-of-the-office-in-sankt-gallen"
    path, keys = key_file(tmp_path, {name: {}})
    async with (
        GatewayServer.running(served_env, BATON_GATEWAY_KEYS=str(path)) as gateway,
        open_page(browser, gateway.url, key=keys[name], width=width) as page,
    ):
        await expect(page.get_by_role("button", name="sign out")).to_be_in_viewport(ratio=1)
        for link in ("Runs", "Teams", "Evaluation", "Start a run"):
            in_bar = page.get_by_role("navigation").get_by_role("link", name=link, exact=True)
            await expect(in_bar).to_be_in_viewport(ratio=1)
        assert await page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
        assert await findings(page) == []


async def settled(page: Page, path: str) -> None:
    """Waits until a page shows what it has loaded, with its forms open."""
    await expect(page.locator("main h1, main h2").first).to_be_visible()
    if not path:
        await expect(page.get_by_role("button", name="Approve")).to_be_visible()
        await page.get_by_role("button", name="Edit the arguments").click()
    if path.startswith("runs/"):
        await page.get_by_role("button", name="End…").click()
        await expect(page.get_by_role("dialog")).to_be_visible()


async def test_a_call_is_approved_and_a_run_opened_with_the_keyboard_only(browser: Browser, env: Environment) -> None:
    async with served(env) as gateway:
        gateway.env.script(line("buyer", call("send", input="desks"), "Done."), line("shop", "Sent."))
        run = await start(gateway, "buyer", "Buy desks.")
        await waiting(gateway)
        async with open_page(browser, gateway.url) as page:
            await expect(page.get_by_role("button", name="Approve")).to_be_visible()
            await expect(page.locator(".run-row")).to_have_count(1)
            await page.keyboard.press("Tab")
            await expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
            await page.keyboard.press("Enter")
            await expect(page.locator("main")).to_be_focused()
            await tab_to(page, "Approve")
            await page.keyboard.press("Enter")
            await expect(page.get_by_text("Approved.")).to_be_visible()
            await ended(gateway, run)
            await tab_to(page, "Buy desks.")
            await page.keyboard.press("Enter")
            await page.wait_for_url(f"**/#/runs/{run}")
            await expect(page.locator("main")).to_be_focused()


async def tab_to(page: Page, text: str) -> None:
    """Presses the tabulator until the element with that text has the focus, which is visible."""
    for _ in range(60):
        await page.keyboard.press("Tab")
        if await page.evaluate("document.activeElement.innerText?.trim()") == text:
            return
    raise AssertionError(f"{text} can't be reached")


async def test_a_dialog_keeps_the_focus_and_gives_it_back(browser: Browser, env: Environment) -> None:
    async with served(env) as gateway:
        run = await prepared(gateway)
        async with open_page(browser, f"{gateway.url}/#/runs/{run}") as page:
            await page.get_by_role("button", name="End…").press("Enter")
            dialog = page.get_by_role("dialog", name="End this run")
            await expect(dialog).to_be_visible()
            for _ in range(10):
                await page.keyboard.press("Tab")
                assert await page.evaluate("document.activeElement.closest('dialog, body').tagName") in INSIDE
            await page.keyboard.press("Escape")
            await expect(dialog).to_have_count(0)
            await expect(page.get_by_role("button", name="End…")).to_be_focused()


async def test_the_theme_is_switched_and_kept(browser: Browser, gateway: GatewayServer) -> None:
    async with open_page(browser, gateway.url) as page:
        root = page.locator("html")
        await expect(root).to_have_css("background-color", LIGHT)
        for color in (LIGHT, DARK):  # from the system's, which is light, to light, and to dark
            await page.get_by_role("button", name="Theme").click()
            await expect(root).to_have_css("background-color", color)
        await page.reload()
        await expect(root).to_have_css("background-color", DARK)
