"""The secret store of a worker: reads secrets when they are used, and redacts every secret that it has returned."""

import asyncio
import json
import logging
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from ...contracts.errors import JournalUnavailable, KeyMissing
from ...contracts.identity import IDENTITY_KEY
from ...contracts.message import Message
from ...contracts.settings import PRIVATE_HOSTS
from ...journal.manifest_store import ManifestStore
from ...observability.metrics import REDACTIONS
from ...resources.documents import manifest_files
from ...resources.loader import load_secrets
from ...resources.query import ALLOW_INLINE
from ...resources.rights import secret_words
from ...resources.secret import Secrets
from ...resources.stored import UNUSED, StoredManifest
from ...resources.values import KeyRef
from ...temporal.activity import in_thread_if_long
from ...temporal.encryption import KEYS
from ...temporal.threads import SECRETS
from .redaction import PLACEHOLDER, Redactor, redacted
from .settings import Settings

_log = logging.getLogger(__name__)

KEYS_OF_LIBRARIES = (
    "OPENAI_API_KEY",
    "ANTHROPIC_API_KEY",
    "ANTHROPIC_AUTH_TOKEN",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_BEARER_TOKEN_BEDROCK",
    "TEMPORAL_API_KEY",
)
"""Variables from which libraries read keys."""

HEADER_PAIRS = ("OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_METRICS_HEADERS")
"""Headers as ``name=secret,…``."""

HEADER_LINES = ("OPENAI_CUSTOM_HEADERS", "ANTHROPIC_CUSTOM_HEADERS")
"""Headers as lines ``name: secret``."""


def environment_secrets(environment: Mapping[str, str]) -> Iterator[str]:
    """The secrets in environment variables, including those that only a library reads."""
    yield from (environment.get(name, "") for name in KEYS_OF_LIBRARIES)
    yield from (key.rpartition(":")[2] for key in environment.get(KEYS, "").replace(",", " ").split())
    yield from environment.get(IDENTITY_KEY, "").replace(",", " ").split()
    for name in HEADER_PAIRS:
        for pair in environment.get(name, "").split(","):
            yield from _of_header(unquote(pair.partition("=")[2]))
    for name in HEADER_LINES:
        for line in environment.get(name, "").splitlines():
            yield from _of_header(line.partition(":")[2])
    yield from _passwords(environment.get("BATON_JOURNAL_URL", ""))


def _of_header(value: str) -> Iterator[str]:
    """The value of a header, and its credentials without the scheme, as in ``Bearer TOKEN``."""
    value = value.strip()
    yield value
    scheme, _, credentials = value.partition(" ")
    if credentials and scheme.lower() in ("basic", "bearer", "token"):
        yield credentials.strip()


def _passwords(url: str) -> Iterator[str]:
    """The passwords in a database URL, also those that are parameters."""
    with suppress(ValueError):
        parts = urlsplit(url)
        yield unquote(parts.password or "")
        for name in ("password", "sslpassword"):
            yield from parse_qs(parts.query).get(name, ())


RENEWAL_INTERVAL = 3_600.0
"""Seconds after which the record of a run's files is renewed when it is read."""

MIN_LENGTH = 6
"""Characters. A shorter secret is not redacted: it would match in almost every text."""


@dataclass(frozen=True)
class StoredSecrets:
    """The Secrets in the store, and those that this worker can't read, by their namespaces and names."""

    secrets: Secrets = field(default_factory=Secrets)
    unreadable: Mapping[tuple[str, str], StoredManifest] = field(default_factory=dict)


@dataclass(frozen=True)
class RunSecrets:
    """The Secrets in a run's files, and the files that can't be read now, as while they are being edited.

    ``stored`` are those in the store at the same time.
    """

    secrets: Secrets = field(default_factory=Secrets)
    unreadable: tuple[str, ...] = ()
    stored: StoredSecrets = field(default_factory=StoredSecrets)


CLUSTER_DNS = "http://{service}.{namespace}.svc.cluster.local:{port}"
"""The addresses of services for a worker in a Kubernetes cluster."""


