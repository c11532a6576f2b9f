"""MCP: teams and agents as tools, over streamable HTTP and stdio, in both eras of the protocol."""

import asyncio
import contextlib
import json
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import mcp_types as types
import pytest
from mcp.client.client import Client as McpClient
from mcp.client.context import ClientRequestContext
from mcp.client.stdio import StdioServerParameters
from mcp.shared.exceptions import MCPError
from temporalio.client import Client
from temporalio.service import RetryConfig

from baton.starter.server.embedded import EmbeddedServer
from baton.temporal.converter import DATA_CONVERTER
from tests.harness.environment import Environment, Json, agent, call, line, manifest, team
from tests.harness.gateway import GatewayServer, key_file
from tests.harness.processes import BATON, process_env
from tests.harness.tcp_proxy import TcpProxy

VERDICT: Json = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
ANN: Json = {"name": "ann", "type": "human", "prompt": "Is it legal?"}
MANIFESTS = [
    agent("one"),
    agent("two"),
    team("duo", "one", "two", maxTurns=1, onMaxTurns="complete"),
    agent("judge", outputSchema=VERDICT),
    manifest(
        "Agent",
        "greeter",
        {
            "prompt": "You are greeter. Speak {{.language}}.",
            "parameters": [{"name": "language", "valueFrom": {"queryParameterRef": {"name": "language"}}}],
        },
    ),
    manifest(
        "Agent",
        "careful",
        {"prompt": "You are careful.", "tools": [{"name": "calculator", "approval": {"required": True}}]},
    ),
    manifest("Team", "panel", {"strategy": "sequential", "members": [ANN]}),
    team("line", "one", "careful", "two", strategy="sequential"),
]
CALCULATE = call("calculator", expression="2+2")
Mode = Literal["legacy", "auto"]
both_eras = pytest.mark.parametrize("mode", ["legacy", "auto"])


def connect(gateway: GatewayServer, mode: str = "auto", **settings: Any) -> McpClient:
    """A client over streamable HTTP, of either era."""
    return McpClient(f"{gateway.url}/mcp", mode=mode, **settings)


def stdio(served_env: Environment, mode: str, **settings: Any) -> McpClient:
    """A client of ``baton mcp``, of either era."""
    address = served_env.client.service_client.config.target_host
    environ = {**process_env(TEMPORAL_ADDRESS=address), **served_env.worker_env}
    server = StdioServerParameters(command=str(BATON), args=["mcp"], env=environ)
    return McpClient(server, mode=mode, **settings)


def text_of(result: types.CallToolResult) -> str:
    return "\n".join(block.text for block in result.content if isinstance(block, types.TextContent))


def run_of(result: types.CallToolResult) -> str:
    run = (result.meta or {})["baton/run"]
    assert isinstance(run, str)
    return run


async def waiting(gateway: GatewayServer) -> tuple[str, Json]:
    """The only thing that waits for a person, as soon as there is one: its run, and the decision."""
    while not (found := (await gateway.get("/inbox"))["waiting"]):
        await asyncio.sleep(0.05)
    [each] = found
    return each["root"], each["decision"]


@both_eras
async def test_teams_and_agents_are_tools_with_their_parameters_and_schemas(gateway: GatewayServer, mode: Mode) -> None:
    async with connect(gateway, mode) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert {"agent_one", "agent_two", "team_duo", "agent_judge", "baton_result", "baton_reply"} < tools.keys()
    assert tools["agent_judge"].output_schema == VERDICT
    assert tools["team_duo"].output_schema is None
    assert tools["team_duo"].input_schema["required"] == ["input"]
    parameters = tools["agent_greeter"].input_schema["properties"]["parameters"]
    assert parameters["required"] == ["language"]


