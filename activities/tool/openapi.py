"""Tools of ``type: openapi``: when a run is pinned, the operations of a document become tools of type http."""

import asyncio
import logging
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import get_args
from urllib.parse import quote, urljoin, urlsplit, urlunsplit

import httpx
from pydantic import JsonValue, ValidationError

from ...contracts.errors import InvalidManifest, UnknownResource
from ...resources.agent import Agent
from ...resources.base import API_VERSION, JsonObject, Reference
from ...resources.catalog import Resource
from ...resources.documents import parse_documents
from ...resources.json_schema import in_draft_2020_12
from ...resources.manifest import Metadata
from ...resources.problems import ManifestError
from ...resources.query import Query
from ...resources.run_catalog import RunCatalog
from ...resources.tool import ARGUMENT, HttpSpec, Method, OpenApiSpec, Tool, ToolSpec
from ...temporal.threads import COMPUTING
from ..context.value_resolver import ValueResolver
from ..runtime.outbound import Origin
from ..runtime.secrets import SecretStore
from .http import HttpClient
from .http_request import HttpRequest
from .tool import CallableTool, ToolContext, skipped_notice, tool_names, with_generated_tools

MAX_OPERATIONS = 500
"""Operations of a document, at most."""

MAX_REFS = 16
"""References that are followed to a value, at most."""

IGNORED_HEADERS = frozenset({"accept", "authorization", "content-type"})
"""Headers that are never parameters, even if a document declares them (OpenAPI: Parameter Object)."""

log = logging.getLogger("baton")


@dataclass(frozen=True)
class Operation:
    """An operation of a document, as the ``spec`` of a Tool of type 'http'."""

    id: str
    spec: ToolSpec


class _Arguments:
    """The arguments of an operation, and the parts of the request that contain them."""

    def __init__(self, own_headers: Collection[str]) -> None:
        self._ignored = {*IGNORED_HEADERS, *own_headers}
        self._properties = dict[str, JsonValue]()
        self._required = list[JsonValue]()
        self.headers = dict[str, str]()
        self.query = list[str]()

    @property
    def schema(self) -> JsonObject:
        """The JSON Schema of the arguments."""
        return {"type": "object", "properties": self._properties, "required": self._required}

    def add(self, parameter: JsonObject) -> None:
        """Adds a parameter; cookies and ignored headers are skipped. Raises ValueError."""
        location = parameter.get("in")
        name = str(parameter.get("name"))
        if location == "cookie" or (location == "header" and name.lower() in self._ignored):
            return
        if name in self._properties or name == "body":
            raise ValueError(f"two of its arguments have the name '{name}'")
        if not ARGUMENT.fullmatch(f"{{{name}}}"):
            raise ValueError(f"its argument '{name}' has a name that can't be used in a template")
        schema = parameter.get("schema")
        if location == "query" and not _is_plain(parameter):
            if parameter.get("required"):
                raise ValueError(f"its argument '{name}' has a style that is not supported")
            log.warning("left out the argument '%s' of an operation: its style is not supported", name)
            return
        description = parameter.get("description")
        described = {"description": description} if isinstance(description, str) else {}
        self._properties[name] = {**(schema if isinstance(schema, dict) else {}), **described}
        if parameter.get("required") or location == "path":
            self._required.append(name)
        if location == "header":
            self.headers[name] = f"{{{{input.{name}}}}}"
        elif location == "query":
            self.query.append(f"{quote(name, '')}={{{name}}}")

    def add_body(self, schema: JsonValue, kind: str, required: object) -> None:
        """Adds the body, as the argument ``body``."""
        self._properties["body"] = schema
        self.headers["Content-Type"] = kind
        if required:
            self._required.append("body")


def _is_plain(parameter: JsonObject) -> bool:
    """Whether a parameter of the query is sent as ``name=value``, and a list as one pair for each of its items."""
    schema = parameter.get("schema")
    kind = schema.get("type") if isinstance(schema, dict) else None
    kinds = kind if isinstance(kind, list) else [kind]
    if parameter.get("style", "form") != "form" or "object" in kinds:
        return "content" in parameter  # that is sent as JSON
    return parameter.get("explode") is not False or "array" not in kinds


