"""Traces: one tree of spans for a query, by OpenTelemetry's names for generative AI, and no span missing or twice."""

import asyncio
import contextlib
import dataclasses
import gc
import json
import sqlite3
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from opentelemetry import context as otel_context
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context
from temporalio.client import Client

from baton import worker
from baton.contracts.status import Status
from baton.resources.loader import load_files
from baton.temporal.client import connect
from baton.testing import Reply
from tests.harness.agent_server import AgentServer
from tests.harness.environment import KEY, Environment, Json, agent, call, line, manifest, team
from tests.harness.manifests import Writer
from tests.harness.mcp_process import McpServerProcess
from tests.harness.memory_server import MemoryServer
from tests.harness.model_providers import PROVIDERS, serving
from tests.harness.panels import debate, panel, role_member
from tests.harness.remote_agents import a2a_agent, a2a_server, engine, engine_agent, said
from tests.harness.scripted_mcp_server import ScriptedMcpServer
from tests.harness.tool_server import ToolServer
from tests.harness.trace_collector import TraceCollector
from tests.workflows.test_approval import approve, pending, tool
from tests.workflows.test_circuit_breakers import Failing, asks

PUBLISHED = {value for name, value in vars(gen_ai_attributes).items() if name.startswith("GEN_AI_")}
OWN = ("baton.", "error.type")
ABC = [agent("a"), agent("b"), agent("c")]
CONTENT = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture
def otel() -> dict[str, str]:
    """More variables of OpenTelemetry."""
    return {}


