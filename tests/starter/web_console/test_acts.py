"""What people do in the console, end to end: a browser, a gateway, a real worker and a real server."""

import asyncio
import base64
import contextlib
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, Route, expect
from pydantic import BaseModel, Field

from tests.harness.browser import open_page
from tests.harness.environment import Environment, Json, agent, call, line, manifest, team
from tests.harness.gateway import GatewayServer
from tests.harness.mcp_process import McpServerProcess

pytestmark = pytest.mark.full

SEND = manifest(
    "Tool",
    "send",
    {
        "type": "agent",
        "agent": {"name": "shop"},
        "approval": {},
        "inputSchema": {"type": "object", "additionalProperties": True},
    },
)
ANN: Json = {"name": "ann", "type": "human", "prompt": "Is it legal?"}
GREETER = {
    "prompt": "You are greeter. Speak {{.language}}.",
    "parameters": [{"name": "language", "valueFrom": {"queryParameterRef": {"name": "language"}}}],
}
MANIFESTS = [
    agent("one"),
    agent("two"),
    agent("buyer", "send"),
    agent("shop"),
    SEND,
    team("duo", "one", "two", strategy="sequential"),
    manifest("Agent", "greeter", GREETER),
    manifest("Team", "court", {"strategy": "sequential", "members": [{"name": "one"}, ANN, {"name": "two"}]}),
]


@contextlib.asynccontextmanager
async def served(env: Environment, *more: Json) -> AsyncIterator[GatewayServer]:
    """A gateway before a worker with MANIFESTS and ``more``."""
    async with env.with_manifests([*MANIFESTS, *more]) as other, GatewayServer.running(other) as gateway:
        yield gateway


async def start(gateway: GatewayServer, target: str, question: str = "Why?", **more: object) -> str:
    """Starts a run over HTTP, and returns its id."""
    run = await gateway.post("/runs", {"target": target, "input": question, **more}, 201)
    return str(run["id"])


async def waiting(gateway: GatewayServer) -> Json:
    """What waits first for a person."""
    while not (found := (await gateway.get("/inbox"))["waiting"]):
        await asyncio.sleep(0.05)
    decision: Json = found[0]["decision"]
    return decision


async def ended(gateway: GatewayServer, run: str) -> Json:
    """The status of a run at its end."""
    await gateway.finished(run)
    status: Json = (await gateway.get(f"/runs/{run}"))["status"]
    return status


def asked(gateway: GatewayServer, name: str) -> list[str]:
    """The last message of each request of an agent."""
    requests = [request.body["messages"] for request in gateway.env.model.requests]
    return [messages[-1]["content"] for messages in requests if f"You are {name}." in messages[0]["content"]]


async def run_of(page: Page) -> str:
    """The id of the run whose page is open."""
    await page.wait_for_url("**/#/runs/*")
    return page.url.rpartition("/")[2]


async def test_a_run_is_started_with_parameters_files_and_limits(
    browser: Browser, env: Environment, tmp_path: Path
) -> None:
    report, note = tmp_path / "report.pdf", tmp_path / "note.txt"
    report.write_bytes(b"%PDF-1.4 tides")
    note.write_text("Tides follow the moon.")
    async with served(env) as gateway, open_page(browser, f"{gateway.url}/#/start") as page:
        gateway.env.script(line("greeter", "Bonjour!"))
        await page.get_by_label("Team or agent").select_option("agent/greeter")
        await page.get_by_label("Parameter language").fill("French")
        await page.get_by_label("Question or task").fill("Greet the harbour.")
        await page.get_by_label("Images and files").set_input_files([report, note])
        await page.get_by_text("Limits and conversation").click()
        await page.get_by_label("Timeout").fill("5m")
        await page.get_by_label("Tokens").fill("9000")
        await page.get_by_role("button", name="Start", exact=True).click()
        status = await ended(gateway, await run_of(page))
        assert status["message"] == "Bonjour!"
        assert status["budget"]["limits"]["tokens"] == 9000
        messages = gateway.env.model.requests[0].body["messages"]
        assert "Speak French." in messages[0]["content"]
        text, file, more = messages[-1]["content"]
        assert (text["text"], more["text"]) == ("Greet the harbour.", "note.txt:\nTides follow the moon.")
        assert base64.b64decode(file["file"]["file_data"].partition(",")[2]) == report.read_bytes()


