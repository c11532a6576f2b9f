"""Reads the operations of an OpenAPI document as HTTP requests with a JSON Schema of their arguments."""

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import get_args
from urllib.parse import quote, urljoin

from pydantic import JsonValue, ValidationError

from ...conversation.errors import InvalidManifest
from ...resources.base import JsonObject
from ...resources.http_spec import ARGUMENT, HttpSpec, Method
from ...resources.tool import ToolSpec

MAX_OPERATIONS = 500
"""Operations of a document."""

MAX_REFS = 16
"""References that lead to each other, until one leads to a value."""

NO_PARAMETERS = frozenset({"accept", "authorization", "content-type"})
"""Headers that are no parameters, also where a document says so (OpenAPI: Parameter Object)."""

log = logging.getLogger("baton")


@dataclass(frozen=True)
class Operation:
    """An operation of a document, as the ``spec`` of a Tool of type 'http'."""

    id: str
    spec: ToolSpec


class _Arguments:
    """The arguments of an operation, and their places in its request."""

    def __init__(self) -> None:
        self._properties, self._required = dict[str, JsonValue](), list[JsonValue]()
        self.headers, self.query = dict[str, str](), list[str]()

    @property
    def schema(self) -> JsonObject:
        """The JSON Schema of the arguments."""
        return {"type": "object", "properties": self._properties, "required": self._required}

    def add(self, parameter: JsonObject) -> None:
        """Adds a parameter; cookies, and headers that are no parameters, are left out. Raises ValueError."""
        place, name = parameter.get("in"), str(parameter.get("name"))
        if place == "cookie" or (place == "header" and name.lower() in NO_PARAMETERS):
            return
        if name in self._properties or name == "body":
            raise ValueError(f"two of its arguments have the name '{name}'")
        if not ARGUMENT.fullmatch(f"{{{name}}}"):
            raise ValueError(f"its argument '{name}' has a name that can't stand in a template")
        schema, about = parameter.get("schema"), parameter.get("description")
        described = {"description": about} if isinstance(about, str) else {}
        self._properties[name] = {**(schema if isinstance(schema, dict) else {}), **described}
        if parameter.get("required") or place == "path":
            self._required.append(name)
        if place == "header":
            self.headers[name] = f"{{{{input.{name}}}}}"
        elif place == "query":
            self.query.append(f"{quote(name, '')}={{{name}}}")

    def add_body(self, schema: JsonValue, kind: str, required: object) -> None:
        """Adds the body, as the argument ``body``."""
        self._properties["body"], self.headers["Content-Type"] = schema, kind
        if required:
            self._required.append("body")


