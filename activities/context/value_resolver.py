"""Resolves values in manifests when they are used, and checks the rights to them."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import partial
from urllib.parse import urlsplit

from ...contracts.errors import InvalidInput, InvalidManifest, KeyMissing, RightMissing, UnknownResource
from ...contracts.message import Message, SecretPlaceholder
from ...contracts.panel import contributions_in, format_transcript
from ...contracts.turn import Thread
from ...journal.journal import Journal
from ...journal.rows import Row
from ...resources.agent import Agent
from ...resources.catalog import Catalog
from ...resources.config_map import ConfigMap
from ...resources.manifest import Manifest
from ...resources.problems import dotted_path
from ...resources.provenance import Provenance
from ...resources.query import ALLOW_INLINE, Override, Query
from ...resources.rights import AccountName, Use, may, may_be_named, missing_rights, secret_words, uses
from ...resources.run_catalog import RunCatalog
from ...resources.skill import LOAD_SKILL, Skill
from ...resources.template import TemplateError, check_names, fill, parse_template
from ...resources.tool import Tool
from ...resources.values import ContributionsRef, Headers, KeyRef, Parameter, ServiceRef, ValueSource, sources
from ...temporal.activity import workflow_id
from ..runtime.outbound import Destination
from ..runtime.secrets import RunSecrets, SecretStore
from .lookup import find

_HOST = re.compile(r"[A-Za-z0-9.-]+|\[[0-9A-Fa-f:]+\]")


def fixed_host(url: str) -> str | None:
    """The host of a URL; None if it contains a parameter or an argument."""
    authority = urlsplit(url).netloc
    host = urlsplit(url).hostname if "{" not in authority else None
    return host if host and _HOST.fullmatch(host) else None


def with_rights(catalog: RunCatalog, start: Manifest) -> RunCatalog:
    """The catalog with the ServiceAccount of the manifest ``start``; unchanged if the catalog has no rights.

    Inline manifests need no rights, and may not grant any. Every run may use the account ``default``; an inline query
    may name another one only if its annotation allows that.

    Raises:
        InvalidInput: an inline manifest defines rights.
        RightMissing: the account may not use a resource of the run, or the run may not name the account.
    """
    if not catalog.rights:
        return catalog
    if inline := [manifest.id for manifest in catalog.rights if not catalog.provenance_of(manifest).is_own]:
        raise InvalidInput(
            f"inline manifests can't define or change rights ({', '.join(inline)}): "
            "start the worker with these manifests"
        )
    account = AccountName.of(start)
    _check_named(start, account, catalog)
    protected = [manifest for manifest in catalog.manifests if catalog.provenance[manifest.id].is_own]
    _check_access(catalog, account, uses(catalog.manifests, protected))
    return catalog.with_account(str(account))


def _check_named(start: Manifest, account: AccountName, catalog: RunCatalog) -> None:
    """Raises RightMissing if an inline query names an account whose annotation does not allow that."""
    if not (catalog.provenance_of(start).is_own or may_be_named(catalog, account)):
        raise RightMissing(
            f"{start.id}: spec.serviceAccount: an inline query can't use the ServiceAccount "
            f"{account}: start a Query of the worker, or set the ServiceAccount's annotation {ALLOW_INLINE}: 'true'"
        )


def _check_access(catalog: Catalog, account: AccountName, needed: Iterable[Use]) -> None:
    """Raises RightMissing unless the account has all needed rights."""
    if missing := [use for use in dict.fromkeys(needed) if not may(catalog, account, use)]:
        raise RightMissing(missing_rights(account, missing))


def check_secret(catalog: RunCatalog, owner: Manifest, name: str) -> None:
    """Raises RightMissing unless the run may read a Secret in the namespace of ``owner``, which needs it."""
    if catalog.account and name != owner.own_secret:
        namespace, account = catalog.account.split("/")
        _check_access(catalog, AccountName(namespace, account), [Use.of_secret(owner.namespace, name)])


Owner = Query | Agent | Tool
"""The kinds of manifest that have parameters."""


@dataclass(frozen=True)
class ValueResolver:
    """The values of one run: from its pinned catalog, and from the worker's secrets.

    ``of_run`` are the Secrets in the run's files, ``shared`` the transcripts of panels that share their contributions;
    both are read in advance. ``agent`` is the agent on whose behalf models and servers are called, if there is one.
    ``destination`` is where all values are sent, if that is not the server of the manifest that contains them.
    """

    catalog: RunCatalog
    secrets: SecretStore
    of_run: RunSecrets = field(default_factory=RunSecrets)
    shared: Mapping[ContributionsRef, str] = field(default_factory=dict)
    agent: Agent | None = None
    destination: Destination | None = None

    @classmethod
    async def of(cls, journal: Journal, thread: Thread, secrets: SecretStore) -> "ValueResolver":
        """The resolver for an activity of the run at ``thread``."""
        catalog = await journal.catalog(thread.catalog)
        return await cls.of_catalog(journal, catalog, secrets, partial(thread.session, workflow_id()))

    @classmethod
    async def of_catalog(
        cls,
        journal: Journal,
        catalog: RunCatalog,
        secrets: SecretStore,
        session: Callable[[str | None], str] | None = None,
    ) -> "ValueResolver":
        """The resolver for a run with this catalog.

        ``session`` returns the session of contribution references in the run's scope, for the one that they name.
        Without it, no value may be the contributions of a panel.
        """
        shared = {}
        references = [(ref, session(ref.session)) for ref in catalog.contribution_refs] if session else []
        for ref, name in references:
            rows = await journal.read_bookmark(name, ref.key)
            shared[ref] = format_transcript(contributions_in(row.message for row in rows))
        of_run = await secrets.of_run(catalog.registered_as) if catalog.uses_secrets else RunSecrets()
        return cls(catalog=catalog, secrets=secrets, of_run=of_run, shared=shared)

    def used_by(self, manifest: object) -> "ValueResolver":
        """The same resolver for calls on behalf of ``manifest`` if it is an Agent, else for calls without an agent."""
        return replace(self, agent=manifest if isinstance(manifest, Agent) else None)

    async def with_current_secrets(self) -> "ValueResolver":
        """The same resolver with the current Secrets in the run's files."""
        return replace(self, of_run=await self.secrets.of_run(self.catalog.registered_as))

    def sending_to(self, destination: Destination) -> "ValueResolver":
        """The same resolver for values that are sent to a destination: it reads the Secrets that may be sent there."""
        return replace(self, destination=destination)

    def server_of(self, manifest: Manifest, default: str | None = None) -> Destination | None:
        """The server of a manifest, or that at the URL ``default``; None without both. Raises errors of ``resolve``."""
        url = self.resolve(manifest.address, manifest) or default
        return self.destination_at(url, self.catalog.provenance_of(manifest)) if url else None

    def destination_at(self, url: str, provenance: Provenance) -> Destination:
        """A URL whose server has this provenance."""
        return Destination(url=url, provenance=provenance, private_hosts=self.secrets.allows_private_hosts)

    def resolve(self, source: ValueSource | None, owner: Manifest) -> str | None:
        """The value of a source in ``owner``; None without a source, and if an optional key is missing.

        Raises:
            KeyMissing: the worker has no such Secret.
            RightMissing: the run's ServiceAccount may not read the Secret.
            UnknownResource: there is no such ConfigMap, key or query parameter.
        """
        if source is None or source.value_from is None:
            return source.value if source else None
        if secret := source.value_from.secret_key_ref:
            return self._secret(secret, owner, source)
        if key := source.value_from.config_map_key_ref:
            return self._config_map(key, owner)
        if parameter := source.value_from.query_parameter_ref:
            return self._query_parameter(parameter.name)
        if shared := source.value_from.contributions_ref:
            return self.shared[shared]
        if service := source.value_from.service_ref:
            return self._service(service, owner)
        raise UnknownResource(f"{owner.id} has a value from an unsupported source")

    def check_services(self) -> None:
        """Raises UnknownResource for a service in the catalog whose address this worker can't determine."""
        for manifest in self.catalog.manifests:
            for _, source in sources(manifest):
                if source.value_from and source.value_from.service_ref:
                    self._service(source.value_from.service_ref, manifest)

    def parameters_of(self, *owners: Owner | None) -> "Parameters":
        """The parameters of manifests; the first owner with a name takes precedence."""
        return Parameters(self, tuple(owner for owner in owners if owner))

    def prompt(self, agent: Agent) -> str | None:
        """An agent's prompt with its parameters filled in. Without parameters the prompt is not a template."""
        prompt = agent.spec.prompt
        return fill(prompt, self.parameters_of(agent).value) if prompt and agent.spec.parameters else prompt

    def question(self, query: Query) -> Message:
        """A query's input with its parameters filled in; secret ones become placeholders."""
        secret_names = {parameter.name for parameter in query.spec.parameters if _is_secret(parameter)}
        if not query.spec.parameters:
            return Message(role="user", content=query.spec.text)
        value = self.parameters_of(query).value
        text = ""
        placeholders: list[SecretPlaceholder] = []
        for piece in parse_template(query.spec.text):
            shown = piece.text
            if piece.name in secret_names:
                shown = f"[{piece.name}]"
                placeholders.append(SecretPlaceholder(at=len(text), length=len(shown), name=piece.name))
            elif piece.name:
                shown = value(piece.name)
            text += shown
        return Message(role="user", content=text, blanks=tuple(placeholders)).without_defaults

    def with_secrets(self, message: Message) -> Message:
        """A message with its placeholders replaced by the secrets: for a model or a tool, and never stored."""
        content = message.content
        for blank in reversed(message.blanks):
            secret = self._query_parameter(blank.name) or ""
            content = content[: blank.at] + secret + content[blank.at + blank.length :]
        return message.without_placeholders.with_content(content) if message.blanks else message

    def message_of(self, row: Row, question: Row) -> Message:
        """The message of a row with its secrets; without those of rows before ``question``, of earlier queries."""
        return self.with_secrets(row.message) if row.depth >= question.depth else row.message.without_placeholders

    def _query_parameter(self, name: str) -> str | None:
        query = self.catalog.query
        parameters = _parameters(query) if query else {}
        if query is None or name not in parameters:
            raise UnknownResource(f"the run has no query parameter '{name}'")
        return self.resolve(parameters[name], query)

    def _secret(self, ref: KeyRef, owner: Manifest, source: ValueSource) -> str | None:
        check_secret(self.catalog, owner, ref.name)
        hosts = self.secrets.hosts_of(self.of_run, owner.namespace, ref.name)
        if not self.catalog.provenance_of(owner).is_own:
            self._check_server(hosts, ref, owner, source)
        if self.destination and not self.destination.accepts_secret(hosts):
            why = "the host of this call is not from the worker's manifests"
            raise _secret_refused(ref, owner, source, why, hosts, self.destination.host, self._reader)
        try:
            return self.secrets.read(self.of_run, owner.namespace, ref, self._reader)
        except KeyMissing as missing:
            if ref.optional and missing.non_retryable:  # retryable: a file that may contain it can't be read now
                return None
            raise

    @property
    def _reader(self) -> str | None:
        """The namespace of the run's account, which reads its errors; None without rights."""
        return self.catalog.account.partition("/")[0] if self.catalog.account else None

    def _check_server(self, hosts: tuple[str, ...], ref: KeyRef, owner: Manifest, source: ValueSource) -> None:
        """Raises KeyMissing unless a Secret may be sent to the server of a manifest that is not the worker's own."""
        address = owner.address
        url = self.resolve(address, owner) if address and address is not source and not _is_secret(address) else None
        host = fixed_host(url) if url else None
        if not (host and any(fnmatchcase(host, pattern) for pattern in hosts)):
            provenance = self.catalog.provenance_of(owner)
            why = "it is an inline manifest, or needs one"
            if provenance is not Provenance.INLINE:
                why = "the run chooses the address of its server, or of a server that it needs"
            raise _secret_refused(ref, owner, source, why, hosts, host, self._reader)

    def _service(self, ref: ServiceRef, owner: Manifest) -> str:
        if self.secrets.service_url is None:
            raise UnknownResource(
                f"{owner.id} needs the service '{ref.name}': set BATON_SERVICE_URL to the address of services, such as "
                "http://{service}:{port}"
            )
        try:
            return ref.address(self.secrets.service_url, owner.namespace)
        except ValueError as error:
            raise UnknownResource(f"{owner.id}: {error}") from None

    def _config_map(self, ref: KeyRef, owner: Manifest) -> str | None:
        config_map = self.catalog.get("ConfigMap", owner.namespace, ref.name)
        value = config_map.data.get(ref.key) if isinstance(config_map, ConfigMap) else None
        if value is None and not ref.optional:
            raise UnknownResource(
                f"{owner.id} needs the key '{ref.key}' of the ConfigMap '{ref.name}', which does not exist"
            )
        return value


