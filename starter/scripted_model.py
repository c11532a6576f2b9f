"""The scripted model: a server with OpenAI's two APIs that answers from a script, without a language model."""

import asyncio
import contextlib
import json
import logging
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import uvicorn
import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from ..contracts.message import SCRIPTED
from ..contracts.settings import AGENT_HEADER
from ..contracts.text import truncate

Json = dict[str, Any]


class Request(Json):
    """A request for a chat completion: the JSON body as a mapping, and its parts as properties."""

    def __init__(self, body: Mapping[str, Any], agent: str | None = None) -> None:
        super().__init__(body)
        self.agent = agent
        """The name of the agent that asks, in tests and with BATON_SCRIPTED_MODEL_URL. None if a selector or a summary
        needs the answer, or if the client does not tell."""

    @property
    def model(self) -> str:
        """The name of the model."""
        return str(self["model"])

    @property
    def system(self) -> str:
        """The system prompt."""
        return _texts(message for message in self["messages"] if message["role"] == "system")

    @property
    def text(self) -> str:
        """The text of the last message: the question, what the last speaker said, or a tool's result."""
        return _texts(self["messages"][-1:])

    @property
    def tools(self) -> list[str]:
        """The names of the tools that the model may call."""
        return [tool["function"]["name"] for tool in self.get("tools", ())]

    @property
    def tool_results(self) -> list[str]:
        """The results of tools at the end of the conversation, since the model's last answer; empty if it has none."""
        results = list[str]()
        for message in reversed(self["messages"]):
            if message["role"] != "tool":
                break
            results.insert(0, _texts([message]))
        return results

    @property
    def attached(self) -> list[Json]:
        """The images and files in the conversation, as parts of a chat completion's messages."""
        contents = (message.get("content") for message in self["messages"])
        parts = (part for content in contents if isinstance(content, list) for part in content)
        return [part for part in parts if part.get("type") != "text"]


def _texts(messages: Iterable[Json]) -> str:
    """The texts of messages."""
    return " ".join(_text_of(message.get("content")) for message in messages)


def _text_of(content: object) -> str:
    """The text of a message's content, which may be a list of parts."""
    if isinstance(content, list):
        return "\n".join(str(part["text"]) for part in content if "text" in part)
    return str(content or "")


