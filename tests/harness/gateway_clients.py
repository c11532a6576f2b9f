"""Small clients of every protocol of the gateway, which go on whenever they are cut off, as the protocol says.

Each asks one question, and returns the texts of the speakers as they were received: by the speaker's place in the
discussion, or by any other name that a protocol has for it. A text that the protocol took back is not among them.
"""

import asyncio
import contextlib
import json
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.harness.gateway import read_sse

Json = dict[str, Any]

PAUSE = 0.1
"""Seconds before a request is sent again."""


UNAVAILABLE = -32603
"""The code of JSON-RPC for what is no fault of the request."""


class OutageError(Exception):
    """The gateway has told that it can't go on now; the client has to ask again."""


@dataclass
class Asked:
    """What a client asks, and how it does.

    ``heard`` is what it has received; ``answer`` what the protocol says is the answer, if it says so. ``attempts``
    counts the requests and streams.
    """

    http: httpx.AsyncClient
    target: str
    question: str
    key: str = field(default_factory=lambda: uuid.uuid4().hex)
    attempts: int = 0
    heard: dict[str, str] = field(default_factory=dict)
    answer: str | None = None
    run: str = ""

    async def request(self, method: str, path: str, accepted: tuple[int, ...] = (), **options: Any) -> httpx.Response:
        """The first response that is no sign of an outage."""
        while True:
            self.attempts += 1
            with contextlib.suppress(httpx.TransportError):
                response = await self.http.request(method, path, **options)
                if response.is_success or response.status_code in accepted:
                    return response
                assert response.status_code in (429, 503), f"{method} {path}: {response.status_code} {response.text}"
            await asyncio.sleep(PAUSE)

    @contextlib.asynccontextmanager
    async def stream(
        self, method: str, path: str, accepted: tuple[int, ...] = (), **options: Any
    ) -> AsyncIterator[AsyncIterator[Json]]:
        """The events of one response. Raises OutageError if there is an outage, and httpx.TransportError."""
        self.attempts += 1
        async with self.http.stream(method, path, **options) as response:
            if response.status_code in (429, 503):
                raise OutageError
            if not (response.is_success or response.status_code in accepted):
                raise AssertionError(f"{method} {path}: {response.status_code} {(await response.aread()).decode()}")
            yield read_sse(response)

    async def until_done(self, attempt: Callable[[], Awaitable[bool]]) -> None:
        """Makes attempts until one says that it has received the end."""
        while True:
            with contextlib.suppress(httpx.TransportError, OutageError):
                if await attempt():
                    return
            await asyncio.sleep(PAUSE)

    def add(self, speaker: str, text: str) -> None:
        """Adds a piece of a text."""
        self.heard[speaker] = self.heard.get(speaker, "") + text


async def chat(asked: Asked) -> None:
    """OpenAI's chat completions: a stream that broke off is asked for again, from its beginning, by its key."""
    body = {"model": asked.target, "stream": True, "messages": [{"role": "user", "content": asked.question}]}

    async def attempt() -> bool:
        asked.heard = {}
        headers = {"idempotency-key": asked.key}
        async with asked.stream("POST", "/v1/chat/completions", json=body, headers=headers) as events:
            async for event in events:
                if event["data"] == "[DONE]":
                    asked.answer = asked.heard["content"]
                    return True
                if "error" in event["data"]:
                    assert event["data"]["error"]["code"] in ("answer_restarted", "unavailable"), event
                    return False
                for choice in event["data"]["choices"]:
                    for kind in ("content", "reasoning_content"):
                        asked.add(kind, choice["delta"].get(kind) or "")
        return False

    await asked.until_done(attempt)


