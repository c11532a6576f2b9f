"""Builds the HTTP request of a tool call: values are escaped for the part of the request that contains them."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import quote, unquote

import httpx
from pydantic import JsonValue

from ...contracts.errors import BadArguments
from ...contracts.text import parse_json
from ...resources.base import JsonObject
from ...resources.provenance import Provenance
from ...resources.template import fill, parse_template
from ...resources.tool import ARGUMENT, ARGUMENTS, HttpSpec, arguments_in
from ..context.value_resolver import Parameters
from ..runtime.outbound import Destination

BODILESS = ("GET", "HEAD", "DELETE")
"""Methods without a body: arguments that no template names are added to the query string instead."""

_AUTHORITY = re.compile(r"[A-Za-z0-9.-]+(:[0-9]{1,5})?|\[[0-9A-Fa-f:.]+\](:[0-9]{1,5})?")
_ONE_ARGUMENT = re.compile(r"\{\{\s*input\.(\w+)\s*\}\}")
"""A body that is one argument, such as that of an operation of OpenAPI."""

_PATH_START = re.compile("[/?#]")
_PATH = "/:@!$&'()*+,;=~"

Value = Callable[[str], str]
"""From a parameter's name to its value."""


@dataclass(frozen=True)
class HttpRequest:
    """A request."""

    method: str
    destination: Destination
    headers: tuple[tuple[str, str], ...] = field(repr=False)
    body: bytes | None = field(repr=False)


def server_template(url: str) -> tuple[str, str]:
    """The template of a URL in two parts: that of its server, which ends before the path, and that of the rest.

    The value of a parameter at the beginning is an address, which may have its own path.
    """
    first = next((piece.text for piece in parse_template(url) if piece.name), "")
    start = len(first) if first and url.startswith(first) else url.index("://") + len("://")
    end = start + len(_PATH_START.split(url[start:], maxsplit=1)[0])
    return url[:end], url[end:]


def server_provenance(server: str, parameters: Parameters, manifest_provenance: Provenance) -> Provenance:
    """The provenance of a server, from its template in a manifest with the provenance ``manifest_provenance``."""
    argument = Provenance.MODEL if arguments_in(server) else manifest_provenance
    return manifest_provenance.or_less_trusted(argument, *(parameters.provenance(name) for name in _names(server)))


def server_url(server: str, arguments: JsonObject, value: Value) -> str:
    """The URL of a server from its template. Raises BadArguments if it is invalid."""
    arguments = {name: argument for name, argument in arguments.items() if argument is not None}
    if server.startswith("{{"):
        first, *more = [piece for piece in parse_template(server) if piece.text]
        base = value(first.name or "")
        after = "".join(piece.text for piece in more)
        url = (base if after else base.rstrip("/")) + _filled(after, arguments, value, _quoted, _quoted_path)
        if not url.startswith(("http://", "https://")):
            raise BadArguments("the address of the tool begins with neither http:// nor https://")
        authority = _PATH_START.split(url.partition("://")[2], maxsplit=1)[0]
    else:
        scheme, _, template = server.partition("://")
        authority = _filled(template, arguments, value, str, str)
        url = f"{scheme}://{authority}"
    if not _AUTHORITY.fullmatch(authority):
        raise BadArguments("the address has no valid host")
    return url


def request_of(
    http: HttpSpec, server: Destination, headers: list[tuple[str, str]], arguments: JsonObject, value: Value, key: str
) -> HttpRequest:
    """The request for a tool's arguments. Raises BadArguments if they are invalid for it.

    ``server`` is that of the URL. ``headers`` are the tool's own, filled in. ``key`` is the value of the header
    ``Idempotency-Key``.
    """
    arguments = {name: argument for name, argument in arguments.items() if argument is not None}
    templates = (http.body, *(header.value.value for header in http.headers))
    named = {name.removeprefix(ARGUMENTS) for text in templates for name in _names(text)} | {*arguments_in(http.url)}
    rest: JsonObject = {name: argument for name, argument in arguments.items() if name not in named}
    lower = {name.lower() for name, _ in headers}
    body, kind = _body(http, rest, arguments, value, dict(headers))
    if body is None and http.body:
        headers = [(name, text) for name, text in headers if name.lower() != "content-type"]
    extra = [("Idempotency-Key", key), *([("Content-Type", kind)] if body is not None else [])]
    _, path = server_template(http.url)
    url = _url(server.url, path, arguments, rest if http.method in BODILESS else {}, value)
    try:
        destination = server.at(url)
    except (httpx.InvalidURL, ValueError) as error:
        raise BadArguments(f"the URL of the request is invalid: {error}") from None
    if destination.origin != server.origin:
        raise BadArguments("an argument would change the host of the address")
    return HttpRequest(
        method=http.method,
        destination=destination,
        headers=(*headers, *((name, text) for name, text in extra if name.lower() not in lower)),
        body=body,
    )


def header_argument(arguments: JsonObject, name: str) -> str:
    """An argument as the text of a header, empty if it is missing. Raises BadArguments for what no header can have."""
    text = "" if arguments.get(name) is None else _text(arguments[name])
    if not (text.isprintable() and text.isascii()):
        raise BadArguments(f"the argument '{name}' is sent in a header: it can only have printable ASCII characters")
    return text


