"""Where an MCP server is: its manifest with all values and secrets, as they are at the moment of use."""

from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit

from ....contracts.errors import InvalidManifest
from ....resources.manifest import Manifest
from ....resources.mcp_server import MCPServer
from ....resources.values import Headers, check_url
from ...context.value_resolver import ValueResolver, headers_of

Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class McpEndpoint:
    """An address with its headers, or a command with its environment variables.

    McpConnections are shared by those with equal endpoints: whoever has other secrets has a connection of his own.
    ``guarded``: a run chose the address, which must not lead into the worker's own network.
    ``asks``: people answer what the server asks.
    """

    name: str
    address: str = ""
    transport: str = "http"
    headers: Pairs = field(default=(), repr=False)
    guarded: bool = False
    command: tuple[str, ...] = field(default=(), repr=False)
    env: Pairs = field(default=(), repr=False)
    asks: bool = False

    @property
    def is_authorized(self) -> bool:
        """Whether its headers authorize the worker, whatever token there is."""
        return "authorization" in {name.lower() for name, _ in self.headers}

    def with_token(self, token: str) -> "McpEndpoint":
        """The same with an access token."""
        return replace(self, headers=(*self.headers, ("Authorization", f"Bearer {token}")))

    @property
    def label(self) -> str:
        """What errors call it."""
        return f"the MCP server {self.name}" + (f" ({urlsplit(self.address).hostname})" if self.address else "")


def endpoint_of(server: MCPServer, values: ValueResolver, *, private: bool = False) -> McpEndpoint:
    """The endpoint of a server, but for its token; reads its secrets. ``private`` lets a run choose any address.

    Raises:
        InvalidManifest: a value is no address.
        KeyMissing, UnknownResource: as ``ValueResolver.resolve``.
    """
    spec = server.spec
    asks = spec.questions is not None
    if spec.command:
        command = (spec.command, *spec.args)
        env = _variables(spec.env, server, values)
        return McpEndpoint(server.name, command=command, env=env, asks=asks)
    address = values.resolve(spec.address, server) or ""
    try:
        check_url(address)
    except ValueError as error:
        raise InvalidManifest(f"{server.id}: spec.address {error}") from None
    headers = headers_of(server, spec.headers, values)
    guarded = values.is_guarded(server) or (not private and bool(spec.address and spec.address.is_from_run))
    return McpEndpoint(server.name, address, spec.transport, headers, guarded, asks=asks)


def _variables(given: Headers, owner: Manifest, values: ValueResolver) -> Pairs:
    return tuple((each.name, (values.resolve(each.value, owner) or "").strip()) for each in given)
