"""Hostile text in the console: it is shown as text, whatever it contains."""

import json
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, expect

from tests.harness.browser import open_page
from tests.harness.environment import Environment, agent, call, line
from tests.harness.gateway import GatewayServer, key_file
from tests.starter.web_console.test_acts import ended, served, start

pytestmark = pytest.mark.full

MARKUP = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script></textarea><b>bold</b>'
LINK = "[click](javascript:window.hacked=1) javascript:window.hacked=1"
CONTROLS = "a\u202egnp.exe\u202c b\u2066c\u2069 \x1b[31mred\x07 \x00\x9b \ufeff"
TEMPLATE = "${window.hacked=1} {{constructor.constructor('window.hacked=1')()}}"
HOSTILE = f"{MARKUP} {LINK} {CONTROLS} {TEMPLATE}"
SENT = HOSTILE.replace("\x00", "")
"""Without the character that no message may have."""

DANGEROUS = ("\u202e", "\u202c", "\u2066", "\u2069", "\x1b", "\x07", "\x9b", "\ufeff")


async def check(page: Page) -> None:
    """Nothing was executed or made an element, and nothing is invisible or turns the direction."""
    assert await page.evaluate("window.hacked") is None
    assert await page.locator("main img[src=x], main script, main b:text('bold')").count() == 0
    text = await page.inner_text("body")
    assert "<script>window.hacked=1</script>" in text
    assert not [character for character in DANGEROUS if character in text]
    assert await page.locator("a[href^='javascript:']").count() == 0


async def test_hostile_text_of_users_and_models_is_shown_as_text(browser: Browser, env: Environment) -> None:
    async with served(env) as gateway:
        gateway.env.script(line("one", SENT), line("buyer", call("send", input=SENT, more={SENT: [SENT]})))
        run = await start(gateway, "agent/one", SENT)
        await ended(gateway, run)
        await start(gateway, "buyer", SENT)
        async with open_page(browser, gateway.url) as page:
            await expect(page.locator(".run-row")).to_have_count(2)
            await expect(page.locator("dl.arguments dd")).to_have_count(2)
            await check(page)
            await page.get_by_role("button", name="Edit the arguments").click()
            await check(page)
        async with open_page(browser, f"{gateway.url}/#/runs/{run}") as page:
            await expect(page.get_by_text("onerror").first).to_be_visible()
            await check(page)


async def test_edited_arguments_keep_the_characters_that_a_page_shows_otherwise(
    browser: Browser, env: Environment
) -> None:
    async with served(env) as gateway, open_page(browser, gateway.url) as page:
        text = "a\r\nb\u202ec"
        gateway.env.script(line("buyer", call("send", input=text, other="x"), "Done."), line("shop", "Sent."))
        run = await start(gateway, "buyer")
        await page.get_by_role("button", name="Edit the arguments").click()
        assert "\\u202e" in await page.get_by_label("input").input_value()
        await page.get_by_label("other").fill("y")
        await page.get_by_role("button", name="Approve with these arguments").click()
        await ended(gateway, run)
        waits = [event["data"] for event in await gateway.finished(run) if event["event"] == "wait.ended"]
        assert json.loads(waits[0]["text"]) == {"input": text, "other": "y"}


@pytest.mark.slow
async def test_hostile_addresses_and_names_of_callers_do_nothing(
    browser: Browser, env: Environment, tmp_path: Path
) -> None:
    path, keys = key_file(tmp_path, {"<b>ann</b>": {}})
    async with (
        env.with_manifests([agent("one")]) as other,
        GatewayServer.running(other, BATON_GATEWAY_KEYS=str(path)) as gateway,
    ):
        for route in (
            f"runs/{MARKUP}",
            "start/%E0%A4%A",
            f"chat/{MARKUP}",
            f"?team={MARKUP}",
            "teams/a/b/c/d",
            "__proto__",
        ):
            async with open_page(
                browser, f"{gateway.url}/#/{route}", key=keys["<b>ann</b>"], expects=[404, 400]
            ) as page:
                await expect(page.get_by_role("button", name="sign out")).to_contain_text("<b>ann</b>")
                assert await page.evaluate("window.hacked") is None
                assert await page.locator("img[src=x]").count() == 0
