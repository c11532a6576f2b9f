"""Who may use the gateway: bearer keys, of which only hashes are stored, and tokens of an OIDC issuer.

A caller acts as a ServiceAccount. The runs that it starts have the rights of that account, and it sees the teams and
agents that the account may use.
"""

import asyncio
import hashlib
import ipaddress
import logging
import os
import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import yaml
from pydantic import Field, ValidationError
from starlette.requests import HTTPConnection

from ...contracts.identity import Identity
from ...contracts.settings import SettingsError, private_file
from ...resources.base import JsonModel, Name, Text
from ...resources.catalog import Catalog
from ...resources.query import ALLOW_INLINE
from ...resources.rights import DEFAULT_ACCOUNT, AccountName, Use, has_rights, may
from .errors import UnauthenticatedError
from .settings import GatewaySettings

_log = logging.getLogger(__name__)

PREFIX = "bk-"
"""The beginning of all keys, by which leak scanners find them."""


@dataclass(frozen=True)
class Caller:
    """Who makes a request: its ``name``, as events show it, and the ServiceAccount as which it acts.

    ``sees_all``: it sees and controls the runs of others, too. ``groups`` are those that its key or its token names.
    """

    name: str
    account: AccountName
    sees_all: bool = False
    groups: tuple[str, ...] = ()

    @property
    def identity(self) -> Identity:
        """Who it is, for those who may decide."""
        return Identity(name=self.name, groups=self.groups)

    @property
    def is_verified(self) -> bool:
        """Whether a key or a token has proven who it is. A key may have the name and the account of LOCAL."""
        return self is not LOCAL

    @property
    def digest(self) -> str:
        """A digest of who it is, by which Temporal finds its runs: attributes are not encrypted."""
        return self._digest()

    def digest_with(self, text: str) -> str:
        """The same with a text of the caller, such as the key of a request."""
        return self._digest(text)

    def _digest(self, *more: str) -> str:
        return hashlib.sha256("\n".join([str(self.account), self.name, *more]).encode()).hexdigest()[:32]

    def may_use(self, catalog: Catalog, use: Use) -> bool:
        """Whether the Roles in the manifests permit the caller's account to use a resource."""
        return may(catalog, self.account, use)

    def may_see_all_of(self, catalog: Catalog, namespace: str) -> bool:
        """Whether the caller sees all runs of Queries in a namespace: a Role has to give it ``queries`` there."""
        use = Use("ark.mckinsey.com", "queries", namespace, "*")
        return self.sees_all or (has_rights(catalog, namespace) and may(catalog, self.account, use))


LOCAL = Caller("local", AccountName("default", DEFAULT_ACCOUNT), sees_all=True)
"""The caller of a gateway without keys, which serves loopback addresses only."""


class KeyEntry(JsonModel):
    """A key in the file of keys: the ``name`` of its holder, and the SHA-256 of the key in hexadecimal digits."""

    name: Text = Field(max_length=64)
    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    namespace: Name = "default"
    service_account: Name = DEFAULT_ACCOUNT
    all_runs: bool = False
    groups: tuple[Text, ...] = ()

    @property
    def caller(self) -> Caller:
        """Who makes requests with the key."""
        return Caller(self.name, AccountName(self.namespace, self.service_account), self.all_runs, self.groups)


class KeyFile(JsonModel):
    """The file of keys: YAML or JSON."""

    keys: tuple[KeyEntry, ...]


def refused_account(account: AccountName) -> str:
    """What the ServiceAccount of a caller needs, so that its runs start."""
    return (
        f"workers refuse runs as {account}, unless its ServiceAccount has the annotation {ALLOW_INLINE}: 'true', or "
        "they have BATON_INLINE_MANIFESTS=all"
    )


def new_key() -> str:
    """A new key: 256 random bits."""
    return PREFIX + secrets.token_urlsafe(32)


def hash_of(key: str) -> str:
    """The hash under which the file of keys has a key. A random key of 256 bits needs no slow hash."""
    return hashlib.sha256(key.encode()).hexdigest()