async def test_a_wrong_value_in_the_start_form_is_explained(browser: Browser, env: Environment) -> None:
    async with served(env) as gateway, open_page(browser, f"{gateway.url}/#/start/team/duo", expects=[400]) as page:
        start_button = page.get_by_role("button", name="Start", exact=True)
        await start_button.click()
        await expect(page.get_by_role("alert")).to_contain_text("Write a question first.")
        await page.get_by_label("Question or task").fill("Why?")
        await page.get_by_text("Limits and conversation").click()
        await page.get_by_label("Timeout").fill("soon")
        await start_button.click()
        await expect(page.get_by_role("alert")).to_contain_text("imeout")
        assert (await gateway.get("/runs"))["runs"] == []


async def test_a_run_is_steered_paused_resumed_and_ended(browser: Browser, env: Environment) -> None:
    async with served(env) as gateway:
        gateway.env.script(line("buyer", call("send", input="desks"), "Done."), line("shop", "Sent."))
        run = await start(gateway, "buyer")
        call_id = (await waiting(gateway))["id"]
        async with open_page(browser, f"{gateway.url}/#/runs/{run}") as page:
            await page.get_by_label("A message into the discussion").fill("Hurry, please.")
            await page.get_by_role("button", name="Send").click()
            await expect(page.get_by_text("The next speaker reads your message.")).to_be_visible()
            await page.get_by_role("button", name="Pause").click()
            await expect(page.get_by_role("button", name="Resume")).to_be_visible()
            assert (await gateway.get(f"/runs/{run}"))["status"]["paused"]
            await page.get_by_role("button", name="Resume").click()
            await expect(page.get_by_role("button", name="Pause")).to_be_visible()
            await page.get_by_role("button", name="End…").click()
            dialog = page.get_by_role("dialog")
            await dialog.get_by_text("Now").click()
            await dialog.get_by_label("Reason").fill("Too late.")
            await dialog.get_by_role("button", name="End the run").click()
            await expect(dialog).to_have_count(0)
        events = {event["event"]: event["data"] for event in await gateway.finished(run)}
        assert events["steered"]["text"] == "Hurry, please."
        assert events["stop.requested"]["reason"] == "Too late."
        assert events["run.ended"]["phase"] == "Completed"
        assert call_id


async def test_a_run_is_canceled_only_after_a_question(browser: Browser, env: Environment) -> None:
    async with served(env) as gateway:
        gateway.env.script(line("one", "a"), line("two", "b"))
        run = await start(gateway, "court")
        await waiting(gateway)
        async with open_page(browser, f"{gateway.url}/#/runs/{run}") as page:
            await page.get_by_role("button", name="Cancel…").click()
            await page.get_by_role("button", name="Keep it running").click()
            await expect(page.get_by_role("button", name="Cancel…")).to_be_focused()
            assert (await gateway.get(f"/runs/{run}"))["status"]["phase"] == "InputRequired"
            await page.get_by_role("button", name="Cancel…").click()
            await page.get_by_role("dialog").get_by_role("button", name="Cancel the run").click()
            assert (await ended(gateway, run))["phase"] == "Canceled"


