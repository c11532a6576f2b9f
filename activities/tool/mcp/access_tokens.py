"""The OAuth tokens for MCP servers: refreshed by one worker at a time, and stored encrypted for all its peers.

A refresh token is often valid only once. So a new token is stored before it is used, by a task that completes even if
the call that started it is canceled.
"""

import asyncio
import base64
import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar
from urllib.parse import quote, urlencode, urlsplit

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from mcp.client.auth.utils import (
    build_oauth_authorization_server_metadata_discovery_urls,
    build_protected_resource_metadata_discovery_urls,
    issuers_match,
)
from mcp.shared.auth import OAuthMetadata, ProtectedResourceMetadata
from mcp.shared.auth_utils import check_resource_allowed
from pydantic import AnyHttpUrl, BaseModel, JsonValue, ValidationError

from ....contracts.errors import InvalidManifest, ToolFailed
from ....contracts.text import parse_json
from ....journal.leases import without_lease
from ....journal.token_store import TokenStore
from ....resources.base import JsonModel
from ....resources.mcp_server import MCPServer
from ....resources.values import check_url
from ....temporal.encryption import Key
from ...context.value_resolver import ValueResolver
from ...runtime.outbound import Destination, authority_of
from ..http import HttpClient
from ..http_request import HttpRequest

SECONDS = 10.0
"""The timeout of one request."""

MAX_BYTES = 100_000
"""Bytes of one response that are read."""

_JSON = ("Accept", "application/json")
_FORM = ("Content-Type", "application/x-www-form-urlencoded")

Metadata = TypeVar("Metadata", bound=BaseModel)


class TokenEndpoint(JsonModel):
    """The token endpoint that refreshes a token, and the resource that the token is for."""

    endpoint: str
    resource: str

    def for_server(self, address: str) -> "TokenEndpoint | None":
        """This endpoint; None if it is for another server, which an earlier manifest has named."""
        return self if _same(self.endpoint, address) and check_resource_allowed(address, self.resource) else None


@dataclass(frozen=True, repr=False)
class Refreshed:
    """The response to a refresh; ``seconds`` is the lifetime of the access token, None if the server does not say."""

    access: str
    refresh: str
    seconds: float | None
    place: TokenEndpoint


