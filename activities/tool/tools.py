"""Which tools does an agent have, and what does its model hear of them? In the order of its manifest."""

from collections.abc import Awaitable, Callable
from dataclasses import replace

from ...conversation.errors import NotCarriedOut, UnknownResource
from ...resources.agent import Agent
from ...resources.base import JsonObject
from ...resources.template import fill
from ...resources.tool import HttpSpec
from ...resources.tool import Tool as Manifest
from ...resources.values import Header
from ..context.value_resolver import Values
from ..process.secrets import Vault
from ..runtime.ids import call_id
from .built_in import BUILT_IN
from .http import REPEATABLE, Http
from .http_request import HttpRequest, request_of
from .tool import Tool

__all__ = ["Tool", "Tools"]


Once = Callable[[], Awaitable[None]]


async def _at_will() -> None:
    """Nothing that is only told of has to be done once."""


class Tools:
    """The tools that a worker can use. BATON_ALLOW_PRIVATE_HOSTS lets calls choose hosts in the worker's network."""

    def __init__(self, vault: Vault) -> None:
        private = vault.environment("BATON_ALLOW_PRIVATE_HOSTS") in ("1", "true", "yes")
        self._http = Http(private=private, clean=vault.redact_growing)

    def of(self, agent: Agent, values: Values, once: Once = _at_will) -> list[Tool]:
        """The agent's tools; a ``description`` in its manifest replaces the tool's own (seed 000).

        ``once`` is awaited right before something is done that may be done only once.
        """
        tools = []
        for given, reference in agent.tools():
            if reference is None:
                tool = BUILT_IN[given.name]
            elif isinstance(found := values.catalog.find(reference), Manifest):
                tool = self.by(found, values, once, agent, again=given.on_error == "retry")
            else:
                raise UnknownResource(f"{reference} is known neither to the run nor to its worker")
            description, retries = given.description or tool.description, given.on_error == "retry"
            tools.append(replace(tool, name=given.name, description=description, retries=retries))
        return tools

    def by(
        self, manifest: Manifest, values: Values, once: Once, agent: Agent | None = None, *, again: bool = False
    ) -> Tool:
        """The tool of a manifest, as an agent or, without one, a query uses it; ``again``: it may be used twice."""
        http = manifest.spec.http
        if http is None:
            raise NotCarriedOut(f"{manifest.id}: tools of type '{manifest.spec.type}' can't be used yet")
        repeats = again or http.method in REPEATABLE

        async def use(arguments: JsonObject) -> str:
            request = self._request(manifest, http, values, agent, arguments)
            if not repeats:
                await once()
            return await self._http.send(request, http.seconds, again=repeats)

        return Tool(name=manifest.name, description=manifest.told, parameters=manifest.spec.input_schema, use=use)

    def _request(
        self, tool: Manifest, http: HttpSpec, values: Values, agent: Agent | None, arguments: JsonObject
    ) -> HttpRequest:
        query = values.query()
        value = values.named(tool, *(owner for owner in (agent, query) if owner))
        headers = [(each.name, _filled(each, values.text(each.value, tool) or "", value)) for each in http.headers]
        return request_of(http, headers, arguments, value, call_id())

    async def close(self) -> None:
        """Closes the connections."""
        await self._http.close()


def _filled(header: Header, text: str, value: Callable[[str], str]) -> str:
    """A header's text: a literal is a template, what comes from a Secret or a ConfigMap is not."""
    return (fill(text, value) if header.value.value else text).strip()