class _ScriptPart(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ScriptedToolCall(_ScriptPart):
    """A tool call in an answer."""

    name: str
    arguments: dict[str, Any] | str = Field(
        {}, description="the arguments; a text is sent as is, so that it can be invalid JSON"
    )
    id: str | None = Field(None, description="the id of the call; call_INDEX_NAME by default")


class ScriptedUsage(_ScriptPart):
    """The token usage of an answer."""

    prompt: int = Field(0, description="tokens of the prompt, those from the cache included")
    completion: int = Field(0, description="tokens of the answer")
    cached: int = Field(0, description="tokens of the prompt that come from the cache")


class Reply(_ScriptPart):
    """One answer or one failure."""

    text: str = Field("", description="the text of the answer, or the message of an error")
    calls: list[ScriptedToolCall] = Field([], description="the tool calls of the answer")
    usage: ScriptedUsage | None = Field(
        None, description="the token usage; by default estimated with four characters per token"
    )
    stop: str | None = Field(
        None, description="the finish reason, such as 'length' or 'content_filter'; by default 'stop' or 'tool_calls'"
    )
    delay: float = Field(0, description="seconds before the answer, or before the error")
    pause: float = Field(0, description="seconds between the chunks of a stream")
    status: int | None = Field(None, description="the status code of an HTTP error instead of an answer")
    code: str | None = Field(None, description="the error's code, such as 'insufficient_quota'")
    headers: dict[str, str] = Field({}, description="headers of an error, such as {retry-after: '1'}")
    cut: int | None = Field(
        None, description="the stream ends after so many characters; with a code, with an error of that code"
    )
    raw: str | None = Field(None, description="the whole body of the response, such as invalid JSON")
    hang: bool = Field(False, description="there is no answer, until the client gives up")
    held: bool = Field(
        False, description="the answer, or the last piece of its stream, is sent once a test has called model.release()"
    )
    before: list["Reply"] = Field([], description="replies that are sent first, once each, such as failures")

    def with_default_delay(self, delay: float) -> "Reply":
        """The reply with a delay, unless it has its own."""
        return self if self.delay else self.model_copy(update={"delay": delay})


def _reply_of_text(value: object) -> object:
    """A text is an answer with that text."""
    return {"text": value} if isinstance(value, str) else value


class ScriptLine(_ScriptPart):
    """The answers of one speaker in order; the last one is repeated.

    A request must match all that a line names. The speaker's earlier turns, which decide on the answer, are the
    messages of ``agent`` in the conversation.
    """

    system: str = Field("", description="a part of the system prompt, ignoring case")
    agent: str | None = Field(
        None, description="the agent's name; it matches any request of a client that does not tell the agent"
    )
    model: str | None = Field(None, description="the name of the model")
    say: list[Annotated[Reply, BeforeValidator(_reply_of_text, json_schema_input_type=Reply | str)]] = Field(
        min_length=1, description="the answers: texts, or mappings with the fields of a reply"
    )

    def matches(self, request: Request) -> bool:
        """Whether a request is this speaker's."""
        if request.agent is not None and self.agent not in (None, request.agent):
            return False
        return self.system.lower() in request.system.lower() and self.model in (None, request.model)

    def turns_taken(self, request: Request) -> int:
        """The number of the speaker's messages in the conversation; in a panel, where it has none, of past rounds."""
        messages = request["messages"]
        turns: int = sum(
            message["role"] == "assistant" and (self.agent is None or message.get("name") in (self.agent, OWN))
            for message in messages
        )
        panel_round = _ROUND.search(" ".join(str(message.get("content")) for message in messages[:2]))
        return turns + (int(panel_round[1] or panel_round[2]) - 1 if panel_round else 0)


_ROUND = re.compile(
    r'# (?:This round|The round[^\n]*)\nRound (\d+) of|^.*\{"goal":.*"round":(\d+),"maxRounds"', re.DOTALL
)
"""Matches the round in a panel's prompts: text for default speakers, JSON for others."""


class Script(_ScriptPart):
    """A script. The first of its ``lines`` that matches a request answers it."""

    delay: float = Field(0, description="seconds before each answer that has no delay of its own")
    lines: list[ScriptLine] = Field(min_length=1, description="the speakers and their answers")

    def model_post_init(self, _context: object) -> None:
        """Resets the count of served failures."""
        self._failures_served: Counter[tuple[int, int]] = Counter()

    @classmethod
    def read(cls, file: Path) -> "Script":
        """Reads a script; raises pydantic's ValidationError or yaml's YAMLError."""
        return cls.model_validate(yaml.safe_load(file.read_text()))

    def answer(self, request: Request) -> Reply:
        """The answer to a request; an HTTP error 404, which fails the run, if no line matches it."""
        for number, line in enumerate(self.lines):
            if line.matches(request):
                index = min(line.turns_taken(request), len(line.say) - 1)
                reply = self._failure(number, index, line.say[index]) or line.say[index]
                return reply.with_default_delay(self.delay)
        return unexpected(request, "no line of the script matches it")

    def _failure(self, line: int, index: int, reply: Reply) -> Reply | None:
        """The next failure to serve before a reply; None if there is none left."""
        served = self._failures_served[line, index]
        if served == len(reply.before):
            return None
        self._failures_served[line, index] += 1
        return reply.before[served]


def unexpected(request: Request, reason: str) -> Reply:
    """The error for a request that nobody expected, which fails the run: its message says who has asked what."""
    who = f"agent '{request.agent}'" if request.agent else f"the system prompt '{truncate(request.system, 80)}'"
    text = truncate(request.text, 200)
    return Reply(status=404, text=f"unexpected request of {who} to {request.model} ({reason}): '{text}'")


CHUNK_SIZE = 40
"""Characters in a chunk of a stream, or more if there would be more than MAX_CHUNKS."""

MAX_CHUNKS = 2_000

END_OF_STREAM = "data: [DONE]\n\n"


def completion(request: Json, reply: Reply) -> Json:
    """The reply as a chat completion."""
    calls = [{key: value for key, value in call.items() if key != "index"} for call in _tool_calls(reply)]
    message = {"role": "assistant", "content": reply.text, **({"tool_calls": calls} if calls else {})}
    return {
        **_head(request, "chat.completion"),
        "choices": [{"index": 0, "message": message, "finish_reason": _finish_reason(reply)}],
        "usage": usage(request, reply),
    }


Release = Callable[[], Awaitable[None]]
"""Returns once what is held may be sent."""


async def _not_held() -> None:
    """Lets everything be sent at once."""


async def _pieces(reply: Reply, release: Release) -> AsyncIterator[str]:
    """The pieces of the text of a stream, each when it is to be sent."""
    text = reply.text[: reply.cut]
    size = max(CHUNK_SIZE, len(text) // MAX_CHUNKS)
    for start in range(0, len(text), size):
        await asyncio.sleep(reply.pause)
        if start + size >= len(text):
            await release()
        yield text[start : start + size]


async def stream(request: Json, reply: Reply, release: Release = _not_held) -> AsyncIterator[str]:
    """The reply as server-sent events; it ends early if the reply is ``cut``."""
    head = _head(request, "chat.completion.chunk")

    def chunk(delta: Json, finish_reason: str | None = None) -> str:
        return _event({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]})

    yield chunk({"role": "assistant", "content": ""})
    async for piece in _pieces(reply, release):
        yield chunk({"content": piece})
    if reply.cut is not None:
        if reply.code:
            yield _event(error(reply))
        return
    for call in _tool_calls(reply):
        yield chunk({"tool_calls": [call]})
    yield chunk({}, _finish_reason(reply))
    if (request.get("stream_options") or {}).get("include_usage"):
        yield _event({**head, "choices": [], "usage": usage(request, reply)})
    yield END_OF_STREAM


OWN = "*"
"""The name of the model's own messages in a request of the Responses API, which has no names."""


def chat_request(request: Request) -> Request:
    """A request of the Responses API as that for a chat completion, by which a script answers.

    The items of one turn of the model become one message.
    """
    messages: list[Json] = []
    if instructions := request.get("instructions"):
        messages.append({"role": "system", "content": instructions})
    given = request["input"]

    def turn() -> Json:
        if not messages or messages[-1]["role"] != "assistant":
            messages.append({"role": "assistant", "content": "", "name": OWN, "tool_calls": []})
        return messages[-1]

    for item in [{"role": "user", "content": given}] if isinstance(given, str) else given:
        match item.get("type", "message"):
            case "message":
                content = item["content"]
                if item["role"] == "assistant":
                    turn()["content"] += _text_of(content)
                else:
                    messages.append({"role": item["role"], "content": _chat_content(content)})
            case "function_call":
                function = {"name": item["name"], "arguments": item["arguments"]}
                turn()["tool_calls"].append({"id": item["call_id"], "type": "function", "function": function})
            case "function_call_output":
                output = _chat_content(item["output"])
                messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": output})
    tools = [{"type": "function", "function": tool} for tool in request.get("tools", ()) if tool["type"] == "function"]
    stream = request.get("stream", False)
    chat = {"model": request["model"], "messages": messages, "stream": stream, **({"tools": tools} if tools else {})}
    return Request(chat, request.agent)


def _chat_content(content: str | list[Json]) -> str | list[Json]:
    """The content of a message of the Responses API as that of a chat completion's message."""
    if isinstance(content, str):
        return content
    parts: list[Json] = []
    for part in content:
        match part.get("type"):
            case "input_image":
                parts.append({"type": "image_url", "image_url": {"url": part.get("image_url")}})
            case "input_file":
                parts.append({"type": "file", "file": {name: part[name] for name in part if name != "type"}})
            case _:
                parts.append({"type": "text", "text": part.get("text", "")})
    return parts if any(part["type"] != "text" for part in parts) else _text_of(parts)


def response(request: Json, reply: Reply) -> Json:
    """The reply as a response of the Responses API; ``request`` is that for a chat completion."""
    used = usage(request, reply)
    return {
        **_response_head(request),
        "status": "completed",
        "output": [*_output_items(reply)],
        "usage": {
            "input_tokens": used["prompt_tokens"],
            "input_tokens_details": used.get("prompt_tokens_details", {"cached_tokens": 0}),
            "output_tokens": used["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": used["total_tokens"],
        },
    }


async def response_stream(request: Json, reply: Reply, release: Release = _not_held) -> AsyncIterator[str]:
    """The reply as server-sent events of the Responses API; it ends early if the reply is ``cut``."""
    number = 0

    def event(kind: str, **data: object) -> str:
        nonlocal number
        number += 1
        return f"event: {kind}\n{_event({'type': kind, 'sequence_number': number - 1, **data})}"

    begun = {**_response_head(request), "status": "in_progress", "output": []}
    yield event("response.created", response=begun)
    yield event("response.in_progress", response=begun)
    for index, item in enumerate(_output_items(reply)):
        is_message = item["type"] == "message"
        empty: Json = {"content": []} if is_message else {"arguments": ""}
        yield event("response.output_item.added", output_index=index, item={**item, **empty, "status": "in_progress"})
        place = {"output_index": index, "item_id": item["id"]}
        if is_message:
            async for piece in _pieces(reply, release):
                yield event("response.output_text.delta", **place, content_index=0, delta=piece)
            if reply.cut is not None:
                return
            yield event("response.output_text.done", **place, content_index=0, text=reply.text)
        else:
            yield event("response.function_call_arguments.delta", **place, delta=item["arguments"])
            yield event("response.function_call_arguments.done", **place, arguments=item["arguments"])
        yield event("response.output_item.done", output_index=index, item=item)
    yield event(RESPONSE_COMPLETED, response=response(request, reply))


RESPONSE_COMPLETED = "response.completed"
"""The type of the last event of a stream of the Responses API."""


def _response_head(request: Json) -> Json:
    model = f"{SCRIPTED}{request['model']}"
    head = {"id": "resp_scripted", "object": "response", "created_at": int(time.time()), "model": model}
    return {**head, "error": None, "incomplete_details": None}


def _output_items(reply: Reply) -> Iterator[Json]:
    if reply.text or not reply.calls:
        content = {"type": "output_text", "text": reply.text, "annotations": []}
        item = {"type": "message", "id": "msg_0", "role": "assistant", "status": "completed", "content": [content]}
        yield item
    for call in _tool_calls(reply):
        yield {
            "type": "function_call",
            "id": f"fc_{call['index']}",
            "call_id": call["id"],
            "name": call["function"]["name"],
            "arguments": call["function"]["arguments"],
            "status": "completed",
        }


def error(reply: Reply) -> Json:
    """The body of an HTTP error."""
    message = reply.text or f"scripted failure {reply.status or ''}".strip()
    return {"error": {"message": message, "code": reply.code, "type": "scripted"}}


def usage(request: Json, reply: Reply) -> Json:
    """The token usage of a reply, or an estimate."""
    if reply.usage is None:
        return estimate_usage(request, reply)
    prompt, completion = reply.usage.prompt, reply.usage.completion
    details = {"cached_tokens": reply.usage.cached}
    counts = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return {**counts, "prompt_tokens_details": details}


def estimate_usage(request: Json, reply: Reply) -> dict[str, int]:
    """The token usage, estimated with four characters per token."""
    prompt = sum(len(_text_of(message.get("content"))) for message in request["messages"]) // 4 + 1
    answer = (len(reply.text) + sum(len(json.dumps(call)) for call in _tool_calls(reply))) // 4 + 1
    return {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer}


def _head(request: Json, kind: str) -> Json:
    model = f"{SCRIPTED}{request['model']}"
    return {"id": "scripted", "object": kind, "created": int(time.time()), "model": model}


def _tool_calls(reply: Reply) -> list[Json]:
    def text(arguments: object) -> str:
        return arguments if isinstance(arguments, str) else json.dumps(arguments)

    return [
        {
            "index": index,
            "id": call.id if call.id is not None else f"call_{index}_{call.name}",
            "type": "function",
            "function": {"name": call.name, "arguments": text(call.arguments)},
        }
        for index, call in enumerate(reply.calls)
    ]


def _finish_reason(reply: Reply) -> str:
    return reply.stop or ("tool_calls" if reply.calls else "stop")


def _event(data: Json) -> str:
    return f"data: {json.dumps(data)}\n\n"


class _ThreadServer(uvicorn.Server):
    """A server that stops as soon as its last response is sent. Uvicorn itself polls for this every 0.1 s."""

    GRACE_SECONDS = 1.0
    """Seconds for which responses may still be sent after a request to stop."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()

    def run_in_loop(self, listener: socket.socket) -> None:
        """Serves until ``stop`` is called."""
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self.serve([listener]))

    def stop(self) -> None:
        """Stops the server; called by another thread."""
        self._loop.call_soon_threadsafe(self._stop.set)

    async def main_loop(self) -> None:
        await self.on_tick(0)  # sets the Date header
        await self._stop.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for listener in sockets or []:
            self._loop.remove_reader(listener)  # accepts nothing more
        for _ in range(5):  # closing a server loses the connections it has accepted in the last iterations of the loop
            await asyncio.sleep(0)
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        deadline = self._loop.time() + self.GRACE_SECONDS
        while self.server_state.tasks and self._loop.time() < deadline:
            await asyncio.sleep(0.002)
        for connection in list(self.server_state.connections):
            connection.transport.abort()  # a hanging reply ends when its client has disconnected
        while (self.server_state.tasks or self.server_state.connections) and self._loop.time() < deadline + 5:
            await asyncio.sleep(0.002)


@contextlib.contextmanager
def serve_in_thread(app: ASGIApp, port: int = 0, host: str = "127.0.0.1", log_level: str = "error") -> Iterator[str]:
    """A context manager that serves an application and yields its URL; port 0 selects a free port.

    Raises:
        OSError: if it can't listen on that address.
    """
    with socket.socket(
        proto=socket.IPPROTO_TCP
    ) as listener:  # asyncio disables Nagle's algorithm only if the protocol is named
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen()  # clients can connect before the thread runs
        server = _ThreadServer(uvicorn.Config(app, log_level=log_level, lifespan="off"))
        thread = threading.Thread(target=server.run_in_loop, args=[listener])
        thread.start()
        try:
            yield f"http://{host}:{listener.getsockname()[1]}"
        finally:
            server.stop()
            thread.join()


HANG_SECONDS = 3600.0
"""Seconds for which a hanging reply waits."""


@dataclass
class ReceivedRequest:
    """A request that the server has received. Times are in seconds since the epoch.

    ``answered`` is True once the whole answer was sent; ``disconnected_at`` is set if the client disconnected before.
    """

    body: Request
    path: str
    received_at: float = field(default_factory=time.time)
    answered: bool = False
    disconnected_at: float | None = None


Answer = Callable[[Request], Reply | str]
"""A function that answers as a model. A text is a reply with that text. An exception fails the run."""

_log = logging.getLogger("baton")


class ScriptedModel:
    """The server. ``answer`` returns the reply to a request; ``requests`` are all requests in order.

    The headers of a request are passed to ``on_headers``, and are not stored, as they contain keys.
    """

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.requests: list[ReceivedRequest] = []
        self.on_headers: Callable[[Mapping[str, str]], object] = lambda _: None
        self._released = threading.Event()
        self.app = Starlette(
            routes=[
                Route("/v1/chat/completions", self._complete, methods=["POST"]),
                Route("/openai/deployments/{name}/chat/completions", self._complete, methods=["POST"]),  # Azure's path
                Route("/v1/responses", self._complete, methods=["POST"]),
                Route("/v1/models", self._models),
            ]
        )

    @contextlib.contextmanager
    def serve(self, port: int = 0) -> Iterator[str]:
        """A context manager that serves from a thread and yields the base URL; port 0 selects a free port."""
        with serve_in_thread(self.app, port) as url:
            yield f"{url}/v1"

    def release(self) -> None:
        """Lets all replies that are ``held`` be sent, those of later requests too."""
        self._released.set()

    async def _release(self) -> None:
        """Waits until replies are released, which another thread may do."""
        while not self._released.is_set():
            await asyncio.sleep(0.02)

    async def _models(self, _request: HttpRequest) -> Response:
        models = [{"id": "scripted", "object": "model", "owned_by": "a script"}]
        return JSONResponse({"object": "list", "data": models})

    async def _complete(self, http: HttpRequest) -> Response:
        try:
            body = Request(await http.json(), http.headers.get(AGENT_HEADER))
        except ClientDisconnect:  # a worker that was killed while it sent the request
            return Response(status_code=400)
        received = ReceivedRequest(body, f"{http.url.path}?{http.url.query}".removesuffix("?"))
        self.requests.append(received)
        self.on_headers(http.headers)
        is_response = http.url.path.endswith("/responses")
        request = chat_request(body) if is_response else body
        reply = self._reply(request)
        await _wait(http, received, HANG_SECONDS if reply.hang else reply.delay)
        has_pieces = body.get("stream") and reply.text and not reply.status and reply.raw is None
        if reply.held and not has_pieces:
            await _wait(http, received, HANG_SECONDS, self._released.is_set)
        if reply.status:
            return JSONResponse(error(reply), reply.status, reply.headers)
        if reply.raw is not None:
            kind = "text/event-stream" if body.get("stream") else "application/json"
            return Response(reply.raw, 200, reply.headers, media_type=kind)
        if body.get("stream"):
            release = self._release if reply.held else _not_held
            events = response_stream(request, reply, release) if is_response else stream(request, reply, release)
            return StreamingResponse(_stream(received, events), media_type="text/event-stream")
        received.answered = True
        return JSONResponse(response(request, reply) if is_response else completion(request, reply))

    def _reply(self, request: Request) -> Reply:
        """The reply to a request. A mistake in ``answer`` is an error that is not retried, and so fails the run."""
        try:
            reply = self._answer(request)
        except Exception as error:
            _log.exception("the function that answers as a model has failed")
            return unexpected(request, f"the function that answers it raised {error!r}")
        if isinstance(reply, str):
            return Reply(text=reply)
        if not isinstance(reply, Reply):
            return unexpected(request, f"the function that answers it returned {reply!r}, which is not a reply")
        return reply


async def _wait(
    http: HttpRequest, received: ReceivedRequest, seconds: float, is_over: Callable[[], bool] = lambda: False
) -> None:
    """Waits before the answer, and records when the client disconnects."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0 and not is_over():
        await asyncio.sleep(min(left, 0.05))
        if await http.is_disconnected():
            received.disconnected_at = time.time()
            return


async def _stream(received: ReceivedRequest, events: AsyncIterator[str]) -> AsyncIterator[str]:
    """The stream of a reply; the request counts as answered before the last event, unless the reply is cut."""
    async for event in events:
        received.answered = event == END_OF_STREAM or event.startswith(f"event: {RESPONSE_COMPLETED}\n")
        yield event
