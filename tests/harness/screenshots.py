"""Takes the pictures in docs/console.md, of a real gateway with a worker and a scripted model: `make screenshots`."""

import asyncio
import contextlib
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from playwright.async_api import Page
from pydantic_evals import Case, Dataset
from pydantic_evals.evaluators import Contains
from pydantic_evals.reporting import EvaluationReportAdapter

import baton
from baton.observability.runtime import set_worker_runtime
from baton.resources.loader import load_files
from baton.starter.scripted_model import Script
from baton.starter.server.embedded import EmbeddedServer
from baton.starter.server.state_dir import StateDir
from baton.temporal.client import connect
from baton.testing import Reply
from tests.harness.browser import open_page, running_browser
from tests.harness.environment import Environment, Json
from tests.harness.gateway import GatewayServer
from tests.harness.ports import own_ports
from tests.harness.processes import ROOT

PICTURES = ROOT / "docs" / "console"
"""The folder of the pictures."""

SAMPLES = ("brainstorming", "debate", "purchase", "budget-approval", "contract", "code-review", "editorial-review")
"""The samples whose teams and agents are in the pictures."""

QUESTIONS = (
    ("team/brainstorming-team", "How do we greet new users?"),
    ("team/architecture-debate", "Should the shop be one service or many?"),
    ("team/reviewers", "Review: def add(a, b): return a - b"),
)
"""What is asked at once, and ends before the pictures are taken."""

FORKED = "team/brainstorming-team"
"""The team whose run is forked."""

Prepare = Callable[[Page, GatewayServer], Awaitable[object]]


async def _nothing(_page: Page, _: GatewayServer) -> None:
    pass


@dataclass(frozen=True)
class Screen:
    """A picture: its file's ``name``, the page's ``path`` after ``#/``, and what is done before it is taken."""

    name: str
    path: str = ""
    prepare: Prepare = _nothing
    options: dict[str, Any] = field(default_factory=dict)


async def _decide(page: Page, _: GatewayServer) -> None:
    await page.get_by_role("button", name="Decide").first.click()
    await page.get_by_role("button", name="Edit the arguments").click()


async def _fill(page: Page, _: GatewayServer) -> None:
    await page.get_by_label("Question or task").fill("Plan a day of music in the old harbour.")
    await page.get_by_text("Limits and conversation").click()
    await page.get_by_label("Tokens").fill("20000")


async def _chat(page: Page, _: GatewayServer) -> None:
    await page.get_by_label("Your message").fill("How do we greet new users?")
    await page.get_by_role("button", name="Send").click()
    await page.get_by_text("Open the run").wait_for()
    await page.get_by_text("Thinking").wait_for(state="hidden")


async def _debate(page: Page, _: GatewayServer) -> None:
    await page.get_by_role("link", name="Should the shop be one service or many?").click()
    await page.locator(".feed .said").first.wait_for()


async def _lanes(page: Page, gateway: GatewayServer) -> None:
    await _debate(page, gateway)
    await page.get_by_role("link", name="Lanes").click()
    await page.locator(".lanes .lane").first.wait_for()


async def _fork(page: Page, _: GatewayServer) -> None:
    await page.locator(".run-link").first.click()
    await page.locator(".forks").wait_for()


async def _compare(page: Page, gateway: GatewayServer) -> None:
    await _fork(page, gateway)
    await page.locator(".forks").get_by_role("link", name="Compare").first.click()
    await page.locator(".steps").wait_for()


GREETINGS = {
    "a new user": "Welcome! Here is your first step.",
    "a guest": "Hello, and welcome to the harbour.",
    "a colleague": "Welcome back, the coffee is fresh.",
    "a neighbour": "You are welcome any time you like.",
}
"""What is evaluated: whom to greet, and the greeting of the baseline. The later one leaves out a word."""


async def _evaluation(page: Page, gateway: GatewayServer) -> None:
    changed = {**GREETINGS, "a guest": "Hello at the harbour."}
    for label, id_, greetings in (("Report", "friday", changed), ("Baseline", "monday", GREETINGS)):
        report = await _report(gateway, id_, greetings)
        await page.get_by_label(label).set_input_files(
            {"name": f"{label.lower()}.json", "mimeType": "application/json", "buffer": report}
        )
    await page.get_by_role("region", name="Means of both reports").wait_for()