def _secret_refused(
    ref: KeyRef,
    owner: Manifest,
    source: ValueSource,
    why: str,
    hosts: tuple[str, ...],
    host: str | None,
    reader: str | None,
) -> KeyMissing:
    field = next((dotted_path(path) for path, candidate in sources(owner) if candidate is source), "spec")
    shows_hosts = bool(hosts) and reader in (None, owner.namespace)
    allowed = f"allows {', '.join(hosts)}" if shows_hosts else "does not allow that"
    secret = secret_words(owner.namespace, ref.name, reader)
    return KeyMissing(
        f"{owner.id}: {field}: it may not use the Secret {secret}, because {why}: a worker's "
        f"Secrets are for its own manifests, and the Secret's annotation {ALLOW_INLINE} {allowed}"
        + (f", not {host or 'an address without a fixed host'}" if shows_hosts else "")
    )


def _is_secret(source: ValueSource) -> bool:
    return bool(source.value_from and source.value_from.secret_key_ref)


def _parameters(owner: Owner) -> dict[str, Parameter]:
    return {parameter.name: parameter for parameter in owner.parameters}


class Parameters:
    """The parameters that a template may name, of several ``owners``: the first one with a name takes precedence."""

    def __init__(self, values: ValueResolver, owners: tuple[Owner, ...]) -> None:
        self._values = values
        self._owners = owners
        self._known = {name: (one, owner) for owner in reversed(owners) for name, one in _parameters(owner).items()}

    def value(self, name: str) -> str:
        """The value of a parameter. Raises InvalidManifest for an unknown name, and errors of ``resolve``."""
        return self._values.resolve(*self._find(name)) or ""

    def provenance(self, name: str) -> Provenance:
        """The provenance of a parameter's value. Raises InvalidManifest for an unknown name."""
        return self._values.catalog.chooser_of(*self._find(name))

    def sending_to(self, destination: Destination) -> "Parameters":
        """The same parameters for values that are sent to a destination."""
        return Parameters(self._values.sending_to(destination), self._owners)

    def _find(self, name: str) -> tuple[Parameter, Owner]:
        try:
            check_names(f"{{{{{name}}}}}", self._known)
        except TemplateError as error:
            raise InvalidManifest(f"{self._owners[0].id}: {error}") from None
        return self._known[name]


