"""Tools of ``type: openapi``: when a run begins, each operation of its document becomes a tool of type http."""

import asyncio
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import get_args
from urllib.parse import quote, urljoin

from pydantic import JsonValue, ValidationError

from ...contracts.errors import InvalidManifest, UnknownResource
from ...resources.agent import Agent
from ...resources.base import API_VERSION, JsonObject, Reference
from ...resources.catalog import Catalog, Resource
from ...resources.documents import parse_documents
from ...resources.manifest import Metadata
from ...resources.problems import ManifestError
from ...resources.query import Query
from ...resources.tool import ARGUMENT, HttpSpec, Method, OpenApiSpec, Tool, ToolSpec
from ...resources.values import PresetArguments
from ..context.value_resolver import ValueResolver
from ..runtime.secrets import SecretStore
from .http import HttpClient
from .http_request import HttpRequest
from .tool import CallableTool, ToolContext, tool_names, with_generated_tools

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
        self._properties = dict[str, JsonValue]()
        self._required = list[JsonValue]()
        self.headers = dict[str, str]()
        self.query = list[str]()

    @property
    def schema(self) -> JsonObject:
        """The JSON Schema of the arguments."""
        return {"type": "object", "properties": self._properties, "required": self._required}

    def add(self, parameter: JsonObject) -> None:
        """Adds a parameter; cookies, and headers that are no parameters, are left out. Raises ValueError."""
        place = parameter.get("in")
        name = str(parameter.get("name"))
        if place == "cookie" or (place == "header" and name.lower() in NO_PARAMETERS):
            return
        if name in self._properties or name == "body":
            raise ValueError(f"two of its arguments have the name '{name}'")
        if not ARGUMENT.fullmatch(f"{{{name}}}"):
            raise ValueError(f"its argument '{name}' has a name that can't be used in a template")
        schema = parameter.get("schema")
        about = parameter.get("description")
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
        self._properties["body"] = schema
        self.headers["Content-Type"] = kind
        if required:
            self._required.append("body")


class OpenApiDocument:
    """A document. ``address`` is where it was read, ``base_url`` the address of its operations, if that is given."""

    def __init__(self, document: JsonObject, address: str | None = None, base_url: str | None = None) -> None:
        self._document = document
        self._address = address
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


MAX_DOCUMENT = 4_000_000
"""Bytes of a document."""


class OpenApiTools:
    """A ``ToolSource``. The tools that it makes are used as those of type 'http'."""

    def __init__(self, secrets: SecretStore) -> None:
        self._client = HttpClient(redact=secrets.redact_partial, max_bytes=MAX_DOCUMENT)

    async def discover(self, context: ToolContext) -> list[CallableTool]:
        """None by itself: it stands for its operations, which the run has instead."""
        raise InvalidManifest(
            f"the tool {context.name} has several operations: name one, as in {context.name}-OPERATION"
        )

    async def pin(self, values: ValueResolver) -> Catalog:
        """The catalog with a Tool for each operation, in the place of the Tools that stand for them."""
        given = [each for each in values.catalog.manifests if isinstance(each, Tool) and each.spec.openapi]
        if not given:
            return values.catalog
        made = await asyncio.gather(*(self._operations(each, values) for each in given))
        tools = {tool.id: each for tool, each in zip(given, made, strict=True)}
        return await asyncio.to_thread(_with_operations, values.catalog, tools)

    async def _operations(self, tool: Tool, values: ValueResolver) -> Mapping[str, Tool]:
        assert tool.spec.openapi
        text = await self._text(tool, tool.spec.openapi, values)
        try:
            return await asyncio.to_thread(_tools, tool, tool.spec.openapi, text)
        except (ManifestError, ValueError, RecursionError) as error:
            raise InvalidManifest(f"{tool.id}: its OpenAPI document can't be read: {error}") from None

    async def _text(self, tool: Tool, spec: OpenApiSpec, values: ValueResolver) -> str:
        if spec.url is None:
            return values.resolve(spec.document, tool) or ""
        headers = tuple((each.name, (values.resolve(each.value, tool) or "").strip()) for each in spec.headers)
        trusted = not values.is_guarded(tool)
        request = HttpRequest(method="GET", url=spec.url, headers=headers, body=None, trusted=trusted)
        return await self._client.send(request, spec.seconds, repeatable=True)

    async def close(self) -> None:
        """Closes the connections."""
        await self._client.close()


def _tools(tool: Tool, spec: OpenApiSpec, text: str) -> Mapping[str, Tool]:
    """The Tools of a document's operations, by their names."""
    documents = parse_documents(text, Path(tool.name))
    document = documents[0].data if documents else None
    if not isinstance(document, dict) or not str(document.get("openapi", "")).startswith("3."):
        raise ValueError("it is no document of OpenAPI 3")
    found = [*OpenApiDocument(document, spec.url, spec.base_url).operations()]
    names = dict(zip(tool_names(tool.name, (each.id for each in found)), found, strict=True))
    chosen = {name: each for name, each in names.items() if any(fnmatchcase(each.id, o) for o in spec.operations)}
    if not chosen:
        raise ValueError(f"it has no operation that fits; its operations: {', '.join(e.id for e in found) or 'none'}")
    return {name: _made(tool, spec, name, each.spec) for name, each in chosen.items()}


def _made(tool: Tool, spec: OpenApiSpec, name: str, operation: ToolSpec) -> Tool:
    """The Tool of an operation, with the headers, the parameters and the marks of the Tool that stands for it."""
    assert operation.http
    presets = tool.spec.partial
    if presets:  # those that this operation has
        known = operation.input_schema["properties"]
        names = known if isinstance(known, dict) else ()
        presets = PresetArguments(parameters=tuple(preset for preset in presets.parameters if preset.name in names))
    return Tool(
        api_version=API_VERSION,
        kind="Tool",
        metadata=Metadata(name=name, namespace=tool.namespace, labels=tool.metadata.labels),
        spec=ToolSpec(
            type="http",
            description=operation.description,
            input_schema=operation.input_schema,
            parameters=tool.spec.parameters,
            partial=presets,
            untrusted_content=tool.spec.untrusted_content,
            approval=tool.spec.approval,
            http=HttpSpec(
                url=operation.http.url,
                method=operation.http.method,
                headers=(*spec.headers, *operation.http.headers),
                timeout=spec.timeout,
                body=operation.http.body,
            ).without_defaults,
        ).without_defaults,
    )


def _with_operations(catalog: Catalog, made: Mapping[str, Mapping[str, Tool]]) -> Catalog:
    known: dict[str, Resource] = {each.id: each for each in catalog.manifests}

    def chosen(reference: Reference) -> Sequence[str] | None:
        found = catalog.find(reference)
        if found is None or found.id not in made:
            return None
        tools = made[found.id]
        names = [*tools] if reference.name == found.name else [reference.name]
        if missing := [name for name in names if name not in tools]:
            raise UnknownResource(f"{found.id} has no operation '{missing[0]}'; its tools: {', '.join(tools)}")
        known.update({tools[name].id: tools[name] for name in names if tools[name].id not in known})
        return names

    for each in catalog.manifests:
        if isinstance(each, Agent):
            known[each.id] = with_generated_tools(each, chosen)
        elif isinstance(each, Query):
            for target in catalog.targets(each):
                chosen(target)
    of_inline = {each.id for tool, tools in made.items() if catalog.is_inline(tool) for each in tools.values()}
    new = known.keys() - {each.id for each in catalog.manifests}
    return catalog.with_manifests(known.values(), inline=of_inline & new)