def read_keys(path: Path) -> dict[str, Caller]:
    """The callers in a file of keys by the hashes of their keys. Raises SettingsError, which quotes no hash."""
    try:
        text = path.read_text()
    except OSError as error:
        raise SettingsError(f"BATON_GATEWAY_KEYS: {path}: {error.strerror}") from None
    try:
        entries = KeyFile.model_validate(yaml.safe_load(text)).keys
    except (yaml.YAMLError, ValueError) as error:
        reason = "it is not YAML"
        if isinstance(error, ValidationError):
            first = error.errors(include_input=False, include_url=False)[0]
            reason = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise SettingsError(f"BATON_GATEWAY_KEYS: {path}: {reason}") from None
    callers = {entry.sha256: entry.caller for entry in entries}
    if len(callers) < len(entries):
        raise SettingsError(f"BATON_GATEWAY_KEYS: {path}: two entries have the same key")
    return callers


def add_key(path: Path, entry: KeyEntry) -> None:
    """Adds a key to a file of keys, which is created if there is none. Raises SettingsError and OSError."""
    entries = []
    if path.exists():
        read_keys(path)
        entries = yaml.safe_load(path.read_text())["keys"]
        if any(other["name"] == entry.name for other in entries):
            raise SettingsError(f"{path} has a key of {entry.name} already: remove it first, or choose another name")
    entries.append(entry.model_dump(mode="json", exclude_defaults=True, by_alias=True))
    new = path.with_name(f"{path.name}.new")
    with os.fdopen(private_file(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "w") as file:
        file.write(yaml.safe_dump({"keys": entries}, sort_keys=False))
    if path.exists():
        new.chmod(path.stat().st_mode & 0o777)  # a gateway in a container, with another user, reads the file as well
    new.replace(path)


class TokenVerifier(Protocol):
    """Verifies the tokens of an OIDC issuer."""

    async def verify(self, token: str) -> Caller:
        """The caller with a token. Raises UnauthenticatedError."""


class Access:
    """Authenticates requests."""

    def __init__(self, settings: GatewaySettings, tokens: TokenVerifier | None = None) -> None:
        """Raises SettingsError if the file of keys can't be read."""
        self._settings = settings
        self._path = settings.keys
        self._tokens = tokens
        self._keys = read_keys(settings.keys) if settings.keys else {}
        self._changed = self._stamp()
        self._looked_at = time.monotonic()

    @property
    def is_open(self) -> bool:
        """Whether no key is needed; then only loopback addresses may be served."""
        return not self._settings.has_keys

    async def caller_of(self, request: HTTPConnection) -> Caller:
        """Who makes a request. Raises UnauthenticatedError."""
        if self.is_open:
            return LOCAL
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            key = request.headers.get("x-api-key", "")
        key = key.strip()
        if not key:
            raise UnauthenticatedError("a key is needed: send it as Authorization: Bearer KEY")
        await self._reload()
        caller = self._keys.get(hash_of(key))
        if caller is None and self._tokens and not key.startswith(PREFIX):
            caller = await self._tokens.verify(key)
        if caller is None:
            raise UnauthenticatedError("unknown key")
        return caller

    def _stamp(self) -> Any:
        if self._path is None:
            return None
        try:
            stat = self._path.stat()
        except OSError:
            return None
        return stat.st_mtime_ns, stat.st_size, stat.st_ino

    async def _reload(self) -> None:
        """Reads a changed file of keys. If it can't be read, no key is valid: a revoked one must not stay valid."""
        if self._path is None or time.monotonic() - self._looked_at < self._settings.keys_reload:
            return
        self._looked_at = time.monotonic()
        stamp = await asyncio.to_thread(self._stamp)
        if stamp == self._changed:
            return
        self._changed = stamp
        try:
            self._keys = await asyncio.to_thread(read_keys, self._path)
        except SettingsError as error:
            _log.error("%s", error)
            self._keys = {}
            self._changed = None
            raise UnauthenticatedError("the keys of this gateway can't be read now; see its log") from error


def is_loopback(host: str) -> bool:
    """Whether a host is this machine's own: ``localhost``, ``127.0.0.0/8`` or ``::1``."""
    name = host.strip("[]")
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
