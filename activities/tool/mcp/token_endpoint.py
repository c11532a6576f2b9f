"""Refreshes a token at an authorization server: the one that the manifest or the MCP server names (OAuth 2.1)."""

import base64
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import quote, urlencode, urlsplit

from mcp.client.auth.utils import (
    build_oauth_authorization_server_metadata_discovery_urls,
    build_protected_resource_metadata_discovery_urls,
    issuers_match,
)
from mcp.shared.auth import OAuthMetadata, OAuthToken, ProtectedResourceMetadata
from mcp.shared.auth_utils import check_resource_allowed
from pydantic import BaseModel, ValidationError

from ....conversation.errors import InvalidManifest, ToolFailed
from ....resources.mcp_server import MCPServer
from ....resources.values import check_url
from ...context.value_resolver import ValueResolver
from ..http_client import HttpClient
from ..http_request import HttpRequest

SECONDS = 10.0
"""Seconds that each answer may take."""

MAX_BYTES = 100_000
"""Bytes of each answer that are read."""

Metadata = TypeVar("Metadata", bound=BaseModel)


@dataclass(frozen=True)
class Refreshed:
    """What came back, and from where: the next refresh goes there, whatever the MCP server says by then."""

    token: OAuthToken
    endpoint: str


class TokenClient:
    """Asks authorization servers. ``private`` allows any of them to be in the worker's own network."""

    def __init__(self, *, private: bool, redact: Callable[[str], str]) -> None:
        self._http = HttpClient(private=private, redact=redact, max_bytes=MAX_BYTES)
        self._private = private

    async def close(self) -> None:
        """Closes the connections."""
        await self._http.close()

    async def refresh(self, server: MCPServer, values: ValueResolver, token: str, known: str) -> Refreshed:
        """What comes back for a refresh token from the manifest's endpoint, the ``known`` one, or what the server says.

        Raises ToolFailed, which is retryable where another try may do, and what ``values.resolve`` raises.
        """
        address, own = values.resolve(server.spec.address, server) or "", _own_endpoint(server, values)
        try:
            endpoint = own or known or await self._endpoint(address)
            request = self._request(server, values, token, endpoint, trusted=bool(own) or _same(endpoint, address))
            answer = await self._http.send(request, SECONDS, repeatable=False)
        except ToolFailed as failed:
            text = f"the token of the MCP server {server.name} can't be refreshed: {failed.message}"
            raise ToolFailed(text, retryable=failed.outage, outage=failed.outage) from None
        return Refreshed(_token_in(answer, f"the MCP server {server.name}"), endpoint)

    def _request(
        self, server: MCPServer, values: ValueResolver, token: str, endpoint: str, *, trusted: bool
    ) -> HttpRequest:
        assert server.spec.authorization
        if not (trusted or self._private) and urlsplit(endpoint).scheme != "https":
            raise ToolFailed(f"{urlsplit(endpoint).hostname} is no https address")
        ref = server.spec.authorization.token_secret_ref
        client, secret = (
            values.resolve(ref.source(key), server) or "" for key in (ref.client_id_key, ref.client_secret_key)
        )
        form = {"grant_type": "refresh_token", "refresh_token": token}
        form["resource"] = values.resolve(server.spec.address, server) or ""
        headers = [("Content-Type", "application/x-www-form-urlencoded"), ("Accept", "application/json")]
        if client:
            form["client_id"] = client
        if client and secret:  # as every authorization server takes it (RFC 6749, 2.3.1)
            pair = f"{quote(client, '')}:{quote(secret, '')}"
            headers.append(("Authorization", f"Basic {base64.b64encode(pair.encode()).decode()}"))
        return HttpRequest("POST", endpoint, tuple(headers), urlencode(form).encode(), trusted)

    async def _endpoint(self, address: str) -> str:
        """The token endpoint of the authorization server that an MCP server names (RFC 9728, RFC 8414)."""
        places = build_protected_resource_metadata_discovery_urls(None, address)
        resource = await self._first(places, address, ProtectedResourceMetadata)
        found = None if isinstance(resource, str) else resource  # servers of 2025-03-26 have none
        if found and not check_resource_allowed(address, str(found.resource)):
            raise ToolFailed(f"it says that it is another server, {found.resource}")
        issuer = str(found.authorization_servers[0]) if found else None
        places = build_oauth_authorization_server_metadata_discovery_urls(issuer, address)
        metadata = await self._first(places, address, OAuthMetadata)
        if isinstance(metadata, str):
            raise ToolFailed(f"nothing says where ({metadata}): name it as spec.authorization.tokenEndpoint")
        if issuer and not issuers_match(str(metadata.issuer), issuer):
            raise ToolFailed(f"{issuer} says that it is another authorization server, {metadata.issuer}")
        return str(metadata.token_endpoint)

    async def _first(self, places: list[str], address: str, kind: type[Metadata]) -> Metadata | str:
        """The first document that is there, and is of the kind; or why there is none."""
        why = ""
        for url in places:
            request = HttpRequest("GET", url, (("Accept", "application/json"),), None, _same(url, address))
            try:
                return kind.model_validate_json(await self._http.send(request, SECONDS, repeatable=True))
            except ToolFailed as failed:
                if not failed.non_retryable:
                    raise
                why = failed.message
            except ValidationError:
                why = f"{urlsplit(url).hostname} gives something else there"
        return why


def _own_endpoint(server: MCPServer, values: ValueResolver) -> str:
    """The endpoint that the manifest names; empty if none."""
    assert server.spec.authorization
    endpoint = values.resolve(server.spec.authorization.token_endpoint, server) or ""
    try:
        if endpoint:
            check_url(endpoint)
    except ValueError as error:
        raise InvalidManifest(f"{server.id}: spec.authorization.tokenEndpoint {error}") from None
    return endpoint


def _token_in(answer: str, label: str) -> OAuthToken:
    try:
        found = OAuthToken.model_validate_json(answer)
    except ValidationError:
        raise ToolFailed(f"the token of {label} can't be refreshed: the answer holds none") from None
    token = found.access_token
    if not (token.isascii() and token.isprintable() and " " not in token):
        raise ToolFailed(f"the new token of {label} can't be sent in a header")
    return found


def _same(url: str, address: str) -> bool:
    """Whether two addresses have one origin: then the first is trusted as the second is."""
    one, other = urlsplit(url), urlsplit(address)
    return (one.scheme, one.netloc) == (other.scheme, other.netloc)
