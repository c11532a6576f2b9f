"""The catalog: a set of manifests, with lookup by kind, namespace and name, and a SHA-256 as its version."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Set
from functools import cached_property
from typing import Annotated, NamedTuple, get_args

from pydantic import Field

from .a2a_server import A2AServer
from .agent import BUILT_INS, Agent
from .ark_config import ArkConfig
from .base import API_VERSION, JsonModel, Path, Reference
from .config_map import ConfigMap
from .execution_engine import ExecutionEngine
from .manifest import Metadata
from .mcp_server import MCPServer
from .memory import Memory
from .model import Model
from .panel import Capability
from .query import TARGETS, Query
from .role import RIGHTS, Role, RoleBinding, ServiceAccount
from .schedule import Schedule
from .skill import Skill
from .team import Team
from .tool import Tool, ToolSpec
from .values import ContributionsRef, sources


def built_in_tool(namespace: str, name: str) -> Tool | None:
    """The Tool of that name if it is built in."""
    if name not in BUILT_INS:
        return None
    metadata = Metadata(name=name, namespace=namespace)
    return Tool(api_version=API_VERSION, kind="Tool", metadata=metadata, spec=ToolSpec(type="built-in"))


Resource = (
    Query
    | Team
    | Agent
    | Model
    | Tool
    | ConfigMap
    | Memory
    | MCPServer
    | A2AServer
    | ExecutionEngine
    | Capability
    | Skill
    | ArkConfig
    | ServiceAccount
    | Role
    | RoleBinding
    | Schedule
)
KINDS: dict[str, type[Resource]] = {each.__name__: each for each in get_args(Resource)}
_SELECTOR: Path = ("spec", "selector")


class Missing(NamedTuple):
    """A reference to a resource that does not exist."""

    owner: Resource
    reference: Reference


class Catalog(JsonModel):
    """A set of manifests. It has references to Secrets, but never a Secret."""

    manifests: tuple[Annotated[Resource, Field(discriminator="kind")], ...] = ()
    made_from: str | None = None
    """The SHA-256 of the catalog as its client knows it, if this is that one with the tools of its MCP servers."""
    inline: tuple[str, ...] = ()
    """The ids of the inline manifests: those that came with the run, and that its worker does not trust as its own."""
    account: str | None = None
    """The namespace and name of the ServiceAccount whose rights the run has, if there are rights."""
    notices: tuple[str, ...] = ()
    """What the run continues without, as sentences."""

    @property
    def summary(self) -> str:
        """How many manifests of each kind there are, as a text for people."""
        counts = Counter(each.kind for each in self.manifests)
        return ", ".join(f"{count} {kind}{'s' * (count > 1)}" for kind, count in counts.items()) or "no manifests"

    @cached_property
    def _by_id(self) -> dict[str, Resource]:
        return {manifest.id: manifest for manifest in self.manifests}

    def get(self, kind: str, namespace: str, name: str) -> Resource | None:
        """The manifest of that kind, namespace and name; a built-in tool needs none."""
        return self.by_id(f"{kind}/{namespace}/{name}") or (built_in_tool(namespace, name) if kind == "Tool" else None)

    def by_id(self, manifest_id: str) -> Resource | None:
        """The manifest of that id, ``Kind/namespace/name``."""
        return self._by_id.get(manifest_id)

    def find(self, reference: Reference) -> Resource | None:
        """The resource of a reference: the first of its kinds that exists.

        A Tool without a manifest may be one of an MCPServer, or all of them: then it is found there.
        """
        found = (self.get(kind, reference.namespace, reference.name) for kind in reference.kinds)
        here = next((manifest for manifest in found if manifest), None)
        return self._provider_of(reference) if here is None and "Tool" in reference.kinds else here

    def _provider_of(self, reference: Reference) -> MCPServer | Tool | None:
        """The MCPServer, or the Tool of an OpenAPI document, with the longest name that a tool's name begins with."""
        begun = f"{reference.name}-"
        here = (m for m in self.manifests if m.namespace == reference.namespace and begun.startswith(f"{m.name}-"))
        fits = (m for m in here if isinstance(m, MCPServer) or (isinstance(m, Tool) and m.spec.openapi))
        return max(fits, key=lambda m: len(m.name), default=None)

    def targets(self, query: Query) -> tuple[Reference, ...]:
        """The targets of a query: first those it names, then those of its selector, by kind and name, each once."""
        named = tuple(query.targets())
        known = {found.id for each in named if (found := self.find(each))}
        return (*named, *(Reference(_SELECTOR, (m.kind,), m.namespace, m.name) for m in self._found(query, known)))

    def _found(self, query: Query, known: Set[str]) -> list[Resource]:
        labels = query.spec.selector
        fits = (m for m in self.manifests if m.kind in TARGETS and m.namespace == query.namespace and m.id not in known)
        found = (m for m in fits if labels and labels.matches(m.metadata.labels))
        return sorted(found, key=lambda manifest: ([*TARGETS].index(manifest.kind), manifest.name))

    @cached_property
    def _inline(self) -> frozenset[str]:
        return frozenset(self.inline)

    def is_inline(self, manifest_id: str) -> bool:
        """Whether a manifest is inline: it came with the run, and the worker does not trust it as its own."""
        return manifest_id in self._inline

    def non_worker_manifest_ids(self, own: "Catalog") -> tuple[str, ...]:
        """The ids of the manifests that differ from those of a worker's ``own`` catalog, and of all that need them."""
        users: dict[str, list[str]] = {}
        for manifest in self.manifests:
            selected = self.targets(manifest) if isinstance(manifest, Query) else ()
            for reference in (*manifest.references, *selected):
                if needed := self.find(reference):
                    users.setdefault(needed.id, []).append(manifest.id)
        waiting = [manifest.id for manifest in self.manifests if own.by_id(manifest.id) != manifest]
        reached = set[str]()
        while waiting:
            manifest_id = waiting.pop()
            if manifest_id not in reached:
                reached.add(manifest_id)
                waiting.extend(users.get(manifest_id, ()))
        return tuple(sorted(reached))

    def with_manifests(
        self, manifests: Iterable[Resource], *, inline: Iterable[str] = (), made_from: str | None = None
    ) -> "Catalog":
        """The catalog of the same run with other manifests, of which those with the ids ``inline`` are inline, too.

        Clients know it as ``made_from``, by default as they know this one.
        """
        return Catalog(
            manifests=_sorted(manifests),
            made_from=made_from or self.made_from or self.sha,
            inline=tuple(sorted({*self.inline, *inline})),
            account=self.account,
            notices=self.notices,
        ).without_defaults

    def with_notices(self, notices: Iterable[str]) -> "Catalog":
        """The catalog of the same run that continues without more."""
        return self.model_copy(update={"notices": (*self.notices, *notices)})

    def with_account(self, account: str) -> "Catalog":
        """The catalog of the same run with the rights of a ServiceAccount, written as NAMESPACE/NAME."""
        return Catalog(
            manifests=self.manifests,
            made_from=self.made_from or self.sha,
            inline=self.inline,
            account=account,
            notices=self.notices,
        ).without_defaults

    def overlaid_on(self, other: "Catalog") -> "Catalog":
        """Both catalogs as one; if both have a resource, this catalog's is used."""
        return Catalog(manifests=tuple((other._by_id | self._by_id).values()))

    def needed_by(self, start: Resource) -> tuple["Catalog", tuple[Missing, ...]]:
        """``start``, all resources that it needs, and all rights; and the references that lead to nothing."""
        reached: dict[str, Resource] = {}
        missing: list[Missing] = []
        waiting = [start, *self.rights]
        while waiting:
            manifest = waiting.pop()
            if manifest.id in reached:
                continue
            reached[manifest.id] = manifest
            selected = self.targets(manifest) if isinstance(manifest, Query) else ()
            for reference in (*manifest.references, *selected):
                if found := self.find(reference):
                    waiting.append(found)
                elif not reference.optional:
                    missing.append(Missing(manifest, reference))
        return Catalog(manifests=tuple(reached[key] for key in sorted(reached))), tuple(missing)

    @cached_property
    def contribution_refs(self) -> tuple[ContributionsRef, ...]:
        """The references to contributions of panels in its values, each once."""
        places = (source.value_from for manifest in self.manifests for _, source in sources(manifest))
        return tuple(dict.fromkeys(each.contributions_ref for each in places if each and each.contributions_ref))

    @cached_property
    def uses_secrets(self) -> bool:
        """Whether any of its values comes from a Secret."""
        return any("Secret" in each.kinds for manifest in self.manifests for each in manifest.references)

    @property
    def rights(self) -> tuple[Resource, ...]:
        """Its ServiceAccounts, Roles and RoleBindings."""
        return tuple(each for each in self.manifests if isinstance(each, RIGHTS))

    @property
    def has_budgets(self) -> bool:
        """Whether any of its manifests has a budget."""
        return any(each.budget for each in self.manifests)

    def prepared(self) -> "Catalog":
        """The same catalog with its cached properties computed; may take seconds, so call it in a thread."""
        _ = self.sha, self.uses_secrets, self.contribution_refs
        return self

    @cached_property
    def canonical(self) -> str:
        """Canonical JSON: the same for the same manifests, but keys of a JSON Schema stay in a model's order."""
        data = self.model_dump(mode="json", exclude_unset=True)
        return json.dumps(data, separators=(",", ":"), ensure_ascii=False)

    @cached_property
    def sha(self) -> str:
        """SHA-256 of the canonical JSON, 64 hexadecimal digits."""
        return hashlib.sha256(self.canonical.encode()).hexdigest()


def catalog_of(manifests: Iterable[Resource]) -> Catalog:
    """A catalog, sorted by the ids of its resources."""
    return Catalog(manifests=_sorted(manifests))


def _sorted(manifests: Iterable[Resource]) -> tuple[Resource, ...]:
    return tuple(sorted(manifests, key=lambda manifest: manifest.id))
