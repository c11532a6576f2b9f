"""The pages of teams in a browser: manifests, drawings, versions, differences, and the editor."""

import os
from pathlib import Path
from typing import Literal

import pytest
import yaml
from playwright.async_api import Browser, Page, expect

from tests.harness.browser import findings, open_page
from tests.harness.environment import Environment, Json, agent, manifest, team
from tests.harness.gateway import GatewayServer, key_file, rights

pytestmark = pytest.mark.full


async def shot(page: Page, name: str) -> None:
    """Keeps a picture of a page in the folder BATON_SHOTS, to look at."""
    if folder := os.environ.get("BATON_SHOTS"):
        await page.screenshot(path=Path(folder, f"{name}.png"), full_page=True)


async def write(gateway: GatewayServer, value: Json, version: int) -> None:
    """Writes a version of a manifest into the store."""
    where = f"/manifests/{value['kind'].lower()}/default/{value['metadata']['name']}"
    body = {"text": yaml.safe_dump(value, sort_keys=False), "version": version}
    response = await gateway.http.put(where, json=body)
    assert response.status_code == 200, response.text


CREW = team("crew", "ann", "bob", "three", maxTurns=4, description="Writes the weekly letter, and has it checked.")


async def with_versions(gateway: GatewayServer) -> None:
    """Writes the agents of the team ``crew``, and two versions of it."""
    for name in ("ann", "bob"):
        await write(gateway, agent(name), 0)
    await write(gateway, agent("three", description="The third of them."), 0)
    await write(gateway, CREW, 0)
    await write(gateway, {**CREW, "spec": {**CREW["spec"], "maxTurns": 8}}, 1)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1_280])
async def test_a_team_is_shown_with_its_drawing_versions_and_differences(
    browser: Browser, gateway: GatewayServer, scheme: Literal["light", "dark"], width: int
) -> None:
    await with_versions(gateway)
    async with open_page(browser, f"{gateway.url}/#/teams", scheme=scheme, width=width) as page:
        teams = page.get_by_role("region", name="Teams", exact=True)
        await expect(teams.get_by_role("link")).to_have_text(["crew", "duo"])
        await expect(page.get_by_role("region", name="Agents")).to_contain_text("The third of them.")
        await shot(page, f"teams-{scheme}-{width}")
        assert await findings(page) == []
        await page.get_by_role("link", name="crew").click()
        await expect(page.get_by_role("heading", name="crew")).to_be_visible()
        drawing = page.get_by_role("img", name="crew")
        await expect(drawing.locator("[data-speaker]")).to_have_count(3)
        await expect(page.locator("ins")).to_contain_text("maxTurns: 8")
        await expect(page.locator("del")).to_contain_text("maxTurns: 4")
        await shot(page, f"team-{scheme}-{width}")
        assert await findings(page) == []
        overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert await page.evaluate(overflow) <= 0, "the page itself is not scrolled sideways"
        await page.get_by_role("link", name="Version 1").click()
        await expect(page.get_by_text("This is version 1.")).to_be_visible()
        await expect(page.get_by_label("The manifest as YAML")).to_contain_text("maxTurns: 4")


async def test_a_manifest_is_edited_judged_and_written(browser: Browser, gateway: GatewayServer) -> None:
    await with_versions(gateway)
    async with open_page(browser, f"{gateway.url}/#/teams/default/team/crew") as page:
        await page.get_by_role("link", name="Edit").click()
        area = page.get_by_label("The manifest, as YAML")
        save = page.get_by_role("button", name="Save to the store")
        await expect(page.get_by_text("It can be stored.")).to_be_visible()
        await expect(save).to_be_disabled()
        text = await area.input_value()
        await area.fill(text.replace("name: three", "name: thre"))
        await expect(page.get_by_text("1 error to mend")).to_be_visible()
        await expect(page.get_by_role("status")).to_contain_text("did you mean")
        await expect(save).to_be_disabled()
        await shot(page, "editor-wrong")
        await page.get_by_role("button", name="Line").click()
        assert "thre" in await page.evaluate("getSelection().toString()")
        changed = text.replace("maxTurns: 8", "maxTurns: 9")
        await area.fill("".join(line for line in changed.splitlines(keepends=True) if "name: bob" not in line))
        await expect(page.get_by_role("img", name="crew").locator("[data-speaker]")).to_have_count(2)
        await shot(page, "editor")
        assert await findings(page) == []
        await save.click()
        await expect(page.get_by_role("heading", name="crew", exact=True)).to_be_visible()
        await expect(page.get_by_role("link", name="Version 3")).to_be_visible()
    stored = await gateway.get("/manifests/team/default/crew")
    assert (stored["newest"], yaml.safe_load(stored["text"])["spec"]["maxTurns"]) == (3, 9)


