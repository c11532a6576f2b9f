"""Hostile requests, which are made from the description of the gateway's own protocol: refused, never a failure."""

import asyncio
import contextlib
import json
import socket
import sys
import uuid
from urllib.parse import urlsplit

import pytest

from baton.testing import Reply
from tests.harness.environment import Environment, Json, agent, call, line, team
from tests.harness.gateway import GatewayServer
from tests.starter.gateway.test_guard import raw

MANIFESTS = [
    agent("one"),
    agent("two"),
    agent("careful", tools=[{"name": "calculator", "approval": {"required": True}}]),
    team("duo", "one", "two", maxTurns=1, onMaxTurns="complete"),
]


@pytest.mark.slow
async def test_no_request_that_the_description_allows_or_forbids_makes_the_gateway_fail(gateway: GatewayServer) -> None:
    gateway.env.answer = lambda _: Reply(text="Because.")
    arguments = ["run", f"{gateway.url}/openapi.json", "--url", gateway.url, "--checks", "not_a_server_error"]
    arguments += [
        "--max-examples",
        "15",
        "--phases",
        "examples,coverage,fuzzing",
        "--seed",
        "1",
        "--request-timeout",  # both for a busy machine
        "60",
        "--suppress-health-check",
        "all",
        "--generation-database",
    ]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "schemathesis.cli",
        *arguments,
        ":memory:",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    text = output.decode()
    assert process.returncode == 0, text[-6_000:]
    described = (await gateway.get("/openapi.json"))["paths"].values()
    operations = sum(method in METHODS for path in described for method in path)
    assert f"Tested: {operations}\n" in text, text[-6_000:]
    assert (await gateway.get("/targets"))["targets"]


METHODS = ("get", "put", "post", "delete", "patch")

BIG = "x" * 2_500_000
"""More than Temporal stores in one piece, and less than the limit of a request."""

PUSHED: Json = {"url": "https://93.184.216.34/", "token": BIG}
SAID: Json = {"id": "m", "role": "user", "content": BIG}
RPC: Json = {"jsonrpc": "2.0", "id": 1}


@pytest.mark.full
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/runs", {"target": "one", "input": "?", "session": {"a": BIG}}),
        ("/v1/responses", {"model": "one", "input": "?", "instructions": BIG}),
        ("/v1/queries", {"name": "q", "input": BIG, "target": {"type": "agent", "name": "one"}}),
        (
            "/ag-ui/agent/one",
            {"threadId": "too large", "runId": "r", "messages": [{"id": "m", "role": "user", "content": BIG}]},
        ),
    ],
    ids=["runs", "openai", "ark", "ag-ui"],
)
async def test_a_question_that_is_too_large_for_temporal_is_no_outage(
    gateway: GatewayServer, path: str, body: Json
) -> None:
    """A client would repeat it after an outage."""
    response = await gateway.http.post(path, json=body)
    assert response.status_code == 413, response.text
    assert "retry-after" not in response.headers
    assert len(response.content) < 1_000