async def responses(asked: Asked) -> None:
    """OpenAI's responses: a stream goes on after the number of its last event."""
    body = {"model": asked.target, "stream": True, "background": True, "input": asked.question}
    response = ""
    number = -1
    items: dict[int, str] = {}
    final: Json = {}

    def read(event: Json) -> bool:
        nonlocal response, number, final
        if event["type"] == "error":
            raise OutageError
        assert event["sequence_number"] > number, "numbers increase, on every gateway"
        number = event["sequence_number"]
        response = event.get("response", {}).get("id") or response
        index = event.get("output_index", -1)
        if event["type"] == "response.output_text.delta":
            items[index] = items.get(index, "") + event["delta"]
        elif event["type"] == "response.output_item.done" and event["item"].get("retracted"):
            items.pop(index, None)
        elif event["type"] == "response.completed":
            final = event["response"]
        assert event["type"] not in ("response.failed", "response.incomplete"), event
        return bool(final)

    async def attempt() -> bool:
        if response:
            path = f"/v1/responses/{response}?stream=true&starting_after={number}"
            opened = asked.stream("GET", path)
        else:
            opened = asked.stream("POST", "/v1/responses", json=body, headers={"idempotency-key": asked.key})
        async with opened as events:
            async for event in events:
                if read(event["data"]):
                    return True
        return False

    await asked.until_done(attempt)
    asked.heard = {str(index): text for index, text in items.items() if text}
    texts = ["".join(part["text"] for part in item["content"]) for item in final["output"]]
    assert texts == [*asked.heard.values()], f"the stream {asked.heard} is not the response {texts}"
    asked.answer = texts[-1]


async def a2a(asked: Asked) -> None:  # noqa: C901  # all of the protocol in one place
    """A2A 1.0: a message is sent again with its id; then its task is subscribed to, as often as it takes."""
    path = f"/a2a/{asked.target}"
    message = {"messageId": asked.key, "role": "ROLE_USER", "parts": [{"text": asked.question}]}
    task = ""
    ids: list[str] = []
    final: Json = {}

    def call(method: str, params: Json) -> Json:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        return {"json": body, "headers": {"a2a-version": "1.0"}}

    def is_over(state: str) -> bool:
        assert state not in ("TASK_STATE_FAILED", "TASK_STATE_CANCELED"), state
        return state == "TASK_STATE_COMPLETED"

    def hear(said: Json) -> None:
        ids.append(said["messageId"])
        asked.add(said["messageId"], "".join(part.get("text", "") for part in said["parts"]))

    def read(event: Json) -> bool:
        nonlocal task
        if "error" in event:
            raise OutageError(json.dumps(event))
        [(kind, value)] = event["result"].items()
        if kind == "task":  # all that was said so far
            task = value["id"]
            ids.clear()
            asked.heard = {}
            for said in value["history"]:
                hear(said)
            return is_over(value["status"]["state"])
        if kind == "statusUpdate":
            if said := value["status"].get("message"):
                hear(said)
            return is_over(value["status"]["state"])
        return False

    async def attempt() -> bool:
        sent = call("SubscribeToTask", {"id": task}) if task else call("SendStreamingMessage", {"message": message})
        async with asked.stream("POST", path, **sent) as events:
            async for event in events:
                if read(event["data"]):
                    return True
        return False

    async def attempt_or_ended() -> bool:
        with contextlib.suppress(httpx.TransportError, OutageError):
            if await attempt():
                return True
        if not task:
            return False
        # A task that has ended meanwhile can't be subscribed to.
        got = (await asked.request("POST", path, **call("GetTask", {"id": task}))).json()
        return "result" in got and is_over(got["result"]["status"]["state"])

    await asked.until_done(attempt_or_ended)
    while "result" not in final:
        final = (await asked.request("POST", path, **call("GetTask", {"id": task}))).json()
    history = [said["messageId"] for said in final["result"]["history"]]
    assert ids == history[: len(ids)], "each message was received once, in its order"
    asked.heard = {}
    for said in final["result"]["history"][1:]:
        hear(said)
    asked.answer = "".join(part["text"] for each in final["result"]["artifacts"] for part in each["parts"])
    asked.run = task