@both_eras
async def test_a_call_returns_the_answer_and_reports_who_speaks(gateway: GatewayServer, mode: Mode) -> None:
    gateway.env.script(line("one", "a"), line("two", "b"))
    spoken: list[str | None] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        spoken.append(message)

    async with connect(gateway, mode) as client:
        result = await client.call_tool("team_duo", {"input": "Why?"}, progress_callback=on_progress)
    assert text_of(result) == "b"
    assert not result.is_error
    assert spoken == ["one speaks", "two speaks"]


@both_eras
async def test_an_answer_with_a_schema_is_structured_content(gateway: GatewayServer, mode: Mode) -> None:
    gateway.env.script(line("judge", '{"ok": true}'))
    async with connect(gateway, mode) as client:
        result = await client.call_tool("agent_judge", {"input": "Well?"})
    assert result.structured_content == {"ok": True}


@both_eras
async def test_an_answer_with_a_schema_that_is_too_long_to_be_read_whole_is_an_error(
    gateway: GatewayServer, mode: Mode
) -> None:
    """A client refuses a result without the structured content that the tool announces, unless it is an error."""
    gateway.env.script(line("judge", json.dumps({"ok": True, "why": "x" * 70_000})))
    async with connect(gateway, mode) as client:
        result = await client.call_tool("agent_judge", {"input": "Well?"})
    assert (result.is_error, result.structured_content) == (True, None)
    assert text_of(result).startswith('{"ok": true')
    assert text_of(result).endswith("characters in total]")


async def test_parameters_reach_the_templates_and_wrong_ones_are_explained(gateway: GatewayServer) -> None:
    gateway.env.script(line("greeter", "Bonjour."))
    async with connect(gateway) as client:
        result = await client.call_tool("agent_greeter", {"input": "Hi", "parameters": {"language": "French"}})
        assert text_of(result) == "Bonjour."
        assert "Speak French." in str(gateway.env.model.requests[-1])
        for arguments in (
            {"input": "Hi"},
            {"input": "Hi", "parameters": {"language": "x", "y": "z"}},
            {},
            {"input": 1},
        ):
            refused = await client.call_tool("agent_greeter", arguments)
            assert refused.is_error
        with pytest.raises(MCPError, match="Unknown tool"):
            await client.call_tool("agent_nobody", {"input": "Hi"})


@both_eras
async def test_a_failed_run_is_an_error_of_the_tool(gateway: GatewayServer, mode: Mode) -> None:
    gateway.env.script(line("judge", "no JSON", "no JSON", "no JSON", "no JSON", "no JSON"))
    async with connect(gateway, mode) as client:
        result = await client.call_tool("agent_judge", {"input": "Well?"})
    assert result.is_error


async def test_a_repeated_call_with_the_same_key_joins_the_run(gateway: GatewayServer) -> None:
    gateway.env.script(line("one", "a", "again"))
    meta: Any = {"baton/idempotencyKey": uuid.uuid4().hex}
    async with connect(gateway, "legacy") as first, connect(gateway) as second:
        results = await asyncio.gather(
            *(client.call_tool("agent_one", {"input": "Why?"}, meta=meta) for client in (first, second))
        )
        assert [text_of(result) for result in results] == ["a", "a"]
        assert run_of(results[0]) == run_of(results[1])
        other = await second.call_tool("agent_one", {"input": "Other?"}, meta=meta)
        assert "another request" in text_of(other)
    assert len(gateway.env.model.requests) == 1


@both_eras
async def test_without_forms_the_result_says_what_waits_and_the_answer_is_fetched_later(
    gateway: GatewayServer, mode: Mode
) -> None:
    gateway.env.script(line("careful", CALCULATE, "It is 4."))
    async with connect(gateway, mode) as client:
        result = await client.call_tool("agent_careful", {"input": "2+2?"})
        run, decision = await waiting(gateway)
        assert run_of(result) == run
        assert f"baton approve {run} {decision['id']}" in text_of(result)
        await gateway.post(f"/runs/{run}/approve", {"call": decision["id"]})
        answer = await client.call_tool("baton_result", {"run": run})
    assert text_of(answer) == "It is 4."


