"""The OAuth tokens for MCP servers: refreshed by one worker at a time, and kept, sealed, for all workers of a journal.

A refresh token is often valid once. So what comes back is written down before it is used, by a task that goes on to its
end, whoever has asked for it."""

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
from ....journal.token_store import TokenStore
from ....resources.base import JsonModel
from ....resources.mcp_server import MCPServer
from ....resources.values import check_url
from ....temporal.encryption import Key
from ...context.value_resolver import ValueResolver
from ..http import HttpClient
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
        own = _own_endpoint(server, values)
        client, secret = _client(server, values)
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
    one = urlsplit(url)
    other = urlsplit(address)
    return (one.scheme, one.netloc) == (other.scheme, other.netloc)


EARLY = 30.0
"""Seconds before its end at which a token is refreshed, or half of its time if that is shorter."""

LATELY = 10.0
"""Seconds for which a token counts as new: a server that refuses it would refuse the next one, too."""

LEASE = 60.0
LONGEST = 45.0
"""Seconds for which one worker alone refreshes a token, and which that takes at most."""

LOOK = 0.2
"""Seconds between two looks whether another worker has refreshed a token."""

log = logging.getLogger("baton")


class AccessToken(JsonModel):
    """A token as the Secret holds it, or as it was refreshed ``at`` a time at a ``place``.

    It is refreshed from ``renew`` on, and ``ends`` then. All times are in seconds since 1970.
    """

    access: str
    refresh: str
    renew: float | None = None
    ends: float | None = None
    at: float = 0.0
    place: Place | None = None

    def is_usable(self, refused: str) -> bool:
        """Whether a server may take it that has ``refused`` another one, or none."""
        return self.access != refused and (self.ends is None or time.time() < self.ends)


class AccessTokens:
    """The tokens of a worker. Without a ``store``, as in a command, none is refreshed: workers would not know it.

    ``remember`` is called with each value, which is redacted from then on.
    """

    def __init__(self, store: TokenStore | None, client: TokenClient, remember: Callable[[str], str]) -> None:
        self._store = store
        self._client = client
        self._remember = remember
        self._tasks = dict[str, asyncio.Task[AccessToken]]()
        self._is_closing = False

    async def of(self, server: MCPServer, values: ValueResolver, refused: str = "") -> str:
        """The access token for a server, which is another one than the server has just ``refused``.

        Raises ToolFailed, which is retryable where a later try may do, and what ``values.resolve`` raises.
        """
        access, refresh = _in_secret(server, values)
        if self._store is None or not refresh or _is_foreign(server, values):
            return access
        seal = _Seal(access, refresh)
        stored = await self._store.read(seal.id)
        token = self._noted(seal.opened(stored) if stored else _first(server, values, access, refresh))
        usable = token.is_usable(refused)
        due = token.renew is not None and token.renew < time.time()
        if (usable and not due) or (not usable and time.time() - token.at < LATELY):
            return token.access
        task = self._task(server, values, seal, stored, token)
        return token.access if usable else (await asyncio.shield(task)).access

    def _task(
        self, server: MCPServer, values: ValueResolver, seal: "_Seal", stored: str, token: AccessToken
    ) -> "asyncio.Task[AccessToken]":
        """The one that refreshes this token here."""
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
        """Refreshes the token, or waits until another worker has."""
        assert self._store
        while not (lease := await self._store.lease(seal.id, stored, LEASE)):
            if self._is_closing:
                raise ToolFailed(f"the worker ends while the token of {server.id} is refreshed", retryable=True)
            await asyncio.sleep(LOOK)
            if (found := await self._store.read(seal.id)) != stored:
                return self._noted(seal.opened(found))
        try:
            async with asyncio.timeout(LONGEST):
                refreshed = await self._client.refresh(server, values, token.refresh, token.place)
            new = self._noted(_after(token, refreshed))
            await self._store.write(seal.id, stored, seal.closed(new))
            return new
        except TimeoutError:
            late = f"the token of the MCP server {server.name} can't be refreshed: no answer in {LONGEST:g} s"
            raise ToolFailed(late, retryable=True) from None
        finally:
            await self._store.release(seal.id, lease)

    def _noted(self, token: AccessToken) -> AccessToken:
        for each in (token.access, token.refresh):
            self._remember(each)
        return token

    async def close(self) -> None:
        """Waits until what is being refreshed is written down."""
        self._is_closing = True
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        await self._client.close()


class _Seal:
    """Seals what takes the place of a Secret's token with a key that is made of its refresh token."""

    def __init__(self, access: str, refresh: str) -> None:
        self._key = Key("token", HKDF(SHA256(), 32, salt=None, info=b"baton token").derive(refresh.encode()))
        self.id = self._key.keyed_hash(access)

    def closed(self, token: AccessToken) -> str:
        return base64.b64encode(self._key.encrypt(token.model_dump_json().encode(), self.id.encode())).decode()

    def opened(self, text: str) -> AccessToken:
        return AccessToken.model_validate_json(self._key.decrypt(base64.b64decode(text), self.id.encode()))


def _is_foreign(server: MCPServer, values: ValueResolver) -> bool:
    """Whether a run chooses where the token goes to."""
    return values.catalog.is_inline(server.id) or bool(server.spec.address and server.spec.address.is_from_run)


def _in_secret(server: MCPServer, values: ValueResolver) -> tuple[str, str]:
    """The access token and the refresh token, empty where there is none."""
    assert server.spec.authorization
    ref = server.spec.authorization.token_secret_ref
    access = values.resolve(server.spec.authorization.token, server) or ""
    return access, values.resolve(ref.source(ref.refresh_token_key), server) or ""


def _first(server: MCPServer, values: ValueResolver, access: str, refresh: str) -> AccessToken:
    """The token as the Secret holds it."""
    assert server.spec.authorization
    ref = server.spec.authorization.token_secret_ref
    text = values.resolve(ref.source(ref.expires_at_key), server)
    try:
        ends = _seconds(text) if text else None
    except (ValueError, OverflowError):
        path = "spec.authorization.tokenSecretRef.expiresAtKey"
        raise InvalidManifest(
            f"{server.id}: {path}: the Secret holds no time there, such as 2027-01-31T10:00:00Z"
        ) from None
    return AccessToken(access=access, refresh=refresh, renew=ends and ends - EARLY, ends=ends)


def _seconds(text: str) -> float:
    """A time in seconds since 1970; one without a zone is in UTC."""
    if text.isdecimal():
        return float(text)
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _after(token: AccessToken, new: Refreshed) -> AccessToken:
    """The token that has come back; a server that gives no new refresh token lets the old one be used again."""
    now = time.time()
    seconds = new.seconds
    times = {"renew": now + max(seconds - EARLY, seconds / 2), "ends": now + seconds} if seconds else {}
    return AccessToken(access=new.access, refresh=new.refresh or token.refresh, at=now, place=new.place, **times)
