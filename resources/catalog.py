"""The catalog: a set of manifests with lookup by kind, namespace and name, identified by its SHA-256."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Set
from functools import cached_property
from typing import Annotated, Any, NamedTuple, Self, get_args

from pydantic import Field

from .a2a_server import A2AServer
from .agent import BUILT_INS, Agent
from .ark_config import ArkConfig
from .base import API_VERSION, JsonModel, Path, Reference
from .config_map import ConfigMap
from .evaluation import Evaluation, Evaluator, GoldenDataset
from .execution_engine import ExecutionEngine
from .manifest import Metadata
from .mcp_server import MCPServer
from .memory import Memory
from .model import Model
from .panel import Capability
from .query import TARGETS, Query
from .quota import Quota
from .role import RIGHTS, ClusterRole, ClusterRoleBinding, Role, RoleBinding, ServiceAccount
from .schedule import Schedule
from .skill import Skill
from .team import Team
from .tool import Tool, ToolSpec
from .values import ContributionsRef, sources


def built_in_tool(namespace: str, name: str) -> Tool | None:
    """The Tool of that name, if it is built in."""
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
    | ClusterRole
    | ClusterRoleBinding
    | Schedule
    | Quota
    | Evaluator
    | Evaluation
    | GoldenDataset
)
KINDS: dict[str, type[Resource]] = {kind.__name__: kind for kind in get_args(Resource)}
_SELECTOR: Path = ("spec", "selector")


class Missing(NamedTuple):
    """A reference to a resource that does not exist."""

    owner: Resource
    reference: Reference


class Catalog(JsonModel):
    """A set of manifests. It contains references to Secrets, but never Secrets."""

    manifests: tuple[Annotated[Resource, Field(discriminator="kind")], ...] = ()

    @property
    def summary(self) -> str:
        """The number of manifests by kind, as a text for people."""
        counts = Counter(manifest.kind for manifest in self.manifests)
        return ", ".join(f"{count} {kind}{'s' * (count > 1)}" for kind, count in counts.items()) or "no manifests"

    @cached_property
    def _by_id(self) -> dict[str, Resource]:
        return {manifest.id: manifest for manifest in self.manifests}

    def get(self, kind: str, namespace: str, name: str) -> Resource | None:
        """The manifest of that kind, namespace and name; a built-in tool needs none."""
        return self.by_id(f"{kind}/{namespace}/{name}") or (built_in_tool(namespace, name) if kind == "Tool" else None)

    def by_id(self, manifest_id: str) -> Resource | None:
        """The manifest with that id, ``Kind/namespace/name``."""
        return self._by_id.get(manifest_id)

    def find(self, reference: Reference) -> Resource | None:
        """The resource of a reference: the first of its kinds that exists.

        A Tool without a manifest may be a tool of an MCPServer, or stand for all of its tools: then it is that server.
        """
        candidates = (self.get(kind, reference.namespace, reference.name) for kind in reference.kinds)
        manifest = next((manifest for manifest in candidates if manifest), None)
        return self._provider_of(reference) if manifest is None and "Tool" in reference.kinds else manifest

    def _provider_of(self, reference: Reference) -> MCPServer | Tool | None:
        """The MCPServer, or the Tool of an OpenAPI document, whose name is the longest prefix of a tool's name."""
        name = f"{reference.name}-"
        candidates = (m for m in self.manifests if m.namespace == reference.namespace and name.startswith(f"{m.name}-"))
        providers = (m for m in candidates if isinstance(m, MCPServer) or (isinstance(m, Tool) and m.spec.openapi))
        return max(providers, key=lambda m: len(m.name), default=None)

    def targets(self, query: Query) -> tuple[Reference, ...]:
        """The targets of a query without duplicates: first the named ones, then those of its selector, sorted."""
        named_targets = tuple(query.targets())
        known = {target.id for reference in named_targets if (target := self.find(reference))}
        selected = self._selected(query, known)
        return (*named_targets, *(Reference(_SELECTOR, (m.kind,), m.namespace, m.name) for m in selected))

    def _selected(self, query: Query, known: Set[str]) -> list[Resource]:
        labels = query.spec.selector
        unselected = (
            m for m in self.manifests if m.kind in TARGETS and m.namespace == query.namespace and m.id not in known
        )
        matching = (m for m in unselected if labels and labels.matches(m.metadata.labels))
        return sorted(matching, key=lambda manifest: ([*TARGETS].index(manifest.kind), manifest.name))

    def overlaid_on(self, other: "Catalog") -> "Catalog":
        """Both catalogs as one; if both have a resource, this catalog's is used."""
        return Catalog(manifests=tuple((other._by_id | self._by_id).values()))

    def needed_by(self, start: Resource) -> tuple["Catalog", tuple[Missing, ...]]:
        """``start``, all resources that it depends on, and all rights; and its unresolved references."""
        reached: dict[str, Resource] = {}
        missing: list[Missing] = []
        waiting = [start, *self.rights]
        while waiting:
            manifest = waiting.pop()
            if manifest.id in reached:
                continue
            reached[manifest.id] = manifest
            selected = self.targets(manifest) if isinstance(manifest, Query) else ()
            for reference in dict.fromkeys((*manifest.references, *selected)):
                if target := self.find(reference):
                    waiting.append(target)
                elif not reference.optional:
                    missing.append(Missing(manifest, reference))
        return Catalog(manifests=tuple(reached[key] for key in sorted(reached))), tuple(missing)

    @cached_property
    def contribution_refs(self) -> tuple[ContributionsRef, ...]:
        """The references to contributions of panels in its values, without duplicates."""
        places = (source.value_from for manifest in self.manifests for _, source in sources(manifest))
        return tuple(dict.fromkeys(place.contributions_ref for place in places if place and place.contributions_ref))

    @property
    def has_contributions(self) -> bool:
        """Whether any of its panels shares its contributions, or any of its values is from one that does."""
        teams = (manifest for manifest in self.manifests if isinstance(manifest, Team))
        return bool(self.contribution_refs) or any(team.spec.contributions for team in teams)

    @cached_property
    def uses_secrets(self) -> bool:
        """Whether any of its values comes from a Secret."""
        return any("Secret" in reference.kinds for manifest in self.manifests for reference in manifest.references)

    @property
    def rights(self) -> tuple[Resource, ...]:
        """Its ServiceAccounts, Roles, ClusterRoles, and their bindings."""
        return tuple(manifest for manifest in self.manifests if isinstance(manifest, RIGHTS))

    @property
    def has_budgets(self) -> bool:
        """Whether any of its manifests has a budget."""
        return any(manifest.budget for manifest in self.manifests)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Not supported: a copy would keep the cached properties, and thus the identity of the other catalog."""
        raise TypeError("a catalog cannot be copied: create one, or derive it with a method of RunCatalog")

    def prepared(self) -> Self:
        """The same catalog with its cached properties computed; may take seconds, so call it in a thread."""
        _ = self.sha, self.uses_secrets, self.contribution_refs
        return self

    @cached_property
    def canonical(self) -> str:
        """Canonical JSON: equal for equal manifests. Keys of a JSON Schema keep their order, which models read."""
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
