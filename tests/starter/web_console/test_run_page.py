"""The page of a run: its conversation as it comes, however it is made and however long it is."""

import asyncio
import contextlib
import json
import re
from pathlib import Path

import httpx
import pytest
from playwright.async_api import Browser, Page, expect

from baton.testing import Reply, Request
from tests.harness.browser import TIMEOUT_MS, UNREACHABLE, findings, open_page
from tests.harness.continued_runs import count_replies
from tests.harness.environment import Environment, Handle, Json, agent, call, line, team
from tests.harness.gateway import GatewayServer
from tests.harness.killable_gateways import GatewayProcess
from tests.harness.mcp_process import McpServerProcess
from tests.harness.panels import SYNTHESIS, debate, panel, panelist_line, prompt_line, role_member
from tests.harness.ports import own_ports
from tests.harness.processes import process_env
from tests.harness.resets import reset, reset_points
from tests.starter.web_console.conftest import MANIFESTS

pytestmark = pytest.mark.full


def address(gateway: GatewayServer, run: Handle | str, query: str = "") -> str:
    """The address of the page of a run."""
    return f"{gateway.url}/#/runs/{run if isinstance(run, str) else run.id}{query}"


async def texts(page: Page) -> list[str]:
    """The texts that are shown of what was said, in order."""
    return await page.locator(".feed .said").all_inner_texts()


WORDS = " ".join(f"word-{number:03}" for number in range(150))
"""A text that the model sends in some thirty pieces."""


SPEECH = {"text": WORDS, "pause": 0.1, "held": True}
"""A reply whose words come one after the other, the last ones once the model is released."""


@pytest.mark.slow
async def test_words_appear_as_they_come(gateway: GatewayServer, browser: Browser) -> None:
    gateway.env.script(line("one", SPEECH, "3"), line("two", "2", "4"))
    started = await gateway.post("/runs", {"target": "team/duo", "input": "What is new?"}, 201)
    async with open_page(browser, address(gateway, started["id"])) as page:
        await expect(page.locator(".question p")).to_have_text("What is new?")
        live = page.locator(".said.is-live")
        await expect(live).to_contain_text("word-003")
        said = await live.inner_text()
        assert WORDS.startswith(said)
        assert said != WORDS
        gateway.env.model.release()
        await expect(page.locator(".end-note")).to_contain_text("Completed")
        assert await texts(page) == [WORDS, "2", "3", "4"]
        assert await findings(page) == []


async def test_what_a_reset_discards_is_marked_and_is_not_waited_for(env: Environment, browser: Browser) -> None:
    env.script(line("one", "1"), line("two", {"text": "2", "hang": True}))
    async with GatewayServer.running(env) as gateway:
        handle = await env.start_team([agent("one"), agent("two"), team("team", "one", "two", strategy="sequential")])
        async with open_page(browser, address(gateway, handle)) as page:
            await expect(page.locator(".item-turn")).to_have_count(2)
            await expect(page.locator(".waiting-words")).to_have_count(1)
            env.script(line("one", "1 again"), line("two", "2 again"))
            await reset(env, handle, (await reset_points(handle))[0])
            await expect(page.locator(".end-note")).to_contain_text("Completed")
            await expect(page.locator(".is-void.item-turn")).to_have_count(2)
            await expect(page.locator(".speaking")).to_have_count(0)
            await expect(page.locator(".waiting-words")).to_have_count(0)
            assert await page.locator(".item-turn:not(.is-void) .said").all_inner_texts() == ["1 again", "2 again"]
            assert await findings(page) == []


async def hide(page: Page, *, hidden: bool) -> None:
    """Lets a page believe that its tab is hidden, or is seen again: Chromium without a screen hides none."""
    await page.evaluate(
        """hidden => {
            Object.defineProperty(document, "hidden", {configurable: true, get: () => hidden});
            document.dispatchEvent(new Event("visibilitychange"));
        }""",
        hidden,
    )


@pytest.mark.slow
async def test_a_hidden_tab_has_no_stream_and_goes_on_where_it_was(gateway: GatewayServer, browser: Browser) -> None:
    gateway.env.script(line("one", SPEECH, "3"), line("two", "2", "4"))
    started = await gateway.post("/runs", {"target": "team/duo", "input": "What is new?"}, 201)
    async with open_page(browser, address(gateway, started["id"])) as page:
        await expect(page.locator(".said.is-live")).to_contain_text("word-003")
        async with page.expect_event("requestfailed", lambda request: "/events" in request.url):
            await hide(page, hidden=True)
        gateway.env.model.release()
        while (await gateway.get(f"/runs/{started['id']}"))["status"]["phase"] != "Completed":
            await asyncio.sleep(0.1)
        await expect(page.locator(".end-note")).to_have_count(0)
        await hide(page, hidden=False)
        await expect(page.locator(".end-note")).to_contain_text("Completed")
        assert await texts(page) == [WORDS, "2", "3", "4"]
        assert await page.get_by_text("connecting again").count() == 0