@pytest.mark.full
async def test_a_decision_that_is_too_large_is_refused_and_the_run_goes_on(gateway: GatewayServer) -> None:
    """The workflow task that has such an update would fail."""
    gateway.env.script(line("careful", call("calculator", expression="2+2"), "It is 4."))
    sent: Json = {"messageId": uuid.uuid4().hex, "role": "ROLE_USER", "parts": [{"text": "2+2?"}]}
    task = (await gateway.post("/a2a/agent/careful/message:send", {"message": sent}, a2a_version="1.0"))["task"]
    run = task["id"]
    while not (found := (await gateway.get("/inbox"))["waiting"]):
        await asyncio.sleep(0.05)
    (waiting,) = found
    decision = waiting["decision"]["id"]
    for body in (
        {"call": BIG},
        {"call": decision, "arguments": {"expression": BIG}},
    ):
        assert len((await gateway.post(f"/runs/{run}/approve", body, 409))["error"]["message"]) < 1_000
    await gateway.post(f"/runs/{run}/reply", {"text": "x", "to": BIG}, 409)
    for data in ({"approve": BIG}, {"reply": decision, "text": BIG}):
        answer: Json = {**sent, "messageId": str(len(data)), "taskId": run, "parts": [{"data": data}]}
        refused = {**RPC, "method": "SendMessage", "params": {"message": answer}}
        assert (await gateway.post("/a2a/agent/careful", refused, a2a_version="1.0"))["error"]["code"] == -32602
    joins: Json = {**sent, "messageId": "n", "taskId": run, "parts": [{"data": {"approve": decision}}]}
    ended = (await gateway.post("/a2a/agent/careful/message:send", {"message": joins}, a2a_version="1.0"))["task"]
    assert ended["status"]["state"] == "TASK_STATE_COMPLETED"
    pushed = await gateway.http.post(
        f"/a2a/agent/careful/tasks/{run}/pushNotificationConfigs", json=PUSHED, headers={"a2a-version": "1.0"}
    )
    assert pushed.status_code == 413, pushed.text


@pytest.mark.full
async def test_a_message_that_is_too_large_does_not_fail_the_run_that_it_is_sent_to(gateway: GatewayServer) -> None:
    gateway.env.script(line("one", {"text": "Because.", "held": True}))
    sent: Json = {"messageId": uuid.uuid4().hex, "role": "ROLE_USER", "parts": [{"text": "Why?"}]}
    body: Json = {"message": sent, "configuration": {"returnImmediately": True}}
    task = (await gateway.post("/a2a/agent/one/message:send", body, a2a_version="1.0"))["task"]
    more: Json = {**sent, "messageId": "n", "taskId": task["id"], "parts": [{"text": BIG}]}
    refused = await gateway.post(
        "/a2a/agent/one", {**RPC, "method": "SendMessage", "params": {"message": more}}, a2a_version="1.0"
    )
    assert refused["error"]["code"] == -32602
    gateway.env.model.release()
    assert (await gateway.finished(task["id"]))[-1]["data"]["phase"] == "Completed"


CUT = "hi \ud83d"
"""A text that ends in the middle of an emoji, as JSON can have it, and databases and UTF-8 can't."""

ASKED: Json = {"threadId": CUT, "runId": CUT, "messages": [{"id": CUT, "role": "user", "content": CUT}]}
SENT: Json = {"messageId": "cut", "role": "ROLE_USER", "parts": [{"text": CUT}]}


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/runs", {"target": "agent/one", "input": CUT, "session": {CUT: CUT}}, 201),
        ("/runs", {"target": CUT, "input": "?"}, 404),
        ("/runs", {"target": "agent/one", "input": "?", CUT: 1}, 400),
        ("/v1/chat/completions", {"model": "one", "messages": [{"role": "user", "content": CUT}]}, 200),
        ("/v1/chat/completions", {"model": "one", "messages": [{"role": "user", "content": "?"}], CUT: 1}, 200),
        ("/v1/chat/completions", {"model": CUT, "messages": [{"role": "user", "content": "?"}]}, 404),
        ("/v1/responses", {"model": "one", "input": CUT, "metadata": {CUT: CUT}}, 200),
        ("/v1/responses", {"model": CUT, "input": "?"}, 404),
        ("/v1/queries", {"name": "q", "input": CUT, "target": {"type": "agent", "name": "one"}}, 200),
        ("/v1/queries", {"name": CUT, "input": "?", "target": {"type": "agent", "name": CUT}}, 404),
        ("/ag-ui/agent/one", ASKED, 200),
        ("/a2a/agent/one/message:send", {"message": SENT}, 400),
        ("/a2a/agent/one", {**RPC, "method": "SendMessage", "params": {"message": SENT}}, 200),
        ("/mcp", {**RPC, "method": "tools/call", "params": {"name": "agent_one", "arguments": {"input": CUT}}}, 400),
    ],
)
async def test_half_an_emoji_in_a_request_is_replaced_or_refused_and_no_failure(
    gateway: GatewayServer, path: str, body: Json, status: int
) -> None:
    gateway.env.answer = lambda _: Reply(text="Because.")
    headers = {"a2a-version": "1.0", "accept": "application/json, text/event-stream"}
    response = await gateway.http.post(path, content=json.dumps(body), headers={**headers, **JSON_BODY})
    assert response.status_code == status, response.text
    assert "-32603" not in response.text, "an internal error in JSON-RPC"
    if path.startswith("/ag-ui"):
        assert "RUN_FINISHED" in response.text
    if body.get("input") == CUT:
        await gateway.env.wait_for_calls(1)
        assert "hi \ufffd" in str(gateway.env.model.requests)


