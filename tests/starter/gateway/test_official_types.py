"""What each protocol answers has the types of that protocol's own package, also where a run waits or has failed."""

import json
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import mcp_types
import pytest
from a2a.compat.v0_3 import types as a2a_03
from a2a.types import AgentCard, ListTasksResponse, SendMessageResponse, StreamResponse
from ag_ui.core import Event as AgUiEvent
from ag_ui.core import RunErrorEvent
from google.protobuf.json_format import ParseDict
from google.protobuf.message import Message as ProtoMessage
from openai.types import ErrorObject
from openai.types import Model as OpenAiModel
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import ResponseItemList
from pydantic import BaseModel, TypeAdapter

from tests.harness.environment import Json, agent, call, line, manifest, team
from tests.harness.gateway import GatewayServer, read_sse

MANIFESTS = [
    agent("one"),
    agent("two", "noop"),
    agent("failing"),
    agent("cut"),
    agent("open", clients={"tools": True}),
    agent("careful", tools=[{"name": "calculator", "approval": {"required": True}}]),
    agent("judge", outputSchema={"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}),
    team("duo", "one", "two", strategy="sequential"),
    manifest("Team", "panel", {"strategy": "sequential", "members": [{"name": "ann", "type": "human", "prompt": "?"}]}),
]
CALLING: list[str | Json] = [call("noop"), "b"]
SCRIPT = [
    line("one", *["a"] * 9),
    line("two", *CALLING * 9),
    line("failing", *[{"status": 400, "text": "no"}] * 9),
    line("cut", *[{"text": "Beca", "stop": "content_filter"}] * 9),
    line("open", *[call("weather", city="Bern")] * 9),
    line("careful", *[call("calculator", expression="2+2")] * 9),
    line("judge", *['{"ok": true}'] * 9),
]
ENDED = ("agent/one", "agent/cut", "agent/judge", "team/duo", "agent/failing")
WAITING = ("agent/careful", "team/panel")
TARGETS = (*ENDED, *WAITING)
TOOL: Json = {"name": "weather", "description": "", "parameters": {"type": "object", "properties": {}}}
PNG = "data:image/png;base64,iVBORw0KGgo="
AG_UI: TypeAdapter[Any] = TypeAdapter(AgUiEvent)


def check(kind: type[BaseModel] | TypeAdapter[Any], value: object) -> None:
    """Compares a JSON value with a type of Pydantic, without any conversion."""
    text = json.dumps(value)
    if isinstance(kind, TypeAdapter):
        kind.validate_json(text, strict=True)
    else:
        kind.model_validate_json(text, strict=True)


def check_proto(kind: type[ProtoMessage], value: Json) -> None:
    """Compares a JSON value with a type of protobuf, without unknown fields; a card also has those of version 0.3."""
    ParseDict(value, kind(), ignore_unknown_fields=kind is AgentCard)


async def streamed(gateway: GatewayServer, path: str, body: Json, **headers: str) -> AsyncIterator[Any]:
    """The data of the events with which a POST is answered, or of its plain answer."""
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    async with gateway.http.stream("POST", path, json=body, headers=sent) as response:
        if response.headers["content-type"].startswith("text/event-stream"):
            async for event in read_sse(response):
                yield event["data"]
        else:
            yield json.loads(await response.aread())


async def openai_models(gateway: GatewayServer) -> None:
    for model in (await gateway.get("/v1/models"))["data"]:
        check(OpenAiModel, model)
        check(OpenAiModel, await gateway.get(f"/v1/models/{model['id']}"))


async def openai_chats(gateway: GatewayServer) -> None:
    for model in (*ENDED, "agent/open"):
        tools = {"tools": [{"type": "function", "function": TOOL}]} if model == "agent/open" else {}
        asked: Json = {"model": model, "messages": [{"role": "user", "content": "Why?"}], **tools}
        answer = (await gateway.http.post("/v1/chat/completions", json=asked)).json()
        check(*((ErrorObject, answer["error"]) if "error" in answer else (ChatCompletion, answer)))
        asked |= {"stream": True, "stream_options": {"include_usage": True}}
        async for chunk in streamed(gateway, "/v1/chat/completions", asked):
            if chunk != "[DONE]":
                check(*((ErrorObject, chunk["error"]) if "error" in chunk else (ChatCompletionChunk, chunk)))


async def openai_input_items(gateway: GatewayServer) -> None:
    parts = [{"type": "input_text", "text": "Why?"}, {"type": "input_image", "image_url": PNG}]
    files = [{"type": "input_file", "file_data": "data:application/pdf;base64,JVBERi0=", "filename": "a.pdf"}]
    said = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hi."},
        {"role": "user", "content": [*parts, *files]},
    ]
    response = await gateway.post("/v1/responses", {"model": "one", "input": said})
    path = f"/v1/responses/{response['id']}/input_items?order=asc"
    listed = await gateway.get(path)
    check(ResponseItemList, listed)
    check(ResponseItemList, await gateway.get(f"{path}&after={listed['last_id']}"))


async def openai_result_items(gateway: GatewayServer) -> None:
    first = await gateway.post(
        "/v1/responses", {"model": "open", "input": "?", "tools": [{"type": "function", **TOOL}]}
    )
    [called] = first["output"]
    result = {"type": "function_call_output", "call_id": called["call_id"], "output": "rain"}
    second = await gateway.post("/v1/responses", {"model": "open", "input": [result]})
    listed = await gateway.get(f"/v1/responses/{second['id']}/input_items")
    assert len(listed["data"]) == 1
    check(ResponseItemList, listed)


async def openai_errors(gateway: GatewayServer) -> None:
    for path in ("/v1/chat/completions", "/v1/responses"):
        for body in ({}, {"model": "none", "messages": [{}], "input": "x"}, {"model": 7}):
            answer = await gateway.http.post(path, json=body)
            assert answer.status_code in (400, 404)
            check(ErrorObject, answer.json()["error"])
    for path in ("/v1/models/none", "/v1/responses/none", "/v1/nothing"):
        check(ErrorObject, (await gateway.get(path, 404))["error"])


def a2a_message(version: str) -> Json:
    """The parameters of a call that sends a message."""
    role, part = ("user", {"kind": "text", "text": "?"}) if version == "0.3" else ("ROLE_USER", {"text": "?"})
    sent = {"messageId": uuid.uuid4().hex, "role": role, "parts": [part]}
    return {"message": {**sent, "kind": "message"} if version == "0.3" else sent}


def a2a_call(method: str, params: Json) -> Json:
    """A call of JSON-RPC."""
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


async def a2a_1_0(gateway: GatewayServer) -> None:
    for target in TARGETS:
        path = f"/a2a/{target}"
        check_proto(AgentCard, await gateway.get(f"{path}/.well-known/agent-card.json"))
        answer = await gateway.post(path, a2a_call("SendMessage", a2a_message("1.0")), a2a_version="1.0")
        check_proto(SendMessageResponse, answer["result"])
        check_proto(
            SendMessageResponse, await gateway.post(f"{path}/message:send", a2a_message("1.0"), a2a_version="1.0")
        )
        call_ = a2a_call("SendStreamingMessage", a2a_message("1.0"))
        async for event in streamed(gateway, path, call_, a2a_version="1.0"):
            check_proto(StreamResponse, event["result"])
        async for event in streamed(gateway, f"{path}/message:stream", a2a_message("1.0"), a2a_version="1.0"):
            check_proto(StreamResponse, event)
        listed = await gateway.post(path, a2a_call("ListTasks", {"includeArtifacts": True}), a2a_version="1.0")
        check_proto(ListTasksResponse, listed["result"])
        check_proto(ListTasksResponse, await gateway.get(f"{path}/tasks", a2a_version="1.0"))


async def a2a_0_3(gateway: GatewayServer) -> None:
    for target in TARGETS:
        path = f"/a2a/{target}"
        check(a2a_03.AgentCard, await gateway.get(f"{path}/.well-known/agent.json"))
        check(a2a_03.SendMessageResponse, await gateway.post(path, a2a_call("message/send", a2a_message("0.3"))))
        async for event in streamed(gateway, path, a2a_call("message/stream", a2a_message("0.3"))):
            check(a2a_03.SendStreamingMessageResponse, event)
        missing = await gateway.post(path, a2a_call("tasks/get", {"id": "none"}))
        check(a2a_03.JSONRPCErrorResponse, missing)


async def mcp(gateway: GatewayServer) -> None:
    async def answer(method: str, params: Json, kind: type[BaseModel]) -> Json:
        accepted = {"accept": "application/json, text/event-stream", "mcp_protocol_version": "2025-11-25"}
        found: Json = {}
        async for event in streamed(gateway, "/mcp", a2a_call(method, params), **accepted):
            if "id" in event:
                check(mcp_types.JSONRPCResponse, event)
                check(kind, event["result"])
                found = event["result"]
            else:
                check(mcp_types.JSONRPCNotification, event)
        return found

    info = {"name": "test", "version": "1"}
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": info}
    await answer("initialize", hello, mcp_types.InitializeResult)
    for tool in (await answer("tools/list", {}, mcp_types.ListToolsResult))["tools"]:
        if not tool["name"].startswith("baton_"):
            asked: Json = {"name": tool["name"], "arguments": {"input": "Why?"}, "_meta": {"progressToken": 1}}
            await answer("tools/call", asked, mcp_types.CallToolResult)
    unknown = [event async for event in streamed(gateway, "/mcp", a2a_call("tools/call", {"name": "none"}))]
    check(mcp_types.JSONRPCError, unknown[-1])
    check(mcp_types.JSONRPCError, await gateway.get("/mcp", 405))


async def ag_ui(gateway: GatewayServer) -> None:
    message = {"id": "m", "role": "user", "content": "Why?"}
    for target in (*TARGETS, "agent/open"):
        tools = [TOOL] if target == "agent/open" else []
        thread = uuid.uuid4().hex
        asked: Json = {"threadId": thread, "runId": "r", "messages": [message], "tools": tools, "context": []}
        async for event in streamed(gateway, f"/ag-ui/{target}", asked):
            check(AG_UI, event)
            assert None not in event.values(), "a client for JavaScript takes no null for what is optional"
    check(RunErrorEvent, await gateway.post("/ag-ui/team/none", asked, 404))
    check(RunErrorEvent, await gateway.post("/ag-ui/team/duo", {}, 400))


async def ark_streams(gateway: GatewayServer) -> None:
    for number, target in enumerate(ENDED):
        kind, _, name = target.partition("/")
        body = {"name": f"q-{number}", "input": "Why?", "target": {"type": kind, "name": name}}
        await gateway.post("/v1/queries", body)
        async for event in gateway.events(f"/stream/q-{number}?from-beginning=true"):
            if event["data"] != "[DONE]" and "error" not in event["data"]:
                check(ChatCompletionChunk, event["data"])


@pytest.mark.full
@pytest.mark.parametrize(
    "exercise",
    [
        openai_models,
        openai_chats,
        openai_input_items,
        openai_result_items,
        openai_errors,
        a2a_1_0,
        a2a_0_3,
        mcp,
        ag_ui,
        ark_streams,
    ],
    ids=lambda exercise: exercise.__name__,
)
async def test_answers_have_the_types_of_the_protocols_own_package(
    gateway: GatewayServer, exercise: Callable[[GatewayServer], Awaitable[None]]
) -> None:
    gateway.env.script(*SCRIPT)
    await exercise(gateway)