class OpenApiDocument:
    """A document. ``address`` is the URL that it was read from, ``base_url`` overrides the URL of its server."""

    def __init__(
        self,
        document: JsonObject,
        address: str | None = None,
        base_url: str | None = None,
        own_headers: Iterable[str] = (),
    ) -> None:
        """``own_headers`` are sent with each request, so they are no arguments. The rest is as above."""
        self._document = document
        self._own_headers = {name.lower() for name in own_headers}
        self._address = address
        self._base = base_url or self._server()
        self.skipped: dict[str, str] = {}
        """Why operations can't be used, by their ids, once they were read."""

    def operations(self) -> Iterator[Operation]:
        """The operations with an id, without those in ``skipped``. Raises InvalidManifest."""
        operations = [*self._declared()]
        if len(operations) > MAX_OPERATIONS:
            raise InvalidManifest(
                f"the OpenAPI document has {len(operations)} operations, but at most {MAX_OPERATIONS} are supported"
            )
        for path, method, operation, shared in operations:
            try:
                yield Operation(str(operation["operationId"]), self._spec(path, method, operation, shared))
            except (ValueError, ValidationError) as error:
                text = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
                log.warning("skipped the operation %s: %s", operation["operationId"], text)
                self.skipped[str(operation["operationId"])] = text

    def _server(self) -> str:
        """The document's first server. A document from a URL may only name servers of its own origin."""
        servers = self._document.get("servers")
        first = servers[0] if isinstance(servers, list) and servers else None
        url = first.get("url") if isinstance(first, dict) else None
        if not isinstance(url, str):
            url = "/" if self._address else ""
        variables = first.get("variables") if isinstance(first, dict) else None
        for name, variable in variables.items() if isinstance(variables, dict) else ():
            default = variable.get("default") if isinstance(variable, dict) else None
            url = url.replace(f"{{{name}}}", str(default)) if default is not None else url
        if "{" in url:
            raise InvalidManifest(f"the OpenAPI document names the server {url}: set openapi.baseUrl")
        url = urljoin(self._address, url) if self._address else url
        if not url.startswith(("http://", "https://")):
            raise InvalidManifest("the OpenAPI document names no server: set openapi.baseUrl")
        if self._address and Origin.of(url) != Origin.of(self._address):
            raise InvalidManifest(
                f"the OpenAPI document names {url}, which is another server: set openapi.baseUrl to allow it"
            )
        return url

    def _declared(self) -> Iterator[tuple[str, str, JsonObject, JsonValue]]:
        paths = self._document.get("paths")
        for path, item in paths.items() if isinstance(paths, dict) else ():
            entry = self._resolved(item)
            for method in get_args(Method):
                operation = entry.get(method.lower())
                if isinstance(operation, dict) and isinstance(operation.get("operationId"), str):
                    servers = operation.get("servers") or entry.get("servers")
                    yield path, method, {**operation, "servers": servers}, entry.get("parameters")

    def _spec(self, path: str, method: str, operation: JsonObject, shared: JsonValue) -> ToolSpec:
        if "{{" in path:
            raise ValueError("its path contains '{{'")
        if not path.startswith("/"):
            raise ValueError("its path does not begin with '/'")
        if operation["servers"]:
            raise ValueError("it has servers of its own")
        arguments = _Arguments(self._own_headers)
        for parameter in self._parameters(shared, operation.get("parameters")):
            arguments.add(parameter)
        body = self._body(operation)
        if body:
            arguments.add_body(*body)
        query = f"?{'&'.join(arguments.query)}" if arguments.query else ""
        server = urlsplit(self._base)
        url = urlunsplit((server.scheme, server.netloc, server.path.rstrip("/") + path, "", ""))
        http = {"url": f"{url}{query}", "method": method, "headers": arguments.headers}
        text = operation.get("description") or operation.get("summary") or f"{method} {path}"
        return ToolSpec(
            type="http",
            description=str(text),
            input_schema=self._with_definitions(arguments.schema),
            http=HttpSpec.model_validate({**http, "body": "{{input.body}}" if body else None}),
        )

    def _parameters(self, *lists: JsonValue) -> Iterable[JsonObject]:
        """The parameters of a path and of its operation, which override those of the path."""
        values = [value for values in lists if isinstance(values, list) for value in values]
        parameters = map(self._resolved, values)
        return {(str(parameter.get("in")), str(parameter.get("name"))): parameter for parameter in parameters}.values()

    def _body(self, operation: JsonObject) -> tuple[JsonValue, str, bool] | None:
        """The schema of the body, its media type, and whether it is required. Raises ValueError if it is not JSON."""
        declared = operation.get("requestBody")
        if declared is None:
            return None
        body = self._resolved(declared)
        content = body.get("content")
        for kind, media in content.items() if isinstance(content, dict) else ():
            if kind.partition(";")[0].endswith(("/json", "+json")) and isinstance(media, dict):
                return media.get("schema", {}), kind, bool(body.get("required"))
        raise ValueError("its body is not JSON")

    def _resolved(self, value: JsonValue) -> JsonObject:
        """A value, or the target of its reference. Raises ValueError."""
        for _ in range(MAX_REFS):
            if not isinstance(value, dict):
                raise ValueError("a part of it is not a mapping")
            ref = value.get("$ref")
            if not isinstance(ref, str):
                return value
            value = self._at(ref)
        raise ValueError("a reference in it is circular")

    def _at(self, ref: str) -> JsonValue:
        if not ref.startswith("#/"):
            raise ValueError(f"it refers to '{ref[:80]}', which is another document")
        value: JsonValue = self._document
        for step in ref[2:].split("/"):
            name = step.replace("~1", "/").replace("~0", "~")
            if not isinstance(value, dict) or name not in value:
                raise ValueError(f"it refers to '{ref[:80]}', which does not exist")
            value = value[name]
        return value

    def _with_definitions(self, schema: JsonObject) -> JsonObject:
        """A schema, with all schemas of the document that it refers to in ``$defs``."""
        definitions: JsonObject = {}
        moved = self._moved(schema, definitions)
        assert isinstance(moved, dict)
        whole: JsonObject = {**moved, "$defs": definitions} if definitions else moved
        is_older = str(self._document.get("openapi")).startswith("3.0")
        return in_draft_2020_12(whole, in_openapi_3_0=is_older, is_sent=True)

    def _moved(self, value: JsonValue, definitions: JsonObject) -> JsonValue:
        if isinstance(value, list):
            return [self._moved(item, definitions) for item in value]
        if not isinstance(value, dict):
            return value
        ref = value.get("$ref")
        if not isinstance(ref, str):
            return {key: self._moved(item, definitions) for key, item in value.items()}
        name = ref.removeprefix("#/").replace("components/schemas/", "").replace("/", ".")
        name = re.sub("[~%]", "_", name)  # they would have a meaning in the new reference
        if name not in definitions:
            definitions[name] = True  # a schema may contain itself
            definitions[name] = self._moved(self._at(ref), definitions)
        return {"$ref": f"#/$defs/{name}"}