@both_eras
async def test_a_reply_of_a_person_is_passed_on(gateway: GatewayServer, mode: Mode) -> None:
    async with connect(gateway, mode) as client:
        await client.call_tool("team_panel", {"input": "A contract"})
        run, decision = await waiting(gateway)
        arguments = {"run": run, "question": decision["id"], "text": "It is."}
        assert text_of(await client.call_tool("baton_reply", arguments)) == "It is."
        assert text_of(await client.call_tool("baton_reply", arguments)) == "It is."


class Person:
    """The user of a client: what was asked, and the responses in their order."""

    def __init__(self, *responses: types.ElicitResult) -> None:
        self.asked: list[str] = []
        self._responses = [*responses]

    async def __call__(
        self, context: ClientRequestContext, params: types.ElicitRequestParams
    ) -> types.ElicitResult | types.ErrorData:
        self.asked.append(params.message)
        return self._responses.pop(0)


def accept(**content: str) -> types.ElicitResult:
    return types.ElicitResult(action="accept", content={**content})


async def test_an_approval_is_elicited_without_a_session(served_env: Environment) -> None:
    served_env.script(line("careful", CALCULATE, "It is 4."))
    person = Person(accept(decision="approve"))
    async with GatewayServer.running(served_env) as gateway, connect(gateway, elicitation_callback=person) as client:
        result = await client.call_tool("agent_careful", {"input": "2+2?"})
        assert text_of(result) == "It is 4."
        events = await gateway.finished(run_of(result))
    assert person.asked == ['May careful call calculator with {"expression": "2+2"}?']
    [ended] = [event["data"] for event in events if event["event"] == "wait.ended"]
    assert (ended["outcome"], ended["by"]) == ("approved", "local")


async def test_another_replica_takes_the_response_of_a_form(gateway: GatewayServer) -> None:
    gateway.env.script(line("careful", CALCULATE, "It is 4."))
    async with GatewayServer.running(gateway.env) as other:
        person = Person()
        async with (
            connect(gateway, elicitation_callback=person) as first,
            connect(other, elicitation_callback=person) as second,
        ):
            needed = await first.session.call_tool("agent_careful", {"input": "2+2?"}, allow_input_required=True)
            assert isinstance(needed, types.InputRequiredResult)
            [key] = needed.input_requests or {}
            responses: Any = {key: accept(decision="approve")}
            for _ in range(2):  # the same response again has no further effect
                result = await second.call_tool(
                    "agent_careful", {"input": "2+2?"}, input_responses=responses, request_state=needed.request_state
                )
                assert text_of(result) == "It is 4."
            for state in ("x", "one-" + "0" * 36):
                with pytest.raises(MCPError, match="there is no run"):
                    await second.call_tool("agent_careful", {"input": "2+2?"}, request_state=state)
            with pytest.raises(MCPError, match="another tool"):
                await second.call_tool("agent_one", {"input": "2+2?"}, request_state=needed.request_state)
    assert len(gateway.env.model.requests) == 2


@pytest.mark.parametrize(
    "response",
    [
        types.ElicitResult(action="decline"),
        accept(decision="reject", reason="No."),
        types.ElicitResult(action="cancel"),
        accept(),
    ],
)
async def test_only_an_explicit_approval_approves(gateway: GatewayServer, response: types.ElicitResult) -> None:
    gateway.env.script(line("careful", CALCULATE, "Not calculated."))
    async with connect(gateway, elicitation_callback=Person(response)) as client:
        result = await client.call_tool("agent_careful", {"input": "2+2?"})
        if response.action == "decline" or response.content:
            assert text_of(result) == "Not calculated."
            events = await gateway.finished(run_of(result))
            assert [e["data"]["outcome"] for e in events if e["event"] == "wait.ended"] == ["rejected"]
        else:
            run, _ = await waiting(gateway)
            assert f"The run {run} is not done" in text_of(result)
            await gateway.post(f"/runs/{run}/cancel")