@pytest_asyncio.fixture(loop_scope="session")
async def collector(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[TraceCollector]:
    """A collector, to which the workers send that are started from now on."""
    collector = TraceCollector()
    with collector.serve():
        for name, value in collector.environment.items():
            monkeypatch.setenv(name, value)
        yield collector


@pytest_asyncio.fixture(loop_scope="session")
async def env(collector: TraceCollector, client: Client, tmp_path: Path) -> AsyncIterator[Environment]:
    """A test environment whose worker reports its spans, as all workers in this file do."""
    async with Environment.running(client, tmp_path) as env:
        yield env


def check(collector: TraceCollector) -> None:
    """All spans are one tree, came once, and say nothing under names that nobody has published."""
    assert collector.repeated() == {}
    assert len({each.trace for each in collector.spans}) == 1
    ids = {each.id for each in collector.spans}
    assert [each.name for each in collector.spans if each.parent not in ids] == ["invoke_workflow q"]
    for each in collector.spans:
        assert each.start <= each.end
        names = [name for name in each.attributes if name not in PUBLISHED and not name.startswith(OWN)]
        assert names == [], each
        if operation := each.attributes.get("gen_ai.operation.name"):
            assert each.name.split(" ")[0] == operation


async def ended(env: Environment, collector: TraceCollector, given: list[Json], target: str, **spec: Any) -> Status:
    """The status of a query that has ended, when the last of its spans has come."""
    status = await env.status(await env.start_query(given, target, **spec))
    await come(collector, "invoke_workflow q")
    return status


async def come(collector: TraceCollector, name: str) -> None:
    """Returns when a span of that name has come."""
    while not collector.named(name):
        await asyncio.sleep(0.02)


GRAPH = {"edges": [{"from": "a", "to": "b"}, {"from": "b", "to": "c"}]}
STRATEGIES: dict[str, tuple[Json, list[str]]] = {
    "sequential": (team("team", "a", "b", "c", strategy="sequential"), ["a", "b", "c"]),
    "round-robin": (team("team", "a", "b", maxTurns=2, onMaxTurns="complete"), ["a", "b", "a", "b"]),
    "parallel": (team("team", "a", "b", "c", strategy="parallel"), ["a", "b", "c"]),
    "graph": (team("team", "a", "b", "c", strategy="graph", graph=GRAPH, maxTurns=9), ["a", "b", "c"]),
}


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_every_turn_and_every_call_of_a_team_is_one_span(
    env: Environment, collector: TraceCollector, strategy: str
) -> None:
    given, speakers = STRATEGIES[strategy]
    status = await ended(env, collector, [*ABC, given], "team/team")
    assert status.phase == "Completed"
    check(collector)
    below = collector.tree()["invoke_workflow q"]["invoke_workflow team"]
    assert sorted(name.split(" #")[0] for name in below) == sorted(f"invoke_agent {each}" for each in speakers)
    assert [*below.values()] == [{"chat gpt-4.1-mini": {}}] * len(speakers)
    assert len(collector.named("chat")) == len(env.model.requests)


async def test_a_selectors_question_is_a_call_of_the_team(env: Environment, collector: TraceCollector) -> None:
    env.answer = lambda request: Reply(text="b" if "tools" in request else "…")
    given = team("team", "a", "b", strategy="selector", maxTurns=1, onMaxTurns="complete")
    await ended(env, collector, [*ABC, given], "team/team")
    check(collector)
    below = collector.tree()["invoke_workflow q"]["invoke_workflow team"]
    assert [name.split(" #")[0] for name in below][-1] == "invoke_agent b"
    assert len(collector.named("chat")) == len(env.model.requests)


@pytest.mark.full
@pytest.mark.parametrize(
    ("given", "name"),
    [
        (panel(role_member("ada"), role_member("bob"), maxRounds=2), "panel"),
        (debate({"name": "ada", "stance": "Tabs"}, {"name": "bob", "stance": "Spaces"}, maxRounds=2), "debate"),
    ],
    ids=["panel", "debate"],
)
async def test_every_contribution_of_a_panel_is_one_span(
    env: Environment, collector: TraceCollector, given: Json, name: str
) -> None:
    verdict = json.dumps({"verdict": "Tabs.", "reasoning": "So it is."})
    env.answer = lambda request: Reply(text=verdict if "You judge" in request["messages"][0]["content"] else "…")
    await ended(env, collector, [given], f"team/{name}")
    check(collector)
    below = collector.tree()["invoke_workflow q"][f"invoke_workflow {name}"]
    assert sum(each.startswith("invoke_agent") for each in below) == len(env.model.requests) >= 4
    assert len(collector.named("chat")) == len(env.model.requests)


@pytest.mark.parametrize("name", PROVIDERS)
async def test_the_span_of_a_call_has_the_settings_that_were_sent_to_any_provider(
    collector: TraceCollector, client: Client, tmp_path: Path, name: str
) -> None:
    held = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "safe"}, "stringData": {"key": "a-key"}}
    with serving(name, {"valueFrom": {"secretKeyRef": {"name": "safe", "key": "key"}}}) as provider:
        manifests = [agent("a", modelRef={"name": "m"}, temperature=0.5, maxTokens=100), provider.model(), held]
        async with Environment.running(client, tmp_path, load_files([Writer(tmp_path).file(*manifests)])) as env:
            assert (await ended(env, collector, [], "agent/a")).phase == "Completed"
    (asked,) = collector.named("chat")
    assert asked.attributes["gen_ai.request.temperature"] == 0.5
    assert asked.attributes["gen_ai.request.max_tokens"] == 100
    assert ("gen_ai.response.id" in asked.attributes) == (name != "bedrock"), "its API has none"