MAX_DOCUMENT = 4_000_000
"""Bytes of a document, at most."""


class OpenApiTools:
    """A ``ToolSource``. It generates tools of type 'http'."""

    def __init__(self, secrets: SecretStore) -> None:
        self._redact = secrets.redact_partial
        self._client = HttpClient(redact=secrets.redact_partial, max_bytes=MAX_DOCUMENT)

    async def discover(self, context: ToolContext) -> list[CallableTool]:
        """Always raises InvalidManifest: a run has the generated tools instead."""
        raise InvalidManifest(
            f"the tool {context.name} has several operations: name one, as in {context.name}-OPERATION"
        )

    async def pin(self, values: ValueResolver) -> RunCatalog:
        """The catalog with generated Tools for operations, in place of the Tools of type 'openapi'.

        Its notices name operations that can't be used.
        """
        sources = [
            manifest for manifest in values.catalog.manifests if isinstance(manifest, Tool) and manifest.spec.openapi
        ]
        if not sources:
            return values.catalog
        operations = await asyncio.gather(*(self._operations(tool, values) for tool in sources))
        generated = {tool.id: tools for tool, (tools, _) in zip(sources, operations, strict=True)}
        used = _used_whole(values.catalog)
        notices = [
            self._redact(skipped_notice(tool.id, skipped))
            for tool, (_, skipped) in zip(sources, operations, strict=True)
            if skipped and tool.id in used
        ]
        pinned = await COMPUTING.run(_with_operations, values.catalog, generated)
        return pinned.with_notices(notices) if notices else pinned

    async def _operations(self, tool: Tool, values: ValueResolver) -> tuple[Mapping[str, Tool], Mapping[str, str]]:
        """The Tools of a document's operations, and why others can't be used."""
        assert tool.spec.openapi
        text = await self._text(tool, tool.spec.openapi, values)
        try:
            return await COMPUTING.run(_tools, tool, tool.spec.openapi, text)
        except (ManifestError, httpx.InvalidURL, ValueError, RecursionError) as error:
            raise InvalidManifest(f"{tool.id}: its OpenAPI document is invalid: {error}") from None

    async def _text(self, tool: Tool, spec: OpenApiSpec, values: ValueResolver) -> str:
        if spec.url is None:
            return values.resolve(spec.document, tool) or ""
        headers = tuple((header.name, (values.resolve(header.value, tool) or "").strip()) for header in spec.headers)
        destination = values.destination_at(spec.url, values.catalog.provenance_of(tool))
        request = HttpRequest(method="GET", destination=destination, headers=headers, body=None)
        return await self._client.send(request, spec.seconds, repeatable=True)

    async def close(self) -> None:
        """Closes the connections."""
        await self._client.close()