async def _report(gateway: GatewayServer, id_: str, greetings: Mapping[str, str]) -> bytes:
    """The report of an evaluation, as `baton eval --save` writes it."""
    answer = gateway.env.answer
    gateway.env.answer = lambda request: Reply(text=greetings[str(request["messages"][-1]["content"])])
    cases = [Case(name=f"Greet {whom}", inputs=whom) for whom in greetings]
    evaluators = [Contains("welcome", case_sensitive=False)]
    dataset = Dataset(name="greetings", cases=cases, evaluators=evaluators)
    greeter = baton.Agent("greeter", prompt="Greet them.")
    async with baton.connect(client=gateway.env.client, task_queue=gateway.env.task_queue) as connection:
        report = await baton.evaluate(dataset, greeter, id=id_, connection=connection)
    gateway.env.answer = answer
    return EvaluationReportAdapter.dump_json(report)


SCREENS = [
    Screen("runs"),
    Screen("runs-dark", options={"scheme": "dark"}),
    Screen("runs-narrow", options={"width": 400, "height": 800}),
    Screen("decide", prepare=_decide),
    Screen("start", "start/team/festival-team", _fill),
    Screen("run", prepare=_debate),
    Screen("run-dark", prepare=_debate, options={"scheme": "dark"}),
    Screen("run-narrow", prepare=_debate, options={"width": 400, "height": 800}),
    Screen("lanes", prepare=_lanes),
    Screen("fork", "?text=greet", prepare=_fork),
    Screen("compare", "?text=greet", prepare=_compare),
    Screen("teams", "teams"),
    Screen("team", "teams/default/team/reviewers"),
    Screen("chat", "chat/team/brainstorming-team", _chat),  # it starts a run, which is in the list then
    Screen("evaluation", "evaluation", _evaluation, {"height": 900}),  # so does each case
    Screen("evaluation-dark", "evaluation", _evaluation, {"height": 900, "scheme": "dark"}),
]
"""The pictures of docs/console.md, one after the other."""


@contextlib.asynccontextmanager
async def scene() -> AsyncIterator[GatewayServer]:
    """A gateway with runs of several samples: some have ended, and some wait for people."""
    folder = Path(tempfile.mkdtemp(prefix="baton-pictures-"))
    loaded = load_files([ROOT / "samples" / f"{name}.yaml" for name in SAMPLES])
    script = Script(lines=[line for name in SAMPLES for line in _script(name).lines])
    with StateDir(folder).lock("dev") as lock:
        assert lock is not None
        server = EmbeddedServer(folder, lock, *own_ports())
        await server.start()
        try:
            client = await connect(server.address)
            async with Environment.running(client, folder, loaded) as env:
                env.answer = script.answer
                Environment.replays = False
                async with GatewayServer.running(env, BATON_GATEWAY_TEMPORAL_UI_URL=server.ui) as gateway:
                    await _run_all(gateway)
                    yield gateway
        finally:
            await server.stop()


def _script(name: str) -> Script:
    return Script.read(ROOT / "samples" / "scripts" / f"{name}.yaml")


async def _run_all(gateway: GatewayServer) -> None:
    for target, question in QUESTIONS:
        run = await gateway.post("/runs", {"target": target, "input": question}, 201)
        await gateway.finished(run["id"])
        if target == FORKED:
            fork = await gateway.post(f"/runs/{run['id']}/fork", {"at": "2", "say": "Think of the first minute."}, 201)
            await gateway.finished(fork["id"])
    budget = {"modelCalls": 2, "onExceeded": "ask"}
    waiting: list[Json] = [
        {"target": "agent/office-buyer", "input": "Buy desks for twelve new colleagues."},
        {"target": "team/contract-team", "input": "We rent the Harbour Hotel 40 lamps for a week."},
        {"target": "team/festival-team", "input": "Plan a day of music in the old harbour.", "budget": budget},
    ]
    for body in waiting:
        await gateway.post("/runs", body, 201)
    while len((await gateway.get("/inbox"))["waiting"]) < len(waiting):
        await asyncio.sleep(0.1)
    while len((await gateway.get("/runs"))["runs"]) < len(QUESTIONS) + 1 + len(waiting):
        await asyncio.sleep(0.1)


async def take(names: Sequence[str], folder: Path = PICTURES) -> None:
    """Takes the pictures with these names, or all."""
    async with scene() as gateway, running_browser() as browser:
        for screen in SCREENS:
            if names and screen.name not in names:
                continue
            options = {"width": 1_120, "height": 760, **screen.options}
            async with open_page(browser, f"{gateway.url}/#/{screen.path}", **options) as page:
                await page.wait_for_load_state("networkidle")
                await screen.prepare(page, gateway)
                await page.wait_for_timeout(700)  # until what was asked for in the background is shown
                await page.screenshot(path=folder / f"{screen.name}.png")
                print(f"{screen.name}.png")


if __name__ == "__main__":
    PICTURES.mkdir(exist_ok=True)
    set_worker_runtime()  # before any client is made
    asyncio.run(take(sys.argv[1:]))
