"""Which value stands behind a name? Read on the worker, at the moment of use, from where the manifest says."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ...conversation.errors import InvalidManifest, KeyMissing, UnknownResource
from ...conversation.messages.message import Blank, Message
from ...conversation.messages.panel import as_lines, contributed
from ...resources.agent import Agent
from ...resources.catalog import Catalog
from ...resources.config_map import ConfigMap
from ...resources.manifest import Manifest
from ...resources.query import Query
from ...resources.template import TemplateError, check_names, fill, pieces
from ...resources.tool import Tool
from ...resources.values import KeyRef, Parameter, Shared, ValueSource
from ..journal import Journal
from ..process.secrets import Vault
from ..runtime.ids import run_id

Owner = Query | Agent | Tool
"""Who can have parameters."""


@dataclass(frozen=True)
class Values:
    """The values of a run: those of its pinned catalog, and the secrets that the worker has for it.

    ``shared`` is what was said in panels that share it, read beforehand.
    """

    catalog: Catalog
    vault: Vault
    shared: Mapping[Shared, str] = field(default_factory=dict)

    @classmethod
    async def of(cls, journal: Journal, catalog: str | Catalog, vault: Vault) -> "Values":
        """The values for an activity of a run, whose catalog may be pinned under a SHA-256 already."""
        catalog = catalog if isinstance(catalog, Catalog) else await journal.catalog(catalog)
        shared = {}
        for each in catalog.shared:
            session = each.session or run_id()
            shared[each] = as_lines(contributed(row.message for row in await journal.bookmarked(session, each.key)))
        return cls(catalog, vault, shared)

    def text(self, source: ValueSource | None, owner: Manifest) -> str | None:
        """What a source gives; None if there is none, or its key is optional and missing.

        Raises:
            KeyMissing: the worker hasn't got the Secret.
            UnknownResource: there is no such ConfigMap, key or query parameter.
        """
        if source is None or source.value_from is None:
            return source.value if source else None
        if secret := source.value_from.secret_key_ref:
            return self._secret(secret, owner)
        if key := source.value_from.config_map_key_ref:
            return self._config(key, owner)
        if parameter := source.value_from.query_parameter_ref:
            return self._of_query(parameter.name)
        if shared := source.value_from.contributions_ref:
            return self.shared[shared]
        raise UnknownResource(f"{owner.id} takes a value from where no run can read it")

    def named(self, *owners: Owner) -> Callable[[str], str]:
        """Looks up a name among the parameters of several manifests, the first that has it."""
        known = {name: (each, owner) for owner in reversed(owners) for name, each in _parameters(owner).items()}

        def value(name: str) -> str:
            try:
                check_names(f"{{{{{name}}}}}", known)
            except TemplateError as error:
                raise InvalidManifest(f"{owners[0].id}: {error}") from None
            source, owner = known[name]
            return self.text(source, owner) or ""

        return value

    def prompt(self, agent: Agent) -> str | None:
        """An agent's prompt with its parameters filled in; without parameters it is no template."""
        prompt = agent.spec.prompt
        return fill(prompt, self.named(agent)) if prompt and agent.spec.parameters else prompt

    def question(self, query: Query) -> Message:
        """A query's input with its parameters filled in, but for secrets: for those it has blanks."""
        secret = {each.name for each in query.spec.parameters if each.value_from and each.value_from.secret_key_ref}
        value, text, blanks = self.named(query), "", list[Blank]()
        for piece in pieces(query.spec.input) if query.spec.parameters else ():
            shown = piece.text
            if piece.name in secret:
                shown = f"[{piece.name}]"
                blanks.append(Blank(at=len(text), length=len(shown), name=piece.name))
            elif piece.name:
                shown = value(piece.name)
            text += shown
        message = Message(role="user", content=text if query.spec.parameters else query.spec.input)
        return message.model_copy(update={"blanks": tuple(blanks)}) if blanks else message

    def whole(self, message: Message) -> Message:
        """A message with its blanks filled in."""
        content = message.content
        for blank in reversed(message.blanks):
            content = content[: blank.at] + (self._of_query(blank.name) or "") + content[blank.at + blank.length :]
        return message.model_copy(update={"content": content, "blanks": ()}) if message.blanks else message

    def query(self) -> Query | None:
        """The query of the run; none where a team or an agent was started by itself."""
        return next((each for each in self.catalog.manifests if isinstance(each, Query)), None)

    def _of_query(self, name: str) -> str | None:
        query = self.query()
        parameters = _parameters(query) if query else {}
        if query is None or name not in parameters:
            raise UnknownResource(f"the run has no query parameter '{name}'")
        return self.text(parameters[name], query)

    def _secret(self, ref: KeyRef, owner: Manifest) -> str | None:
        try:
            return self.vault.read(self.catalog.sha, owner.namespace, ref)
        except KeyMissing as missing:
            if ref.optional and missing.non_retryable:  # else a file can't be read just now
                return None
            raise

    def _config(self, ref: KeyRef, owner: Manifest) -> str | None:
        found = self.catalog.get("ConfigMap", owner.namespace, ref.name)
        value = found.data.get(ref.key) if isinstance(found, ConfigMap) else None
        if value is None and not ref.optional:
            raise UnknownResource(
                f"{owner.id} needs the key '{ref.key}' of the ConfigMap '{ref.name}', which isn't there"
            )
        return value


def _parameters(owner: Owner) -> dict[str, Parameter]:
    return {parameter.name: parameter for parameter in owner.parameters}