class TokenClient:
    """Sends requests to authorization servers.

    A refresh token and a client secret are only sent to the MCP server's own origin, or to the endpoint in its
    manifest: never to another one that a server names.
    """

    def __init__(self, redact: Callable[[str], str]) -> None:
        self._http = HttpClient(redact=redact, max_bytes=MAX_BYTES)

    async def close(self) -> None:
        """Closes the connections."""
        await self._http.close()

    async def refresh(
        self, server: MCPServer, values: ValueResolver, token: str, known: TokenEndpoint | None
    ) -> Refreshed:
        """Refreshes a token with its refresh ``token``; ``known`` is the endpoint of the last refresh.

        Raises ToolFailed, which is retryable if a retry may succeed, and the errors of ``values.resolve``.
        """
        assert server.spec.authorization
        destination = values.server_of(server)
        assert destination, "a server without an address has no authorization"
        address = _plain(destination.url)
        at_address = destination.at(address)
        own_endpoint = _own_endpoint(server, values)
        client, secret = _client(server, values)
        try:
            place = (
                TokenEndpoint(endpoint=own_endpoint, resource=address)
                if own_endpoint
                else known and known.for_server(address)
            )
            place = place or await self._discover(at_address)
            endpoint = (
                values.destination_at(own_endpoint, destination.provenance)
                if own_endpoint
                else at_address.at(place.endpoint)
            )
            form = {"grant_type": "refresh_token", "refresh_token": token, "resource": place.resource}
            response = await self._post(endpoint, form | ({"client_id": client} if client else {}), secret)
            return _refreshed(response, place)
        except ToolFailed as failed:
            text = f"the token of the MCP server {server.name} can't be refreshed: {failed.message}"
            raise ToolFailed(text, retryable=not failed.non_retryable, retry_after=failed.next_retry_delay) from None

    async def _post(self, endpoint: Destination, form: Mapping[str, str], secret: str) -> str:
        """The response to a form, with the client secret in a header or, if that is rejected, in the form."""
        if not secret:
            return await self._send(endpoint, form)
        pair = f"{quote(form.get('client_id', ''), '')}:{quote(secret, '')}"  # RFC 6749, 2.3.1
        basic = base64.b64encode(pair.encode()).decode()
        try:
            return await self._send(endpoint, form, ("Authorization", f"Basic {basic}"))
        except ToolFailed as failed:
            if "_client" not in failed.message:  # invalid_client or unauthorized_client: the token is still valid
                raise
            return await self._send(endpoint, {**form, "client_secret": secret})

    async def _send(self, endpoint: Destination, form: Mapping[str, str], *headers: tuple[str, str]) -> str:
        if not endpoint.provenance.is_own:
            raise ToolFailed(f"it names {endpoint.url}: {_NAME_IT}")
        request = HttpRequest("POST", endpoint, (_FORM, _JSON, *headers), urlencode(form).encode())
        with without_lease():  # the token store has a lease of its own for each token
            return await self._http.send(request, SECONDS, repeatable=True)

    async def _discover(self, server: Destination) -> TokenEndpoint:
        """The token endpoint of the authorization server that an MCP server names (RFC 9728, RFC 8414)."""
        address = server.url
        urls = build_protected_resource_metadata_discovery_urls(None, address)
        resource = await self._first(server, urls, ProtectedResourceMetadata)
        described = None if isinstance(resource, str) else resource  # servers of 2025-03-26 have none
        if described and not check_resource_allowed(address, str(described.resource)):
            raise ToolFailed(f"its metadata is for another server, {described.resource}")
        issuer = str(described.authorization_servers[0]) if described else None
        if issuer and not _same(issuer, address):
            raise ToolFailed(f"it names the authorization server {issuer}: {_NAME_IT}")
        urls = build_oauth_authorization_server_metadata_discovery_urls(issuer, address)
        metadata = await self._first(server, urls, OAuthMetadata)
        if isinstance(metadata, str):
            raise ToolFailed(f"no token endpoint was discovered ({metadata}): {_NAME_IT}")
        if issuer and not issuers_match(str(metadata.issuer), issuer):
            raise ToolFailed(f"the metadata of {issuer} is for another authorization server, {metadata.issuer}")
        if not _same(str(metadata.token_endpoint), address):
            raise ToolFailed(f"it names {metadata.token_endpoint}: {_NAME_IT}")
        resource_id = str(described.resource) if described else address
        return TokenEndpoint(endpoint=str(metadata.token_endpoint), resource=resource_id)

    async def _first(self, server: Destination, urls: list[str], kind: type[Metadata]) -> Metadata | str:
        """The first valid document of this kind, or the reason why there is none."""
        why = ""
        for url in urls:
            request = HttpRequest(method="GET", destination=server.at(url), headers=(_JSON,), body=None)
            try:
                return kind.model_validate_json(await self._http.send(request, SECONDS, repeatable=True))
            except ToolFailed as failed:
                if not failed.non_retryable:
                    raise
                why = failed.message
            except ValidationError:
                why = f"{authority_of(url)} sent an invalid document"
        return why


_NAME_IT = "if that is intended, set spec.authorization.tokenEndpoint"


def _own_endpoint(server: MCPServer, values: ValueResolver) -> str:
    """The token endpoint in the manifest; empty if it has none."""
    assert server.spec.authorization
    endpoint = values.resolve(server.spec.authorization.token_endpoint, server) or ""
    try:
        if endpoint:
            check_url(endpoint)
    except ValueError as error:
        raise InvalidManifest(f"{server.id}: spec.authorization.tokenEndpoint {error}") from None
    return endpoint


def _client(server: MCPServer, values: ValueResolver) -> tuple[str, str]:
    """The client's id and secret; empty if the Secret has none."""
    assert server.spec.authorization
    ref = server.spec.authorization.token_secret_ref
    client, secret = (values.resolve(ref.source(key), server) for key in (ref.client_id_key, ref.client_secret_key))
    return client or "", secret or ""