async def test_a_call_is_approved_with_edited_arguments(browser: Browser, env: Environment) -> None:
    async with served(env) as gateway, open_page(browser, gateway.url) as page:
        arguments: Json = {"input": "12 desks", "pieces": 12, "gift": False, "tags": ["office"]}
        gateway.env.script(line("buyer", call("send", **arguments), "Done."), line("shop", "Sent."))
        run = await start(gateway, "buyer")
        inbox = page.get_by_role("region", name="Waits for you")
        for value in ("12 desks", "12", "false", '["office"]'):
            await expect(inbox.locator("dd").filter(has_text=value.strip("[]")).first).to_be_visible()
        await inbox.get_by_role("button", name="Edit the arguments").click()
        await inbox.get_by_label("input").fill("1 desk")
        await inbox.get_by_label("pieces").fill("1")
        await inbox.get_by_label("gift").check()
        await inbox.get_by_role("button", name="Approve with these arguments").click()
        await expect(inbox.get_by_text("Approved with other arguments.")).to_be_visible()
        assert (await ended(gateway, run))["message"] == "Done."
        assert "1 desk" in asked(gateway, "shop")[0]
        waits = [event["data"] for event in await gateway.finished(run) if event["event"] == "wait.ended"]
        assert json.loads(waits[0]["text"]) == {"input": "1 desk", "pieces": 1, "gift": True, "tags": ["office"]}


async def test_a_call_is_rejected_with_a_reason_that_the_model_reads(browser: Browser, env: Environment) -> None:
    async with served(env) as gateway, open_page(browser, gateway.url) as page:
        gateway.env.script(line("buyer", call("send", input="desks"), "I see."), line("shop", "Sent."))
        run = await start(gateway, "buyer")
        await page.get_by_label("Reason").fill("We have desks.")
        await page.get_by_role("button", name="Reject").click()
        await expect(page.get_by_text("Rejected.")).to_be_visible()
        await ended(gateway, run)
        assert "We have desks." in asked(gateway, "buyer")[-1]
        assert asked(gateway, "shop") == []


async def test_long_arguments_are_shown_whole(browser: Browser, env: Environment) -> None:
    text = f"begin {'long ' * 15_000}end"
    async with served(env) as gateway, open_page(browser, gateway.url) as page:
        gateway.env.script(line("buyer", call("send", input=text), "Done."), line("shop", "Sent."))
        await start(gateway, "buyer")
        shown = page.locator("dl.arguments dd pre")
        await expect(shown).to_have_count(1)
        assert await shown.inner_text() == text
        await expect(page.get_by_role("button", name="Approve")).to_be_visible()


async def test_arguments_that_can_not_be_shown_whole_are_not_approved(browser: Browser, env: Environment) -> None:
    async with served(env) as gateway, open_page(browser, gateway.url) as page:
        gateway.env.script(line("buyer", call("send", input="x" * 100_001), "Done."), line("shop", "Sent."))
        await start(gateway, "buyer")
        await expect(page.get_by_text("they can't be shown whole here")).to_be_visible()
        await expect(page.get_by_role("button", name="Reject")).to_be_visible()
        await expect(page.get_by_role("button", name="Approve")).to_have_count(0)


async def test_a_number_that_a_browser_can_not_hold_reaches_the_tool_unchanged(
    browser: Browser, env: Environment
) -> None:
    async with served(env) as gateway, open_page(browser, gateway.url) as page:
        number = 12345678901234567890
        gateway.env.script(line("buyer", call("send", input="x", order=number), "Done."), line("shop", "Sent."))
        run = await start(gateway, "buyer")
        await expect(page.get_by_text(str(number)).first).to_be_visible()
        await page.get_by_role("button", name="Edit the arguments").click()
        area = page.get_by_label("Arguments as JSON")
        await area.fill((await area.input_value()).replace('"x"', '"y"'))
        await page.get_by_role("button", name="Approve with these arguments").click()
        await ended(gateway, run)
        waits = [event["data"] for event in await gateway.finished(run) if event["event"] == "wait.ended"]
        assert json.loads(waits[0]["text"]) == {"input": "y", "order": number}