async def rpc(
    gateway: GatewayServer, method: str, params: Json, *, tasks: bool = True, name: str | None = None
) -> Json:
    """The response to a request of the era 2026-07-28, written out; ``tasks``: the client has that extension.

    ``name`` is the value of the header Mcp-Name, if it is not the right one.
    """
    extensions: Json = {"extensions": {"io.modelcontextprotocol/tasks": {}}} if tasks else {}
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {**extensions, "elicitation": {}},
    }
    headers = {
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": "2026-07-28",
        "mcp-method": method,
        "mcp-name": name or params.get("name") or params["taskId"],
    }
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
    response = await gateway.http.post("/mcp", json=body, headers=headers)
    answer: Json = response.json()
    return answer


async def in_status(gateway: GatewayServer, task: str, status: str) -> Json:
    """The task, as soon as it is in that status."""
    while True:
        got: Json = (await rpc(gateway, "tasks/get", {"taskId": task}))["result"]
        if got["status"] == status:
            return got
        assert got["status"] in ("working", "input_required"), got
        await asyncio.sleep(0.05)


async def test_a_call_becomes_a_task_whose_run_is_durable_before_the_response(gateway: GatewayServer) -> None:
    gateway.env.script(line("careful", CALCULATE, "It is 4."))
    called = await rpc(gateway, "tools/call", {"name": "agent_careful", "arguments": {"input": "2+2?"}})
    task = called["result"]["taskId"]
    assert called["result"]["resultType"] == "task"
    assert await gateway.env.client.get_workflow_handle(task).describe()
    async with GatewayServer.running(gateway.env) as other:
        needed = await in_status(other, task, "input_required")
        [(key, request)] = needed["inputRequests"].items()
        assert request["method"] == "elicitation/create"
        responses = {key: {"action": "accept", "content": {"decision": "approve"}}}
        for _ in range(2):
            updated = await rpc(other, "tasks/update", {"taskId": task, "inputResponses": responses})
            assert updated["result"]["resultType"] == "complete"
    done = await in_status(gateway, task, "completed")
    assert done["result"]["content"] == [{"type": "text", "text": "It is 4."}]
    assert "inputRequests" not in done


async def test_a_task_is_canceled_and_canceling_it_again_does_nothing(gateway: GatewayServer) -> None:
    gateway.env.script(line("careful", CALCULATE))
    called = await rpc(gateway, "tools/call", {"name": "agent_careful", "arguments": {"input": "2+2?"}})
    task = called["result"]["taskId"]
    for _ in range(2):
        assert (await rpc(gateway, "tasks/cancel", {"taskId": task}))["result"]["resultType"] == "complete"
        await in_status(gateway, task, "cancelled")


async def test_a_client_needs_the_capability_of_tasks_and_the_task_has_to_be_its_own(
    served_env: Environment, tmp_path: Path
) -> None:
    served_env.script(line("one", "a"))
    path, keys = key_file(tmp_path, {"ann": {}, "bob": {}})
    async with GatewayServer.running(served_env, BATON_GATEWAY_KEYS=str(path)) as gateway:
        gateway.http.headers["authorization"] = f"Bearer {keys['ann']}"
        called = await rpc(gateway, "tools/call", {"name": "agent_one", "arguments": {"input": "Why?"}})
        task = called["result"]["taskId"]
        await in_status(gateway, task, "completed")
        assert (await rpc(gateway, "tasks/get", {"taskId": task}, tasks=False))["error"]["code"] == -32021
        assert (await rpc(gateway, "tasks/get", {"taskId": task}, name="other"))["error"]["code"] == -32020
        gateway.http.headers["authorization"] = f"Bearer {keys['bob']}"
        for method in ("tasks/get", "tasks/cancel"):
            assert (await rpc(gateway, method, {"taskId": task}))["error"]["code"] == -32602
        gateway.http.headers["authorization"] = "Bearer bk-none"
        assert (await gateway.http.post("/mcp", json={})).status_code == 401


