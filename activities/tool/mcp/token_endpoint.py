"""Refreshes a token at an authorization server: the one that the manifest or the MCP server names (OAuth 2.1)."""

import base64
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import quote, urlencode, urlsplit

from mcp.client.auth.utils import (
    build_oauth_authorization_server_metadata_discovery_urls,
    build_protected_resource_metadata_discovery_urls,
    issuers_match,
)
from mcp.shared.auth import OAuthMetadata, ProtectedResourceMetadata
from mcp.shared.auth_utils import check_resource_allowed
from pydantic import AnyHttpUrl, BaseModel, JsonValue, ValidationError

from ....conversation.errors import InvalidManifest, ToolFailed
from ....conversation.text import parse_json
from ....resources.base import JsonModel
from ....resources.mcp_server import MCPServer
from ....resources.values import check_url
from ...context.value_resolver import ValueResolver
from ..http_client import HttpClient
from ..http_request import HttpRequest

SECONDS = 10.0
"""Seconds that each answer may take."""

MAX_BYTES = 100_000
"""Bytes of each answer that are read."""

_JSON = ("Accept", "application/json")
_FORM = ("Content-Type", "application/x-www-form-urlencoded")

Metadata = TypeVar("Metadata", bound=BaseModel)


class Place(JsonModel):
    """Where a token is refreshed, and for which resource."""

    endpoint: str
    resource: str

    def of(self, address: str) -> "Place | None":
        """This place, unless it is that of a server elsewhere, which an earlier manifest has named."""
        return self if _same(self.endpoint, address) and check_resource_allowed(address, self.resource) else None


@dataclass(frozen=True, repr=False)
class Refreshed:
    """What came back; ``seconds`` for which the access token is valid, None where the server does not say."""

    access: str
    refresh: str
    seconds: float | None
    place: Place


class TokenClient:
    """Asks authorization servers.

    A refresh token and a client's secret go to the address of the MCP server itself, or to the one that its manifest
    names: never to one that a server names.
    """

    def __init__(self, redact: Callable[[str], str]) -> None:
        self._http = HttpClient(redact=redact, max_bytes=MAX_BYTES)

    async def close(self) -> None:
        """Closes the connections."""
        await self._http.close()

    async def refresh(self, server: MCPServer, values: ValueResolver, token: str, known: Place | None) -> Refreshed:
        """What comes back for a refresh token.

        Raises ToolFailed, which is retryable where another try may do, and what ``values.resolve`` raises.
        """
        assert server.spec.authorization
        address = _plain(values.resolve(server.spec.address, server) or "")
        own, (client, secret) = _own_endpoint(server, values), _client(server, values)
        try:
            kept = Place(endpoint=own, resource=address) if own else known and known.of(address)
            place = kept or await self._place(address)
            form = {"grant_type": "refresh_token", "refresh_token": token, "resource": place.resource}
            answer = await self._post(place.endpoint, form | ({"client_id": client} if client else {}), secret)
            return _refreshed(answer, place)
        except ToolFailed as failed:
            text = f"the token of the MCP server {server.name} can't be refreshed: {failed.message}"
            raise ToolFailed(text, retryable=not failed.non_retryable, retry_after=failed.next_retry_delay) from None

    async def _post(self, endpoint: str, form: Mapping[str, str], secret: str) -> str:
        """The answer to a form, with the client's secret as a header or, if that is refused, in the form."""
        if not secret:
            return await self._send(endpoint, form)
        pair = f"{quote(form.get('client_id', ''), '')}:{quote(secret, '')}"  # RFC 6749, 2.3.1
        basic = base64.b64encode(pair.encode()).decode()
        try:
            return await self._send(endpoint, form, ("Authorization", f"Basic {basic}"))
        except ToolFailed as failed:
            if "_client" not in failed.message:  # invalid_client or unauthorized_client: the token is not used up
                raise
            return await self._send(endpoint, {**form, "client_secret": secret})

    async def _send(self, endpoint: str, form: Mapping[str, str], *headers: tuple[str, str]) -> str:
        request = HttpRequest("POST", endpoint, (_FORM, _JSON, *headers), urlencode(form).encode(), trusted=True)
        return await self._http.send(request, SECONDS, repeatable=True)

    async def _place(self, address: str) -> Place:
        """The token endpoint of the authorization server that an MCP server names (RFC 9728, RFC 8414)."""
        places = build_protected_resource_metadata_discovery_urls(None, address)
        resource = await self._first(places, ProtectedResourceMetadata)
        found = None if isinstance(resource, str) else resource  # servers of 2025-03-26 have none
        if found and not check_resource_allowed(address, str(found.resource)):
            raise ToolFailed(f"it says that it is another server, {found.resource}")
        issuer = str(found.authorization_servers[0]) if found else None
        if issuer and not _same(issuer, address):
            raise ToolFailed(f"it names the authorization server {issuer}: {_NAME_IT}")
        places = build_oauth_authorization_server_metadata_discovery_urls(issuer, address)
        metadata = await self._first(places, OAuthMetadata)
        if isinstance(metadata, str):
            raise ToolFailed(f"nothing says where ({metadata}): {_NAME_IT}")
        if issuer and not issuers_match(str(metadata.issuer), issuer):
            raise ToolFailed(f"{issuer} says that it is another authorization server, {metadata.issuer}")
        if not _same(str(metadata.token_endpoint), address):
            raise ToolFailed(f"it names {metadata.token_endpoint}: {_NAME_IT}")
        return Place(endpoint=str(metadata.token_endpoint), resource=str(found.resource) if found else address)

    async def _first(self, places: list[str], kind: type[Metadata]) -> Metadata | str:
        """The first document that is there, and is of the kind; or why there is none."""
        why = ""
        for url in places:
            request = HttpRequest("GET", url, (_JSON,), None, trusted=True)
            try:
                return kind.model_validate_json(await self._http.send(request, SECONDS, repeatable=True))
            except ToolFailed as failed:
                if not failed.non_retryable:
                    raise
                why = failed.message
            except ValidationError:
                why = f"{urlsplit(url).hostname} gives something else there"
        return why