async def mcp_task(asked: Asked) -> None:
    """MCP's tasks: a call that is sent again with its key joins the task, which is asked for until it is done."""
    tool = asked.target.replace("/", "_")
    answer: Json = {}

    def call(method: str, name: str, params: Json) -> Json:
        extensions: Json = {"io.modelcontextprotocol/tasks": {}}
        meta = {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {"extensions": extensions},
            "baton/idempotencyKey": asked.key,
        }
        headers = {
            "accept": "application/json, text/event-stream",
            "mcp-protocol-version": "2026-07-28",
            "mcp-method": method,
            "mcp-name": name,
        }
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
        return {"json": body, "headers": headers}

    async def result(method: str, name: str, params: Json) -> Json:
        while True:
            response = await asked.request("POST", "/mcp", **call(method, name, params))
            # A response that takes long begins as a stream, which has it in its last event.
            is_stream = response.headers["content-type"].startswith("text/event-stream")
            events = [event["data"] async for event in read_sse(response)] if is_stream else [response.json()]
            got: Json = events[-1] if events else {}
            if not got:  # the gateway was killed
                continue
            if "result" in got:
                found: Json = got["result"]
                return found
            assert got["error"]["code"] == UNAVAILABLE, got
            await asyncio.sleep(PAUSE)

    called = await result("tools/call", tool, {"name": tool, "arguments": {"input": asked.question}})
    task = called["taskId"]
    while answer.get("status") != "completed":
        await asyncio.sleep(0.5)
        answer = await result("tasks/get", task, {"taskId": task})
        assert answer["status"] in ("working", "completed"), answer
    asked.answer = "".join(block["text"] for block in answer["result"]["content"])
    asked.run = task


async def ag_ui(asked: Asked) -> None:
    """AG-UI: the same run of the same thread again, from its beginning."""
    body = {
        "threadId": asked.key,
        "runId": asked.key,
        "messages": [{"id": "1", "role": "user", "content": asked.question}],
        "tools": [],
        "context": [],
        "state": {},
        "forwardedProps": {},
    }

    async def attempt() -> bool:
        asked.heard = {}
        async with asked.stream("POST", f"/ag-ui/{asked.target}", json=body) as events:
            async for event in events:
                data = event["data"]
                if data["type"] == "TEXT_MESSAGE_CONTENT":
                    asked.add(data["messageId"], data["delta"])
                elif data["type"] == "CUSTOM" and data["name"] == "baton.textRetracted":
                    asked.heard.pop(data["value"]["messageId"], None)
                elif data["type"] == "RUN_ERROR":
                    assert data.get("code") == "unavailable", data
                    return False
                elif data["type"] == "RUN_FINISHED":
                    asked.answer = data["result"]
                    return True
        return False

    await asked.until_done(attempt)
    first = [*asked.heard.values()]
    await asked.until_done(attempt)
    assert [*asked.heard.values()] == first, "each reader gets the same messages"


async def ark(asked: Asked) -> None:
    """ARK's queries: a stream that broke off is read again from its beginning."""
    name = f"q-{asked.key}"
    kind, _, target = asked.target.partition("/")
    body = {"name": name, "input": asked.question, "target": {"type": kind, "name": target}}
    await asked.request("POST", "/v1/queries", accepted=(409,), json=body)
    path = f"/stream/{name}?from-beginning=true&wait-for-query=30s"

    async def attempt() -> bool:
        asked.heard = {}
        async with asked.stream("GET", path) as events:
            async for event in events:
                data = event["data"]
                if data == "[DONE]":
                    return True
                if "error" in data:
                    return False
                asked.add(data["id"], data["choices"][0]["delta"].get("content") or "")
        return False

    # What was said before an attempt of a model's call failed can't be taken back: whoever comes later gets it once.
    for _ in range(2):
        await asked.until_done(attempt)
    query = (await asked.request("GET", f"/v1/queries/{name}")).json()
    assert query["status"]["phase"] == "done", query
    asked.answer = query["status"]["response"]["content"]