def _refreshed(response: str, place: TokenEndpoint) -> Refreshed:
    """The tokens in a response. Other invalid fields are ignored, as the old refresh token may be invalid already."""
    try:
        fields = parse_json(response)
    except ValueError:
        fields = None
    access, refresh, seconds = _fields(fields if isinstance(fields, dict) else {})
    if not (access and access.isascii() and access.isprintable() and " " not in access):
        raise ToolFailed("the response has no valid access token")
    return Refreshed(access, refresh, seconds, place)


def _fields(fields: Mapping[str, JsonValue]) -> tuple[str, str, float | None]:
    access, refresh, expires = (fields.get(name) for name in ("access_token", "refresh_token", "expires_in"))
    try:
        seconds = float(str(expires))
    except (ValueError, OverflowError):
        seconds = 0.0
    valid = seconds if math.isfinite(seconds) and 0 < seconds < 1e10 else None
    return access if isinstance(access, str) else "", refresh if isinstance(refresh, str) else "", valid


def _plain(address: str) -> str:
    """The URL in normal form, without query and fragment, which may contain a secret."""
    return str(AnyHttpUrl(urlsplit(address)._replace(query="", fragment="").geturl()))


def _same(url: str, address: str) -> bool:
    """Whether two URLs have the same origin."""
    first = urlsplit(url)
    second = urlsplit(address)
    return (first.scheme, first.netloc) == (second.scheme, second.netloc)


EARLY = 30.0
"""Seconds before its expiry at which a token is refreshed; at most half of its lifetime."""

RECENT = 10.0
"""Seconds for which a token counts as new: a server that rejects it would reject the next one, too."""

LEASE = 60.0
LONGEST = 45.0
"""Seconds for which a worker leases the refresh of a token, and the timeout of the refresh."""

POLL_INTERVAL = 0.2
"""Seconds between two checks whether another worker has refreshed a token."""

REDACTED_AFTER = 3600.0
"""Seconds for which a token is redacted after its expiry and its last call: its text may be logged later."""

log = logging.getLogger("baton")


class AccessToken(JsonModel):
    """A token from the Secret, or refreshed ``at`` a time at the endpoint ``place``.

    It is refreshed from ``renew`` on, and expires at ``ends``. All times are in seconds since 1970.
    """

    access: str
    refresh: str
    renew: float | None = None
    ends: float | None = None
    at: float = 0.0
    place: TokenEndpoint | None = None

    def is_usable(self, refused: str) -> bool:
        """Whether it has not expired, and is not the one that the server has just ``refused``."""
        return self.access != refused and (self.ends is None or time.time() < self.ends)


class AccessTokens:
    """The tokens of a worker. Without a ``store``, as in a command, they are not refreshed: workers would miss them.

    ``remember`` is called with every token, which is redacted for so many seconds from then on.
    """

    def __init__(self, store: TokenStore | None, client: TokenClient, remember: Callable[[str, float], str]) -> None:
        self._store = store
        self._client = client
        self._remember = remember
        self._tasks = dict[str, asyncio.Task[AccessToken]]()
        self._is_closing = False

    async def of(self, server: MCPServer, values: ValueResolver, refused: str = "") -> str:
        """The access token for a server, other than the one that the server has just ``refused``.

        Raises ToolFailed, which is retryable if a retry may succeed, and the errors of ``values.resolve``.
        """
        access, refresh = _in_secret(server, values)
        if self._store is None or not refresh or _is_foreign(server, values):
            return access
        seal = _Seal(access, refresh)
        stored = await self._store.read(seal.id)
        token = self._remembered(server, seal.opened(stored) if stored else _first(server, values, access, refresh))
        usable = token.is_usable(refused)
        due = token.renew is not None and token.renew < time.time()
        if (usable and not due) or (not usable and time.time() - token.at < RECENT):
            return token.access
        task = self._task(server, values, seal, stored, token)
        return token.access if usable else (await asyncio.shield(task)).access

    def _task(
        self, server: MCPServer, values: ValueResolver, seal: "_Seal", stored: str, token: AccessToken
    ) -> "asyncio.Task[AccessToken]":
        """The task of this worker that refreshes the token."""
        if (task := self._tasks.get(seal.id)) is None:
            task = self._tasks[seal.id] = asyncio.create_task(self._renew(server, values, seal, stored, token))
            task.add_done_callback(lambda done: self._ended(seal.id, done))
        return task

    def _ended(self, seal_id: str, task: "asyncio.Task[AccessToken]") -> None:
        del self._tasks[seal_id]
        if not task.cancelled() and (error := task.exception()):
            log.warning("%s", error)

    async def _renew(
        self, server: MCPServer, values: ValueResolver, seal: "_Seal", stored: str, token: AccessToken
    ) -> AccessToken:
        """Refreshes the token, or waits until another worker has done so."""
        assert self._store
        while not (lease := await self._store.lease(seal.id, stored, LEASE)):
            if self._is_closing:
                raise ToolFailed(f"the worker stopped while the token of {server.id} was refreshed", retryable=True)
            await asyncio.sleep(POLL_INTERVAL)
            if (current := await self._store.read(seal.id)) != stored:
                return self._remembered(server, seal.opened(current))
        try:
            async with asyncio.timeout(LONGEST):
                refreshed = await self._client.refresh(server, values, token.refresh, token.place)
            new = self._remembered(server, _after(token, refreshed))
            await self._store.write(seal.id, stored, seal.closed(new))
            return new
        except TimeoutError:
            late = f"the token of the MCP server {server.name} can't be refreshed: no response within {LONGEST:g} s"
            raise ToolFailed(late, retryable=True) from None
        finally:
            await self._store.release(seal.id, lease)

    def _remembered(self, server: MCPServer, token: AccessToken) -> AccessToken:
        """The token, which is redacted while it is valid, and while a call that starts now may run, and after it."""
        valid = token.ends - time.time() if token.ends else 0.0
        for value in (token.access, token.refresh):
            self._remember(value, max(valid, server.call_timeout) + REDACTED_AFTER)
        return token

    async def close(self) -> None:
        """Waits until running refreshes are stored."""
        self._is_closing = True
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        await self._client.close()