def _names(template: str | None) -> list[str]:
    return [piece.name for piece in parse_template(template or "") if piece.name]


def _url(server: str, template: str, arguments: JsonObject, rest: JsonObject, value: Value) -> str:
    path, _, query = template.partition("#")[0].partition("?")
    path = _path(path, arguments, value)
    pairs = [pair for part in query.split("&") if part for pair in _pairs(part, arguments, value)]
    fixed = {unquote(pair.partition("=")[0]) for pair in pairs}
    added = [
        f"{quote(name, '')}={text}"
        for name, argument in rest.items()
        if name not in fixed
        for text in _quoted_items(argument)
    ]
    return f"{server}{path}" + (f"?{'&'.join((*pairs, *added))}" if pairs or added else "")


def _quoted(text: str) -> str:
    return quote(text, "")


def _quoted_path(text: str) -> str:
    return quote(text, _PATH)


def _path(template: str, arguments: JsonObject, value: Value) -> str:
    missing = [name for name in arguments_in(template) if _text(arguments.get(name, "")) == ""]
    if missing:
        raise BadArguments(f"the address needs the argument '{missing[0]}', which is missing or empty")
    path = _filled(template, arguments, value, _quoted, _quoted_path)
    if any(step in (".", "..") for step in re.split(r"[/\\]", unquote(path))):
        raise BadArguments("an argument would change the path of the address: '.' and '..' are not allowed")
    return path


def _pairs(template: str, arguments: JsonObject, value: Value) -> list[str]:
    """The pairs ``name=value`` for one in the template: none if its argument is missing, several for a list."""
    names = arguments_in(template)
    if any(name not in arguments for name in names):
        return []
    alone = ARGUMENT.fullmatch(template.partition("=")[2])
    if alone and isinstance(arguments[alone[1]], list):
        return [f"{template.partition('=')[0]}={text}" for text in _quoted_items(arguments[alone[1]])]
    return [_filled(template, arguments, value, _quoted, _quoted)]


def _quoted_items(value: JsonValue) -> list[str]:
    return [quote(_text(item), "") for item in (value if isinstance(value, list) else [value])]


def _filled(
    template: str, arguments: JsonObject, value: Value, argument: Callable[[str], str], parameter: Callable[[str], str]
) -> str:
    """A template with every ``{argument}`` and ``{{parameter}}`` filled in, escaped by the two functions."""
    return "".join(
        parameter(value(piece.name))
        if piece.name
        else ARGUMENT.sub(lambda match: argument(_text(arguments.get(match[1], ""))), piece.text)
        for piece in parse_template(template)
    )


def _text(value: JsonValue) -> str:
    """An argument as plain text: 1000000 and true, not 1e+06 and True."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return ",".join(map(_text, value))
    return json.dumps(value, ensure_ascii=False)


def _body(
    http: HttpSpec, rest: JsonObject, arguments: JsonObject, value: Value, headers: dict[str, str]
) -> tuple[bytes | None, str]:
    """The body and its content type: the manifest's template filled in, or the arguments as JSON."""
    if http.body is None:
        body = json.dumps(rest, ensure_ascii=False).encode() if http.method not in BODILESS else None
        return body, "application/json"
    kind = next((text for name, text in headers.items() if name.lower() == "content-type"), "")
    if not kind:
        plain = "".join(piece.text for piece in parse_template(http.body) if not piece.name).lstrip()
        kind = "application/json" if plain[:1] in ("{", "[") else "text/plain; charset=utf-8"

    if (alone := _ONE_ARGUMENT.fullmatch(http.body)) and alone[1] not in arguments:
        return None, kind  # an optional body that was left out

    def lookup(name: str) -> JsonValue:
        return arguments.get(name.removeprefix(ARGUMENTS)) if name.startswith(ARGUMENTS) else value(name)

    if "json" in kind:
        return _json_body(http.body, lookup).encode(), kind
    escape = (lambda text: quote(text, "")) if "urlencoded" in kind else str
    return fill(http.body, lambda name: escape("" if lookup(name) is None else _text(lookup(name)))).encode(), kind


def _json_body(template: str, lookup: Callable[[str], JsonValue]) -> str:
    """A filled-in JSON template: inside a string with escaped text, elsewhere with JSON values."""
    body = ""
    inside = False
    for piece in parse_template(template):
        if piece.name is None:
            body += piece.text
            inside ^= len(re.findall(r'(?<!\\)(?:\\\\)*"', piece.text)) % 2 == 1
        elif inside:
            argument = lookup(piece.name)
            body += json.dumps("" if argument is None else _text(argument), ensure_ascii=False)[1:-1]
        else:
            body += json.dumps(_parsed(lookup(piece.name), piece.name), ensure_ascii=False)
    try:
        parse_json(body)
    except ValueError:
        raise BadArguments("the body of the request is not valid JSON: fix the body template of the tool") from None
    return body


def _parsed(value: JsonValue, name: str) -> JsonValue:
    """A parameter's text is parsed if it is JSON, such as a number or an object; an argument is used unchanged."""
    if name.startswith(ARGUMENTS) or not isinstance(value, str):
        return value
    try:
        parsed = parse_json(value)
    except ValueError:
        return value
    return parsed