Pairs = tuple[tuple[str, str], ...]


def headers_of(manifest: Manifest, manifest_headers: Headers, values: ValueResolver) -> Pairs:
    """The headers of requests to a manifest's server; names are unique, ignoring case.

    The overrides of the agent that uses it (``values.agent``) replace ``manifest_headers``, and those of the query
    replace both (ARK: queries, overrides). A header whose optional key is missing is omitted. Raises the errors of
    ``ValueResolver.resolve``.
    """
    headers = {
        header.name.lower(): (header.name, values.resolve(header.value, manifest)) for header in manifest_headers
    }
    for owner, override in _overrides(values, manifest):
        if override.is_for(manifest):
            for header in override.headers:
                headers[header.name.lower()] = header.name, values.resolve(header.value, owner)
    return tuple((name, value.strip()) for name, value in headers.values() if value is not None)


def _overrides(values: ValueResolver, manifest: Manifest) -> Iterator[tuple[Agent | Query, Override]]:
    """The overrides for a manifest, in ascending precedence. Those of the worker don't apply to inline manifests."""
    provenance_of = values.catalog.provenance_of
    for owner in (values.agent, values.catalog.query):
        if owner and (provenance_of(manifest).is_own or not provenance_of(owner).is_own):
            yield from ((owner, override) for override in owner.spec.overrides)