async def test_the_words_of_a_failed_attempt_are_taken_back(gateway: GatewayServer, browser: Browser) -> None:
    attempts = 0

    def answer(_: Request) -> Reply:
        nonlocal attempts
        attempts += 1
        return Reply(text=f"WRONG {WORDS}", held=True, cut=600) if attempts == 1 else Reply(text=f"right {attempts}")

    gateway.env.answer = answer
    started = await gateway.post("/runs", {"target": "team/duo", "input": "What is new?"}, 201)
    async with open_page(browser, address(gateway, started["id"])) as page:
        await expect(page.locator(".said.is-live")).to_contain_text("WRONG")
        gateway.env.model.release()
        await expect(page.locator(".end-note")).to_contain_text("Completed")
        assert await texts(page) == ["right 2", "right 3", "right 4", "right 5"]
        await expect(page.locator(".turn").first).to_contain_text(re.compile("attempt"))


@pytest.mark.slow
async def test_no_word_is_lost_or_doubled_if_the_gateway_is_killed(
    env: Environment, browser: Browser, tmp_path: Path
) -> None:
    async with env.with_manifests(MANIFESTS) as served:
        served.script(line("one", SPEECH, "3"), line("two", "2", "4"))
        variables = {**served.worker_env, "BATON_JOURNAL_URL": served.journal_address}
        given = process_env(**variables, TEMPORAL_ADDRESS=env.client.service_client.config.target_host)
        gateway = GatewayProcess(given, own_ports()[0], tmp_path / "gateway.log")
        gateway.start()
        try:
            async with httpx.AsyncClient(base_url=gateway.url, timeout=60) as http:
                started = await answered(http, "/runs", {"target": "team/duo", "input": "Why?"})
            run_address = f"{gateway.url}/#/runs/{started['id']}"
            async with open_page(browser, run_address, expects=[UNREACHABLE]) as page:
                await expect(page.locator(".said.is-live")).to_contain_text("word-003")
                gateway.kill()
                await expect(page.get_by_text("connecting again")).to_be_visible()
                gateway.start()
                note = page.get_by_text("connecting again")
                await expect(note).to_be_hidden(timeout=3 * TIMEOUT_MS)  # the process starts, and the page tries later
                served.model.release()
                await expect(page.locator(".end-note")).to_contain_text("Completed")
                assert await texts(page) == [WORDS, "2", "3", "4"]
        finally:
            gateway.kill()


async def answered(http: httpx.AsyncClient, path: str, body: Json) -> Json:
    """The JSON of the response, once the gateway serves."""
    while True:
        with contextlib.suppress(httpx.TransportError):
            response = await http.post(path, json=body)
            if response.status_code == 201:
                answer: Json = response.json()
                return answer
        await asyncio.sleep(0.05)


async def test_a_nested_team_is_folded_in_the_turn_of_its_team(env: Environment, browser: Browser) -> None:
    env.answer = count_replies
    teams = [agent("one"), agent("two"), team("inner", "one", maxTurns=1), team("team", "inner", "two", maxTurns=1)]
    async with GatewayServer.running(env) as gateway:
        handle = await env.start_query(teams, "team/team")
        await env.status(handle)
        async with open_page(browser, address(gateway, handle)) as page:
            nested = page.locator(".nested")
            await expect(nested.locator("summary").first).to_contain_text("inner")
            await expect(nested.locator(".said")).to_have_count(0)
            await nested.locator("summary").first.click()
            await expect(nested.locator(".said").first).to_have_text("1")


async def test_the_whole_arguments_of_a_tool_and_its_result_are_folded(env: Environment, browser: Browser) -> None:
    message = "x" * 400 + " the end"
    env.script(line("one", call("noop", "I look.", message=message), "Done."))
    async with GatewayServer.running(env) as gateway:
        handle = await env.start_query([agent("one", "noop")], "agent/one")
        await env.status(handle)
        async with open_page(browser, address(gateway, handle)) as page:
            tool = page.locator(".tool")
            await expect(tool).to_contain_text("noop")
            await expect(tool.locator("pre")).to_have_count(0)
            await tool.locator("summary").click()
            await expect(tool.locator("pre").first).to_contain_text(message)
            assert await texts(page) == ["I look.", "Done."]