async def test_what_a_call_was_and_what_it_cost_stands_on_its_span(
    env: Environment, collector: TraceCollector, tool_server: ToolServer
) -> None:
    env.script(line("a", call("look"), "Done."))
    look = manifest("Tool", "look", {"type": "http", "http": {"url": tool_server.url}})
    status = await ended(env, collector, [agent("a", "look"), look], "agent/a", conversationId="talk")
    assert status.phase == "Completed"
    check(collector)
    root, (turn,) = collector.named("invoke_workflow")[0], collector.named("invoke_agent")
    (first, _), (used,) = collector.named("chat"), collector.named("execute_tool")
    assert {turn.parent, first.parent, used.parent} == {root.id, turn.id}
    assert {each.attributes["gen_ai.conversation.id"] for each in collector.spans} == {"talk"}
    assert (first.kind, used.kind) == (3, 1), "a client, and internal"
    assert turn.attributes["gen_ai.agent.name"] == "a"
    assert used.attributes["gen_ai.tool.name"] == "look"
    assert first.attributes["gen_ai.provider.name"] == "openai"
    assert first.attributes["gen_ai.request.stream"] is True
    assert first.attributes["gen_ai.response.finish_reasons"] == ["tool_calls"]
    tokens = [first.attributes[f"gen_ai.usage.{each}_tokens"] for each in ("input", "output")]
    (message,) = [row for row in env.rows() if row["role"] == "assistant" and row.get("toolCalls")]
    assert tokens == [message["usage"]["promptTokens"], message["usage"]["completionTokens"]]
    assert not {name for each in collector.spans for name in each.attributes} & {
        *("gen_ai.input.messages", "gen_ai.output.messages", "gen_ai.tool.call.arguments", "gen_ai.tool.call.result")
    }


async def test_a_memory_and_the_pinning_of_mcp_tools_have_spans(
    env: Environment, collector: TraceCollector, tmp_path: Path
) -> None:
    """They are calls of the query itself, with the ids of the Memory and of the MCPServer."""
    env.script(line("a", "Yes."))
    with McpServerProcess("2026", tmp_path).running() as mcp, MemoryServer("items").serving() as service:
        memory = manifest("Memory", "m", {"address": service.url})
        given = [agent("a", tools=[{"name": "test", "type": "mcp"}]), mcp.manifest(), memory]
        status = await ended(env, collector, given, "agent/a", memory="m")
    assert status.phase == "Completed", status.error
    check(collector)
    below = collector.tree()["invoke_workflow q"]
    assert {*below} == {"list_tools test", "memory_get_messages m", "invoke_agent a", "memory_add_messages m"}


