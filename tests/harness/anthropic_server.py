"""A server that speaks Anthropic's Messages API, with and without streams, and refuses what that API refuses."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.harness.stand_in import CHUNK, Json, Part, StandIn, StandInReply, wrong_in


class AnthropicServer(StandIn):
    """The server."""

    def __init__(self) -> None:
        super().__init__(Route("/v1/messages", self._complete, methods=["POST"]), Route("/v1/models", self._models))

    async def _models(self, http: HttpRequest) -> Response:
        if "wrong" in http.headers["authorization"]:
            return _refusal(401, "authentication_error", "invalid bearer token")
        return JSONResponse({"data": [], "has_more": False, "first_id": None, "last_id": None})

    async def _complete(self, http: HttpRequest) -> Response:
        body: Json = await http.json()
        self.requests.append(body)
        self.headers.append(dict(http.headers))
        if wrong := _wrong(body, self.headers[-1]):
            return _refusal(400, "invalid_request_error", wrong)
        reply = StandInReply.of(self.answer(body))
        await asyncio.sleep(60 if reply.hang else reply.delay)
        if reply.status:
            return _refusal(reply.status, reply.code or "api_error", reply.text, reply.headers)
        if reply.raw is not None:
            return Response(reply.raw, 200, media_type="text/event-stream" if body["stream"] else "application/json")
        if not body["stream"]:
            return JSONResponse(_whole(body, reply))
        return StreamingResponse(_stream(body, reply), media_type="text/event-stream")


def _refusal(status: int, kind: str, text: str, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"type": "error", "error": {"type": kind, "message": text}}, status, headers)


def _wrong(body: Json, headers: Json) -> str | None:
    if not body.get("max_tokens") or "stream" not in body or not headers.get("anthropic-version"):
        return "max_tokens, stream and anthropic-version are wanted here"
    schema = body.get("output_config", {}).get("format", {}).get("schema", {})
    if schema.get("type") == "object" and schema.get("additionalProperties") is not False:
        return "output_config.format.schema: additionalProperties must be false"
    messages = [(message["role"], [_part(block) for block in message["content"]]) for message in body["messages"]]
    return wrong_in(messages, tools=bool(body.get("tools")))


def _part(block: Json) -> Part:
    match block["type"]:
        case "tool_use":
            assert isinstance(block["input"], dict)
            return Part("call", block["id"])
        case "tool_result":
            return Part("result", block["tool_use_id"])
        case "thinking" | "redacted_thinking":
            return Part("thinking", block.get("signature") or block["data"])
        case "image" | "document" as kind:
            return Part(kind, block["source"]["type"])
        case _:
            return Part("text", block["text"])


def _whole(body: Json, reply: StandInReply) -> Json:
    calls = [
        {"type": "tool_use", "id": call.id or f"toolu_{index}", "name": call.name, "input": call.arguments or {}}
        for index, call in enumerate(reply.calls, 1)
    ]
    usage = {"input_tokens": 10, "cache_read_input_tokens": reply.cached, "output_tokens": 7}
    text_blocks = [{"type": "text", "text": reply.text, "citations": None}] if reply.text else []
    stop = reply.stop or ("tool_use" if reply.calls else "end_turn")
    head = {"id": "msg", "type": "message", "role": "assistant", "model": f"stand-in:{body['model']}"}
    return {**head, "content": text_blocks + calls, "stop_reason": stop, "stop_sequence": None, "usage": usage}


async def _stream(body: Json, reply: StandInReply) -> AsyncIterator[str]:
    usage = {"input_tokens": 10, "cache_read_input_tokens": reply.cached, "cache_creation_input_tokens": 0}
    start = {"id": "msg", "type": "message", "role": "assistant", "model": f"stand-in:{body['model']}", "content": []}
    yield _event("message_start", message={**start, "stop_reason": None, "usage": {**usage, "output_tokens": 1}})
    yield _event("ping")
    text = reply.text[: reply.cut]
    if text:
        yield _event("content_block_start", index=0, content_block={"type": "text", "text": ""})
        for at in range(0, len(text), CHUNK):
            await asyncio.sleep(reply.pause)
            yield _event("content_block_delta", index=0, delta={"type": "text_delta", "text": text[at : at + CHUNK]})
    if reply.cut is not None:
        if reply.code:
            yield _event("error", error={"type": reply.code, "message": "it broke"})
        return
    yield _event("content_block_stop", index=0)
    for index, call in enumerate(reply.calls, 1):
        block = {"type": "tool_use", "id": call.id or f"toolu_{index}", "name": call.name, "input": {}}
        yield _event("content_block_start", index=index, content_block=block)
        arguments = call.arguments if isinstance(call.arguments, str) else json.dumps(call.arguments)
        for piece in ("", arguments[:5], arguments[5:]):
            delta = {"type": "input_json_delta", "partial_json": piece}
            yield _event("content_block_delta", index=index, delta=delta)
        yield _event("content_block_stop", index=index)
    stop = reply.stop or ("tool_use" if reply.calls else "end_turn")
    yield _event("message_delta", delta={"stop_reason": stop, "stop_sequence": None}, usage={"output_tokens": 7})
    yield _event("message_stop")


def _event(kind: str, **data: Any) -> str:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **data})}\n\n"