class _Seal:
    """Encrypts a refreshed token with a key that is derived from the refresh token in the Secret."""

    def __init__(self, access: str, refresh: str) -> None:
        self._key = Key("token", HKDF(SHA256(), 32, salt=None, info=b"baton token").derive(refresh.encode()))
        self.id = self._key.keyed_hash(access)

    def closed(self, token: AccessToken) -> str:
        return base64.b64encode(self._key.encrypt(token.model_dump_json().encode(), self.id.encode())).decode()

    def opened(self, text: str) -> AccessToken:
        return AccessToken.model_validate_json(self._key.decrypt(base64.b64decode(text), self.id.encode()))


def _is_foreign(server: MCPServer, values: ValueResolver) -> bool:
    """Whether the run determines the server that receives the token."""
    return not values.catalog.provenance_of(server).is_own


def _in_secret(server: MCPServer, values: ValueResolver) -> tuple[str, str]:
    """The access token and the refresh token in the Secret; empty if there is none."""
    assert server.spec.authorization
    ref = server.spec.authorization.token_secret_ref
    access = values.resolve(server.spec.authorization.token, server) or ""
    return access, values.resolve(ref.source(ref.refresh_token_key), server) or ""


def _first(server: MCPServer, values: ValueResolver, access: str, refresh: str) -> AccessToken:
    """The token in the Secret."""
    assert server.spec.authorization
    ref = server.spec.authorization.token_secret_ref
    text = values.resolve(ref.source(ref.expires_at_key), server)
    try:
        ends = _seconds(text) if text else None
    except (ValueError, OverflowError):
        path = "spec.authorization.tokenSecretRef.expiresAtKey"
        raise InvalidManifest(
            f"{server.id}: {path}: the Secret's value is not a time, such as 2027-01-31T10:00:00Z"
        ) from None
    return AccessToken(access=access, refresh=refresh, renew=ends and ends - EARLY, ends=ends)


def _seconds(text: str) -> float:
    """A time in seconds since 1970; without a time zone, it is in UTC."""
    if text.isdecimal():
        return float(text)
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _after(token: AccessToken, new: Refreshed) -> AccessToken:
    """The refreshed token. Without a new refresh token, the old one stays valid."""
    now = time.time()
    seconds = new.seconds
    times = {"renew": now + max(seconds - EARLY, seconds / 2), "ends": now + seconds} if seconds else {}
    return AccessToken(access=new.access, refresh=new.refresh or token.refresh, at=now, place=new.place, **times)
