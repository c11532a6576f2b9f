"""Temporal's codec server: decrypts payloads for the UI, over HTTP."""

from collections.abc import Awaitable, Callable, Collection, Sequence

from google.protobuf import json_format
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from temporalio.api.common.v1 import Payload, Payloads
from temporalio.converter import PayloadCodec

from ...contracts.settings import SettingsError

Change = Callable[[Sequence[Payload]], Awaitable[list[Payload]]]


def codec_app(codec: PayloadCodec, origins: Collection[str]) -> Starlette:
    """Temporal's remote codec protocol: ``POST /encode`` and ``POST /decode`` take and return Payloads as JSON.

    Browser pages of other ``origins`` are rejected; other clients send no origin, and are served.
    """
    cors = Middleware(
        CORSMiddleware,
        allow_origins=[*origins],
        allow_methods=["POST"],
        allow_headers=["*"],
        allow_credentials=True,
        allow_private_network=True,  # a remote UI may call a server on the viewer's own machine
    )

    def route(path: str, change: Change) -> Route:
        async def answer(request: Request) -> Response:
            if request.headers.get("origin") not in (None, *origins):
                return _refused("this origin is not allowed", 403)
            return await _answer(request, change)

        return Route(path, answer, methods=["POST"])

    return Starlette(routes=[route("/encode", codec.encode), route("/decode", codec.decode)], middleware=[cors])


async def _answer(request: Request, change: Change) -> Response:
    try:
        payloads = json_format.Parse(await request.body(), Payloads())
        changed = Payloads(payloads=await change(payloads.payloads))
    except json_format.ParseError:
        return _refused('the body is not JSON of the form {"payloads": [...]}', 400)
    except SettingsError as error:
        return _refused(str(error), 400)
    return Response(json_format.MessageToJson(changed), media_type="application/json")


def _refused(message: str, code: int) -> Response:
    return JSONResponse({"message": message}, code)