async def run_events(asked: Asked) -> None:
    """Baton's own protocol: a stream goes on after its last event."""
    body = {"target": asked.target, "input": asked.question}
    started = await asked.request("POST", "/runs", json=body, headers={"idempotency-key": asked.key})
    asked.run = started.json()["id"]
    last = ""
    ids: list[str] = []
    texts: dict[tuple[str, str], str] = {}

    async def attempt() -> bool:
        nonlocal last
        headers = {"last-event-id": last} if last else {}
        async with asked.stream("GET", f"/runs/{asked.run}/events", headers=headers) as events:
            async for event in events:
                if event["event"] == "error":
                    return False
                last = event["id"]
                data = event["data"]
                ids.append(data["id"])
                if data["type"] == "text.delta":
                    before = texts.get((data["run"], data["call"]), "")
                    assert data["offset"] == len(before), "no piece is missing, and none comes twice"
                    texts[data["run"], data["call"]] = before + data["text"]
                elif data["type"] == "text.retracted":
                    assert data["characters"] == len(texts.pop((data["run"], data["call"])))
                elif data["type"] == "model.answered":
                    texts[data["run"], data["call"]] = data["text"]
                elif data["type"] == "run.ended" and data["run"] == asked.run:
                    assert data["phase"] == "Completed", data
                    return True
        return False

    await asked.until_done(attempt)
    asked.answer = (await asked.request("GET", f"/runs/{asked.run}")).json()["status"]["message"]
    assert len(ids) == len(set(ids)), "no event comes twice"
    asked.heard = {f"{run} {call}": text for (run, call), text in texts.items()}


CLIENTS: dict[str, Callable[[Asked], Awaitable[None]]] = {
    "chat completions": chat,
    "responses": responses,
    "A2A": a2a,
    "MCP tasks": mcp_task,
    "AG-UI": ag_ui,
    "ARK": ark,
    "/runs": run_events,
}
"""A client of each protocol."""


async def approve_with_lost_responses(asked: Asked) -> list[str]:
    """Asks an agent whose call of a tool needs approval, and approves it: some responses are lost, all are sent again.

    Returns the outcomes of all waits of the run; the answer is in ``asked``.
    """
    body = {"target": asked.target, "input": asked.question}
    started = await asked.request("POST", "/runs", json=body, headers={"idempotency-key": asked.key})
    asked.run = started.json()["id"]
    wait = ""
    last = ""
    outcomes: list[str] = []

    async def read(until: str) -> None:
        """Reads events up to one of a type."""

        async def attempt() -> bool:
            nonlocal last, wait
            headers = {"last-event-id": last} if last else {}
            async with asked.stream("GET", f"/runs/{asked.run}/events", headers=headers) as events:
                async for event in events:
                    last = event["id"]
                    data = event["data"]
                    if data["type"] == "wait.started" and data["kind"] == "approval":
                        wait = data["wait"]
                    elif data["type"] == "wait.ended":
                        outcomes.append(data["outcome"])
                    if data["type"] == until and (until != "run.ended" or data["run"] == asked.run):
                        return True
            return False

        await asked.until_done(attempt)

    await read("wait.started")
    path = f"/runs/{asked.run}/approve"
    lost = [asyncio.create_task(send_and_leave(asked, path, {"call": wait})) for _ in range(3)]
    decided = await asyncio.gather(*(asked.request("POST", path, json={"call": wait}) for _ in range(2)))
    await asyncio.gather(*lost)
    decided.append(await asked.request("POST", path, json={"call": wait}))
    assert len({response.text for response in decided}) == 1, "each response is that of the first decision"
    other = {"call": wait, "reason": "No."}
    refused = await asked.request("POST", f"/runs/{asked.run}/reject", accepted=(409,), json=other)
    assert refused.status_code == 409, refused.text
    await read("run.ended")
    asked.answer = (await asked.request("GET", f"/runs/{asked.run}")).json()["status"]["message"]
    return outcomes


async def send_and_leave(asked: Asked, path: str, body: Json) -> None:
    """Sends a request, and closes the connection without reading the response."""
    url = httpx.URL(str(asked.http.base_url))
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: {url.netloc.decode()}\r\ncontent-type: application/json\r\n"
    asked.attempts += 1
    with contextlib.suppress(OSError):
        _, writer = await asyncio.open_connection(url.host, url.port)
        writer.write(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)
        await writer.drain()
        writer.close()
        await writer.wait_closed()
