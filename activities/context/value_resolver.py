"""Resolves the values that manifests name, at the time of use: parameters, ConfigMaps, Secrets, shared transcripts."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from ...conversation.errors import InvalidManifest, KeyMissing, UnknownResource
from ...conversation.messages.message import Message, SecretPlaceholder
from ...conversation.messages.panel import contributions_in, format_transcript
from ...conversation.messages.turn import Thread
from ...resources.agent import Agent
from ...resources.catalog import Catalog
from ...resources.config_map import ConfigMap
from ...resources.manifest import Manifest
from ...resources.override import ALLOW_BROUGHT
from ...resources.problems import dotted_path
from ...resources.query import Query
from ...resources.template import TemplateError, check_names, fill, parse_template
from ...resources.tool import Tool
from ...resources.values import ContributionsRef, KeyRef, Parameter, ValueSource, sources
from ..journal.journal import Journal
from ..journal.row import Row
from ..process.secrets import RunSecrets, SecretStore
from ..runtime.ids import workflow_id
from .destination import address_of, fixed_host
from .rights import check_secret

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
        catalog, session = await journal.catalog(thread.catalog), thread.session(workflow_id())
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
        value, text, placeholders = self.parameter_lookup(query), "", list[SecretPlaceholder]()
        for piece in parse_template(query.spec.input) if query.spec.parameters else ():
            shown = piece.text
            if piece.name in secret:
                shown = f"[{piece.name}]"
                placeholders.append(SecretPlaceholder(at=len(text), length=len(shown), name=piece.name))
            elif piece.name:
                shown = value(piece.name)
            text += shown
        message = Message(role="user", content=text if query.spec.parameters else query.spec.input)
        return message.model_copy(update={"blanks": tuple(placeholders)}) if placeholders else message

    def with_secrets(self, message: Message) -> Message:
        """A message with its placeholders replaced by the secrets: for a model or a tool, never to be stored."""
        content = message.content
        for each in reversed(message.blanks):
            content = content[: each.at] + (self._query_parameter(each.name) or "") + content[each.at + each.length :]
        return message.model_copy(update={"content": content, "blanks": ()}) if message.blanks else message

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
        """Whether a manifest may name no server in the worker's own network, because a run has brought it."""
        return self.catalog.is_brought(owner.id) and not self.secrets.allows_private_hosts

    def _secret(self, ref: KeyRef, owner: Manifest, source: ValueSource) -> str | None:
        check_secret(self.catalog, owner, ref.name)
        if self.catalog.is_brought(owner.id):
            self._check_use(ref, owner, source)
        try:
            return self.secrets.read(self.of_run, owner.namespace, ref)
        except KeyMissing as missing:
            if ref.optional and missing.non_retryable:  # retryable: a file that may hold it can't be read at the moment
                return None
            raise

    def _check_use(self, ref: KeyRef, owner: Manifest, source: ValueSource) -> None:
        """Raises KeyMissing unless the worker's Secret says that it may be sent to the host of a brought manifest."""
        address = address_of(owner)
        hosts = self.secrets.hosts_for_brought(owner.namespace, ref.name)
        host = address and address is not source and not _is_secret(address) and self.resolve(address, owner)
        host = host and fixed_host(host)
        if host and any(fnmatchcase(host, each) for each in hosts):
            return
        field = next((dotted_path(path) for path, each in sources(owner.parts) if each is source), "spec")
        allowed = f"allows {', '.join(hosts)}" if hosts else "does not allow that"
        raise KeyMissing(
            f"{owner.id}: {field}: a run has brought it, and it may not use the Secret '{owner.namespace}/{ref.name}': "
            f"a worker's Secrets serve its own manifests, and the Secret's annotation {ALLOW_BROUGHT} {allowed}"
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
