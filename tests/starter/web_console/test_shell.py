"""The layout of the console in a browser: its pages, the entry of a key, and its errors."""

from pathlib import Path

import pytest
from playwright.async_api import Browser, expect

from tests.harness.browser import open_page
from tests.harness.environment import Environment, line
from tests.harness.gateway import GatewayServer, key_file

pytestmark = pytest.mark.full


async def test_every_page_opens_without_an_error(browser: Browser, gateway: GatewayServer) -> None:
    async with open_page(browser, gateway.url) as page:
        for link in ("Teams", "Start a run", "Runs"):
            await page.get_by_role("navigation").get_by_role("link", name=link, exact=True).click()
            await expect(page.locator("main")).to_be_focused()
            await expect(page.get_by_role("navigation").locator("[aria-current=page]")).to_have_text(link)


async def test_a_key_is_asked_for_once_and_used_for_all(
    browser: Browser, served_env: Environment, tmp_path: Path
) -> None:
    path, keys = key_file(tmp_path, {"ann": {}})
    async with (
        GatewayServer.running(served_env, BATON_GATEWAY_KEYS=str(path)) as gateway,
        open_page(browser, gateway.url, expects=[401]) as page,
    ):
        dialog = page.get_by_role("dialog")
        await expect(dialog.get_by_label("Key")).to_be_focused()
        for _ in range(3):  # a browser closes a dialog at the second Escape, whatever the page says
            await page.keyboard.press("Escape")
        await dialog.get_by_label("Key").fill("bk-wrong")
        await dialog.get_by_role("button", name="Continue").click()
        await expect(dialog).to_contain_text("no longer knows this key")
        await dialog.get_by_label("Key").fill(keys["ann"])
        await dialog.get_by_role("button", name="Continue").click()
        await expect(dialog).to_have_count(0)
        await expect(page.get_by_role("heading", name="Runs", exact=True)).to_be_visible()
        await expect(page.get_by_role("button", name="sign out")).to_contain_text("ann")
        assert keys["ann"] not in page.url
        await page.evaluate("sessionStorage.setItem('baton.chat.agent/one', '{}')")
        await page.get_by_role("button", name="sign out").click()
        await expect(dialog.get_by_label("Key")).to_be_visible()
        assert await page.evaluate("Object.keys(sessionStorage)") == [], "the next person sees no chat of this one"


async def test_a_run_links_to_temporals_ui_and_to_its_trace(browser: Browser, served_env: Environment) -> None:
    links = {
        "BATON_GATEWAY_TEMPORAL_UI_URL": "https://temporal.example",
        "BATON_GATEWAY_TRACE_URL": "https://traces.example/?run={run}",
    }
    served_env.script(line("one", "a"))
    async with GatewayServer.running(served_env, **links) as gateway:
        run = (await gateway.post("/runs", {"target": "agent/one", "input": "Why?"}, 201))["id"]
        await gateway.finished(run)
        async with open_page(browser, f"{gateway.url}/#/runs/{run}") as page:
            namespace = served_env.client.namespace
            address = f"https://temporal.example/namespaces/{namespace}/workflows/{run}"
            await expect(page.get_by_role("link", name="Temporal")).to_have_attribute("href", address)
            trace = page.get_by_role("link", name="Trace")
            await expect(trace).to_have_attribute("href", f"https://traces.example/?run={run}")
