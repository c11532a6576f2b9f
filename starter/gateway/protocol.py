"""A protocol of the gateway: its routes, and its form of errors."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from .access import Caller
from .errors import BadRequestError, GatewayError
from .limits import parse_json

T = TypeVar("T", bound=BaseModel)
V = TypeVar("V")

IDEMPOTENCY_KEY = "idempotency-key"
"""The header by which a repeated request is recognized."""


@dataclass(frozen=True)
class Protocol:
    """The routes below a ``prefix``. ``error_form`` makes the response for an error; ``lifespan`` runs beside them."""

    prefix: str
    routes: Sequence[BaseRoute]
    error_form: Callable[[GatewayError], Response]
    lifespan: Callable[[], AbstractAsyncContextManager[None]] | None = None


def caller_of(request: Request) -> Caller:
    """Who makes a request, as the guard has found."""
    caller = request.scope["state"]["caller"]
    assert isinstance(caller, Caller)
    return caller


async def read_body(request: Request, kind: type[T]) -> T:
    """The JSON body of a request. Raises BadRequestError, and pydantic's ValidationError.

    Another content type is rejected: a page of another origin can send only those without being asked.
    """
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json" and not media_type.endswith("+json"):
        raise BadRequestError("the body has to be JSON, with the header Content-Type: application/json")
    return kind.model_validate(parse_json(await request.body()))


async def unless_disconnected(request: Request, work: Coroutine[Any, Any, V]) -> V:
    """The result of what takes long, unless the client disconnects before. The request has to be read."""

    async def wait_for_disconnect() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    working = asyncio.create_task(work)
    gone = asyncio.create_task(wait_for_disconnect())
    try:
        await asyncio.wait([working, gone], return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return await working
        raise BadRequestError("the client has disconnected")
    finally:
        working.cancel()
        gone.cancel()
        await asyncio.gather(working, gone, return_exceptions=True)
