"""Writes a scripted reply as OpenAI's API does: as one chat completion, or as a stream of chunks."""

import asyncio
import json
import time
from collections.abc import AsyncIterator

from .script import MODEL_PREFIX, Reply, Request

CHUNK_SIZE = 40
"""Characters in a chunk of a stream, or more if there would be more than MAX_CHUNKS."""

MAX_CHUNKS = 2_000

END_OF_STREAM = "data: [DONE]\n\n"


def completion(request: Request, reply: Reply) -> Request:
    """The reply as one chat completion."""
    calls = [{key: value for key, value in call.items() if key != "index"} for call in _tool_calls(reply)]
    message = {"role": "assistant", "content": reply.text, **({"tool_calls": calls} if calls else {})}
    return {
        **_head(request, "chat.completion"),
        "choices": [{"index": 0, "message": message, "finish_reason": _finish_reason(reply)}],
        "usage": estimate_usage(request, reply),
    }


async def stream(request: Request, reply: Reply) -> AsyncIterator[str]:
    """The reply as server-sent events; it ends early if the reply is ``cut``."""
    head = _head(request, "chat.completion.chunk")

    def chunk(delta: Request, finish_reason: str | None = None) -> str:
        return _event({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]})

    yield chunk({"role": "assistant", "content": ""})
    text = reply.text[: reply.cut]
    size = max(CHUNK_SIZE, len(text) // MAX_CHUNKS)
    for start in range(0, len(text), size):
        await asyncio.sleep(reply.pause)
        yield chunk({"content": text[start : start + size]})
    if reply.cut is not None:
        return
    for call in _tool_calls(reply):
        yield chunk({"tool_calls": [call]})
    yield chunk({}, _finish_reason(reply))
    if (request.get("stream_options") or {}).get("include_usage"):
        yield _event({**head, "choices": [], "usage": estimate_usage(request, reply)})
    yield END_OF_STREAM


def error(reply: Reply) -> Request:
    """The body of an HTTP error."""
    message = reply.text or f"scripted failure {reply.status}"
    return {"error": {"message": message, "code": reply.code, "type": "scripted"}}


def estimate_usage(request: Request, reply: Reply) -> dict[str, int]:
    """The token usage, with four characters for a token."""
    prompt = sum(len(message.get("content") or "") for message in request["messages"]) // 4 + 1
    answer = (len(reply.text) + sum(len(json.dumps(call)) for call in _tool_calls(reply))) // 4 + 1
    return {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer}


def _head(request: Request, kind: str) -> Request:
    model = f"{MODEL_PREFIX}{request['model']}"
    return {"id": "scripted", "object": kind, "created": int(time.time()), "model": model}


def _tool_calls(reply: Reply) -> list[Request]:
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
    return "tool_calls" if reply.calls else "stop"


def _event(data: Request) -> str:
    return f"data: {json.dumps(data)}\n\n"
