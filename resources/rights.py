"""The rights of a run: what its ServiceAccount may use, and the manifests that would grant missing rights."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, get_args

import yaml
from pydantic import JsonValue

from .ark_config import ArkConfig
from .base import JsonObject
from .catalog import Catalog
from .manifest import Manifest
from .query import ALLOW_INLINE, Query
from .role import GRANTING, RBAC, RBAC_GROUP, RIGHTS, WRITING, Binding, ClusterRole, ClusterRoleBinding, Role
from .validation import Violation

NO_NAMESPACE = "default"
"""The namespace of manifests that have none in Kubernetes."""

DEFAULT_ACCOUNT = "default"
"""The ServiceAccount of a run that names none (ARK: queries, service account)."""


class AccountName(NamedTuple):
    """A ServiceAccount: its namespace and its name."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @classmethod
    def of(cls, start: Manifest) -> "AccountName":
        """The account of a run that begins with that manifest."""
        account = start.spec.service_account if isinstance(start, Query) else None
        if account is None:
            return cls(start.namespace, DEFAULT_ACCOUNT)
        return cls(account.namespace or start.namespace, account.name)


class Use(NamedTuple):
    """The use of one resource: its API group, its kind in the plural, its namespace and its name."""

    group: str
    resource: str
    namespace: str
    name: str

    @classmethod
    def of(cls, manifest: Manifest) -> "Use":
        """The use of a manifest."""
        group = manifest.api_version.rpartition("/")[0]
        return cls(group, _plural(manifest.kind), manifest.namespace, manifest.name)

    @classmethod
    def of_kind(cls, kind: type[Manifest], namespace: str, name: str) -> "Use":
        """The use of a manifest of a kind, which need not exist."""
        (version,) = get_args(kind.model_fields["api_version"].annotation)
        return cls(version.rpartition("/")[0], _plural(kind.__name__), namespace, name)

    @classmethod
    def of_secret(cls, namespace: str, name: str) -> "Use":
        """The use of a Secret."""
        return cls("", "secrets", namespace, name)

    @property
    def is_secret(self) -> bool:
        """Whether it is the use of a Secret."""
        return (self.group, self.resource) == ("", "secrets")

    @property
    def verb(self) -> str:
        """The verb in messages; in a rule both verbs mean the same."""
        return "use" if self.group else "get"

    @property
    def rule(self) -> JsonObject:
        """The rule that would allow it."""
        of_kind: JsonObject = {"apiGroups": [self.group], "resources": [self.resource]}
        return {**of_kind, "verbs": [self.verb], "resourceNames": [self.name]}


def _plural(kind: str) -> str:
    lower = kind.lower()
    return f"{lower[:-1]}ies" if lower.endswith("y") else f"{lower}s"


def has_rights(catalog: Catalog, namespace: str) -> bool:
    """Whether there are rights in a namespace: without any, everything may be used.

    A ClusterRoleBinding counts in each namespace; a ClusterRole alone, in none.
    """
    return any(
        isinstance(right, ClusterRoleBinding) or (right.namespace == namespace and not isinstance(right, ClusterRole))
        for right in catalog.rights
    )


def may(catalog: Catalog, account: AccountName, use: Use) -> bool:
    """Whether the rights in a catalog permit an account to use a resource."""
    return not has_rights(catalog, use.namespace) or _is_granted(catalog, account, use, GRANTING)


def may_be_named(catalog: Catalog, account: AccountName) -> bool:
    """Whether an inline query, such as each of a gateway, may name an account: its annotation has to allow that."""
    if account.name == DEFAULT_ACCOUNT or not catalog.rights:
        return True
    service_account = catalog.get("ServiceAccount", account.namespace, account.name)
    return service_account is not None and service_account.metadata.annotations.get(ALLOW_INLINE) == "true"


def may_write(catalog: Catalog, account: AccountName, use: Use) -> bool:
    """Whether the rights in a catalog permit an account to create or change a resource.

    Without rights nobody may. ``*`` does not count: it was written for the use of resources.
    """
    return _is_granted(catalog, account, use, WRITING)


