"""Builds the HTTP request of a tool's use: each value is escaped for the place where it is filled in."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import quote, unquote

from pydantic import JsonValue

from ...contracts.errors import BadArguments
from ...contracts.text import parse_json
from ...resources.base import JsonObject
from ...resources.template import fill, parse_template
from ...resources.tool import ARGUMENT, ARGUMENTS, HttpSpec, arguments_in

BODILESS = ("GET", "HEAD", "DELETE")
"""Methods without a body: arguments that no template names go into the query string instead."""

_AUTHORITY = re.compile(r"[A-Za-z0-9.-]+(:[0-9]{1,5})?|\[[0-9A-Fa-f:.]+\](:[0-9]{1,5})?")
_PATH = "/:@!$&'()*+,;=~"

Value = Callable[[str], str]
"""From a parameter's name to its value."""


@dataclass(frozen=True)
class HttpRequest:
    """A request. ``trusted``: its host stands in the manifest, and no argument has chosen it."""

    method: str
    url: str = field(repr=False)
    headers: tuple[tuple[str, str], ...] = field(repr=False)
    body: bytes | None = field(repr=False)
    trusted: bool


def request_of(
    http: HttpSpec, headers: list[tuple[str, str]], arguments: JsonObject, value: Value, key: str
) -> HttpRequest:
    """The request for a tool's arguments. Raises BadArguments where they can't make one.

    ``headers`` are the tool's own, filled in. ``key`` becomes the header ``Idempotency-Key``.
    """
    base, template = _based(http.url, value)
    given: JsonObject = {name: each for name, each in arguments.items() if each is not None}
    templates = (http.body, *(each.value.value for each in http.headers))
    named = {*arguments_in(http.url), *(name.removeprefix(ARGUMENTS) for each in templates for name in _names(each))}
    rest: JsonObject = {name: each for name, each in given.items() if name not in named}
    lower = {name.lower() for name, _ in headers}
    body, kind = _body(http, rest, given, value, dict(headers))
    extra = [("Idempotency-Key", key), *([("Content-Type", kind)] if body is not None else [])]
    return HttpRequest(
        method=http.method,
        url=_url(base, template, given, rest if http.method in BODILESS else {}, value),
        headers=(*headers, *((name, each) for name, each in extra if name.lower() not in lower)),
        body=body,
        trusted=bool(base) or not arguments_in(_authority(template)[1]),
    )


def header_argument(arguments: JsonObject, name: str) -> str:
    """An argument as the text of a header, empty if it is missing. Raises BadArguments if it would end the header."""
    text = "" if arguments.get(name) is None else _text(arguments[name])
    if not text.isprintable():
        raise BadArguments(f"the argument '{name}' is sent in a header: it can't have line ends and the like")
    return text


def _names(template: str | None) -> list[str]:
    return [piece.name for piece in parse_template(template or "") if piece.name]


def _based(template: str, value: Value) -> tuple[str, str]:
    """The address that a parameter at the beginning of a template stands for, if there is one, and the rest."""
    first = next((piece.text for piece in parse_template(template) if piece.name), "")
    if not (first and template.startswith(first)):
        return "", template
    base = fill(first, value).rstrip("/")
    if not base.startswith(("http://", "https://")):
        raise BadArguments("the address of the tool begins with neither http:// nor https://")
    return base, template.removeprefix(first)


def _authority(url: str) -> tuple[str, str, str]:
    """An address in three parts: what comes before its host, host and port, and what comes after."""
    scheme, _, after = url.partition("://")
    host = re.split(r"[/?#]", after, maxsplit=1)[0]
    return f"{scheme}://", host, after[len(host) :]


def _url(base: str, template: str, given: JsonObject, rest: JsonObject, value: Value) -> str:
    scheme, host, after = ("", "", template) if base else _authority(template)
    path, _, query = after.partition("#")[0].partition("?")
    host = _filled(host, given, value, lambda text: text, lambda text: text)
    if not _AUTHORITY.fullmatch(_authority(base)[1] if base else host):
        raise BadArguments("the address has no host that can be asked")
    path = _path(path, given, value)
    pairs = [pair for each in query.split("&") if each for pair in _pairs(each, given, value)]
    fixed = {unquote(pair.partition("=")[0]) for pair in pairs}
    added = [f"{quote(name, '')}={each}" for name, one in rest.items() if name not in fixed for each in _each(one)]
    return f"{base}{scheme}{host}{path}" + (f"?{'&'.join((*pairs, *added))}" if pairs or added else "")