_NAME_IT = "if that is right, name its token endpoint as spec.authorization.tokenEndpoint"


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


def _client(server: MCPServer, values: ValueResolver) -> tuple[str, str]:
    """The client's id and secret, empty where the Secret has none."""
    assert server.spec.authorization
    ref = server.spec.authorization.token_secret_ref
    client, secret = (values.resolve(ref.source(key), server) for key in (ref.client_id_key, ref.client_secret_key))
    return client or "", secret or ""


def _refreshed(answer: str, place: Place) -> Refreshed:
    """What is needed of an answer: whatever else is odd in it, the old refresh token may be used up."""
    try:
        found = parse_json(answer)
    except ValueError:
        found = None
    access, refresh, seconds = _fields(found if isinstance(found, dict) else {})
    if not (access and access.isascii() and access.isprintable() and " " not in access):
        raise ToolFailed("the answer holds no token that can be sent")
    return Refreshed(access, refresh, seconds, place)


def _fields(found: Mapping[str, JsonValue]) -> tuple[str, str, float | None]:
    access, refresh, expires = (found.get(name) for name in ("access_token", "refresh_token", "expires_in"))
    try:
        seconds = float(str(expires))
    except (ValueError, OverflowError):
        seconds = 0.0
    valid = seconds if math.isfinite(seconds) and 0 < seconds < 1e10 else None
    return access if isinstance(access, str) else "", refresh if isinstance(refresh, str) else "", valid


def _plain(address: str) -> str:
    """The address without query and fragment, which may hold a secret, in the form of the metadata of servers."""
    return str(AnyHttpUrl(urlsplit(address)._replace(query="", fragment="").geturl()))


def _same(url: str, address: str) -> bool:
    """Whether two addresses have one origin."""
    one, other = urlsplit(url), urlsplit(address)
    return (one.scheme, one.netloc) == (other.scheme, other.netloc)