async def test_a_manifest_that_another_has_changed_is_not_overwritten(browser: Browser, gateway: GatewayServer) -> None:
    await with_versions(gateway)
    async with open_page(browser, f"{gateway.url}/#/teams/default/team/crew?edit", expects=[409]) as page:
        area = page.get_by_label("The manifest, as YAML")
        mine = (await area.input_value()).replace("maxTurns: 8", "maxTurns: 5")
        await area.fill(mine)
        await expect(page.get_by_text("It can be stored.")).to_be_visible()
        await write(gateway, {**CREW, "spec": {**CREW["spec"], "maxTurns": 7}}, 2)
        await page.evaluate(
            "document.dispatchEvent(new Event('visibilitychange'))"
        )  # as on the way back from another tab
        await page.get_by_role("button", name="Save to the store").click()
        await expect(page.get_by_role("alert")).to_contain_text("version 3 was written meanwhile")
        assert await area.input_value() == mine


async def test_a_new_agent_is_written(browser: Browser, gateway: GatewayServer) -> None:
    async with open_page(browser, f"{gateway.url}/#/teams") as page:
        await page.get_by_role("link", name="New agent").click()
        area = page.get_by_label("The manifest, as YAML")
        await area.fill((await area.input_value()).replace("my-agent", "scout"))
        await expect(page.get_by_text("It can be stored.")).to_be_visible()
        await page.get_by_role("button", name="Save to the store").click()
        await expect(page.get_by_role("heading", name="scout")).to_be_visible()
        await expect(page.locator("main").get_by_role("link", name="Start a run")).to_have_attribute(
            "href", "#/start/agent/scout"
        )


async def test_a_caller_without_the_right_sees_and_edits_nothing_else(
    browser: Browser, env: Environment, tmp_path: Path
) -> None:
    path, keys = key_file(tmp_path, {"clerk": {"serviceAccount": "clerk"}})
    allowed = rights("clerk", {"resources": ["agents"], "resourceNames": ["one"]})
    async with (
        env.with_manifests([agent("one"), agent("two"), *allowed]) as served,
        GatewayServer.running(served, BATON_GATEWAY_KEYS=str(path)) as gateway,
        open_page(browser, f"{gateway.url}/#/teams", key=keys["clerk"]) as page,
    ):
        await expect(page.locator(".teams-row")).to_have_count(1)
        assert await page.get_by_role("link", name="New").count() == 0
        await page.get_by_role("link", name="one").click()
        await expect(page.get_by_label("The manifest as YAML")).to_contain_text("You are one.")
        assert await page.get_by_role("link", name="Edit").count() == 0


async def test_a_manifest_full_of_markup_is_shown_as_text(browser: Browser, gateway: GatewayServer) -> None:
    hostile = "<img src=x onerror=alert(1)></script><script>alert(2)</script> \u202edlrow"
    members = [{"name": "ann", "as": "first"}, {"name": "bob"}]
    graph = {"edges": [{"from": "first", "to": "bob", "when": "message == '<img src=x onerror=alert(3)>'"}]}
    spec = {"strategy": "graph", "maxTurns": 2, "members": members, "graph": graph, "description": hostile}
    for name in ("ann", "bob"):
        await write(gateway, agent(name), 0)
    await write(gateway, manifest("Team", "hostile", spec), 0)
    async with open_page(browser, f"{gateway.url}/#/teams/default/team/hostile") as page:
        await expect(page.get_by_label("The manifest as YAML")).to_contain_text("<img src=x onerror=alert(1)>")
        await expect(page.locator(".teams-description")).to_have_text(hostile.replace("\u202e", "\ufffd"))
        await expect(page.get_by_role("img", name="hostile")).to_contain_text("<img src=x onerror=alert(3)>")
        assert await page.locator("main img, main script").count() == 0
