"""A server that speaks OpenAI's Chat Completions API, also at Azure's path, with and without streams."""

import asyncio
import json
from collections.abc import AsyncIterator

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from baton.starter.scripted_model import END_OF_STREAM, completion, error, stream
from tests.harness.stand_in import Json, StandIn, StandInReply

EVENT = "data: "


class OpenAIServer(StandIn):
    """The server."""

    def __init__(self) -> None:
        super().__init__(
            Route("/v1/chat/completions", self._complete, methods=["POST"]),
            Route("/openai/deployments/{name}/chat/completions", self._complete, methods=["POST"]),
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