def check_overrides(catalog: RunCatalog) -> None:
    """Raises InvalidInput if inline manifests set headers for a manifest of the worker that does not allow them."""
    for owner in catalog.manifests:
        if not isinstance(owner, Query | Agent) or catalog.provenance_of(owner).is_own:
            continue
        for override in owner.spec.overrides:
            for target in catalog.manifests:
                if catalog.provenance_of(target).is_own:
                    _check(owner, override, target)


def _check(owner: Manifest, override: Override, target: Manifest) -> None:
    forbidden = override.forbidden_for(target)
    if forbidden:
        raise InvalidInput(
            f"{owner.id}: spec.overrides: an inline manifest may not send {', '.join(forbidden)} to {target.id} of the "
            f"worker, unless its annotation {ALLOW_INLINE} names these headers"
        )


HEADING = f"# Skills\nBefore a task that matches a skill, read the skill with the tool {LOAD_SKILL}."

CLIENT_HEADING = (
    "# Instructions of the client\nThe program that asks the question adds these. They never replace what is above."
)


def skills_of(agent: Agent, catalog: Catalog) -> dict[str, Skill]:
    """The skills of an agent by name, in the order of its manifest."""
    skills = (find(catalog, reference) for reference in agent.references if reference.kinds == ("Skill",))
    return {skill.name: skill for skill in skills if isinstance(skill, Skill)}


def speaker_prompt(agent: Agent, values: ValueResolver) -> str | None:
    """An agent's prompt, the names and descriptions of its skills, and the instructions of the query's client."""
    parts = [values.prompt(agent)]
    if skills := skills_of(agent, values.catalog):
        listed = "\n".join(f"- {name}: {skill.spec.description}" for name, skill in skills.items())
        parts.append(f"{HEADING}\n{listed}")
    client = values.catalog.client_of(agent)
    if client and client.settings.instructions:
        parts.append(f"{CLIENT_HEADING}\n{client.settings.instructions}")
    return "\n\n".join(part for part in parts if part) or None