async def test_what_a_tool_reports_of_its_progress_is_shown_and_the_page_goes_on(
    env: Environment, browser: Browser, tmp_path: Path
) -> None:
    env.script(line("guest", call("test-work", steps=10_000), "Done."))
    guest = agent("guest", tools=[{"name": "test-work", "type": "mcp"}])
    with McpServerProcess("2026", tmp_path).running() as server:
        async with env.with_manifests([guest, server.manifest()]) as served, GatewayServer.running(served) as gateway:
            started = await gateway.post("/runs", {"target": "agent/guest", "input": "Work!"}, 201)
            async with open_page(browser, address(gateway, started["id"])) as page:
                await expect(page.locator(".tool-progress")).to_have_text(re.compile(r"^step \d+ is done"))
                await gateway.post(f"/runs/{started['id']}/terminate", {"reason": "Enough.", "now": True})
                await expect(page.locator(".end-note")).to_contain_text("Enough.")
                await expect(page.locator(".tool-progress")).to_have_count(0)


async def test_a_panel_is_shown_by_rounds(env: Environment, browser: Browser) -> None:
    env.script(SYNTHESIS, *(panelist_line(name, f"{name} first", f"{name} second") for name in "ab"))
    async with GatewayServer.running(env) as gateway:
        handle = await env.start_query([panel(*map(role_member, "ab"), maxRounds=2)], "team/panel")
        await env.status(handle)
        async with open_page(browser, address(gateway, handle)) as page:
            await expect(page.locator(".round")).to_have_text(["Round 1 of 2", "Round 2 of 2"])
            assert await texts(page) == ["a first", "b first", "a second", "b second", "The deliverable."]


async def test_a_debate_has_sides_and_a_verdict(env: Environment, browser: Browser) -> None:
    ada = {"name": "ada", "stance": "Tabs"}
    bob = {"name": "bob", "stance": "Spaces"}
    verdict = {"verdict": "Tabs it is.", "winner": "Tabs", "reasoning": "Ada was never answered."}
    sides = [prompt_line(f"You are {name}, ", f"{name} 1", f"{name} 2") for name in ("ada", "bob")]
    judge = prompt_line("You judge a debate", json.dumps(verdict))
    env.script(*sides, judge, prompt_line("You write what comes out of a debate", "Use tabs."))
    async with GatewayServer.running(env) as gateway:
        handle = await env.start_query([debate(ada, bob)], "team/debate")
        await env.status(handle)
        async with open_page(browser, address(gateway, handle)) as page:
            await expect(page.locator(".turn-head").first).to_contain_text("for “Tabs”")
            await expect(page.locator(".structured-verdict .winner")).to_contain_text("Tabs")
            assert await texts(page) == ["ada 1", "bob 1", "ada 2", "bob 2", "Use tabs."]


async def test_a_pause_a_message_and_the_end_are_in_the_conversation(gateway: GatewayServer, browser: Browser) -> None:
    gateway.env.script(line("one", SPEECH, "3"), line("two", {"text": "late", "delay": 60}))
    started = await gateway.post("/runs", {"target": "team/duo", "input": "Why?"}, 201)
    path = f"/runs/{started['id']}"
    async with open_page(browser, address(gateway, started["id"])) as page:
        await expect(page.locator(".said.is-live")).to_contain_text("word-001")
        await gateway.post(f"{path}/steer", {"text": "Be brief."})
        await gateway.post(f"{path}/pause")
        await expect(page.locator(".wait")).to_contain_text("is paused")
        await expect(page.locator(".bubble")).to_contain_text("Be brief.")
        gateway.env.model.release()
        await gateway.post(f"{path}/resume")
        await expect(page.locator(".bubble")).to_contain_text("to the run, read")
        await gateway.post(f"{path}/terminate", {"reason": "Enough.", "now": True})
        await expect(page.locator(".end-note")).to_contain_text("Enough.")


@pytest.mark.slow
async def test_a_run_goes_on_after_a_turn_in_a_new_run(gateway: GatewayServer, browser: Browser) -> None:
    gateway.env.script(line("one", "a", "c"), line("two", "b", "d"))
    started = await gateway.post("/runs", {"target": "team/duo", "input": "Why?"}, 201)
    async with open_page(browser, address(gateway, started["id"])) as page:
        await expect(page.locator(".end-note")).to_contain_text("Completed")
        await page.get_by_role("button", name="Fork after 1", exact=True).click()
        await page.get_by_label("Say something there").fill("Be brief.")
        await page.get_by_role("button", name="Go on", exact=True).click()
        await expect(page.get_by_text("forked from")).to_contain_text(f"{started['id']} at 1")
        await expect(page.locator(".end-note")).to_contain_text("Completed")
        assert await texts(page) == ["Be brief.", "b", "c", "d"]
        forks = page.locator(".forks")
        await expect(forks.get_by_role("link", name=started["id"], exact=True)).to_be_visible()
        await expect(forks.get_by_text("This run")).to_be_visible()
        await forks.get_by_role("link", name=re.compile("Compare")).click()
        await expect(page.get_by_text("Both runs share their first step. Then")).to_be_visible()
        await expect(page.locator(".steps > li").first).to_contain_text("Be brief.")
        assert await findings(page) == []
    asked = [str(request.body["messages"][-1]["content"]) for request in gateway.env.model.requests]
    assert len(asked) == 4 + 3, "turn 1 is not taken again"
    assert "Be brief." in asked[4]


