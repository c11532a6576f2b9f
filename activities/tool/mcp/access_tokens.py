"""The OAuth tokens for MCP servers: refreshed by one worker at a time, and kept, sealed, for all workers of a journal.

A refresh token is often valid once. So what comes back is written down before it is used, by a task that goes on to its
end, whoever has asked for it.
"""

import asyncio
import base64
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from ....conversation.errors import InvalidManifest, ToolFailed
from ....conversation.temporal.encryption import Key
from ....resources.base import JsonModel
from ....resources.mcp_server import MCPServer
from ...context.value_resolver import ValueResolver
from ...journal.token_store import TokenStore
from .token_endpoint import Place, Refreshed, TokenClient

EARLY = 30.0
"""Seconds before its end at which a token is refreshed, or half of its time if that is shorter."""

LATELY = 10.0
"""Seconds for which a token counts as new: a server that refuses it would refuse the next one, too."""

LEASE, LONGEST = 60.0, 45.0
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
        self._store, self._client, self._remember = store, client, remember
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
        usable, due = token.is_usable(refused), token.renew is not None and token.renew < time.time()
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
    return values.catalog.is_brought(server.id) or bool(server.spec.address and server.spec.address.is_from_run)


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
    now, seconds = time.time(), new.seconds
    times = {"renew": now + max(seconds - EARLY, seconds / 2), "ends": now + seconds} if seconds else {}
    return AccessToken(access=new.access, refresh=new.refresh or token.refresh, at=now, place=new.place, **times)
