"""One question over each protocol of the gateway. Each protocol has its own tests, which ``make test-all`` runs."""

import asyncio
import dataclasses
import uuid
from pathlib import Path

import httpx
import pytest
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.types import Message, Part, Role, SendMessageRequest, TaskState
from mcp.client.client import Client as McpClient
from openai import AsyncOpenAI
from temporalio.client import (
    Client,
    DescribeWorkflowInput,
    Interceptor,
    OutboundInterceptor,
    WorkflowExecutionDescription,
)

from baton.contracts.scope import ACCOUNT, CALLER
from baton.starter.gateway.a2a_tasks import CONTEXT, TARGET
from baton.starter.gateway.access import LOCAL
from baton.starter.gateway.owners import PROTOCOL
from baton.temporal.client import PROGRAM
from baton.testing import Reply
from tests.harness.environment import Environment, Json, line
from tests.harness.gateway import GatewayServer, key_file, read_sse


async def test_a_run_is_started_and_its_events_are_streamed(gateway: GatewayServer) -> None:
    gateway.env.script(line("one", "a"), line("two", "b"))
    run = await gateway.post("/runs", {"target": "team/duo", "input": "Why?"}, 201)
    events = await gateway.finished(run["id"])
    assert [each["data"]["text"] for each in events if each["event"] == "message"] == ["a", "b"]
    assert events[-1]["event"] == "run.ended"
    assert (await gateway.get(f"/runs/{run['id']}"))["status"]["phase"] == "Completed"


@pytest.mark.full
async def test_a_team_is_a_model_of_openais_client(gateway: GatewayServer) -> None:
    gateway.env.script(line("one", "a", "a"), line("two", "b", "b"))
    async with AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none") as api:
        chat = await api.chat.completions.create(model="team/duo", messages=[{"role": "user", "content": "Why?"}])
        response = await api.responses.create(model="team/duo", input="Why?")
    assert chat.choices[0].message.content == "b"
    said = [item["content"][0]["text"] for item in response.model_dump()["output"]]
    assert said == ["a", "b"], "what members say are items of their own"


async def test_a_team_is_an_agent_of_a2a(gateway: GatewayServer) -> None:
    gateway.env.script(line("one", "a"), line("two", "b"))
    card = await A2ACardResolver(gateway.http, f"{gateway.url}/a2a/team/duo").get_agent_card()
    client = ClientFactory(ClientConfig(httpx_client=gateway.http, streaming=False)).create(card)
    message = Message(message_id=uuid.uuid4().hex, role=Role.ROLE_USER, parts=[Part(text="Why?")])
    [answer] = [each async for each in client.send_message(SendMessageRequest(message=message))]
    assert answer.task.status.state == TaskState.TASK_STATE_COMPLETED
    assert answer.task.artifacts[-1].parts[0].text == "b"


@pytest.mark.full
async def test_a_team_is_a_tool_of_mcp(gateway: GatewayServer) -> None:
    gateway.env.script(line("one", "a"), line("two", "b"))
    async with McpClient(f"{gateway.url}/mcp") as client:
        result = await client.call_tool("team_duo", {"input": "Why?"})
    assert "b" in str(result.content)


@pytest.mark.full
async def test_a_team_is_an_agent_of_ag_ui(gateway: GatewayServer) -> None:
    gateway.env.script(line("one", "a"), line("two", "b"))
    message = {"id": "m", "role": "user", "content": "Why?"}
    body = {"threadId": uuid.uuid4().hex, "runId": "r", "messages": [message], "tools": [], "context": [], "state": {}}
    async with gateway.http.stream("POST", "/ag-ui/team/duo", json=body) as response:
        events = [event["data"] async for event in read_sse(response)]
    assert (events[0]["type"], events[-1]["type"], events[-1]["result"]) == ("RUN_STARTED", "RUN_FINISHED", "b")


@pytest.mark.full
async def test_a_team_is_asked_by_arks_api(gateway: GatewayServer) -> None:
    gateway.env.script(line("one", "a"), line("two", "b"))
    name = f"query-{uuid.uuid4().hex[:8]}"
    await gateway.post("/v1/queries", {"name": name, "input": "Why?", "target": {"type": "team", "name": "duo"}})
    while (query := await gateway.get(f"/v1/queries/{name}"))["status"].get("phase") != "done":
        assert query["status"].get("phase") != "error"
        await asyncio.sleep(0.05)
    assert query["status"]["responses"][0]["content"] == "b"


async def test_the_console_is_served_and_refuses_scripts_of_others(gateway: GatewayServer) -> None:
    page = await gateway.http.get("/")
    assert "<title>" in page.text
    assert "script-src 'self'" in page.headers["content-security-policy"]


async def test_a_caller_without_a_key_is_refused_where_there_are_keys(served_env: Environment, tmp_path: Path) -> None:
    path, keys = key_file(tmp_path, {"ann": {}})
    async with GatewayServer.running(served_env, BATON_GATEWAY_KEYS=str(path)) as gateway:
        paths = ("/targets", "/v1/models", "/v1/queries", "/runs", "/inbox")
        refused = {path: (await gateway.http.get(path)).status_code for path in paths}
        assert {*refused.values()} == {httpx.codes.UNAUTHORIZED}, refused
        await gateway.get("/targets", key=keys["ann"])


