"""Sends a worker input that is made to stop it, next to a run that has to continue.

``python -m tests.chaos.hostile [--examples 40] [--seconds 60] [--application 1]``. Each case is a run of its own on a
worker process; meanwhile another run asks a model four times. A row says how the hostile run has ended, how long the
other one took, how much memory the worker has, and how long its event loop was held while it computed. Then Hypothesis
makes conditions, schemas and answers of servers by a grammar, and atheris, where it is installed, texts that are guided
by coverage. ``--application 1``: all runs are child workflows of an application.
"""

import asyncio
import contextlib
import json
import re
import time
from collections.abc import Callable, Coroutine
from typing import Any

import psutil  # type: ignore[import-untyped]
from temporalio.client import WorkflowFailureError

from baton.activities.context.output_schema import schema_errors
from baton.activities.teams import holds
from baton.activities.tool.http import HttpClient
from baton.activities.tool.http_request import HttpRequest
from baton.contracts.errors import ToolFailed
from baton.resources.conditions import SAMPLE_PANEL_FACTS, check_condition
from baton.temporal.bounded_process import close_idle
from baton.testing import Reply, Request, ScriptedToolCall
from tests.chaos import coverage_guided, hostile_values
from tests.chaos.environment import ProcessEnvironment
from tests.chaos.fuzz import first_failure, within
from tests.chaos.hostile_cases import cases
from tests.chaos.report import Report, arguments
from tests.harness.environment import Json, agent, team
from tests.harness.event_loop import watched_loop
from tests.harness.manifests import own_server
from tests.harness.tool_server import Answer, ToolServer

Check = Callable[..., Coroutine[Any, Any, None]]
"""Checks one example, and raises if something is wrong."""

TIMEOUT = 60.0
"""Seconds after which the hostile run counts as stuck."""

BYSTANDER = {
    "team": "by",
    "input": "Why?",
    "resources": [agent("calm"), team("by", "calm", maxTurns=4, onMaxTurns="complete")],
}
HELD_LINE = re.compile(r"blocked for (\d+) ms, with (\d+) ms of CPU time")


def answer(call: Json) -> Callable[[Request], Reply]:
    """The model: the hostile agent calls its tool once, and then says a long text."""

    def reply(request: Request) -> Reply:
        if "calm" in str(request["messages"][0]["content"]):
            return Reply(text="Calm.", delay=0.1)
        called = any(message["role"] == "tool" for message in request["messages"])
        if request.get("tools") and not called:
            return Reply(calls=[ScriptedToolCall(name="t", arguments=json.dumps(call), id="1")])
        return Reply(text="Done." if called else "a" * 2_000_000)

    return reply


async def attack(env: ProcessEnvironment, name: str, brought: list[Json]) -> Json:
    """A row: one hostile run, with another run beside it."""
    log = env.workers[0].log
    known, number = len(log.read_text()), abs(hash(name))
    hostile = await env.start(
        "round-robin", {"team": "hostile", "input": "x", "resources": brought}, f"hostile-{number}"
    )
    began = time.monotonic()
    await asyncio.wait_for((await env.start("round-robin", BYSTANDER, f"by-{number}")).result(), TIMEOUT)
    other = time.monotonic() - began
    try:
        await asyncio.wait_for(hostile.result(), TIMEOUT)
        end = "ended"
    except WorkflowFailureError as failure:
        end = str(getattr(failure.cause, "type", failure.cause))
    except TimeoutError:
        end = "STUCK"
        await hostile.terminate()
    whole = psutil.Process(env.workers[0].pid)
    children = sum(each.memory_info().rss for each in whole.children(recursive=True)) / 1e6
    held = max((int(each) for _, each in HELD_LINE.findall(log.read_text()[known:])), default=0)
    row = {"case": name, "end": end, "other run, s": round(other, 1), "worker, MB": round(env.memory())}
    return {**row, "its processes, MB": round(children), "held, ms": held or "< 50"}


SHAPE: Json = dict.fromkeys(("case", "end", "other run, s", "worker, MB", "its processes, MB", "held, ms"), "")


async def by_grammar(report: Report, examples: int) -> None:
    """Rows for conditions, schemas and answers that Hypothesis makes; each in this process, whose loop is watched."""
    loop, http = asyncio.get_running_loop(), HttpClient()
    with ToolServer().serving() as server:

        async def condition(text: str) -> None:
            try:
                check_condition(text, SAMPLE_PANEL_FACTS)
                await holds(text, {**SAMPLE_PANEL_FACTS, "message": "a" * 20_000})
            except ValueError:
                pass

        async def schema(given: Any, value: Any) -> None:
            await schema_errors(value, given)

        async def body(given: Answer) -> None:
            server.answers(given)
            with contextlib.suppress(ToolFailed):
                await http.send(HttpRequest("GET", own_server(server.url), (), None), 20, repeatable=True)

        tried: dict[str, tuple[Check, Json]] = {
            "conditions": (condition, {"text": hostile_values.CONDITIONS}),
            "schemas": (schema, {"given": hostile_values.SCHEMAS, "value": hostile_values.VALUES}),
            "answers": (body, {"given": hostile_values.BODIES}),
        }
        for name, (check, values) in tried.items():
            longest = 0.0

            async def watched(check: Check = check, **given: Any) -> None:
                # Only while an example is checked: the thread in which Hypothesis makes the next one is busy as well.
                nonlocal longest
                async with watched_loop() as waits:
                    await check(**given)
                longest = max(longest, waits.held)

            wrong = await asyncio.to_thread(first_failure, within(loop, watched), examples, **values)
            held = {"held, ms": round(longest * 1_000)}
            report.row(SHAPE | {"case": f"{examples} {name} by a grammar", "end": wrong or "none failed"} | held)
    await http.close()
    await close_idle()


async def main() -> None:
    """Runs all cases and writes the results; SIGTERM ends the worker while a hostile run is under way."""
    options = arguments(__doc__, examples=40, seconds=60, application=0)
    report = Report("hostile-below-application" if options["application"] else "hostile", options)
    with ToolServer().serving() as server:
        async with (
            ProcessEnvironment.running(lambda _: Reply(text="…")) as env,
            env.started_by(options["application"]),
        ):
            for name, brought, call, tool_answer in cases(server.url):
                env.model._answer = answer(call)
                server.answers(tool_answer or Answer())
                report.row(await attack(env, name, brought))
            name, brought, call, _ = [*cases(server.url)][1]
            env.model._answer = answer(call)
            await env.start("round-robin", {"team": "hostile", "input": "x", "resources": brought}, "hostile-last")
            await asyncio.sleep(1)
            began = time.monotonic()
            await env.workers[0].stop()
            seconds = round(time.monotonic() - began, 1)
    await by_grammar(report, options["examples"])
    guided = coverage_guided.row("judges", options["seconds"])
    case = f"{guided['examples']} texts guided by coverage"
    report.row(SHAPE | {"case": case, "end": guided["wrong"] or "none failed"})
    report.write(sigterm_seconds=seconds)


if __name__ == "__main__":
    asyncio.run(main())
