"""Resolves the parts of a model's connection that all providers share: its address, headers and properties."""

import json
import os
from typing import Any

import httpx2
from pydantic import JsonValue

from ...conversation.errors import AnswerTooLong, InvalidManifest
from ...resources.model import BedrockConfig, HttpConnection, Model
from ...resources.values import check_url
from ..context.value_resolver import ValueResolver
from ..runtime.bounded_body import BodyLimits, client_options
from ..runtime.certificates import read_once
from .guarded_transport import GuardedTransport

MAX_EVENT = 20_000_000
"""Bytes of one event of a stream, or of a whole answer that is none, such as an error."""

MAX_OBJECTS = 50_000
"""Opening braces and brackets in them."""

LIMITS = BodyLimits(MAX_EVENT, MAX_OBJECTS, lambda text: AnswerTooLong(f"the model's server {text}"))
"""What a provider's HTTP client reads at most: the library would read any length."""

NO_KEY = "none"
"""The key that is sent to a server that needs none."""


def http_options(*, guarded: bool) -> dict[str, Any]:
    """Arguments for a provider's HTTP client: answers are bounded and, if ``guarded``, addresses are public ones.

    Redirects are not followed: keys, headers and the conversation would go to whatever address a server names.
    """
    trusted = read_once(httpx2.create_ssl_context)
    transport = {"transport": GuardedTransport(verify=trusted)} if guarded else {}
    return {**client_options(LIMITS), "follow_redirects": False, "verify": trusted, **transport}


def environment_headers(variable: str) -> list[str]:
    """The names of the headers in a variable of the environment, which a provider's library adds by itself.

    They are the worker's own: a Model that a run has brought does not get them.
    """
    return [line.partition(":")[0].strip() for line in os.environ.get(variable, "").split("\n") if ":" in line]


def properties_of(
    config: HttpConnection | BedrockConfig, values: ValueResolver, model: Model
) -> tuple[tuple[str, JsonValue], ...]:
    """More fields of a request: a text that is JSON (a number, true, an object …) is sent as JSON."""
    return tuple((name, _json(values.resolve(each, model) or "")) for name, each in sorted(config.properties.items()))


def checked_url(base_url: str) -> str:
    """The address itself; raises InvalidManifest for anything but an HTTP address."""
    try:
        check_url(base_url)
    except ValueError as error:
        raise InvalidManifest(f"the base URL of a model {error}") from None
    return base_url


def _json(text: str) -> JsonValue:
    try:
        value: JsonValue = json.loads(text)
    except ValueError:
        return text
    return value
