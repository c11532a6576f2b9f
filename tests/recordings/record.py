"""Records the samples with their scripted models: python -m tests.recordings.record [NAME …], by default all.

A sample is run with servers of the test harness in place of those that it names, and with a person who answers.
"""

import contextlib
import json
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import yaml
from a2a.types import Part

from baton.contracts.decisions import PendingDecision
from baton.resources.base import JsonObject
from baton.starter.api.handle import Handle
from baton.testing import Environment, Reply, Script, ScriptedToolCall, environment, replay
from baton.testing.environments import ModelSource
from tests.harness.agent_server import AgentServer, Turn
from tests.harness.mcp_process import McpServerProcess, run_program
from tests.harness.processes import ROOT
from tests.harness.tool_server import Answer, ToolServer

FOLDER = Path(__file__).parent
SAMPLES = ROOT / "samples"

Addresses = Mapping[str, str]
"""The addresses in a sample, and those of the servers that take their places."""


@contextlib.contextmanager
def nowhere() -> Iterator[Addresses]:
    """No server is needed."""
    yield {}


@contextlib.contextmanager
def answering(*hosts: str, answers: tuple[Answer, ...]) -> Iterator[Addresses]:
    """An HTTP server that gives these answers."""
    server = ToolServer()
    server.answers(*answers)
    with server.serving():
        yield dict.fromkeys(hosts, server.url)


@contextlib.contextmanager
def mcp(address: str, program: str = "") -> Iterator[Addresses]:
    """An MCP server: that of the harness, or a program of the samples."""
    with tempfile.TemporaryDirectory() as folder:
        serve = partial(run_program, SAMPLES / program) if program else None
        with McpServerProcess("2026", Path(folder), serve=serve).running() as server:
            yield {address: server.url}


@contextlib.contextmanager
def booking_agent() -> Iterator[Addresses]:
    """An A2A server whose agent asks once."""

    async def book(turn: Turn) -> None:
        task = await turn.task()
        if turn.is_new:
            await task.requires_input(task.new_agent_message([Part(text="From which day on?")]))
        else:
            await task.complete(task.new_agent_message([Part(text=f"Booked. {turn.texts[-1]}")]))

    agents = AgentServer()
    agents.behaviour = book
    with agents.serving():
        yield {"http://localhost:9999": agents.url}


Decide = Callable[[Handle[object], PendingDecision], Awaitable[object]]
"""Answers what a run waits for."""


def nobody(_run: Handle[object], pending: PendingDecision) -> Awaitable[object]:
    """Nobody is asked."""
    raise AssertionError(f"nobody answers {pending}")


def says(text: str) -> Decide:
    """A person who replies."""
    return lambda run, pending: run.reply(text, pending.id, by="ann")


def approves(**arguments: object) -> Decide:
    """A person who approves, perhaps with other arguments."""
    return lambda run, pending: run.approve(pending.id, arguments=arguments or None, by="ann")


@dataclass(frozen=True)
class SampleRun:
    """How a sample is run: its query, or a ``target`` with an ``input``."""

    query: str = ""
    target: str = ""
    input: str = ""
    namespace: str = "default"
    servers: Callable[[], contextlib.AbstractContextManager[Addresses]] = nowhere
    decide: Decide = nobody
    model: ModelSource | None = None
    secrets: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


PLACE = {"results": [{"name": "Madrid", "latitude": 40.4165, "longitude": -3.70256}]}
WEATHER = (Answer(json.dumps(PLACE)), Answer('{"current": {"temperature_2m": 21.5}}'))
OPEN_METEO = ("https://geocoding-api.open-meteo.com", "https://api.open-meteo.com")
PREMIUM = json.dumps({"messages": [{"role": "assistant", "content": '{"premium": 1911, "reason": "wood"}'}]})
SUMS = [ScriptedToolCall(name="calculator", arguments={"expression": "3 * 49.90 * 0.85"})]

