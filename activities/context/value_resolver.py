"""Resolves the values that manifests name, at the time of use, and checks the rights to them."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from urllib.parse import urlsplit

from ...contracts.errors import InvalidInput, InvalidManifest, KeyMissing, RightMissing, UnknownResource
from ...contracts.message import Message, SecretPlaceholder
from ...contracts.panel import contributions_in, format_transcript
from ...contracts.turn import Thread
from ...journal.journal import Journal
from ...journal.rows import Row
from ...resources.a2a_server import A2AServer
from ...resources.agent import Agent
from ...resources.catalog import Catalog
from ...resources.config_map import ConfigMap
from ...resources.execution_engine import ExecutionEngine
from ...resources.manifest import Manifest
from ...resources.mcp_server import MCPServer
from ...resources.memory import Memory
from ...resources.model import Model
from ...resources.problems import dotted_path
from ...resources.query import ALLOW_INLINE, Override, Query
from ...resources.rights import DEFAULT_ACCOUNT, AccountName, Use, may, missing_rights, uses
from ...resources.skill import LOAD_SKILL, Skill
from ...resources.template import TemplateError, check_names, fill, parse_template
from ...resources.tool import Tool
from ...resources.values import ContributionsRef, Headers, KeyRef, Parameter, ValueSource, sources
from ...temporal.activity import workflow_id
from ..runtime.secrets import RunSecrets, SecretStore
from .lookup import find

_HOST = re.compile(r"[A-Za-z0-9.-]+|\[[0-9A-Fa-f:]+\]")


def address_of(manifest: Manifest) -> ValueSource | None:
    """The address of the server that a manifest stands for; None where it has none."""
    match manifest:
        case Model():
            return manifest.spec.connection.base_url if manifest.spec.connection else None
        case MCPServer() | A2AServer() | ExecutionEngine() | Memory():
            return manifest.spec.address
        case Tool():
            url = manifest.spec.http.url if manifest.spec.http else manifest.spec.openapi and manifest.spec.openapi.url
            return ValueSource(value=url) if url else None
    return None


def fixed_host(url: str) -> str | None:
    """The host of an address; None where a parameter or an argument is a part of it."""
    authority = urlsplit(url).netloc
    host = urlsplit(url).hostname if "{" not in authority else None
    return host if host and _HOST.fullmatch(host) else None


def with_rights(catalog: Catalog, own: Catalog, start: Manifest) -> Catalog:
    """The catalog of a run that begins with ``start``, with its account; as it is where there are no rights.

    ``own`` are the worker's manifests. Inline manifests need no right, and may not give any. The account ``default`` is
    everybody's; a run may not name another one, unless it is for runs.

    Raises:
        InvalidInput: there are inline manifests of rights.
        RightMissing: the account may not use what the run needs, or the run may not name the account.
    """
    if not catalog.rights:
        return catalog
    if inline := [manifest.id for manifest in catalog.rights if catalog.is_inline(manifest.id)]:
        raise InvalidInput(
            f"inline manifests can't define or change rights ({', '.join(inline)}): "
            "start the worker with these manifests"
        )
    account = AccountName.of(start)
    _check_named(start, account, catalog)
    protected = catalog.manifests
    if catalog.inline:
        protected = tuple(each for each in protected if own.by_id(each.id) == each)
    _check_access(catalog, account, uses(catalog.manifests, protected))
    return catalog.with_account(str(account))


def _check_named(start: Manifest, account: AccountName, catalog: Catalog) -> None:
    """Raises RightMissing if an inline query names an account that is not for such queries."""
    if account.name == DEFAULT_ACCOUNT or not catalog.is_inline(start.id):
        return
    found = catalog.get("ServiceAccount", account.namespace, account.name)
    if found is None or found.metadata.annotations.get(ALLOW_INLINE) != "true":
        raise RightMissing(
            f"{start.id}: spec.serviceAccount: an inline query can't use the ServiceAccount "
            f"{account}: start a Query of the worker, or give its ServiceAccount the annotation {ALLOW_INLINE}: 'true'"
        )


def _check_access(catalog: Catalog, account: AccountName, needed: Iterable[Use]) -> None:
    """Raises RightMissing unless the account may use all that is needed."""
    if lacking := [use for use in dict.fromkeys(needed) if not may(catalog, account, use)]:
        raise RightMissing(missing_rights(account, lacking))


def check_secret(catalog: Catalog, owner: Manifest, name: str) -> None:
    """Raises RightMissing unless the run may read a Secret in the namespace of ``owner``, which needs it."""
    if catalog.account and name != owner.own_secret:
        namespace, account = catalog.account.split("/")
        _check_access(catalog, AccountName(namespace, account), [Use.of_secret(owner.namespace, name)])


Owner = Query | Agent | Tool
"""The kinds of manifest that have parameters."""


@dataclass(frozen=True)
class ValueResolver:
    """The values of one run: from its pinned catalog, and from the secrets that the worker has.

    ``of_run`` are the Secrets in the run's files, and ``shared`` the transcripts of panels that share theirs, as texts;
    both are read beforehand. ``agent`` is the one for whom models and servers are asked, if it is one with a manifest.
    """

    catalog: Catalog
    secrets: SecretStore
    of_run: RunSecrets = field(default_factory=RunSecrets)
    shared: Mapping[ContributionsRef, str] = field(default_factory=dict)
    agent: Agent | None = None

    @classmethod
    async def of(cls, journal: Journal, thread: Thread, secrets: SecretStore) -> "ValueResolver":
        """The resolver for an activity of the run at ``thread``."""
        catalog = await journal.catalog(thread.catalog)
        session = thread.session(workflow_id())
        return await cls.of_catalog(journal, catalog, secrets, session)

    @classmethod
    async def of_catalog(
        cls, journal: Journal, catalog: Catalog, secrets: SecretStore, session: str
    ) -> "ValueResolver":
        """The resolver for a run with that catalog; ``session`` is its own, for contributions that name none."""
        shared = {}
        for each in catalog.contribution_refs:
            rows = await journal.read_bookmark(each.session or session, each.key)
            shared[each] = format_transcript(contributions_in(row.message for row in rows))
        key = catalog.made_from or catalog.sha
        return cls(catalog, secrets, await secrets.of_run(key) if catalog.uses_secrets else RunSecrets(), shared)

    def used_by(self, manifest: object) -> "ValueResolver":
        """The same for what an agent uses; any other manifest is no agent."""
        return replace(self, agent=manifest if isinstance(manifest, Agent) else None)

    async def with_current_secrets(self) -> "ValueResolver":
        """The same with the Secrets in the run's files as they are now."""
        return replace(self, of_run=await self.secrets.of_run(self.catalog.made_from or self.catalog.sha))

    def resolve(self, source: ValueSource | None, owner: Manifest) -> str | None:
        """The value of a source in ``owner``; None without a source, and where an optional key is missing.

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
        raise UnknownResource(f"{owner.id} takes a value from a source that no run can read")

    def parameter_lookup(self, *owners: Owner) -> Callable[[str], str]:
        """A function from a parameter's name to its value; of several owners the first that has the name counts."""
        known = {name: (each, owner) for owner in reversed(owners) for name, each in _parameters(owner).items()}

        def value(name: str) -> str:
            try:
                check_names(f"{{{{{name}}}}}", known)
            except TemplateError as error:
                raise InvalidManifest(f"{owners[0].id}: {error}") from None
            source, owner = known[name]
            return self.resolve(source, owner) or ""

        return value

    def prompt(self, agent: Agent) -> str | None:
        """An agent's prompt with its parameters filled in; the prompt of an agent without any is no template."""
        prompt = agent.spec.prompt
        return fill(prompt, self.parameter_lookup(agent)) if prompt and agent.spec.parameters else prompt

    def question(self, query: Query) -> Message:
        """A query's input with its parameters filled in, except secret ones: those become placeholders."""
        secret = {each.name for each in query.spec.parameters if each.value_from and each.value_from.secret_key_ref}
        if not query.spec.parameters:
            return Message(role="user", content=query.spec.input)
        value = self.parameter_lookup(query)
        text = ""
        placeholders: list[SecretPlaceholder] = []
        for piece in parse_template(query.spec.input):
            shown = piece.text
            if piece.name in secret:
                shown = f"[{piece.name}]"
                placeholders.append(SecretPlaceholder(at=len(text), length=len(shown), name=piece.name))
            elif piece.name:
                shown = value(piece.name)
            text += shown
        return Message(role="user", content=text, blanks=tuple(placeholders)).without_defaults

    def with_secrets(self, message: Message) -> Message:
        """A message with its placeholders replaced by the secrets: for a model or a tool, never to be stored."""
        content = message.content
        for each in reversed(message.blanks):
            content = content[: each.at] + (self._query_parameter(each.name) or "") + content[each.at + each.length :]
        return message.without_placeholders.with_content(content) if message.blanks else message

    def message_of(self, row: Row, question: Row) -> Message:
        """The message of a row, as ``with_secrets``; before the ``question`` they are secrets of other queries."""
        return self.with_secrets(row.message) if row.depth >= question.depth else row.message.without_placeholders

    def query(self) -> Query | None:
        """The query of the run; None where a team or an agent was started directly."""
        return next((each for each in self.catalog.manifests if isinstance(each, Query)), None)

    def _query_parameter(self, name: str) -> str | None:
        query = self.query()
        parameters = _parameters(query) if query else {}
        if query is None or name not in parameters:
            raise UnknownResource(f"the run has no query parameter '{name}'")
        return self.resolve(parameters[name], query)

    def is_guarded(self, owner: Manifest) -> bool:
        """Whether a manifest may name no server in the worker's own network, because it is an inline manifest."""
        return self.catalog.is_inline(owner.id) and not self.secrets.allows_private_hosts

    def _secret(self, ref: KeyRef, owner: Manifest, source: ValueSource) -> str | None:
        check_secret(self.catalog, owner, ref.name)
        if self.catalog.is_inline(owner.id):
            self._check_use(ref, owner, source)
        try:
            return self.secrets.read(self.of_run, owner.namespace, ref)
        except KeyMissing as missing:
            if ref.optional and missing.non_retryable:  # retryable: a file that may hold it can't be read at the moment
                return None
            raise

    def _check_use(self, ref: KeyRef, owner: Manifest, source: ValueSource) -> None:
        """Raises KeyMissing unless the worker's Secret says that it may be sent to the host of an inline manifest."""
        address = address_of(owner)
        hosts = self.secrets.hosts_for_inline(owner.namespace, ref.name)
        host = address and address is not source and not _is_secret(address) and self.resolve(address, owner)
        host = host and fixed_host(host)
        if host and any(fnmatchcase(host, each) for each in hosts):
            return
        field = next((dotted_path(path) for path, each in sources(owner) if each is source), "spec")
        allowed = f"allows {', '.join(hosts)}" if hosts else "does not allow that"
        raise KeyMissing(
            f"{owner.id}: {field}: an inline manifest may not use the Secret '{owner.namespace}/{ref.name}': "
            f"a worker's Secrets serve its own manifests, and the Secret's annotation {ALLOW_INLINE} {allowed}"
            + (f", not {host or 'an address without a fixed host'}" if hosts else "")
        )

    def _config_map(self, ref: KeyRef, owner: Manifest) -> str | None:
        found = self.catalog.get("ConfigMap", owner.namespace, ref.name)
        value = found.data.get(ref.key) if isinstance(found, ConfigMap) else None
        if value is None and not ref.optional:
            raise UnknownResource(
                f"{owner.id} needs the key '{ref.key}' of the ConfigMap '{ref.name}', which isn't there"
            )
        return value