def _tools(tool: Tool, spec: OpenApiSpec, text: str) -> tuple[Mapping[str, Tool], Mapping[str, str]]:
    """The Tools of a document's operations, by name, and why others can't be used, by the id of the operation."""
    documents = parse_documents(text, Path(tool.name))
    document = documents[0].data if documents else None
    if not isinstance(document, dict) or not str(document.get("openapi", "")).startswith("3."):
        raise ValueError("it is not an OpenAPI 3 document")
    own_headers = [header.name for header in spec.headers]
    read = OpenApiDocument(document, spec.url, spec.base_url, own_headers)
    operations = [*read.operations()]
    names = dict(zip(tool_names(tool.name, (operation.id for operation in operations)), operations, strict=True))

    def is_wanted(operation: str) -> bool:
        return any(fnmatchcase(operation, pattern) for pattern in spec.operations)

    selected = {name: operation for name, operation in names.items() if is_wanted(operation.id)}
    if not selected:
        ids = ", ".join(operation.id for operation in operations) or "none"
        raise ValueError(f"no operation matches openapi.operations; its operations: {ids}")
    tools = {name: _generated(tool, spec, name, operation.spec) for name, operation in selected.items()}
    return tools, {name: reason for name, reason in read.skipped.items() if is_wanted(name)}


def _generated(tool: Tool, spec: OpenApiSpec, name: str, operation: ToolSpec) -> Tool:
    """The Tool of an operation, with the headers, parameters and settings of the Tool of type 'openapi'."""
    assert operation.http
    return Tool(
        api_version=API_VERSION,
        kind="Tool",
        metadata=Metadata(name=name, namespace=tool.namespace, labels=tool.metadata.labels),
        spec=ToolSpec(
            type="http",
            description=operation.description,
            input_schema=operation.input_schema,
            parameters=tool.spec.parameters,
            partial=tool.spec.presets_for(operation.input_schema),
            untrusted_content=tool.spec.untrusted_content,
            annotations=tool.spec.annotations,
            approval=tool.spec.approval,
            retry_policy=tool.spec.retry_policy,
            http=HttpSpec(
                url=operation.http.url,
                method=operation.http.method,
                headers=(*spec.headers, *operation.http.headers),
                timeout=spec.timeout,
                body=operation.http.body,
            ).without_defaults,
        ).without_defaults,
    )


def with_recorded_operations(catalog: RunCatalog, recorded: Mapping[str, Mapping[str, Tool]]) -> RunCatalog:
    """The catalog with the Tools that a recording has for the operations of Tools of type 'openapi', by their ids.

    Raises UnknownResource for an operation that it does not have.
    """
    generated = {}
    for tool in catalog.manifests:
        if isinstance(tool, Tool) and tool.spec.openapi:
            tools = recorded.get(tool.id, {})
            generated[tool.id] = {name: _generated(tool, tool.spec.openapi, name, tools[name].spec) for name in tools}
    return _with_operations(catalog, generated) if generated else catalog


def _with_operations(catalog: RunCatalog, generated: Mapping[str, Mapping[str, Tool]]) -> RunCatalog:
    known: dict[str, Resource] = {manifest.id: manifest for manifest in catalog.manifests}
    generated_from: dict[str, str] = {}

    def generated_names(reference: Reference) -> Sequence[str] | None:
        source = catalog.find(reference)
        if source is None or source.id not in generated:
            return None
        tools = generated[source.id]
        names = [*tools] if reference.name == source.name else [reference.name]
        if missing := [name for name in names if name not in tools]:
            raise UnknownResource(f"{source.id} has no operation '{missing[0]}'; its tools: {', '.join(tools)}")
        for generated_tool in (tools[name] for name in names):
            other = generated_from.setdefault(generated_tool.id, source.id)
            if other != source.id and catalog.by_id(generated_tool.id) is None:
                raise InvalidManifest(
                    f"an operation of {source.id} and one of {other} would both be the tool {generated_tool.name}: "
                    "rename one of these Tools"
                )
            known.setdefault(generated_tool.id, generated_tool)
        return names

    for manifest in catalog.manifests:
        if isinstance(manifest, Agent):
            known[manifest.id] = with_generated_tools(manifest, generated_names)
        elif isinstance(manifest, Query):
            for target in catalog.targets(manifest):
                generated_names(target)
    return catalog.with_manifests(known.values(), generated_from=generated_from)


def _used_whole(catalog: RunCatalog) -> set[str]:
    """The ids of manifests to which agents and queries refer by their own names, not by that of an operation."""
    references: list[Reference] = []
    for manifest in catalog.manifests:
        if isinstance(manifest, Agent):
            references += [reference for _, reference in manifest.tools() if reference]
        elif isinstance(manifest, Query):
            references += catalog.targets(manifest)
    found = [(reference, catalog.find(reference)) for reference in references]
    return {source.id for reference, source in found if source and source.name == reference.name}