RUNS = {
    "anthropic": SampleRun(
        query="price-query",
        model=lambda request: (
            Reply(text='{"price": 127.245, "why": "3 * 49.90 * 0.85"}') if request.tool_results else Reply(calls=SUMS)
        ),
        secrets={"anthropic": {"token": "sk-ant-secret-0123456789"}},
    ),
    "assistant": SampleRun(query="assistant-query", servers=lambda: mcp("http://localhost:3001/mcp")),
    "banking": SampleRun(query="customer-question", namespace="demo-bank"),
    "bedrock": SampleRun(
        query="contract-query",
        model=lambda request: Reply(
            text="They may double it." if request.agent == "reader" else "Sign only with a cap."
        ),
    ),
    "brainstorming": SampleRun(query="brainstorming-session"),
    "budget": SampleRun(query="research"),
    "budget-approval": SampleRun(query="festival-plan", decide=approves(modelCalls=1)),
    "chart": SampleRun(query="chart-query"),
    "circuit-breaker": SampleRun(
        query="outing",
        servers=lambda: answering("https://weather.example.com", answers=(Answer(status=500),)),
    ),
    "code-review": SampleRun(query="review"),
    "contract": SampleRun(query="offer-query", decide=says("Limit our liability to 10,000 EUR.")),
    "conversation": SampleRun(query="first"),
    "debate": SampleRun(query="one-service-or-many"),
    "delegation": SampleRun(query="plan-an-offer"),
    "editorial-review": SampleRun(query="review-draft"),
    "expenses": SampleRun(query="expenses-query"),
    "hotel": SampleRun(
        query="book-room",
        servers=lambda: mcp("http://localhost:3002/mcp", "hotel_server.py"),
        decide=says('{"room": "sea"}'),
    ),
    "newsroom": SampleRun(query="headline"),
    "openapi": SampleRun(
        query="forecast-query",
        servers=lambda: answering(OPEN_METEO[1], answers=(Answer('{"daily": {"rain_sum": [0, 0]}}'),)),
    ),
    "overrides": SampleRun(query="claim"),
    "purchase": SampleRun(query="buy-desks", decide=approves()),
    "rights": SampleRun(query="invoice", namespace="audit"),
    "sales-analysis": SampleRun(query="q3-sales"),
    "schedule": SampleRun(query="morning-news"),
    "support": SampleRun(query="double-charge"),
    "trade-risk": SampleRun(query="buy-or-not"),
    "travel": SampleRun(
        query="trip", servers=booking_agent, secrets={"booking": {"authorization": "Bearer b00king-secret"}}
    ),
    "underwriting": SampleRun(
        query="house-insurance",
        servers=lambda: answering("http://localhost:8090", answers=(Answer(PREMIUM),)),
    ),
    "weather": SampleRun(query="weather-query", servers=lambda: answering(*OPEN_METEO, answers=WEATHER)),
    "without-tools": SampleRun(query="moon"),
}
"""All samples, by the names of their files."""


def record_sample(name: str, path: Path, server: str | None = None) -> Path:
    """Runs a sample, records it in a file, and returns that."""
    run = RUNS[name]
    sample = SAMPLES / f"{name}.yaml"
    model = run.model or Script.read(SAMPLES / "scripts" / f"{name}.yaml")
    with contextlib.ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory()))
        text = sample.read_text()
        for address, other in opened.enter_context(run.servers()).items():
            text = text.replace(address, other)
        file = folder / sample.name
        file.write_text(text)
        for secret, values in run.secrets.items():
            manifest = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": secret}, "stringData": dict(values)}
            (folder / f"secret-{secret}.yaml").write_text(yaml.safe_dump(manifest))
        for other_file in SAMPLES.glob("skills"):
            (folder / other_file.name).symlink_to(other_file)
        env = opened.enter_context(environment(*sorted(folder.glob("*.yaml")), model=model, server=server))
        env.wait(_record(env, name, run, path))
    replay(path, sample, update=True)  # with the checksums of the sample, which names other servers
    return path


async def _record(env: Environment, name: str, run: SampleRun, path: Path) -> None:
    if run.target:
        handle: Handle[object] = await env.start(run.target, run.input, id=f"{name}-sample")
    else:
        query: JsonObject = {"name": run.query, "namespace": run.namespace}
        started = await env.client.start_workflow("query", query, id=f"{name}-sample", task_queue=env.task_queue)
        handle = Handle(env.client, started)
    async for pending in _pending(env, handle):
        await run.decide(handle, pending)
    await env.record(handle, path)


async def _pending(env: Environment, handle: Handle[object]) -> AsyncIterator[PendingDecision]:
    """What the run waits for, until it has ended."""
    with contextlib.suppress(RuntimeError):
        while True:
            yield await env.pending_decision(handle)


if __name__ == "__main__":
    for each in sys.argv[1:] or RUNS:
        print(record_sample(each, FOLDER / f"{each}.run.json"))