JSON_BODY = {"content-type": "application/json"}

SMUGGLED = json.dumps({"target": "agent/one", "input": "smuggled"}).encode()
INNER = b"POST /runs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (
    len(SMUGGLED),
    SMUGGLED,
)
CHUNKED = b"0\r\n\r\n" + INNER


@pytest.mark.parametrize(
    "headers",
    [
        b"Content-Length: %d\r\nTransfer-Encoding: chunked" % len(CHUNKED),
        b"Transfer-Encoding: chunked\r\nContent-Length: %d" % len(CHUNKED),
        b"Content-Length: %d\r\nTransfer-Encoding: xchunked" % len(CHUNKED),
        b"Content-Length: %d\r\nTransfer-Encoding : chunked" % len(CHUNKED),
        b"Content-Length: %d\r\nTransfer-Encoding: chunked, identity" % len(CHUNKED),
        b"Content-Length: %d\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity" % len(CHUNKED),
        b"Content-Length: %d\r\nX: a\r\n Transfer-Encoding: chunked" % len(CHUNKED),
        b"Content-Length: %d\r\nX: a\nTransfer-Encoding: chunked" % len(CHUNKED),
        b"Content-Length: %d\r\nX: a\x00\r\nTransfer-Encoding: chunked" % len(CHUNKED),
        b"Content-Length: +%d" % len(CHUNKED),
        b"Content-Length: %d, 5" % len(CHUNKED),
        b"Content-Length: 0x%x" % len(CHUNKED),
    ],
)
async def test_a_request_in_the_body_of_another_is_not_carried_out_where_a_proxy_would_see_one(
    gateway: GatewayServer, headers: bytes
) -> None:
    """What a proxy and the gateway may read differently is refused, and the connection is closed."""
    head = b"POST /runs/nothing/pause HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    response = await raw(gateway, head + headers + b"\r\n\r\n" + CHUNKED)
    assert response.count(b"HTTP/1.1 ") <= 1, response
    assert not response or response.split()[1][:1] == b"4", response
    assert not (await gateway.get("/runs"))["runs"], "nothing was started"


@pytest.mark.parametrize("name", ["authorization", "x-api-key", "host", "origin", "last-event-id", "idempotency-key"])
@pytest.mark.parametrize("value", [b"a\rSet-Cookie: x", b"a\x00b", b"\xff\xfe", b"a" * 20_000, b"\xf0\x9f\x92\xa9"])
async def test_an_odd_value_of_a_header_is_refused_or_ignored(gateway: GatewayServer, name: str, value: bytes) -> None:
    request = b"GET /targets HTTP/1.1\r\n" + (b"" if name == "host" else b"Host: localhost\r\n")
    response = await raw(gateway, request + name.encode() + b": " + value + b"\r\n\r\n")
    assert not response or response.split()[1] in (b"200", b"400", b"401", b"403", b"431"), response
    assert b"Set-Cookie" not in response


