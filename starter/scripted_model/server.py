"""How does a team run without a language model? On a server that speaks as OpenAI's and says what a script says."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field

from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from ..http.thread_server import serve_in_thread
from .script import MODEL_PREFIX, Reply, Request

CHUNK_SIZE = 40
"""Characters of a text that are streamed at a time, or more where it would take more than MOST_PIECES."""

MAX_CHUNKS = 2_000

HANG_SECONDS = 3600.0


@dataclass
class ReceivedRequest:
    """One request that the server has had. ``at`` and ``given_up`` are times in seconds since the epoch."""

    body: Request
    path: str
    received_at: float = field(default_factory=time.time)
    answered: bool = False
    disconnected_at: float | None = None


class ScriptedModel:
    """The server. ``answer`` decides what is said; ``asked`` lists every request, in the order they came.

    The headers that it is asked with are told to ``hear``, and kept nowhere.
    """

    def __init__(self, answer: Callable[[Request], Reply]) -> None:
        self._answer = answer
        self.requests: list[ReceivedRequest] = []
        self.on_headers: Callable[[Mapping[str, str]], object] = lambda _: None
        self.app = Starlette(
            routes=[
                Route("/v1/chat/completions", self._complete, methods=["POST"]),
                Route("/openai/deployments/{name}/chat/completions", self._complete, methods=["POST"]),  # as Azure
                Route("/v1/models", self._models),
            ]
        )

    @contextlib.contextmanager
    def serve(self, port: int = 0) -> Iterator[str]:
        """Serves from a thread as long as the block runs, on a free port unless one is given; gives the base URL."""
        with serve_in_thread(self.app, port) as url:
            yield f"{url}/v1"

    async def _models(self, _request: HttpRequest) -> Response:
        models = [{"id": "scripted", "object": "model", "owned_by": "a script"}]
        return JSONResponse({"object": "list", "data": models})

    async def _complete(self, http: HttpRequest) -> Response:
        request: Request = await http.json()
        asked = ReceivedRequest(request, f"{http.url.path}?{http.url.query}".removesuffix("?"))
        self.requests.append(asked)
        self.on_headers(http.headers)
        reply = self._answer(request)
        await _wait(http, asked, HANG_SECONDS if reply.hang else reply.delay)
        if reply.status:
            error = {
                "message": reply.text or f"scripted failure {reply.status}",
                "code": reply.code,
                "type": "scripted",
            }
            return JSONResponse({"error": error}, reply.status, reply.headers)
        if reply.raw is not None:
            return Response(reply.raw, 200, reply.headers, media_type="text/event-stream")
        if request.get("stream"):
            return StreamingResponse(_stream(asked, reply), media_type="text/event-stream")
        asked.answered = True
        return JSONResponse(_completion(request, reply))


async def _wait(http: HttpRequest, asked: ReceivedRequest, seconds: float) -> None:
    """Waits before the answer, and notes when the client has given it up."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        await asyncio.sleep(min(left, 0.05))
        if await http.is_disconnected():
            asked.disconnected_at = time.time()
            return


async def _stream(asked: ReceivedRequest, reply: Reply) -> AsyncIterator[str]:
    request = asked.body
    base = {"id": "scripted", "object": "chat.completion.chunk", "created": int(time.time()), "model": _label(request)}

    def chunk(delta: Request, finish: str | None = None) -> str:
        return _event({**base, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})

    yield chunk({"role": "assistant", "content": ""})
    text = reply.text[: reply.cut]
    piece = max(CHUNK_SIZE, len(text) // MAX_CHUNKS)
    for start in range(0, len(text), piece):
        await asyncio.sleep(reply.pause)
        yield chunk({"content": text[start : start + piece]})
    if reply.cut is not None:
        return
    for call in _calls(reply):
        yield chunk({"tool_calls": [call]})
    yield chunk({}, _finish(reply))
    if (request.get("stream_options") or {}).get("include_usage"):
        yield _event({**base, "choices": [], "usage": estimate_usage(request, reply)})
    asked.answered = True
    yield "data: [DONE]\n\n"


def _completion(request: Request, reply: Reply) -> Request:
    calls = [{key: value for key, value in call.items() if key != "index"} for call in _calls(reply)]
    message = {"role": "assistant", "content": reply.text, **({"tool_calls": calls} if calls else {})}
    return {
        "id": "scripted",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": _label(request),
        "choices": [{"index": 0, "message": message, "finish_reason": _finish(reply)}],
        "usage": estimate_usage(request, reply),
    }


def _calls(reply: Reply) -> list[Request]:
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


def estimate_usage(request: Request, reply: Reply) -> dict[str, int]:
    """Tokens as a rule of thumb has them: four characters each."""
    prompt = sum(len(message.get("content") or "") for message in request["messages"]) // 4 + 1
    completion = (len(reply.text) + sum(len(json.dumps(call)) for call in _calls(reply))) // 4 + 1
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def _finish(reply: Reply) -> str:
    return "tool_calls" if reply.calls else "stop"


def _label(request: Request) -> str:
    return f"{MODEL_PREFIX}{request['model']}"


def _event(data: Request) -> str:
    return f"data: {json.dumps(data)}\n\n"