async def test_a_question_to_a_member_is_answered(browser: Browser, env: Environment) -> None:
    async with served(env) as gateway, open_page(browser, gateway.url) as page:
        gateway.env.script(line("one", "Let us rent it."), line("two", "Signed."))
        run = await start(gateway, "court")
        await expect(page.get_by_text("Is it legal?").first).to_be_visible()
        await page.get_by_label("Your reply").fill("Yes, if it is dry.")
        await page.get_by_role("button", name="Reply").click()
        await expect(page.get_by_text("Your reply was sent.")).to_be_visible()
        assert (await ended(gateway, run))["message"] == "Signed."
        said = [event["data"]["text"] for event in await gateway.finished(run) if event["event"] == "message"]
        assert "Yes, if it is dry." in said


async def test_a_reply_that_is_half_written_stays_while_its_form_is_folded(browser: Browser, env: Environment) -> None:
    async with served(env) as gateway, open_page(browser, gateway.url) as page:
        gateway.env.script(line("one", "Let us rent it."), line("two", "Signed."))
        await start(gateway, "court")
        await page.get_by_label("Your reply").fill("Yes, if")
        await page.get_by_role("button", name="Fold").click()
        await expect(page.get_by_label("Your reply")).to_have_count(0)
        await page.get_by_role("button", name="Decide").click()
        await expect(page.get_by_label("Your reply")).to_have_value("Yes, if")


async def test_what_was_written_stays_when_another_team_is_chosen(browser: Browser, env: Environment) -> None:
    async with served(env) as gateway, open_page(browser, f"{gateway.url}/#/start/agent/greeter") as page:
        gateway.env.script(line("one", "Hello."))
        await page.get_by_label("Question or task").fill("Who is there?")
        await page.get_by_label("Parameter language").fill("Dutch")
        await page.get_by_label("Team or agent").select_option("agent/one")
        await expect(page).to_have_url(re.compile("#/start/agent/one$"))
        await expect(page.get_by_label("Question or task")).to_have_value("Who is there?")
        await page.get_by_role("button", name="Start", exact=True).click()
        await expect(page.get_by_text("Hello.").first).to_be_visible()
        assert gateway.env.model.requests[-1].body["messages"][-1]["content"] == "Who is there?"


@pytest.mark.slow
async def test_a_member_with_a_schema_replies_in_a_form(browser: Browser, env: Environment) -> None:
    schema = {
        "type": "object",
        "properties": {
            "verdict": {"type": "string", "enum": ["sign", "refuse"]},
            "most": {"type": "integer", "description": "In euros.", "minimum": 0},
            "insured": {"type": "boolean"},
        },
        "required": ["verdict", "most"],
    }
    members = [{"name": "one"}, {**ANN, "outputSchema": schema}]
    typed = manifest("Team", "typed", {"strategy": "sequential", "members": members})
    async with served(env, typed) as gateway, open_page(browser, gateway.url, expects=[409]) as page:
        gateway.env.script(line("one", "Let us rent it."))
        run = await start(gateway, "typed")
        await expect(page.get_by_label("verdict")).to_be_visible()
        await page.get_by_role("button", name="Reply").click()
        await expect(page.get_by_role("alert")).to_contain_text("required property")
        await page.get_by_label("verdict").select_option("sign")
        await page.get_by_label("most").fill("1200")
        await page.get_by_role("button", name="Reply").click()
        await expect(page.get_by_text("Your reply was sent.")).to_be_visible()
        message = (await ended(gateway, run))["message"]
        assert json.loads(message) == {"verdict": "sign", "most": 1200, "insured": False}


class Address(BaseModel):
    """Where somebody lives."""

    city: str
    zip: str | None


class Line(BaseModel):
    """A part of an offer, which may have parts of its own."""

    text: str
    parts: list["Line"] = []


class Offer(BaseModel):
    """A reply as programs have it: with references, optional values and lists."""

    address: Address = Field(description="x" * 3_000)
    price: float | None
    note: str | None = None
    lines: list[Line]


