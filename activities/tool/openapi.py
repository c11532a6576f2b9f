"""Tools of ``type: openapi``: when a run begins, each operation of its document becomes a tool of type http."""

import asyncio
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from ...conversation.errors import InvalidManifest, UnknownResource
from ...resources.agent import Agent
from ...resources.base import API_VERSION, Reference
from ...resources.catalog import Catalog, Resource
from ...resources.documents import parse_documents
from ...resources.manifest import Metadata
from ...resources.openapi_spec import OpenApiSpec
from ...resources.problems import ManifestError
from ...resources.query import Query
from ...resources.tool import Tool, ToolSpec
from ..context.value_resolver import ValueResolver
from ..process.secrets import SecretStore
from .http_client import HttpClient
from .http_request import HttpRequest
from .made_tools import tool_names, with_made_tools
from .openapi_operations import OpenApiDocument
from .tool import CallableTool, ToolContext

MAX_DOCUMENT = 4_000_000
"""Bytes of a document."""


class OpenApiTools:
    """A ``ToolSource``. The tools that it makes are used as those of type 'http'."""

    def __init__(self, secrets: SecretStore) -> None:
        self._client = HttpClient(redact=secrets.redact_partial, max_bytes=MAX_DOCUMENT)

    async def discover(self, context: ToolContext) -> list[CallableTool]:
        """None by itself: it stands for its operations, which the run has instead."""
        raise InvalidManifest(
            f"the tool {context.name} stands for operations: name one, as in {context.name}-OPERATION"
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
    headers = (*spec.headers, *operation.http.headers)
    http = operation.http.model_copy(update={"headers": headers, "timeout": spec.timeout})
    own = {"http": http, "parameters": tool.spec.parameters, "untrusted_content": tool.spec.untrusted_content}
    presets = tool.spec.partial
    if presets:  # those that this operation has
        known = operation.input_schema["properties"]
        kept = tuple(each for each in presets.parameters if isinstance(known, dict) and each.name in known)
        own["partial"] = presets.model_copy(update={"parameters": kept})
    metadata = Metadata(name=name, namespace=tool.namespace, labels=tool.metadata.labels)
    return Tool(api_version=API_VERSION, kind="Tool", metadata=metadata, spec=operation.model_copy(update=own))


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
            known[each.id] = with_made_tools(each, chosen)
        elif isinstance(each, Query):
            for target in catalog.targets(each):
                chosen(target)
    of_brought = {each.id for tool, tools in made.items() if catalog.is_brought(tool) for each in tools.values()}
    return catalog.remade(known.values(), of_brought & (known.keys() - {each.id for each in catalog.manifests}))