def _is_secret(source: ValueSource) -> bool:
    return bool(source.value_from and source.value_from.secret_key_ref)


def _parameters(owner: Owner) -> dict[str, Parameter]:
    return {parameter.name: parameter for parameter in owner.parameters}


Pairs = tuple[tuple[str, str], ...]


def headers_of(manifest: Manifest, given: Headers, values: ValueResolver) -> Pairs:
    """The headers of requests to what a manifest describes, whose own are ``given``; each name once, whatever its case.

    Those of the agent that uses it (``values.agent``) come before its own, and those of the query before both (ARK:
    queries, overrides). One whose optional key is missing is left out. Raises what ``ValueResolver.resolve`` raises.
    """
    found = {each.name.lower(): (each.name, values.resolve(each.value, manifest)) for each in given}
    for owner, override in _overrides(values, manifest):
        if override.is_for(manifest):
            for each in override.headers:
                found[each.name.lower()] = each.name, values.resolve(each.value, owner)
    return tuple((name, value.strip()) for name, value in found.values() if value is not None)


def _overrides(values: ValueResolver, manifest: Manifest) -> Iterator[tuple[Agent | Query, Override]]:
    """The overrides that count, the strongest last: those of the worker's own are not for inline manifests."""
    is_inline = values.catalog.is_inline
    for owner in (values.agent, values.query()):
        if owner and (is_inline(owner.id) or not is_inline(manifest.id)):
            yield from ((owner, each) for each in owner.spec.overrides)