class OpenApiDocument:
    """A document. ``address`` is where it was read, ``base_url`` the address of its operations, if that is given."""

    def __init__(self, document: JsonObject, address: str | None = None, base_url: str | None = None) -> None:
        self._document, self._address = document, address
        self._base = (base_url or self._server()).rstrip("/")

    def operations(self) -> Iterator[Operation]:
        """The operations with an id, without those that no tool can carry out, of which the log says why."""
        found = [*self._found()]
        if len(found) > MAX_OPERATIONS:
            raise InvalidManifest(f"the OpenAPI document has {len(found)} operations, and {MAX_OPERATIONS} may be")
        for path, method, operation, shared in found:
            try:
                yield Operation(str(operation["operationId"]), self._spec(path, method, operation, shared))
            except (ValueError, ValidationError) as error:
                text = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
                log.warning("left out the operation %s: %s", operation["operationId"], text)

    def _server(self) -> str:
        """The document's first server. A document that was read somewhere may name servers of its own origin only."""
        servers = self._document.get("servers")
        first = servers[0] if isinstance(servers, list) and servers else None
        url = first.get("url") if isinstance(first, dict) else None
        if not isinstance(url, str) or "{" in url:
            url = "/" if self._address else ""
        url = urljoin(self._address, url) if self._address else url
        if not url.startswith(("http://", "https://")):
            raise InvalidManifest("the OpenAPI document names no server: set openapi.baseUrl")
        if self._address and _origin(url) != _origin(self._address):
            raise InvalidManifest(
                f"the OpenAPI document names {url}, which is elsewhere: set openapi.baseUrl to allow it"
            )
        return url

    def _found(self) -> Iterator[tuple[str, str, JsonObject, JsonValue]]:
        paths = self._document.get("paths")
        for path, item in paths.items() if isinstance(paths, dict) else ():
            entry = self._resolved(item)
            for method in get_args(Method):
                operation = entry.get(method.lower())
                if isinstance(operation, dict) and isinstance(operation.get("operationId"), str):
                    yield path, method, operation, entry.get("parameters")

    def _spec(self, path: str, method: str, operation: JsonObject, shared: JsonValue) -> ToolSpec:
        if "{{" in path:
            raise ValueError("its path has two braces")
        arguments = _Arguments()
        for parameter in self._parameters(shared, operation.get("parameters")):
            arguments.add(parameter)
        body = self._body(operation)
        if body:
            arguments.add_body(*body)
        query = f"?{'&'.join(arguments.query)}" if arguments.query else ""
        http = {"url": f"{self._base}{path}{query}", "method": method, "headers": arguments.headers}
        text = operation.get("description") or operation.get("summary") or f"{method} {path}"
        return ToolSpec(
            type="http",
            description=str(text),
            input_schema=self._with_definitions(arguments.schema),
            http=HttpSpec.model_validate({**http, "body": "{{input.body}}" if body else None}),
        )

    def _parameters(self, *given: JsonValue) -> Iterable[JsonObject]:
        """The parameters of a path and of its operation, which come before those of the path."""
        every = (each for one in given for each in map(self._resolved, one if isinstance(one, list) else ()))
        return {(str(each.get("in")), str(each.get("name"))): each for each in every}.values()

    def _body(self, operation: JsonObject) -> tuple[JsonValue, str, bool] | None:
        """The schema of the body, its media type, and whether it is required. Raises ValueError if it is no JSON."""
        given = operation.get("requestBody")
        if given is None:
            return None
        body = self._resolved(given)
        content = body.get("content")
        for kind, media in content.items() if isinstance(content, dict) else ():
            if kind.partition(";")[0].endswith(("/json", "+json")) and isinstance(media, dict):
                return media.get("schema", {}), kind, bool(body.get("required"))
        raise ValueError("its body is no JSON")

    def _resolved(self, value: JsonValue) -> JsonObject:
        """What a value is, or what its reference leads to. Raises ValueError."""
        for _ in range(MAX_REFS):
            if not isinstance(value, dict):
                raise ValueError("a part of it is no mapping")
            ref = value.get("$ref")
            if not isinstance(ref, str):
                return value
            value = self._at(ref)
        raise ValueError("a reference in it leads to itself")

    def _at(self, ref: str) -> JsonValue:
        if not ref.startswith("#/"):
            raise ValueError(f"it refers to '{ref[:80]}', which is another document")
        value: JsonValue = self._document
        for step in ref[2:].split("/"):
            name = step.replace("~1", "/").replace("~0", "~")
            if not isinstance(value, dict) or name not in value:
                raise ValueError(f"it refers to '{ref[:80]}', which is not there")
            value = value[name]
        return value

    def _with_definitions(self, schema: JsonObject) -> JsonObject:
        """A schema with all schemas of the document that it refers to, in ``$defs``."""
        definitions: JsonObject = {}
        moved = self._moved(schema, definitions)
        assert isinstance(moved, dict)
        return {**moved, "$defs": definitions} if definitions else moved

    def _moved(self, value: JsonValue, definitions: JsonObject) -> JsonValue:
        if isinstance(value, list):
            return [self._moved(each, definitions) for each in value]
        if not isinstance(value, dict):
            return value
        ref = value.get("$ref")
        if not isinstance(ref, str):
            return {key: self._moved(each, definitions) for key, each in value.items()}
        name = ref.removeprefix("#/").replace("components/schemas/", "").replace("/", ".")
        if name not in definitions:
            definitions[name] = True  # a schema may contain itself
            definitions[name] = self._moved(self._at(ref), definitions)
        return {"$ref": f"#/$defs/{name}"}


def _origin(url: str) -> str:
    return "/".join(url.split("/", 3)[:3]).lower()