async def test_the_form_of_a_long_schema_follows_its_references_and_may_be_written_as_json(
    browser: Browser, env: Environment
) -> None:
    members = [{**ANN, "outputSchema": Offer.model_json_schema()}]
    typed = manifest("Team", "typed", {"strategy": "sequential", "members": members})
    async with served(env, typed) as gateway, open_page(browser, gateway.url) as page:
        run = await start(gateway, "typed")
        await page.get_by_label("City").fill("Bern")
        await page.get_by_label("Price").fill("12.5")
        await page.get_by_label("Lines").fill('[{"text": "A tent"}]')
        await page.get_by_role("button", name="Write as JSON").click()
        text = page.get_by_label("Your reply as JSON")
        written = json.loads(await text.input_value())
        await text.fill(json.dumps({**written, "note": "Soon."}))
        await page.get_by_role("button", name="Write in fields").click()
        await expect(page.get_by_label("Note")).to_have_value("Soon.")
        await page.get_by_role("button", name="Reply").click()
        await expect(page.get_by_text("Your reply was sent.")).to_be_visible()
        reply = Offer.model_validate_json((await ended(gateway, run))["message"])
    assert reply == Offer(address=Address(city="Bern", zip=None), price=12.5, note="Soon.", lines=[Line(text="A tent")])


async def test_a_reply_whose_schema_is_too_long_for_a_form_is_written_as_json(
    browser: Browser, env: Environment
) -> None:
    schema = {
        "type": "object",
        "required": ["ok"],
        "properties": {"ok": {"type": "boolean", "description": "x" * 40_000}},
    }
    typed = manifest("Team", "typed", {"strategy": "sequential", "members": [{**ANN, "outputSchema": schema}]})
    async with served(env, typed) as gateway, open_page(browser, gateway.url) as page:
        run = await start(gateway, "typed")
        await expect(page.get_by_text("too long for a form")).to_be_visible()
        await page.get_by_label("Your reply as JSON").fill("yes")
        await page.get_by_role("button", name="Reply").click()
        await expect(page.get_by_text("The reply is not JSON yet.")).to_be_visible()
        await page.get_by_label("Your reply as JSON").fill('{"ok": true}')
        await page.get_by_role("button", name="Reply").click()
        assert json.loads((await ended(gateway, run))["message"]) == {"ok": True}


@pytest.mark.slow
async def test_a_servers_question_is_answered_by_its_schemas_form_and_declined(
    browser: Browser, env: Environment, tmp_path: Path
) -> None:
    guest = agent("guest", tools=[{"name": "test-book", "type": "mcp"}])
    with McpServerProcess("2026", tmp_path).running() as hotel:
        async with (
            served(env, guest, hotel.manifest(questions={})) as gateway,
            open_page(browser, gateway.url) as page,
        ):
            gateway.env.script(line("guest", call("test-book", day="Monday"), "Done."))
            await gateway.finished(await self_answered(gateway, page))
            assert hotel.calls == ["booked blue for 2 on Monday"]
            run = await start(gateway, "guest")
            await page.get_by_role("button", name="Decline").click()
            await expect(page.get_by_text("Declined.")).to_be_visible()
            await gateway.finished(run)
            assert hotel.calls == ["booked blue for 2 on Monday"]


async def self_answered(gateway: GatewayServer, page: Page) -> str:
    """A run of the guest, whose two questions are answered in the page."""
    run = await start(gateway, "guest")
    await page.get_by_label("Room").fill("blue")
    await page.get_by_role("button", name="Reply").click()
    await page.get_by_label("Nights").fill("2")
    await page.get_by_role("button", name="Reply").click()
    return run


async def test_a_budget_is_raised_by_a_chosen_amount(browser: Browser, env: Environment) -> None:
    async with served(env) as gateway, open_page(browser, gateway.url) as page:
        gateway.env.script(line("one", "a"), line("two", "b"))
        run = await start(gateway, "duo", budget={"modelCalls": 1, "onExceeded": "ask"})
        await page.get_by_role("button", name="Change the amounts").click()
        await page.get_by_label("Model calls").fill("7")
        await page.get_by_role("button", name="Raise the budget").click()
        await expect(page.get_by_text("The budget is raised.")).to_be_visible()
        assert (await ended(gateway, run))["budget"]["limits"]["modelCalls"] == 8


