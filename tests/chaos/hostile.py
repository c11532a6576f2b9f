"""Gives a worker what is made to stop it, beside a run that has to go on.

``python -m tests.chaos.hostile [--examples 40]``. Each case is a run of its own on a worker process; meanwhile
another run asks a model four times. A row says how the hostile run has ended, how long the other one took, how much
memory the worker has, and how long its event loop was held while it computed. Then Hypothesis makes conditions, schemas
and answers of servers by a grammar.
"""

import asyncio
import contextlib
import json
import re
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import psutil  # type: ignore[import-untyped]
from temporalio.client import WorkflowFailureError

from baton.activities.context.conditions import holds
from baton.activities.context.schema_errors import schema_errors
from baton.activities.process.bounded_process import close_idle
from baton.activities.tool.http_client import HttpClient
from baton.activities.tool.http_request import HttpRequest
from baton.conversation.errors import ToolFailed
from baton.resources.condition import SAMPLE_PANEL_FACTS, check_condition
from baton.starter.scripted_model.script import Reply, Request, ScriptedToolCall
from tests.chaos import hostile_values
from tests.chaos.environment import ProcessEnvironment
from tests.chaos.fuzz import first_failure, within
from tests.chaos.hostile_values import PACKED
from tests.chaos.report import Report, arguments
from tests.harness.environment import Json, agent, manifest, team
from tests.harness.event_loop import watched_loop
from tests.harness.tool_server import Answer, ToolServer

TIMEOUT = 60.0
"""Seconds after which the hostile run counts as stuck."""

BYSTANDER = {
    "team": "by",
    "input": "Why?",
    "resources": [agent("calm"), team("by", "calm", maxTurns=4, onMaxTurns="complete")],
}
HELD_LINE = re.compile(r"held for (\d+) ms, of which this process computed for (\d+) ms")
DEEP = "[" * 9_000 + "]" * 9_000
DIGITS = "[0,1,2,3,4,5,6,7,8,9]"
SLOW = "^([A-Za-z]+ ?)+$"


def _doubled(levels: int) -> Json:
    schemas: Json = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(levels)}
    return {"$defs": {**schemas, f"d{levels}": {"type": "string"}}, "$ref": "#/$defs/d0"}


def _with_tool(url: str, properties: Json, **more: Any) -> list[Json]:
    spec = {"type": "http", "http": {"url": url}, "inputSchema": {"type": "object", "properties": properties, **more}}
    return [agent("evil", "t"), manifest("Tool", "t", spec), team("hostile", "evil", maxTurns=1, onMaxTurns="complete")]


def cases(url: str) -> Iterator[tuple[str, list[Json], Json, Answer | None]]:
    """A name, the manifests, the arguments of the model's tool call, and what the tool's server answers."""
    hidden = f"{DIGITS}.all//\n(turn, " * 12 + "true" + ")" * 12
    yield (
        "CEL: loops behind comments",
        [agent("evil"), team("hostile", "evil", terminateWhen=hidden, maxTurns=2)],
        {},
        None,
    )
    joined = "+".join(["message"] * 100) + " == ''"
    yield "CEL: long texts joined", [agent("evil"), team("hostile", "evil", terminateWhen=joined, maxTurns=2)], {}, None
    words: Json = {"a": "a" * 50 + "!"}
    yield "schema: a pattern", _with_tool(url, {"a": {"pattern": SLOW}}), words, None
    yield "schema: doubled 30 times", _with_tool(url, {}, **_doubled(30)), words, None
    yield "schema: refers to itself", _with_tool(url, {"a": {"$ref": "#/properties/a"}}), words, None
    many: Json = {"a": [each for n in range(9_000) for each in (n, str(n))]}
    yield "schema: unique items", _with_tool(url, {"a": {"uniqueItems": True}}), many, None
    yield "schema: a huge number", _with_tool(url, {"a": {"multipleOf": 0.5}}), {"a": 10**400}, None
    for encoding in ("gzip", "gzip, gzip", "br"):
        headers = {"content-encoding": encoding, "content-type": "text/plain"}
        packed = Answer(PACKED.get(encoding, b"x"), headers=headers)
        yield f"tool: {encoding}", _with_tool(url, {}), {}, packed
    yield "tool: charset zlib", _with_tool(url, {}), {}, Answer(headers={"content-type": "text/plain; charset=zlib"})
    yield "tool: host 0177.0.0.1", _with_tool("http://0177.0.0.1/", {}), {}, None


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
                await http.send(HttpRequest("GET", server.url, (), None, trusted=True), 20, repeatable=True)

        tried: dict[str, tuple[Callable[..., Coroutine[Any, Any, None]], Json]] = {
            "conditions": (condition, {"text": hostile_values.CONDITIONS}),
            "schemas": (schema, {"given": hostile_values.SCHEMAS, "value": hostile_values.VALUES}),
            "answers": (body, {"given": hostile_values.BODIES}),
        }
        for name, (check, values) in tried.items():
            async with watched_loop() as waits:
                wrong = await asyncio.to_thread(first_failure, within(loop, check), examples, **values)
            row = {
                "case": f"{examples} {name} by a grammar",
                "end": wrong or "none failed",
                "other run, s": "",
                "worker, MB": "",
            }
            report.row({**row, "its processes, MB": "", "held, ms": round(waits.held * 1_000)})
    await http.close()
    await close_idle()


async def main() -> None:
    """Runs all cases and writes the results; SIGTERM ends the worker while a hostile run is under way."""
    options = arguments(__doc__, examples=40)
    report = Report("hostile", options)
    with ToolServer().serving() as server:
        async with ProcessEnvironment.running(lambda _: Reply(text="…")) as env:
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
    report.write(sigterm_seconds=seconds)


if __name__ == "__main__":
    asyncio.run(main())
