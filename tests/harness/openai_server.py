"""A server that speaks OpenAI's Chat Completions API, also at Azure's path, and its Responses API."""

import asyncio
import json
from collections.abc import AsyncIterator

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from baton.starter.scripted_model import (
    END_OF_STREAM,
    chat_request,
    completion,
    error,
    response,
    response_stream,
    stream,
)
from baton.testing import Request
from tests.harness.stand_in import Json, StandIn, StandInReply

EVENT = "data: "


class OpenAIServer(StandIn):
    """The server."""

    def __init__(self) -> None:
        super().__init__(
            Route("/v1/chat/completions", self._complete, methods=["POST"]),
            Route("/openai/deployments/{name}/chat/completions", self._complete, methods=["POST"]),
            Route("/v1/responses", self._respond, methods=["POST"]),
        )

    async def _complete(self, http: HttpRequest) -> Response:
        body: Json = await http.json()
        self.requests.append(body)
        self.headers.append(dict(http.headers))
        reply = StandInReply.of(self.answer(body))
        await asyncio.sleep(60 if reply.hang else reply.delay)
        if reply.status:
            return JSONResponse(error(reply), reply.status, reply.headers)
        if reply.raw is not None:
            return Response(reply.raw, 200, media_type="text/event-stream" if body["stream"] else "application/json")
        if body["stream"]:
            return StreamingResponse(_stream(body, reply), media_type="text/event-stream")
        return JSONResponse(_with_counts(completion(body, reply), reply))

    async def _respond(self, http: HttpRequest) -> Response:
        body: Json = await http.json()
        self.requests.append(body)
        self.headers.append(dict(http.headers))
        if wrong := _wrong(body):
            return JSONResponse({"error": {"message": wrong, "code": None, "type": "invalid_request_error"}}, 400)
        reply = StandInReply.of(self.answer(body))
        await asyncio.sleep(60 if reply.hang else reply.delay)
        if reply.status:
            return JSONResponse(error(reply), reply.status, reply.headers)
        if reply.raw is not None:
            return Response(reply.raw, 200, media_type="text/event-stream" if body["stream"] else "application/json")
        request = chat_request(Request(body))
        if body["stream"]:
            return StreamingResponse(_response_events(request, reply), media_type="text/event-stream")
        return JSONResponse(_ended(response(request, reply), reply))


def _wrong(body: Json) -> str | None:
    """What the API would reject, and what would make the server keep state."""
    if body["store"] or "previous_response_id" in body or "conversation" in body:
        return "this server keeps no state"
    items = [(item.get("type", "message"), item) for item in body["input"]]
    calls = [item["call_id"] for kind, item in items if kind == "function_call"]
    results = [item["call_id"] for kind, item in items if kind == "function_call_output"]
    if sorted(calls) != sorted(results) or len({*calls}) < len(calls):
        return "No tool output found for function call"
    for (kind, _), (after, _) in zip(items, [*items[1:], ("", {})], strict=True):
        if kind == "reasoning" and after not in ("reasoning", "message", "function_call"):
            return "Item of type 'reasoning' was provided without its required following item"
    return None


async def _response_events(request: Json, reply: StandInReply) -> AsyncIterator[str]:
    async for event in response_stream(request, reply):
        if event.startswith("event: response.completed\n"):
            data = json.loads(event.partition(EVENT)[2])
            ended = _ended(data["response"], reply)
            kind = f"response.{ended['status']}"
            yield f"event: {kind}\n{EVENT}{json.dumps({**data, 'type': kind, 'response': ended})}\n\n"
        else:
            yield event


def _ended(whole: Json, reply: StandInReply) -> Json:
    """A response with the stop reason and the token counts of the reply."""
    usage = {"input_tokens": 10 + reply.cached, "output_tokens": 7, "total_tokens": 17 + reply.cached}
    whole = {**whole, "usage": {**usage, "input_tokens_details": {"cached_tokens": reply.cached}}}
    if reply.stop:
        return {**whole, "status": "incomplete", "incomplete_details": {"reason": reply.stop}}
    return whole


async def _stream(body: Json, reply: StandInReply) -> AsyncIterator[str]:
    async for event in stream(body, reply):
        if event == END_OF_STREAM:
            yield event
        else:
            yield f"{EVENT}{json.dumps(_with_counts(json.loads(event.removeprefix(EVENT)), reply))}\n\n"


def _with_counts(chunk: Json, reply: StandInReply) -> Json:
    """An event of a stream, or a whole answer, with the stop reason and the token counts of the reply."""
    for choice in chunk.get("choices", ()):
        if reply.stop and choice["finish_reason"]:
            choice["finish_reason"] = reply.stop
    if "usage" in chunk:
        prompt = 10 + reply.cached
        details = {"cached_tokens": reply.cached}
        chunk["usage"] = {"prompt_tokens": prompt, "completion_tokens": 7, "prompt_tokens_details": details}
    return chunk