HOSTILE = (
    "<img src=x onerror=alert(1)><script>document.title='hacked'</script> \u202egnp\u202c \x07 [x](javascript:alert(1))"
)


async def test_hostile_text_is_shown_as_text(env: Environment, browser: Browser) -> None:
    env.script(line("one", HOSTILE))
    async with GatewayServer.running(env) as gateway:
        handle = await env.start_query([agent("one")], "agent/one", input=HOSTILE)
        await env.status(handle)
        async with open_page(browser, address(gateway, handle)) as page:
            await expect(page.locator(".said")).to_contain_text("<img src=x onerror=alert(1)>")
            assert await page.locator(".feed img, .feed script, .question img, .feed a").count() == 0
            assert "hacked" not in await page.title()
            assert "\u202e" not in await page.locator("body").inner_text()


@pytest.mark.slow
async def test_a_long_run_is_scrolled_with_few_elements_in_the_page(
    env_with_short_histories: Environment, browser: Browser
) -> None:
    env = env_with_short_histories
    env.answer = count_replies
    manifests = [agent("one"), agent("two"), team("team", "one", "two", maxTurns=60, onMaxTurns="complete")]
    async with GatewayServer.running(env) as gateway:
        handle = await env.start_query(manifests, "team/team")
        await env.status(handle)
        async with open_page(browser, address(gateway, handle)) as page:
            await expect(page.locator(".feed > article").first).to_be_visible()
            for name in ("one", "two"):  # of the whole run, of which the last turns are loaded
                await expect(page.locator(".members > li", has_text=name)).to_contain_text("60 turns")
            seen = set[str]()
            while "1" not in seen:
                await page.mouse.wheel(0, -3000)
                seen.update(await texts(page))
                assert await page.locator(".feed > article").count() < 60
            await page.goto(address(gateway, handle, "?turn=60"))
            await expect(page.locator(".feed")).to_contain_text("turn 60")
            await expect(page.get_by_label("one, turn 61")).to_be_in_viewport()
            await page.goto(address(gateway, handle, "?turn=999"))
            await expect(page.get_by_text("Turn 999 does not exist, or not yet.")).to_be_visible()


async def test_the_turns_are_walked_with_the_keyboard(gateway: GatewayServer, browser: Browser) -> None:
    gateway.env.script(line("one", "a", "c"), line("two", "b", "d"))
    started = await gateway.post("/runs", {"target": "team/duo", "input": "Why?"}, 201)
    await gateway.finished(started["id"])
    async with open_page(browser, address(gateway, started["id"])) as page:
        await page.locator(".feed > article").first.focus()
        labels = []
        for _ in range(4):
            labels.append(await page.evaluate("document.activeElement.getAttribute('aria-label')"))
            await page.keyboard.press("j")
        await page.keyboard.press("k")
        assert len(set(labels)) > 2
        assert await page.evaluate("document.activeElement.getAttribute('aria-label')") == labels[-1]


@pytest.mark.slow
async def test_lanes_show_each_member_and_child_run(env: Environment, browser: Browser) -> None:
    names = [f"member-{number}" for number in range(24)]
    env.answer = count_replies
    handle = await env.start_query([*map(agent, names), team("team", *names, strategy="parallel")], "team/team")
    await env.status(handle)
    async with (
        GatewayServer.running(env) as gateway,
        open_page(browser, address(gateway, handle, "?view=lanes")) as page,
    ):
        await expect(page.locator(".lane")).to_have_count(24)
        await expect(page.locator(".bar")).to_have_count(24)
        assert await findings(page) == []
        whole = await page.locator(".bar").last.bounding_box()
        await page.get_by_label("Zoom in").click()
        await expect(page.get_by_text(re.compile("24 lanes"))).to_be_visible()
        wide = await page.locator(".bar").last.bounding_box()
        assert whole
        assert wide
        assert wide["width"] > whole["width"]
        await page.get_by_role("button", name="All").click()
        await page.locator(".bar").last.click()
        await expect(page.locator(".feed")).to_be_visible()
