"""The console goes on after its gateway was killed, without a lost or a doubled word."""

import asyncio
import contextlib
from pathlib import Path

import httpx
import pytest
from playwright.async_api import expect

from baton.starter.server.embedded import EmbeddedServer
from baton.testing import Reply
from tests.harness.browser import UNREACHABLE, open_page, running_browser
from tests.harness.environment import Environment, agent
from tests.harness.killable_gateways import GatewayProcess
from tests.harness.ports import own_port
from tests.harness.processes import process_env

WORDS = " ".join(f"word{number}" for number in range(400))

WATCH = """words => {
  window.wrong = [];
  new MutationObserver(() => {
    for (const said of document.querySelectorAll(".said > .words")) {
      if (!words.startsWith(said.textContent)) window.wrong.push(said.textContent);
    }
  }).observe(document.body, { subtree: true, childList: true, characterData: true });
}"""
"""Notes each text of a speaker that is not the beginning of the whole one."""


async def served(gateway: GatewayProcess) -> None:
    """Waits until a gateway responds."""

    async with httpx.AsyncClient(base_url=gateway.url, timeout=60) as http:
        while True:
            with contextlib.suppress(httpx.TransportError):
                if (await http.get("/targets")).json().get("targets"):
                    return
            await asyncio.sleep(0.05)


@pytest.mark.slow
async def test_a_page_goes_on_after_its_gateway_was_killed(
    env: Environment, server: EmbeddedServer, tmp_path: Path
) -> None:
    async with env.with_manifests([agent("one")]) as other, running_browser() as browser:
        other.answer = lambda _: Reply(text=WORDS, pause=0.1, held=True)
        gateway = GatewayProcess(
            process_env(**other.worker_env, TEMPORAL_ADDRESS=server.address), own_port(), tmp_path / "gateway.log"
        )
        gateway.start()
        try:
            await served(gateway)
            expected = [UNREACHABLE, 401, 503]
            async with open_page(browser, f"{gateway.url}/#/chat/agent/one", expects=expected) as page:
                await page.evaluate(WATCH, WORDS)
                await page.get_by_label("Your message").fill("Speak.")
                await page.get_by_role("button", name="Send").click()
                await expect(page.locator(".said")).to_contain_text("word20 ", timeout=30_000)
                gateway.kill()
                gateway.start()
                await served(gateway)
                other.model.release()
                await expect(page.locator(".said > .words")).to_have_text(WORDS, timeout=60_000)
                assert await page.evaluate("window.wrong") == []
                assert len(other.model.requests) == 1
        finally:
            gateway.kill()