def _path(template: str, given: JsonObject, value: Value) -> str:
    missing = [name for name in arguments_in(template) if _text(given.get(name, "")) == ""]
    if missing:
        raise BadArguments(f"the address needs the argument '{missing[0]}', which is missing or empty")
    path = _filled(template, given, value, lambda text: quote(text, ""), lambda text: quote(text, _PATH))
    if any(step in (".", "..") for step in re.split(r"[/\\]", unquote(path))):
        raise BadArguments("an argument would leave the path of the address: '.' and '..' are not allowed")
    return path


def _pairs(template: str, given: JsonObject, value: Value) -> list[str]:
    """The pairs ``name=value`` for one of a query string: none if its argument is missing, several for a list."""
    names = arguments_in(template)
    if any(name not in given for name in names):
        return []
    alone = ARGUMENT.fullmatch(template.partition("=")[2])
    if alone and isinstance(given[alone[1]], list):
        return [f"{template.partition('=')[0]}={each}" for each in _each(given[alone[1]])]
    return [_filled(template, given, value, lambda text: quote(text, ""), lambda text: quote(text, ""))]


def _each(value: JsonValue) -> list[str]:
    return [quote(_text(each), "") for each in (value if isinstance(value, list) else [value])]


def _filled(
    template: str, given: JsonObject, value: Value, argument: Callable[[str], str], parameter: Callable[[str], str]
) -> str:
    """A template with ``{argument}`` and ``{{parameter}}`` filled in, each by its own function."""
    return "".join(
        parameter(value(piece.name))
        if piece.name
        else ARGUMENT.sub(lambda place: argument(_text(given.get(place[1], ""))), piece.text)
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
    http: HttpSpec, rest: JsonObject, given: JsonObject, value: Value, headers: dict[str, str]
) -> tuple[bytes | None, str]:
    """The body and its content type: the manifest's template filled in, or the arguments as JSON."""
    if http.body is None:
        body = json.dumps(rest, ensure_ascii=False).encode() if http.method not in BODILESS else None
        return body, "application/json"
    kind = next((each for name, each in headers.items() if name.lower() == "content-type"), "")
    if not kind:
        plain = "".join(piece.text for piece in parse_template(http.body) if not piece.name).lstrip()
        kind = "application/json" if plain[:1] in ("{", "[") else "text/plain; charset=utf-8"

    def known(name: str) -> JsonValue:
        return given.get(name.removeprefix(ARGUMENTS)) if name.startswith(ARGUMENTS) else value(name)

    if "json" in kind:
        return _json_body(http.body, known).encode(), kind
    escape = (lambda text: quote(text, "")) if "urlencoded" in kind else str
    return fill(http.body, lambda name: escape("" if known(name) is None else _text(known(name)))).encode(), kind


def _json_body(template: str, known: Callable[[str], JsonValue]) -> str:
    """A JSON template filled in: inside a string with escaped text, outside with whole JSON values."""
    body = ""
    inside = False
    for piece in parse_template(template):
        if piece.name is None:
            body += piece.text
            inside ^= len(re.findall(r'(?<!\\)(?:\\\\)*"', piece.text)) % 2 == 1
        elif inside:
            found = known(piece.name)
            body += json.dumps("" if found is None else _text(found), ensure_ascii=False)[1:-1]
        else:
            body += json.dumps(_parsed(known(piece.name), piece.name), ensure_ascii=False)
    try:
        parse_json(body)
    except ValueError:
        raise BadArguments("the body of the request is no JSON, whatever the arguments: fix the tool") from None
    return body


def _parsed(value: JsonValue, name: str) -> JsonValue:
    """A parameter's text is parsed where it is JSON, such as a number or an object; an argument is used as it is."""
    if name.startswith(ARGUMENTS) or not isinstance(value, str):
        return value
    try:
        parsed = parse_json(value)
    except ValueError:
        return value
    return parsed