async def test_a_client_that_half_closes_a_stream_leaves_nothing_open(served_env: Environment) -> None:
    served_env.answer = lambda _: Reply(hang=True)
    async with GatewayServer.running(served_env, BATON_GATEWAY_MAX_STREAMS="2") as gateway:
        run = await gateway.post("/runs", {"target": "agent/one", "input": "Why?"}, 201)
        for _ in range(5):
            await raw(gateway, f"GET /runs/{run['id']}/events HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        while (await gateway.http.get("/targets")).status_code == 429:
            await asyncio.sleep(0.01)
        await gateway.post(f"/runs/{run['id']}/cancel")


@pytest.mark.slow
async def test_a_stream_that_a_client_does_not_read_fills_no_memory_and_is_cut_while_others_are_served(
    served_env: Environment,
) -> None:
    """The client reads nothing of far more than the buffers hold. It goes on from its last event later."""
    text = "word " * 40_000
    served_env.answer = lambda _: Reply(text=text)
    limits = {"BATON_GATEWAY_SEND_TIMEOUT": "2", "BATON_GATEWAY_MAX_STREAMS": "20"}
    # What reads all does not do so from the gateway that is so quick to cut a client off.
    async with (
        GatewayServer.running(served_env) as patient,
        GatewayServer.running(served_env, **limits) as gateway,
    ):
        run = await patient.post("/runs", {"target": "team/duo", "input": "?"}, 201)
        await patient.finished(run["id"])
        path = f"/runs/{run['id']}/events?wait=false"
        whole = [event async for event in patient.events(path)]
        assert sum(len(json.dumps(event)) for event in whole) > 200_000
        stuck = [await reading_nothing(gateway, path) for _ in range(20)]
        while (response := await gateway.http.get(f"/runs/{run['id']}")).status_code == 429:
            await asyncio.sleep(0.05)
        assert response.status_code == 200
        while any(is_connected(socket_) for socket_ in stuck):
            await asyncio.sleep(0.05)
        for socket_ in stuck:
            socket_.close()
        assert [event async for event in patient.events(path, last_event_id=whole[0]["id"])] == whole[1:]


async def reading_nothing(gateway: GatewayServer, path: str) -> socket.socket:
    """The socket of a client that asks for a stream, and of which the gateway can send no more than small buffers."""
    address = urlsplit(gateway.url)
    socket_ = socket.socket()
    socket_.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2_048)
    socket_.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536)  # the send buffers of loopback connections are large
    socket_.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(socket_, (address.hostname, address.port))
    await loop.sock_sendall(socket_, f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    return socket_


TCP_ESTABLISHED = 1
"""The state of a connection as Linux has it in the first byte of ``TCP_INFO``."""


def is_connected(socket_: socket.socket) -> bool:
    """Whether the other side has neither closed nor reset the connection."""
    return socket_.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == TCP_ESTABLISHED


@pytest.mark.slow
async def test_thousands_of_idle_connections_keep_nobody_out_and_are_closed(
    served_env: Environment,
) -> None:
    async with GatewayServer.running(served_env, BATON_GATEWAY_REQUEST_TIMEOUT="10") as gateway:
        await open_and_leave(gateway)


async def open_and_leave(gateway: GatewayServer) -> None:
    """Opens 2,100 connections that send nothing more, and waits until all are closed."""
    address = urlsplit(gateway.url)
    opened = []
    for sent in (
        b"",
        b"GET /targets HTTP/1.1\r\n",
        b"POST /runs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n",
    ):
        for _ in range(700):
            reader, writer = await asyncio.open_connection(address.hostname, address.port)
            writer.write(sent)
            opened.append((reader, writer))
    assert (await gateway.get("/targets"))["targets"]
    async with asyncio.timeout(60):
        for reader, writer in opened:
            with contextlib.suppress(ConnectionError):
                response = await reader.read()
                assert not response or response.split()[1][:1] == b"4", response
            writer.close()
    assert (await gateway.get("/targets"))["targets"]
