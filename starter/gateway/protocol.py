"""A protocol of the gateway: its routes, and its form of errors."""

import asyncio
import json
import re
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from ...contracts.text import NumberTooLarge, finite, repair_surrogates
from .access import Caller
from .errors import BadRequestError, GatewayError, invalid_body

T = TypeVar("T", bound=BaseModel)
V = TypeVar("V")

IDEMPOTENCY_KEY = "idempotency-key"
"""The header by which a repeated request is recognized."""

MAX_DIGITS = 18
"""Digits of a number in the query of a request."""


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
    """The JSON body of a request. Raises BadRequestError.

    Another content type is rejected: a page of another origin can send only those without being asked.
    """
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json" and not media_type.endswith("+json"):
        raise BadRequestError("the body has to be JSON, with the header Content-Type: application/json")
    try:
        return kind.model_validate(parse_json(await request.body()))
    except ValidationError as error:
        raise invalid_body(error, kind) from None


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


def number_in(request: Request, name: str, default: int, *, least: int = 1, most: int | None = None) -> int:
    """A number in the query of a request. Raises BadRequestError for what is no number, or out of these bounds."""
    text = request.query_params.get(name)
    if not text:
        return default
    if not (text.removeprefix("-").isascii() and text.removeprefix("-").isdecimal() and len(text) <= MAX_DIGITS):
        raise BadRequestError(f"{name} has to be a number", param=name)
    number = int(text)
    if number < least or (most is not None and number > most):
        bounds = f"at least {least}" if most is None else f"from {least} to {most}"
        raise BadRequestError(f"{name} has to be {bounds}", param=name)
    return number


def parse_json(body: bytes) -> object:
    """The value of a JSON body, without lone surrogates: clients that cut a text may cut an emoji in half.

    Raises GatewayError for other bodies, duplicate keys, and deep nesting.
    """
    try:
        text = body.decode(json.detect_encoding(body))
        value: object = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=finite)
        return _repaired(value) if _SURROGATE.search(text) else value
    except (ValueError, RecursionError) as error:
        reason = str(error) if isinstance(error, _JsonError | NumberTooLarge) else "it is not valid JSON"
        raise GatewayError(f"the body can't be read: {reason}") from None


_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
"""Half of a surrogate pair in JSON, perhaps a lone one."""


def _repaired(value: object) -> object:
    """A JSON value whose texts have no lone surrogates, which can neither be stored nor sent."""
    if isinstance(value, str):
        return repair_surrogates(value)
    if isinstance(value, list):
        return [_repaired(item) for item in value]
    if isinstance(value, dict):
        return _unique([(repair_surrogates(name), _repaired(item)) for name, item in value.items()])
    return value


class _JsonError(ValueError):
    pass


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise _JsonError("an object has two fields of the same name")
    return value


def _no_constant(name: str) -> object:
    raise _JsonError(f"{name} is not JSON")