class SecretStore:
    """The secrets in a worker's environment, in its own manifests, in the files that runs were started from, and in the
    store.

    ``sources`` is a folder in which a client on the same machine lists, by catalog, the paths of the files that the
    catalog was built from. So a Secret is read from its owner's file and never copied. ``own_files`` are the files that
    ``own`` was read from: they are read again when they change, unless one of them is not a file, such as stdin. The
    Secrets in the ``store`` are read again when it has changed. ``hidden``: every Secret has the value ``[secret]``,
    whether it exists or not, for requests that are only compared and never sent.
    """

    def __init__(
        self,
        own: Secrets,
        environment: Mapping[str, str],
        sources: Path | None = None,
        own_files: Iterable[str] = (),
        store: ManifestStore | None = None,
        *,
        hidden: bool = False,
    ) -> None:
        self._own = own
        self._hidden = hidden
        self._environment = environment
        self._sources = sources
        files = [Path(file).absolute() for file in sorted(own_files)]
        self._own_files = files if all(file.is_file() for file in files) else []
        self._redactor = Redactor()
        self._reading = asyncio.Lock()
        self._store = store
        self._revision = UNUSED
        self._stored = StoredSecrets()
        for value in own.values():
            self.remember(value.rstrip("\r\n"))
        for value in environment_secrets(environment):
            self.remember(value)
        REDACTIONS.record(0)  # so that Prometheus sees the increase with the first redaction

    def environment(self, name: str) -> str | None:
        """A variable of the worker's environment; None if it is unset or empty."""
        return self._environment.get(name) or None

    @cached_property
    def allows_private_hosts(self) -> bool:
        """Whether runs may send requests to servers in this worker's own network. Raises SettingsError."""
        value = self.environment(PRIVATE_HOSTS)
        return Settings.of({PRIVATE_HOSTS: value} if value else {}).allow_private_hosts

    @property
    def service_url(self) -> str | None:
        """The template of the addresses of services; None if the worker is in no cluster and has none."""
        in_cluster = CLUSTER_DNS if self.environment("KUBERNETES_SERVICE_HOST") else None
        return self.environment("BATON_SERVICE_URL") or in_cluster

    def environment_secret(self, name: str) -> str | None:
        """The value of a variable that holds a secret, which is redacted from now on; None if it is unset or empty."""
        value = self.environment(name)
        return self.remember(value) if value else None

    async def of_run(self, catalog: str) -> RunSecrets:
        """The current Secrets in a run's files; ``catalog`` is the SHA-256 under which they are registered, or empty.

        With them are the current Secrets in the store. Also reads the worker's own files again if they have changed.
        Reads in a thread, as there may be many files, and for one activity at a time, as the next one needs the same
        files. Raises JournalUnavailable.
        """
        stored = await self._current_stored()
        async with self._reading:
            of_files = await SECRETS.run(self._read_files, catalog)
        for value in of_files.secrets.values() if self._hidden else ():
            self.remember(value.rstrip("\r\n"))  # it is never read, but may be in a text
        return replace(of_files, stored=stored)

    async def _current_stored(self) -> StoredSecrets:
        """The current Secrets in the store. Costs one short SQL statement while the store is unchanged."""
        revision = await self._store.revision() if self._store else UNUSED
        if self._store and revision != self._revision:
            async with self._reading:
                if revision != self._revision:
                    manifests = [one for one in await self._store.secrets() if not one.is_deleted]
                    self._stored = await SECRETS.run(self._remember_stored, manifests)
                    self._revision = revision
        return self._stored

    def _remember_stored(self, manifests: Iterable[StoredManifest]) -> StoredSecrets:
        secrets = Secrets()
        unreadable = {}
        for manifest in manifests:
            if manifest.secret:
                secrets.add(manifest.secret)
            else:
                unreadable[manifest.namespace, manifest.name] = manifest
                _log.warning("the stored manifest %s can't be read: %s", manifest.place, manifest.problem)
        for value in secrets.values():
            self.remember(value.rstrip("\r\n"))
        return StoredSecrets(secrets, unreadable)

    def hosts_of(self, of_run: RunSecrets, namespace: str, name: str) -> tuple[str, ...]:
        """The hosts, as in ``api.example.com, *.example.org``, to which manifests of others may send a Secret."""
        if self._hidden:
            return ("*",)
        known = (secrets.get(namespace, name) for secrets in self._known(of_run))
        secret = next(filter(None, known), None)
        hosts = secret.metadata.annotations.get(ALLOW_INLINE, "") if secret else ""
        return tuple(host.strip().lower() for host in hosts.split(",") if host.strip())

    def is_local(self, catalog: str) -> bool:
        """Whether a client on this machine has registered the files of the catalog with this SHA-256."""
        return bool(self._sources and (self._sources / f"{catalog}.json").is_file())

    def read(self, of_run: RunSecrets, namespace: str, ref: KeyRef, reader: str | None = None) -> str:
        """The value of a Secret's key: from the run's own Secrets, else from those of this worker, else from the store.

        Errors name it to accounts of the namespace ``reader`` as ``secret_words`` says.

        Raises:
            KeyMissing: none of them has it; retryable if one of the run's files can't be read now.
            JournalUnavailable: this worker lacks the key of the stored Secret; another worker may have it.
        """
        if self._hidden:
            return PLACEHOLDER
        for secrets in self._known(of_run):
            secret = secrets.get(namespace, ref.name)
            value = secret.value(ref.key) if secret else None
            if value and (value := value.rstrip("\r\n")):  # an editor or ``echo`` may have added a newline
                return self.remember(value)
        name = secret_words(namespace, ref.name, reader)
        key = f"Secret {name} with the key '{ref.key}'" if reader in (None, namespace) else f"such Secret {name}"
        if of_run.unreadable:
            files = ", ".join(of_run.unreadable)
            raise KeyMissing(f"no {key} is in the readable part of {files}: fix the file", retryable=True)
        if stored := of_run.stored.unreadable.get((namespace, ref.name)):
            problem = f": {stored.problem}" if reader in (None, namespace) else ""
            text = f"the stored Secret {name} can't be read{problem}"
            raise JournalUnavailable(text) if stored.lacks_key else KeyMissing(text)
        raise KeyMissing(f"the worker has no {key}: start it with the folder that contains it, or apply the Secret")

    def _known(self, of_run: RunSecrets) -> tuple[Secrets, Secrets, Secrets]:
        """All Secrets; the first ones take precedence."""
        return of_run.secrets, self._own, of_run.stored.secrets

    def redact(self, text: str) -> str:
        """The text with ``[secret]`` in place of every secret of this worker and of the runs that it has read."""
        clean = self._redactor.redact(text)
        if clean != text:
            REDACTIONS.record(clean.count(PLACEHOLDER) - text.count(PLACEHOLDER))
        return clean

    async def redact_long(self, text: str) -> str:
        """The same for a text of any length, without blocking the event loop."""
        return await in_thread_if_long(len(text), self.redact, text)

    async def redact_message(self, message: Message) -> Message:
        """The message with redacted texts: a model may repeat a secret from its prompt."""
        return await in_thread_if_long(message.length, redacted, message, self.redact)

    def redact_partial(self, text: str) -> str:
        """The same for an incomplete text: its end is cut off if a secret may start there."""
        return self._redactor.redact_partial(text)

    def remember(self, value: str, seconds: float | None = None) -> str:
        """Returns the value and redacts it from now on; one that expires for at least so many ``seconds``."""
        if len(value) >= MIN_LENGTH:
            self._redactor.add(value, seconds)
        return value

    def _read_files(self, catalog: str) -> RunSecrets:
        self._read_own_files()
        file = self._sources / f"{catalog}.json" if self._sources and catalog else None
        if file is None or not file.is_file():
            return RunSecrets()
        if time.time() - file.stat().st_mtime > RENEWAL_INTERVAL:
            os.utime(file)  # it is removed when no run has needed it for weeks
        paths = (Path(path) for path in json.loads(file.read_text()))
        return _current(file for path in paths if path.exists() for file in manifest_files(path, recursive=True))

    def _read_own_files(self) -> None:
        """Reads the worker's own files again; keeps the previous Secrets while one of the files can't be read."""
        if not self._own_files:
            return
        current = _current(self._own_files)
        if not current.unreadable:
            self._own = current.secrets


def _current(files: Iterable[Path]) -> RunSecrets:
    return _load(tuple((file, _changed_at(file)) for file in files))


def _changed_at(file: Path) -> int:
    """The modification time of a file in ns; 0 if it can't be read."""
    with suppress(OSError):
        return file.stat().st_mtime_ns
    return 0


@lru_cache(maxsize=100)
def _load(files: tuple[tuple[Path, int], ...]) -> RunSecrets:
    """The Secrets in these files. Cached until one of the files changes."""
    return RunSecrets(*load_secrets(file for file, _ in files))
