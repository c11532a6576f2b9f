"""The OAuth tokens for MCP servers: refreshed by one worker at a time, and kept, sealed, for all workers of a journal.

A refresh token is often valid once. So what comes back is written down before it is used, and a refresh that has begun
goes on to its end, whoever has asked for it.
"""

import asyncio
import base64
import time
from collections.abc import Callable
from datetime import datetime

from pydantic import ValidationError

from ....conversation.errors import InvalidManifest, ToolFailed
from ....conversation.temporal.encryption import Key
from ....resources.base import JsonModel
from ....resources.mcp_server import MCPServer
from ...context.value_resolver import ValueResolver
from ...journal.token_store import TokenStore
from .token_endpoint import Refreshed, TokenClient

EARLY = 30.0
"""Seconds before its end at which a token is refreshed."""

LEASE = 60.0
"""Seconds for which one worker alone refreshes a token: longer than that takes."""

LOOK = 0.2
"""Seconds between two looks whether another worker has refreshed a token."""

_PLACE = b"baton token"


class AccessToken(JsonModel):
    """A token as the Secret holds it, or as it was refreshed at ``endpoint``; ``until`` in seconds since 1970."""

    access: str
    refresh: str
    until: float | None = None
    endpoint: str = ""

    @property
    def is_ending(self) -> bool:
        """Whether it is valid for no more than EARLY seconds."""
        return self.until is not None and self.until < time.time() + EARLY


class AccessTokens:
    """The tokens of a worker. Without a ``store``, as in a command, none is refreshed: workers would not know it.

    ``remember`` is called with each value, which is redacted from then on.
    """

    def __init__(self, store: TokenStore | None, client: TokenClient, remember: Callable[[str], str]) -> None:
        self._store, self._client, self._remember = store, client, remember
        self._refreshing = dict[str, asyncio.Task[AccessToken]]()

    async def of(self, server: MCPServer, values: ValueResolver, refused: str = "") -> str:
        """The access token for a server, which is not the one that the server has just ``refused``.

        Raises ToolFailed, which is retryable unless the token can't be refreshed, and what ``values.resolve`` raises.
        """
        given = _given(server, values)
        if self._store is None or not given.refresh or _is_foreign(server, values):
            return given.access
        seal = _Seal(given)
        while True:
            stored = await self._store.read(seal.id)
            token = self._noted(seal.opened(stored) if stored else given)
            if token.access != refused and not token.is_ending:
                return token.access
            if seal.id in self._refreshing or await self._store.lease(seal.id, stored, LEASE):
                return (await self._refreshed(server, values, seal, stored, token, refused)).access
            await asyncio.sleep(LOOK)

    async def _refreshed(
        self, server: MCPServer, values: ValueResolver, seal: "_Seal", stored: str, token: AccessToken, refused: str
    ) -> AccessToken:
        if (task := self._refreshing.get(seal.id)) is None:
            task = asyncio.create_task(self._refresh(server, values, seal, stored, token))
            self._refreshing[seal.id] = task
            task.add_done_callback(lambda _: self._refreshing.pop(seal.id))
        try:
            return await asyncio.shield(task)
        except ToolFailed as failed:
            if token.access != refused and not failed.non_retryable:
                return token  # which may still be valid
            raise

    async def _refresh(
        self, server: MCPServer, values: ValueResolver, seal: "_Seal", stored: str, token: AccessToken
    ) -> AccessToken:
        assert self._store
        new = stored
        try:
            refreshed = await self._client.refresh(server, values, token.refresh, token.endpoint)
            result = self._noted(_after(token, refreshed))
            new = seal.closed(result)
            return result
        finally:
            await asyncio.shield(self._store.write(seal.id, stored, new))

    def _noted(self, token: AccessToken) -> AccessToken:
        for each in (token.access, token.refresh):
            self._remember(each)
        return token

    async def close(self) -> None:
        """Waits until what is being refreshed is written down."""
        await asyncio.gather(*self._refreshing.values(), return_exceptions=True)
        await self._client.close()


class _Seal:
    """Seals what comes in the place of a Secret's token with a key that is made of its refresh token."""

    def __init__(self, given: AccessToken) -> None:
        from cryptography.hazmat.primitives.hashes import SHA256  # noqa: PLC0415  # loaded only where it is used
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF  # noqa: PLC0415

        self._key = Key("token", HKDF(SHA256(), 32, salt=None, info=_PLACE).derive(given.refresh.encode()))
        self.id = self._key.keyed_hash(given.access)

    def closed(self, token: AccessToken) -> str:
        return base64.b64encode(self._key.encrypt(token.model_dump_json().encode(), self.id.encode())).decode()

    def opened(self, text: str) -> AccessToken:
        return AccessToken.model_validate_json(self._key.decrypt(base64.b64decode(text), self.id.encode()))


def _is_foreign(server: MCPServer, values: ValueResolver) -> bool:
    """Whether a run chooses where the refresh token would go to."""
    assert server.spec.authorization
    chosen = server.spec.address and server.spec.address.is_from_run and not server.spec.authorization.token_endpoint
    return bool(chosen) or values.catalog.is_brought(server.id)


def _given(server: MCPServer, values: ValueResolver) -> AccessToken:
    """The token as the Secret holds it."""
    assert server.spec.authorization
    ref = server.spec.authorization.token_secret_ref
    access = values.resolve(server.spec.authorization.token, server) or ""
    refresh = values.resolve(ref.source(ref.refresh_token_key), server) or ""
    until = values.resolve(ref.source(ref.expires_at_key), server)
    try:
        return AccessToken(access=access, refresh=refresh, until=_seconds(until) if until else None)
    except (ValueError, ValidationError):
        path = "spec.authorization.tokenSecretRef.expiresAtKey"
        raise InvalidManifest(f"{server.id}: {path}: the Secret holds no time there") from None


def _seconds(text: str) -> float:
    return float(text) if text.isdecimal() else datetime.fromisoformat(text).timestamp()


def _after(token: AccessToken, refreshed: Refreshed) -> AccessToken:
    """The token that has come back; a server that gives no new refresh token lets the old one be used again."""
    seconds = refreshed.token.expires_in
    return AccessToken(
        access=refreshed.token.access_token,
        refresh=refreshed.token.refresh_token or token.refresh,
        until=None if seconds is None else time.time() + seconds,
        endpoint=refreshed.endpoint,
    )
