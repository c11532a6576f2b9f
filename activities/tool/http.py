"""Tools of ``type: http``: using one sends a request to a server; the response's text is the result."""

from collections.abc import Callable
from dataclasses import replace

from ...conversation.errors import InvalidManifest
from ...resources.base import JsonObject
from ...resources.catalog import Catalog
from ...resources.http_spec import HttpSpec
from ...resources.parameters import ARGUMENTS
from ...resources.template import fill
from ...resources.tool import Tool
from ...resources.values import Header
from ..context.value_resolver import ValueResolver
from ..process.secrets import SecretStore
from ..runtime.ids import idempotency_key
from .http_client import REPEATABLE, HttpClient
from .http_request import HttpRequest, header_argument, request_of
from .tool import CallableTool, ToolContext, ToolDefinition, no_guard


class HttpTools:
    """A ``ToolSource`` (ARK: queries, tool execution).

    BATON_ALLOW_PRIVATE_HOSTS lets arguments choose hosts in the worker's own network.
    """

    def __init__(self, secrets: SecretStore) -> None:
        self._client = HttpClient(private=secrets.allows_private_hosts, redact=secrets.redact_partial)

    async def discover(self, context: ToolContext) -> list[CallableTool]:
        """The one tool of a manifest; its description and schema stand there."""
        manifest = context.manifest
        http = manifest.spec.http if manifest else None
        if manifest is None or http is None:
            raise InvalidManifest(f"the tool {context.name} has no http request")
        hints = manifest.spec.annotations
        harmless = bool(hints and (hints.read_only_hint or hints.idempotent_hint))
        repeatable = context.repeatable or harmless or http.method in REPEATABLE

        async def use(arguments: JsonObject) -> str:
            request = _request(context, manifest, http, arguments)
            begin = no_guard if repeatable else context.begin_once
            return await self._client.send(request, http.seconds, repeatable=repeatable, begin=begin)

        return [CallableTool(ToolDefinition(context.name, manifest.model_description, manifest.input_schema), use)]

    async def pin(self, values: ValueResolver) -> Catalog:
        """Their manifests say all."""
        return values.catalog

    async def close(self) -> None:
        """Closes the connections."""
        await self._client.close()


def _request(context: ToolContext, tool: Tool, http: HttpSpec, arguments: JsonObject) -> HttpRequest:
    values = context.values
    value = values.parameter_lookup(tool, *(owner for owner in (context.agent, values.query()) if owner))

    def known(name: str) -> str:
        return header_argument(arguments, name.removeprefix(ARGUMENTS)) if name.startswith(ARGUMENTS) else value(name)

    texts = ((each, _header(each, values.resolve(each.value, tool) or "", known)) for each in http.headers)
    headers = [(each.name, text) for each, text in texts if text or ARGUMENTS not in (each.value.value or "")]
    request = request_of(http, headers, arguments, value, idempotency_key())
    return replace(request, trusted=request.trusted and not values.is_guarded(tool))


def _header(header: Header, text: str, value: Callable[[str], str]) -> str:
    """A header's text. A literal in the manifest is a template; what comes from a Secret or a ConfigMap is not."""
    return (fill(text, value) if header.value.value else text).strip()