async def test_a_chat_continues_its_conversation_also_after_a_reload(browser: Browser, env: Environment) -> None:
    async with served(env) as gateway, open_page(browser, f"{gateway.url}/#/chat/agent/one") as page:
        gateway.env.script(line("one", "Because of the moon.", "And of the sun."))
        await page.get_by_label("Your message").fill("Why are there tides?")
        await page.keyboard.press("Enter")
        await expect(page.get_by_text("Because of the moon.")).to_be_visible()
        await expect(page.get_by_role("button", name="New conversation")).to_be_enabled()  # the run has ended
        await page.reload()
        await expect(page.get_by_text("Because of the moon.")).to_be_visible()
        await page.get_by_label("Your message").fill("Only of that?")
        await page.get_by_role("button", name="Send").click()
        await expect(page.get_by_text("And of the sun.")).to_be_visible()
        texts = [message["content"] for message in gateway.env.model.requests[-1].body["messages"]]
        assert texts[1:] == ["Why are there tides?", "Because of the moon.", "Only of that?"]


@pytest.mark.slow
async def test_a_chat_shows_a_question_that_the_inbox_learns_of_later(browser: Browser, env: Environment) -> None:
    requests = 0

    async def late(route: Route) -> None:
        nonlocal requests
        requests += 1
        await (route.continue_() if requests > 3 else route.fulfill(json={"waiting": []}))

    async with served(env) as gateway, open_page(browser, f"{gateway.url}/#/chat/team/court") as page:
        gateway.env.script(line("one", "Let us rent it."), line("two", "Signed."))
        await page.route("**/inbox", late)
        await page.get_by_label("Your message").fill("May we rent it?")
        await page.keyboard.press("Enter")
        await page.get_by_label("Your reply").fill("Yes, if it is dry.")
        await page.get_by_role("button", name="Reply").click()
        await expect(page.get_by_text("Signed.")).to_be_visible()
        await expect(page.get_by_label("Your reply")).to_have_count(0)


async def test_what_is_written_while_a_message_is_sent_stays(browser: Browser, env: Environment) -> None:
    async with served(env) as gateway:
        gateway.env.script(line("buyer", call("send", input="desks"), "Done."), line("shop", "Sent."))
        run = await start(gateway, "buyer")
        await waiting(gateway)
        async with open_page(browser, f"{gateway.url}/#/runs/{run}") as page:
            held = asyncio.Event()

            async def hold(route: Route) -> None:
                await held.wait()
                await route.continue_()

            await page.route("**/steer", hold)
            message = page.get_by_label("A message into the discussion")
            await message.fill("Hurry.")
            await page.get_by_role("button", name="Send").click()
            await message.fill("And be careful.")
            held.set()
            await expect(page.get_by_text("The next speaker reads your message.")).to_be_visible()
            await expect(message).to_have_value("And be careful.")


@pytest.mark.slow
async def test_an_act_that_comes_too_late_says_so(browser: Browser, env: Environment) -> None:
    async with served(env) as gateway, open_page(browser, gateway.url, expects=[409]) as page:
        gateway.env.script(line("buyer", call("send", input="desks"), "Done."), line("shop", "Sent."))
        run = await start(gateway, "buyer")
        button = page.get_by_role("button", name="Approve")
        await expect(button).to_be_visible()
        async with page.expect_event("requestfailed", lambda request: request.url.endswith("/inbox")):
            await page.route("**/inbox", lambda route: route.abort("aborted"))  # the page does not learn of it
        await gateway.post(f"/runs/{run}/reject", {"call": (await waiting(gateway))["id"]})
        await ended(gateway, run)
        await button.click()
        await expect(page.get_by_role("alert").filter(has_text="decide")).to_be_visible()