async def started_call(client: McpClient, tool: str, meta: Any = None, **arguments: str) -> "asyncio.Task[object]":
    """A call that has reported who speaks, and goes on until the model's answer is released."""
    started = asyncio.Event()

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        started.set()

    asked = asyncio.create_task(client.call_tool(tool, {**arguments}, progress_callback=on_progress, meta=meta))
    await started.wait()
    return asked


async def only_run(gateway: GatewayServer) -> str:
    """The id of the only run, once Temporal lists it."""
    while not (runs := (await gateway.get("/runs"))["runs"]):
        await asyncio.sleep(0.02)
    [run] = runs
    return str(run["id"])


@pytest.mark.parametrize(
    ("mode", "key", "phase"), [("legacy", None, "Completed"), ("auto", None, "Canceled"), ("auto", "k", "Completed")]
)
async def test_a_closed_connection_ends_the_run_of_a_call_of_version_2026_without_a_key_alone(
    gateway: GatewayServer, mode: Mode, key: str | None, phase: str
) -> None:
    gateway.env.script(line("one", {"text": "a", "held": True}))
    async with connect(gateway, mode) as client:
        asked = await started_call(client, "agent_one", {"baton/idempotencyKey": key} if key else None, input="Why?")
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
    run = await only_run(gateway)
    if phase == "Completed":
        gateway.env.model.release()
    async with asyncio.timeout(60):
        assert (await gateway.finished(run))[-1]["data"]["phase"] == phase


@pytest.mark.full
async def test_a_run_whose_client_leaves_during_an_outage_of_temporal_is_canceled_after_it(
    served_env: Environment, server: EmbeddedServer, caplog: pytest.LogCaptureFixture
) -> None:
    served_env.script(line("one", {"text": "a", "held": True}))
    hasty = RetryConfig(max_retries=1, max_elapsed_time_millis=100)  # by itself, the SDK tries again for seconds
    async with (
        TcpProxy(server.port) as proxy,
        GatewayServer.running(served_env) as other,
        GatewayServer.running(
            replace(
                served_env,
                client=await Client.connect(proxy.address, data_converter=DATA_CONVERTER, retry_config=hasty),
            )
        ) as gateway,
    ):
        async with connect(gateway) as client:
            asked = await started_call(client, "agent_one", input="Why?")
            outage = asyncio.create_task(proxy.cut(600))
            await asyncio.sleep(0)  # it has begun
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)
        async with asyncio.timeout(60):
            while "Temporal: " not in caplog.text:
                await asyncio.sleep(0.02)
            outage.cancel()
            assert (await other.finished(await only_run(other)))[-1]["data"]["phase"] == "Canceled"


async def test_a_closed_wait_for_the_result_of_a_run_does_not_end_the_run(gateway: GatewayServer) -> None:
    gateway.env.script(line("one", {"text": "a", "held": True}))
    run = await gateway.post("/runs", {"target": "one", "input": "Why?"}, 201)
    async with connect(gateway) as client:
        asked = await started_call(client, "baton_result", run=run["id"])
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
    gateway.env.model.release()
    assert (await gateway.finished(run["id"]))[-1]["data"]["phase"] == "Completed"


@pytest.mark.slow
async def test_the_end_of_a_gateway_ends_no_run(gateway: GatewayServer) -> None:
    gateway.env.script(line("one", {"text": "a", "held": True}))
    async with contextlib.AsyncExitStack() as clients:
        async with GatewayServer.running(gateway.env) as stopped:
            client = await clients.enter_async_context(connect(stopped))
            asked = await started_call(client, "agent_one", input="Why?")
        await asyncio.gather(asked, return_exceptions=True)
    run = await only_run(gateway)
    gateway.env.model.release()
    assert (await gateway.finished(run))[-1]["data"]["phase"] == "Completed"