async def test_a_call_of_a_pinning_that_takes_too_long_for_a_local_activity_is_one_span(
    env: Environment, collector: TraceCollector
) -> None:
    """The regular activity that pins the run then makes the call again."""
    async with ScriptedMcpServer(silent={"tools/list"}).serving() as mcp:
        mcp.results = {"tools/list": lambda _: {"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]}}
        one = agent("a", tools=[{"name": "test", "type": "mcp"}])
        handle = await env.start_query([one, manifest("MCPServer", "test", {"address": mcp.url})], "agent/a")
        while "tools/list" not in mcp.seen:
            await asyncio.sleep(0.02)
        mcp.silent.clear()
        assert (await env.status(handle)).phase == "Completed"
        await come(collector, "invoke_workflow q")
    check(collector)
    assert "attempt 1" in collector.tree()["invoke_workflow q"]["list_tools test"]


async def test_a_tool_that_asks_an_agent_has_the_agents_turn_below_it(
    env: Environment, collector: TraceCollector
) -> None:
    env.script(line("a", call("ask-b", input="Why?"), "Done."), line("b", "Because."))
    ask = manifest("Tool", "ask-b", {"type": "agent", "agent": {"name": "b"}})
    status = await ended(env, collector, [agent("a", "ask-b"), agent("b"), ask], "agent/a")
    assert status.message == "Done."
    check(collector)
    below = collector.tree()["invoke_workflow q"]["invoke_agent a"]
    chat = "chat gpt-4.1-mini"
    assert below == {chat: {}, "execute_tool ask-b": {"invoke_agent b": {chat: {}}}, f"{chat} #2": {}}


async def test_a_call_with_all_its_attempts_is_one_span_and_a_failed_attempt_is_below_it(
    env: Environment, collector: TraceCollector
) -> None:
    env.answer = Failing(2)
    assert (await ended(env, collector, [agent("a")], "agent/a")).phase == "Completed"
    check(collector)
    (chat,) = collector.named("chat")
    assert (chat.error, chat.attributes["baton.attempts"]) == (False, 3)
    tries = collector.named("attempt")
    assert [(each.name, each.parent) for each in tries] == [("attempt 1", chat.id), ("attempt 2", chat.id)]
    assert all(each.error and each.start >= chat.start for each in tries)


async def test_a_failure_is_on_the_span_of_the_call_the_turn_and_the_query(
    env: Environment, collector: TraceCollector
) -> None:
    env.answer = lambda _: Reply(status=400, text="no")
    assert (await ended(env, collector, [agent("a")], "agent/a")).phase == "Failed"
    check(collector)
    assert [each.error for each in collector.spans] == [True] * 3
    assert {each.attributes["error.type"] for each in collector.spans} == {"ModelRejected"}


async def test_a_trace_goes_on_from_the_client_to_the_servers(
    env: Environment, collector: TraceCollector, tool_server: ToolServer, tmp_path: Path
) -> None:
    """From the program's span to the run; from the calls to the model's server, to an HTTP tool, and to MCP servers."""
    asked: list[str] = []
    env.model.on_headers = lambda headers: asked.append(headers.get("traceparent", ""))
    env.script(line("a", call("look"), call("test-meta", name="traceparent"), "Done."))
    look = manifest("Tool", "look", {"type": "http", "http": {"url": tool_server.url}})
    span = SpanContext(int(TRACE, 16), int(SPAN, 16), is_remote=False, trace_flags=TraceFlags(1))
    token = otel_context.attach(set_span_in_context(NonRecordingSpan(span)))
    with McpServerProcess("2026", tmp_path).running() as mcp:
        given = [agent("a", tools=[{"name": "look"}, {"name": "test", "type": "mcp"}]), look, mcp.manifest()]
        try:
            handle = await env.start_query(given, "agent/a")
        finally:
            otel_context.detach(token)
        assert (await env.status(handle)).phase == "Completed"
    await come(collector, "invoke_workflow")
    assert {each.trace for each in collector.spans} == {TRACE}
    assert collector.named("invoke_workflow")[0].parent == SPAN

    def header(span: Any) -> str:
        return f"00-{TRACE}-{span.id}-01"

    looked, meta = collector.named("execute_tool")
    assert asked == [*map(header, collector.named("chat"))]
    assert tool_server.seen[0].headers["traceparent"] == header(looked)
    (row,) = [each for each in env.rows() if each.get("name") == "test-meta" and each["role"] == "tool"]
    assert row["content"].split("-")[1] == TRACE, meta
    assert collector.repeated() == {}


async def test_an_agent_elsewhere_is_a_call_of_its_own_and_gets_the_place_in_the_trace(
    env: Environment, collector: TraceCollector, tool_server: ToolServer
) -> None:
    tool_server.answers(said("Because."))
    status = await ended(env, collector, [engine_agent("far"), engine(tool_server)], "agent/far")
    assert status.message == "Because."
    check(collector)
    assert collector.tree() == {"invoke_workflow q": {"invoke_agent far": {"invoke_agent far": {}}}}
    (called,) = [each for each in collector.spans if each.kind == 3]
    assert tool_server.seen[0].headers["traceparent"].split("-")[2] == called.id


async def test_an_agent_of_an_a2a_server_gets_the_place_in_the_trace(
    env: Environment, collector: TraceCollector
) -> None:
    agents = AgentServer()
    with agents.serving():
        await ended(env, collector, [a2a_agent("far"), a2a_server(agents)], "agent/far")
    check(collector)
    (called,) = [each for each in collector.spans if each.kind == 3]
    sent = [each.headers["traceparent"] for each in agents.seen if each.method == "POST"]
    assert {each.split("-")[2] for each in sent} == {called.id}


async def test_content_is_reported_where_that_is_asked_for_and_never_a_secret(
    collector: TraceCollector, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CONTENT, "true")
    async with Environment.running(client, tmp_path) as env:
        env.script(line("a", call("calculator", expression="1+1"), f"The key is {KEY}, and {KEY[:4]}."))
        calculator = {"name": "calculator", "type": "built-in"}
        await ended(env, collector, [agent("a", tools=[calculator])], "agent/a")
    check(collector)
    (first, last), (used,) = collector.named("chat"), collector.named("execute_tool")
    assert json.loads(first.attributes["gen_ai.system_instructions"]) == [{"type": "text", "content": "You are a."}]
    (asked,) = json.loads(first.attributes["gen_ai.input.messages"])
    assert asked == {"role": "user", "parts": [{"type": "text", "content": "Why?"}]}
    assert json.loads(first.attributes["gen_ai.tool.definitions"])[0]["name"] == "calculator"
    assert json.loads(used.attributes["gen_ai.tool.call.arguments"]) == {"expression": "1+1"}
    assert used.attributes["gen_ai.tool.call.result"] == "2"
    (answer,) = json.loads(last.attributes["gen_ai.output.messages"])
    assert answer["finish_reason"] == "stop"
    assert answer["parts"][0]["content"].startswith("The key is [secret]")
    assert not [body for body in collector.bodies if KEY.encode() in body]


async def test_waits_for_people_and_pauses_are_spans(
    env: Environment, collector: TraceCollector, tool_server: ToolServer
) -> None:
    env.script(line("a", call("buy", item="pen", amount=3), "Bought."))
    buy = tool(tool_server, {"required": True})
    handle = await env.start("agent", {"agent": "a", "input": "Buy", "resources": [agent("a", "buy"), buy]})
    (asked,) = await pending(handle)
    await come(collector, "chat")  # what has ended is reported before a wait
    await handle.signal("pause")
    await approve(handle, asked)
    await come(collector, "wait approval")  # which is reported when the pause begins
    await handle.signal("resume")
    await handle.result()
    await come(collector, "invoke_agent")
    (approval,), (pause,) = collector.named("wait approval"), collector.named("wait pause")
    (turn,) = collector.named("invoke_agent")
    assert {approval.parent, pause.parent} == {turn.id}
    assert approval.attributes["baton.wait.outcome"] == "approved"
    assert collector.repeated() == {}


async def test_a_wait_for_a_circuit_breaker_is_a_span_and_no_call(env: Environment, collector: TraceCollector) -> None:
    env.answer = Failing(1)
    assert (await ended(env, collector, asks(env), "agent/a")).phase == "Completed"
    check(collector)
    assert len(collector.named("wait circuit_breaker")) == 1
    assert (len(collector.named("chat")), len(collector.named("attempt"))) == (1, 1)


@pytest.mark.full
async def test_a_run_that_continues_as_new_is_one_span_and_each_of_its_turns_is_one(
    collector: TraceCollector, server_with_short_histories: Any, tmp_path: Path
) -> None:
    async with Environment.running(await connect(server_with_short_histories.address), tmp_path) as env:
        given = team("team", "a", "b", maxTurns=15, onMaxTurns="complete")
        await ended(env, collector, [*ABC, given], "team/team")
        assert len([each async for each in env.client.list_workflows(f"TaskQueue = '{env.task_queue}'")]) > 2
    check(collector)
    assert len(collector.named("invoke_workflow")) == 2
    assert len(collector.named("invoke_agent")) == len(collector.named("chat")) == 30


@pytest.mark.full
async def test_a_run_that_is_replayed_at_every_step_reports_no_span_twice(
    env: Environment, collector: TraceCollector
) -> None:
    async with env.without_cache() as other:
        given = team("team", "a", "b", maxTurns=2, onMaxTurns="complete")
        handle = await other.start_query([*ABC, given], "team/team")
        await other.status(handle)
        await handle.query("status")
        await come(collector, "invoke_workflow q")
    check(collector)
    assert len(collector.spans) == 2 + 4 + 4


@pytest.mark.parametrize("variable", ["OTEL_TRACES_SAMPLER", "OTEL_TRACES_EXPORTER", "OTEL_SDK_DISABLED"])
async def test_nothing_is_reported_where_the_variables_say_so(
    collector: TraceCollector, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    values = {"OTEL_TRACES_SAMPLER": "always_off", "OTEL_TRACES_EXPORTER": "none", "OTEL_SDK_DISABLED": "true"}
    monkeypatch.setenv(variable, values[variable])
    async with Environment.running(client, tmp_path) as env:
        handle = await env.start_query([agent("a")], "agent/a")
        assert (await env.status(handle)).phase == "Completed"
    assert collector.received == []


async def test_a_run_that_was_never_pinned_has_a_span_that_says_why(
    env: Environment, collector: TraceCollector
) -> None:
    assert (await ended(env, collector, [], "agent/nobody")).phase == "Failed"
    (span,) = collector.received
    assert (span.name, span.error, span.attributes["error.type"]) == ("invoke_workflow q", True, "UnknownResource")


@pytest.mark.slow
async def test_no_call_waits_for_a_collector_and_all_spans_come_when_it_listens_again(
    env: Environment, collector: TraceCollector
) -> None:
    collector.is_deaf = True
    handle = await env.start_query([agent("a")], "agent/a")
    assert (await env.status(handle)).phase == "Completed"
    collector.is_deaf = False
    await come(collector, "invoke_workflow q")
    check(collector)
    assert len(collector.spans) == 3


async def test_a_span_that_a_collector_refuses_is_dropped_and_keeps_no_others_from_it(
    env: Environment, collector: TraceCollector, caplog: pytest.LogCaptureFixture
) -> None:
    collector.refused = "invoke_agent b"
    await ended(env, collector, [*ABC, STRATEGIES["sequential"][0]], "team/team")
    while len(collector.spans) < 7:
        await asyncio.sleep(0.02)
    assert collector.repeated() == {}
    while "a span was dropped because the trace collector rejects it: invoke_agent b" not in caplog.text:
        await asyncio.sleep(0.02)


@pytest.mark.full
async def test_runs_go_on_without_a_collector(client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    async with Environment.running(client, tmp_path) as env:
        handle = await env.start_query([*ABC, STRATEGIES["sequential"][0]], "team/team")
        assert (await env.status(handle)).phase == "Completed"


@pytest.mark.slow
async def test_a_run_that_leaves_the_workers_memory_in_a_turn_leaves_no_error_behind(env: Environment) -> None:
    here = dataclasses.replace(env, task_queue=uuid.uuid4().hex)
    async with worker.run_worker(env.client, env.catalog, here.worker_env):
        env.script(line("one", {"text": "never", "hang": True}))
        handle = await here.start_query([agent("one")], "agent/one")
        await here.wait_for_calls(1)
    gc.collect()  # pytest fails for what is raised now
    await handle.terminate()


async def test_a_run_whose_first_step_waits_for_the_journal_leaves_no_error_behind(
    env: Environment, caplog: pytest.LogCaptureFixture
) -> None:
    await env.status(await env.start_query(ABC, "agent/a"))
    with contextlib.closing(sqlite3.connect(env.folder / "journal.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        handle = await env.start_query(ABC, "agent/a", parameters=[{"name": "x", "value": "y"}])
        while "pin" not in [
            event.activity_task_scheduled_event_attributes.activity_type.name
            async for event in handle.fetch_history_events()
        ]:
            await asyncio.sleep(0.05)
        other.execute("ROLLBACK")
    assert (await env.status(handle)).phase == "Completed"
    assert "pin failed" not in caplog.text
