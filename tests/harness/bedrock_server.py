"""A server that speaks Bedrock's Converse API, with and without streams, and refuses what that API refuses."""

import asyncio
import binascii
import json
import re
import struct
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.harness.stand_in import CHUNK, Json, Part, StandIn, StandInReply, wrong_in

CODES = {400: "ValidationException", 401: "UnrecognizedClientException", 403: "AccessDeniedException"}
CODES |= {429: "ThrottlingException", 500: "InternalServerException", 503: "ServiceUnavailableException"}


class BedrockServer(StandIn):
    """The server."""

    def __init__(self) -> None:
        super().__init__(
            Route("/model/{model:path}/converse-stream", self._stream, methods=["POST"]),
            Route("/model/{model:path}/converse", self._converse, methods=["POST"]),
        )
        self.models: list[str] = []

    async def _converse(self, http: HttpRequest) -> Response:
        if (await http.json()).get("messages"):
            return await self._answer(http, stream=False)
        if "wrong" in http.headers["authorization"]:
            return _refusal(403, "UnrecognizedClientException", "The security token included is invalid.")
        if http.path_params["model"] == "unknown":
            return _refusal(400, "ValidationException", "The provided model identifier is invalid.")
        return _refusal(400, "ValidationException", "A conversation must start with a user message.")

    async def _stream(self, http: HttpRequest) -> Response:
        return await self._answer(http, stream=True)

    async def _answer(self, http: HttpRequest, *, stream: bool) -> Response:
        body: Json = await http.json()
        self.requests.append(body)
        self.headers.append(dict(http.headers))
        self.models.append(http.path_params["model"])
        if wrong := _wrong(body):
            return _refusal(400, "ValidationException", wrong)
        reply = StandInReply.of(self.answer(body))
        await asyncio.sleep(60 if reply.hang else reply.delay)
        if reply.status:
            code = reply.code or CODES.get(reply.status, "UnknownException")
            return _refusal(reply.status, code, reply.text, reply.headers)
        kind = "application/vnd.amazon.eventstream" if stream else "application/json"
        if reply.raw is not None:
            return Response(reply.raw.encode("latin-1"), 200, media_type=kind)
        return StreamingResponse(_events(reply), media_type=kind) if stream else JSONResponse(_whole(reply))


def _refusal(status: int, code: str, text: str, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"message": text}, status, {**(headers or {}), "x-amzn-ErrorType": code})


def _wrong(body: Json) -> str | None:
    tools = [each["toolSpec"] for each in body.get("toolConfig", {}).get("tools", ())]
    if not all(each["name"] and each["description"] and each["inputSchema"]["json"] for each in tools):
        return "a tool needs a name, a description and a schema"
    messages = [(each["role"], [_part(block) for block in each["content"]]) for each in body["messages"]]
    return wrong_in(messages, tools=bool(tools)) or _wrong_documents(body) or _lost_reasoning(body)


def _wrong_documents(body: Json) -> str | None:
    names: list[str] = []
    for message in body["messages"]:
        blocks = [*message["content"]]
        if any("document" in block for block in blocks) and not any("text" in block for block in blocks):
            return "A text block must be included when using documents."
        blocks += [each for block in blocks for each in block.get("toolResult", {}).get("content", ())]
        names += [block["document"]["name"] for block in blocks if "document" in block]
    if not all(
        re.fullmatch(r"[A-Za-z0-9()\[\]-]+( [A-Za-z0-9()\[\]-]+)*", name) and len(name) <= 200 for name in names
    ):
        return "The document name is invalid."
    if len({*names}) < len(names):
        return "Messages can't contain duplicate document names."
    return "Too many documents: at most 5." if len(names) > 5 else None


def _lost_reasoning(body: Json) -> str | None:
    if "thinking" not in body.get("additionalModelRequestFields", {}):
        return None
    last = [message["content"] for message in body["messages"]][-2:]
    if any("toolResult" in block for block in last[-1]) and "reasoningContent" not in last[0][0]:
        return "Expected `thinking` or `redacted_thinking`, but found `tool_use`."
    return None


def _part(block: Json) -> Part:
    match block:
        case {"toolUse": use}:
            assert isinstance(use["input"], dict)
            return Part("call", use["toolUseId"])
        case {"toolResult": result}:
            return Part("result", result["toolUseId"])
        case {"reasoningContent": _}:
            return Part("reasoning", "…")
        case {"image": content} | {"document": content}:
            return Part("attached", content["format"])
        case _:
            return Part("text", block["text"])


async def _events(reply: StandInReply) -> AsyncIterator[bytes]:
    yield event("messageStart", role="assistant")
    text = reply.text[: reply.cut]
    for at in range(0, len(text), CHUNK):
        await asyncio.sleep(reply.pause)
        yield event("contentBlockDelta", contentBlockIndex=0, delta={"text": text[at : at + CHUNK]})
    if reply.cut is not None:
        yield event(reply.code, message="it broke", message_type="exception") if reply.code else b"\0\0"
        return
    yield event("contentBlockStop", contentBlockIndex=0)
    for index, call in enumerate(reply.calls, 1):
        use = {"toolUseId": call.id or f"tooluse_{index}", "name": call.name}
        yield event("contentBlockStart", contentBlockIndex=index, start={"toolUse": use})
        arguments = call.arguments if isinstance(call.arguments, str) else json.dumps(call.arguments)
        for piece in (arguments[:5], arguments[5:]):
            yield event("contentBlockDelta", contentBlockIndex=index, delta={"toolUse": {"input": piece}})
        yield event("contentBlockStop", contentBlockIndex=index)
    yield event("messageStop", stopReason=_stop_reason(reply))
    yield event("metadata", usage=_usage(reply), metrics={"latencyMs": 1})


def _whole(reply: StandInReply) -> Json:
    content: list[Json] = [{"text": reply.text}] if reply.text else []
    for index, call in enumerate(reply.calls, 1):
        use = {"toolUseId": call.id or f"tooluse_{index}", "name": call.name, "input": call.arguments or {}}
        content.append({"toolUse": use})
    answer = {"output": {"message": {"role": "assistant", "content": content}}, "metrics": {"latencyMs": 1}}
    return {**answer, "stopReason": _stop_reason(reply), "usage": _usage(reply)}


def _stop_reason(reply: StandInReply) -> str:
    return reply.stop or ("tool_use" if reply.calls else "end_turn")


def _usage(reply: StandInReply) -> Json:
    return {"inputTokens": 10, "outputTokens": 7, "totalTokens": 17, "cacheReadInputTokens": reply.cached}


def event(kind: str, message_type: str = "event", **data: Any) -> bytes:
    """One message of a stream: two lengths and their checksum, headers, JSON, and a checksum of it all."""
    names = {f":{message_type}-type": kind, ":content-type": "application/json", ":message-type": message_type}
    headers = b"".join(
        struct.pack("!B", len(name)) + name.encode() + struct.pack("!BH", 7, len(value)) + value.encode()
        for name, value in names.items()
    )
    payload = json.dumps(data).encode()
    prelude = struct.pack("!II", 16 + len(headers) + len(payload), len(headers))
    message = prelude + struct.pack("!I", binascii.crc32(prelude)) + headers + payload
    return message + struct.pack("!I", binascii.crc32(message))
