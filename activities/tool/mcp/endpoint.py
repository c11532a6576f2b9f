"""The endpoint of an MCP server: the manifest's address or command with all current values and secrets."""

from dataclasses import dataclass, field, replace

from ....contracts.errors import InvalidManifest
from ....resources.manifest import Manifest
from ....resources.mcp_server import MCPServer
from ....resources.values import Headers, check_url
from ...context.value_resolver import ValueResolver, headers_of
from ...runtime.outbound import Destination

Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class McpEndpoint:
    """An address with its headers, or a command with its environment variables.

    Calls with equal endpoints share a connection; calls with other secrets have their own. ``asks``: the server may ask
    people.
    """

    name: str
    destination: Destination | None = None
    transport: str = "http"
    headers: Pairs = field(default=(), repr=False)
    command: tuple[str, ...] = field(default=(), repr=False)
    env: Pairs = field(default=(), repr=False)
    asks: bool = False

    @property
    def is_authorized(self) -> bool:
        """Whether its headers already authorize the worker."""
        return "authorization" in {name.lower() for name, _ in self.headers}

    def with_token(self, token: str) -> "McpEndpoint":
        """The same endpoint with an access token."""
        return replace(self, headers=(*self.headers, ("Authorization", f"Bearer {token}")))

    @property
    def label(self) -> str:
        """The name of the server in errors."""
        return f"the MCP server {self.name}" + (f" ({self.destination.authority})" if self.destination else "")


def endpoint_of(server: MCPServer, values: ValueResolver) -> McpEndpoint:
    """The endpoint of a server without its access token.

    Raises:
        InvalidManifest: the address is invalid.
        KeyMissing, UnknownResource: see ``ValueResolver.resolve``.
    """
    spec = server.spec
    asks = spec.questions is not None
    if spec.command:
        command = (spec.command, *spec.args)
        env = _variables(spec.env, server, values)
        return McpEndpoint(name=server.name, command=command, env=env, asks=asks)
    destination = values.server_of(server)
    try:
        check_url(destination.url if destination else "")
    except ValueError as error:
        raise InvalidManifest(f"{server.id}: spec.address {error}") from None
    headers = headers_of(server, spec.headers, values)
    return McpEndpoint(name=server.name, destination=destination, transport=spec.transport, headers=headers, asks=asks)


def _variables(variables: Headers, owner: Manifest, values: ValueResolver) -> Pairs:
    return tuple((variable.name, (values.resolve(variable.value, owner) or "").strip()) for variable in variables)