def check_overrides(catalog: Catalog) -> None:
    """Raises InvalidInput if inline manifests set headers for a manifest of the worker that does not allow them."""
    for owner in catalog.manifests:
        overrides = owner.spec.overrides if isinstance(owner, Query | Agent) and catalog.is_inline(owner.id) else ()
        for each in overrides:
            for target in catalog.manifests:
                if each.is_for(target) and not catalog.is_inline(target.id):
                    _check(owner, each, target)


def _check(owner: Manifest, override: Override, target: Manifest) -> None:
    given = target.metadata.annotations.get(ALLOW_INLINE, "")
    allowed = [name.strip().lower() for name in given.split(",")]
    refused = [h.name for h in override.headers if not any(fnmatchcase(h.name.lower(), each) for each in allowed)]
    if refused:
        raise InvalidInput(
            f"{owner.id}: spec.overrides: it is inline, so it may not send {', '.join(refused)} to "
            f"{target.id} of the worker, whose annotation {ALLOW_INLINE} would have to name these headers"
        )


HEADING = f"# Skills\nBefore a task that a skill is for, read the skill with the tool {LOAD_SKILL}."


def skills_of(agent: Agent, catalog: Catalog) -> dict[str, Skill]:
    """Its skills, by their names, in the order of its manifest."""
    found = (find(catalog, each) for each in agent.references if each.kinds == ("Skill",))
    return {each.name: each for each in found if isinstance(each, Skill)}


def speaker_prompt(agent: Agent, values: ValueResolver) -> str | None:
    """An agent's prompt, with the names and descriptions of its skills."""
    prompt = values.prompt(agent)
    skills = skills_of(agent, values.catalog)
    if not skills:
        return prompt
    listed = "\n".join(f"- {name}: {each.spec.description}" for name, each in skills.items())
    return "\n\n".join(each for each in (prompt, f"{HEADING}\n{listed}") if each)