def _is_granted(catalog: Catalog, account: AccountName, use: Use, verbs: frozenset[str]) -> bool:
    roles = (_role(catalog, binding) for binding in _bindings(catalog, account, use))
    rules = (rule for role in roles if isinstance(role, Role | ClusterRole) for rule in role.rules)
    return any(rule.grants(use.group, use.resource, use.name, verbs) for rule in rules)


def _role(catalog: Catalog, binding: Binding) -> Manifest | None:
    """The Role of a binding: of its own namespace, or a ClusterRole."""
    kind = binding.role_ref.kind
    return catalog.get(kind, binding.namespace if kind == "Role" else NO_NAMESPACE, binding.role_ref.name)


def _bindings(catalog: Catalog, account: AccountName, use: Use) -> Iterator[Binding]:
    for right in catalog.rights:
        applies = isinstance(right, ClusterRoleBinding) or right.namespace == use.namespace
        if isinstance(right, Binding) and applies and account in right.accounts():
            yield right


def uses(manifests: Iterable[Manifest], protected: Iterable[Manifest]) -> Iterator[Use]:
    """The resources that a run with these manifests uses: the protected ones, and all Secrets that any of them reads.

    A literal key belongs to its manifest: an account that may use the manifest may use the key.
    """
    for manifest in protected:
        if not isinstance(manifest, (Query, ArkConfig, *RIGHTS)):
            yield Use.of(manifest)
    for manifest in manifests:
        for reference in manifest.references:
            if "Secret" in reference.kinds and reference.name != manifest.own_secret:
                yield Use.of_secret(reference.namespace, reference.name)


def secret_words(namespace: str, name: str, reader: str | None) -> str:
    """A Secret in an error that accounts of the namespace ``reader`` read: those of others don't learn its name.

    Without rights (None) no namespace is apart from others.
    """
    return f"'{namespace}/{name}'" if reader in (None, namespace) else f"of the namespace '{namespace}'"


def missing_rights(account: AccountName, lacking: Sequence[Use]) -> str:
    """The error text with the rights that an account lacks, and the manifests that would grant them, as YAML.

    Secrets of another namespace are not named.
    """
    hidden = [use for use in lacking if use.is_secret and use.namespace != account.namespace]
    needs = ", ".join(
        dict.fromkeys(
            f"{use.verb} {use.resource} {secret_words(use.namespace, use.name, account.namespace)}"
            if use.is_secret
            else f"{use.verb} {use.resource} '{use.namespace}/{use.name}'"
            for use in lacking
        )
    )
    shown = [use for use in lacking if use not in hidden]
    manifests = [
        manifest for place in sorted({use.namespace for use in shown}) for manifest in _grant(account, place, shown)
    ]
    if hidden:
        needs += ", which those who write Roles there can permit"
    if not manifests:
        return f"the ServiceAccount {account} may not {needs}"
    lines = (yaml.safe_dump(manifest, default_flow_style=True, sort_keys=False, width=10_000) for manifest in manifests)
    return (
        f"the ServiceAccount {account} may not {needs}: it lacks the rights. These manifests of the worker would grant "
        "them:\n" + "---\n".join(lines)
    ).rstrip()


def _grant(account: AccountName, namespace: str, lacking: Sequence[Use]) -> Iterator[JsonObject]:
    """The Role and the RoleBinding that would grant an account the missing rights in a namespace."""
    name = f"{account.name}-also"
    common: JsonObject = {"apiVersion": RBAC, "metadata": {"name": name, "namespace": namespace}}
    rules: list[JsonValue] = [use.rule for use in lacking if use.namespace == namespace]
    subject: JsonObject = {"kind": "ServiceAccount", "name": account.name, "namespace": account.namespace}
    yield {"kind": "Role", **common, "rules": rules}
    ref: JsonObject = {"apiGroup": RBAC_GROUP, "kind": "Role", "name": name}
    yield {"kind": "RoleBinding", **common, "roleRef": ref, "subjects": [subject]}


def accounts_without_rights(catalog: Catalog) -> Iterator[Violation]:
    """The queries that name a ServiceAccount, although there are no rights in their namespace."""
    for query in catalog.manifests:
        if isinstance(query, Query) and query.spec.service_account and not has_rights(catalog, query.namespace):
            text = "has no effect without a Role: unless the worker has Roles, the run may use everything"
            yield Violation(query, ("spec", "serviceAccount"), text)