@pytest.mark.slow
@both_eras
async def test_over_stdio_calls_return_answers_and_forms_are_elicited(served_env: Environment, mode: Mode) -> None:
    served_env.script(line("careful", CALCULATE, "It is 4."))
    person = Person(accept(decision="approve"), accept(reply="It is."))
    async with stdio(served_env, mode, elicitation_callback=person) as client:
        assert "agent_careful" in {tool.name for tool in (await client.list_tools()).tools}
        assert text_of(await client.call_tool("agent_careful", {"input": "2+2?"})) == "It is 4."
        assert text_of(await client.call_tool("team_panel", {"input": "A contract"})) == "It is."
    assert len(person.asked) == 2


async def test_over_stdio_a_form_that_fails_counts_as_dismissed(served_env: Environment) -> None:
    async def fail(context: ClientRequestContext, params: types.ElicitRequestParams) -> types.ErrorData:
        return types.ErrorData(code=types.INTERNAL_ERROR, message="the dialog timed out")

    served_env.script(line("careful", CALCULATE, "It is 4."))
    async with (
        GatewayServer.running(served_env) as gateway,
        stdio(served_env, "legacy", elicitation_callback=fail) as client,
    ):
        result = await client.call_tool("agent_careful", {"input": "2+2?"})
        run, decision = await waiting(gateway)
        assert run_of(result) == run
        assert f"baton approve {run} {decision['id']}" in text_of(result)
        await gateway.post(f"/runs/{run}/approve", {"call": decision["id"]})
        assert text_of(await client.call_tool("baton_result", {"run": run})) == "It is 4."


async def test_over_stdio_progress_grows_also_after_a_form(served_env: Environment) -> None:
    served_env.script(line("one", "2+2?"), line("careful", CALCULATE, "It is 4."), line("two", "Agreed."))
    reported: list[tuple[float, str | None]] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        reported.append((progress, message))

    async with stdio(served_env, "legacy", elicitation_callback=Person(accept(decision="approve"))) as client:
        result = await client.call_tool("team_line", {"input": "2+2?"}, progress_callback=on_progress)
    assert text_of(result) == "Agreed."
    assert reported == [(1, "one speaks"), (2, "careful speaks"), (3, "two speaks")]


@pytest.mark.slow
@both_eras
async def test_over_stdio_a_call_canceled_at_once_leaves_no_run_open(served_env: Environment, mode: Mode) -> None:
    served_env.script(line("one", *[{"text": "a", "held": True}] * 10))
    async with GatewayServer.running(served_env) as gateway, stdio(served_env, mode) as client:
        await client.list_tools()
        for pause in (0.0, 0.01, 0.02, 0.03, 0.05, 0.1):  # the call is somewhere between its arrival and its run
            asked = asyncio.create_task(client.call_tool("agent_one", {"input": "Why?"}))
            await asyncio.sleep(pause)
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)
        await client.list_tools()  # what came before has arrived
        for run in (await gateway.get("/runs"))["runs"]:
            assert (await gateway.finished(run["id"]))[-1]["data"]["phase"] == "Canceled"


@pytest.mark.slow
@both_eras
@pytest.mark.parametrize("cancels", [True, False])
async def test_over_stdio_a_client_cancels_the_run_and_its_end_does_not(
    served_env: Environment, mode: Mode, *, cancels: bool
) -> None:
    served_env.script(line("one", {"text": "a", "held": True}))
    async with GatewayServer.running(served_env) as gateway:
        async with stdio(served_env, mode) as client:
            asked = await started_call(client, "agent_one", input="Why?")
            run = await only_run(gateway)
            if cancels:
                asked.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await asked
                assert (await gateway.finished(run))[-1]["data"]["phase"] == "Canceled"
        if not cancels:
            await asyncio.gather(asked, return_exceptions=True)
            served_env.model.release()
            assert (await gateway.finished(run))[-1]["data"]["phase"] == "Completed"