CHAT = {"model": "agent/one", "messages": [{"role": "user", "content": "Why?"}], "stream": True}
RESPONSE = {"model": "agent/one", "input": "Why?", "stream": True}
USER_MESSAGE = {"messageId": uuid.uuid4().hex, "role": "ROLE_USER", "parts": [{"text": "Why?"}]}
A2A = {"jsonrpc": "2.0", "id": 1, "method": "SendStreamingMessage", "params": {"message": USER_MESSAGE}}
AG_UI = {"threadId": uuid.uuid4().hex, "runId": "r", "messages": [{"id": "m", "role": "user", "content": "Why?"}]}
AG_UI_REST: Json = {"tools": [], "context": [], "state": {}, "forwardedProps": {}}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", CHAT),
        ("/v1/responses", RESPONSE),
        ("/a2a/agent/one", A2A),
        ("/ag-ui/agent/one", {**AG_UI, **AG_UI_REST}),
    ],
)
async def test_a_stream_has_begun_before_the_model_has_answered(gateway: GatewayServer, path: str, body: Json) -> None:
    gateway.env.script(line("one", {"text": "a", "held": True}))
    async with gateway.http.stream("POST", path, json=body, headers={"a2a-version": "1.0"}) as response:
        assert response.status_code == 200, (await response.aread()).decode()
        gateway.env.model.release()
        text = (await response.aread()).decode()
    assert '"a"' in text


async def test_who_reads_on_while_nothing_happens_is_connected_at_once(gateway: GatewayServer) -> None:
    gateway.env.script(line("one", {"text": "a", "held": True}), line("two", "b"))
    run = await gateway.post("/runs", {"target": "team/duo", "input": "Why?"}, 201)
    path = f"/runs/{run['id']}/events"
    async with gateway.http.stream("GET", path) as response:
        async for event in read_sse(response):
            if event["event"] == "model.called":
                break
    async with gateway.http.stream("GET", path, headers={"last-event-id": event["id"]}) as response:
        assert response.status_code == 200
        gateway.env.model.release()
        following = [event["event"] async for event in read_sse(response)]
    assert following[-1] == "run.ended"


class CountedReads(Interceptor, OutboundInterceptor):
    """Counts the runs that are read at once."""

    def __init__(self) -> None:
        self.now = 0
        self.most = 0

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:  # noqa: A002
        OutboundInterceptor.__init__(self, next)
        return self

    async def describe_workflow(self, input: DescribeWorkflowInput) -> WorkflowExecutionDescription:  # noqa: A002
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            return await super().describe_workflow(input)
        finally:
            self.now -= 1


@pytest.mark.full
@pytest.mark.parametrize("path", ["/v1/queries", "/a2a/agent/one/tasks"])
async def test_lists_of_many_clients_read_together_as_many_runs_at_once_as_one_does(
    served_env: Environment, path: str
) -> None:
    reads = CountedReads()
    known = served_env.client
    client = Client(
        known.service_client, namespace=known.namespace, data_converter=known.data_converter, interceptors=[reads]
    )
    own = dataclasses.replace(served_env, client=client)
    own.answer = lambda _: Reply(text="a")
    async with GatewayServer.running(own) as gateway:
        for number in range(3):
            if path == "/v1/queries":
                target = {"type": "agent", "name": "one"}
                query = {"name": f"query-{number}", "input": "Why?", "target": target}
                run = (await gateway.post(path, query))["metadata"]["uid"]
            else:
                message = {"messageId": uuid.uuid4().hex, "role": "ROLE_USER", "parts": [{"text": "Why?"}]}
                sent = await gateway.post("/a2a/agent/one/message:send", {"message": message}, a2a_version="1.0")
                run = sent["task"]["id"]
            await gateway.finished(run)
        # Temporal lists a run a moment after its start; what is read of it once is known from then on.
        items = "items" if path == "/v1/queries" else "tasks"
        while len((await gateway.get(path, a2a_version="1.0"))[items]) < 3:
            await asyncio.sleep(0.02)
        reads.most = 0
        await asyncio.gather(*(gateway.get(path, a2a_version="1.0") for _ in range(20)))
        assert 0 < reads.most <= 10


@pytest.mark.full
@pytest.mark.parametrize("path", ["/v1/queries", "/a2a/agent/one/tasks"])
async def test_a_run_that_can_not_be_read_is_listed_with_what_temporals_list_knows(
    gateway: GatewayServer, path: str
) -> None:
    queue = f"{gateway.env.task_queue}{PROGRAM}none"
    memo = {CALLER: LOCAL.name, ACCOUNT: str(LOCAL.account), "query": "odd", "namespace": "default"}
    memo |= {PROTOCOL: "ark"} if path == "/v1/queries" else {PROTOCOL: "a2a", TARGET: "agent/one", CONTEXT: "c"}
    unreadable = "neither an object nor a question"
    handle = await gateway.env.client.start_workflow(
        "query", unreadable, id=f"odd-{uuid.uuid4()}", task_queue=queue, memo=memo
    )
    try:
        while not (listed := await gateway.get(path, a2a_version="1.0")).get("items", listed.get("tasks")):
            await asyncio.sleep(0.02)
        if path == "/v1/queries":
            (item,) = listed["items"]
            assert (item["name"], item["status"]["phase"], item["input"]) == ("odd", "running", "")
        else:
            (task,) = listed["tasks"]
            assert (task["id"], task["contextId"], task["status"]["state"]) == (handle.id, "c", "TASK_STATE_WORKING")
    finally:
        await handle.terminate()
