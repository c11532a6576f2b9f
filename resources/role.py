"""Authorization of runs (ARK: queries, service account): ServiceAccounts, Roles and their bindings.

ClusterRoles and ClusterRoleBindings have no namespace in Kubernetes. Here they have the namespace ``default``, which is
that of manifests that name none.
"""

from collections.abc import Iterator
from typing import Literal, Self

from pydantic import Field, model_validator

from .base import FieldError, JsonModel, Name, SetByServer, Text
from .manifest import Manifest

RBAC: Literal["rbac.authorization.k8s.io/v1"] = "rbac.authorization.k8s.io/v1"
RBAC_GROUP = "rbac.authorization.k8s.io"
GRANTING = frozenset({"get", "use", "*"})
"""The verbs that permit the use of a resource."""

WRITING = frozenset({"update"})
"""The verbs that permit to create and change a resource over HTTP. All others than these have no effect here."""


class ServiceAccount(Manifest):
    """A ``v1`` ServiceAccount: the name under which a query has rights."""

    api_version: Literal["v1"] = Field(description="'v1'")  # type: ignore[assignment]  # a kind of the core group
    kind: Literal["ServiceAccount"] = "ServiceAccount"
    secrets: SetByServer = None
    image_pull_secrets: SetByServer = None
    automount_service_account_token: SetByServer = None


class Rule(JsonModel):
    """A rule of a Role: what may be used, by API group, kind and name."""

    api_groups: tuple[str, ...] = Field((), description="'' for Secrets and ConfigMaps, ARK's group, or '*'")
    resources: tuple[Text, ...] = Field((), description="kinds in the plural, such as 'models', or '*'")
    verbs: tuple[Text, ...] = Field(
        min_length=1,
        description="'get' or 'use', which mean the same, or '*'; 'update', to write manifests in the console",
    )
    resource_names: tuple[Text, ...] = Field((), description="names; by default all")

    def grants(self, group: str, resource: str, name: str, verbs: frozenset[str] = GRANTING) -> bool:
        """Whether it permits the use of the resource with that group, plural and name, or another of the ``verbs``."""
        of_kind = {group, "*"}.intersection(self.api_groups) and {resource, "*"}.intersection(self.resources)
        has_name = not self.resource_names or name in self.resource_names
        return bool(of_kind and verbs.intersection(self.verbs) and has_name)


class Role(Manifest):
    """A ``rbac.authorization.k8s.io/v1`` Role: rights to resources in its namespace."""

    api_version: Literal["rbac.authorization.k8s.io/v1"] = Field(  # type: ignore[assignment]  # Kubernetes' group
        description=f"'{RBAC}'"
    )
    kind: Literal["Role"] = "Role"
    rules: tuple[Rule, ...] = Field((), description="what it allows")


class OfCluster(Manifest):
    """A manifest without a namespace."""

    @model_validator(mode="after")
    def _has_no_namespace(self) -> Self:
        if "namespace" in self.metadata.model_fields_set:
            raise FieldError(("metadata", "namespace"), f"is not allowed: a {self.kind} has none")
        return self


class ClusterRole(OfCluster):
    """A ``rbac.authorization.k8s.io/v1`` ClusterRole: rights that bindings give in one namespace, or in all."""

    api_version: Literal["rbac.authorization.k8s.io/v1"] = Field(  # type: ignore[assignment]  # Kubernetes' group
        description=f"'{RBAC}'"
    )
    kind: Literal["ClusterRole"] = "ClusterRole"
    rules: tuple[Rule, ...] = Field((), description="what it allows")


class RoleRef(JsonModel):
    """The Role or ClusterRole of a RoleBinding."""

    api_group: Literal["rbac.authorization.k8s.io"] = Field("rbac.authorization.k8s.io", description=f"'{RBAC_GROUP}'")
    kind: Literal["Role", "ClusterRole"] = Field("Role", description="'Role', or 'ClusterRole'")
    name: Name = Field(description="the name of the Role in the namespace of the RoleBinding, or of the ClusterRole")


class ClusterRoleRef(JsonModel):
    """The ClusterRole of a ClusterRoleBinding."""

    api_group: Literal["rbac.authorization.k8s.io"] = Field("rbac.authorization.k8s.io", description=f"'{RBAC_GROUP}'")
    kind: Literal["ClusterRole"] = Field("ClusterRole", description="'ClusterRole'")
    name: Name = Field(description="the name of the ClusterRole")


class Subject(JsonModel):
    """A subject of a RoleBinding. Only ServiceAccounts get rights; users and groups exist only in Kubernetes."""

    kind: Literal["ServiceAccount", "User", "Group"] = Field(description="'ServiceAccount'; others get no rights here")
    api_group: str | None = Field(None, description="'' for a ServiceAccount")
    name: Text = Field(description="the ServiceAccount's name")
    namespace: Name | None = Field(None, description="its namespace, if it is not that of the RoleBinding")


class Binding(Manifest):
    """What gives the rights of a Role or a ClusterRole to ServiceAccounts."""

    role_ref: RoleRef | ClusterRoleRef
    subjects: tuple[Subject, ...] = Field((), description="who gets its rights, as {kind: ServiceAccount, name: NAME}")

    def accounts(self) -> Iterator[tuple[str, str]]:
        """Namespaces and names of the ServiceAccounts that get its rights."""
        for subject in self.subjects:
            if subject.kind == "ServiceAccount":
                yield subject.namespace or self.namespace, subject.name


class RoleBinding(Binding):
    """A ``rbac.authorization.k8s.io/v1`` RoleBinding: gives the rights of a Role to ServiceAccounts, in its namespace.

    The Role may be a ClusterRole.
    """

    api_version: Literal["rbac.authorization.k8s.io/v1"] = Field(  # type: ignore[assignment]  # Kubernetes' group
        description=f"'{RBAC}'"
    )
    kind: Literal["RoleBinding"] = "RoleBinding"
    role_ref: RoleRef = Field(description="the Role, as {kind: Role, name: NAME}")


class ClusterRoleBinding(OfCluster, Binding):
    """A ``rbac.authorization.k8s.io/v1`` ClusterRoleBinding: gives the rights of a ClusterRole in all namespaces."""

    api_version: Literal["rbac.authorization.k8s.io/v1"] = Field(  # type: ignore[assignment]  # Kubernetes' group
        description=f"'{RBAC}'"
    )
    kind: Literal["ClusterRoleBinding"] = "ClusterRoleBinding"
    role_ref: ClusterRoleRef = Field(description="the ClusterRole, as {kind: ClusterRole, name: NAME}")


RIGHTS = (ServiceAccount, Role, RoleBinding, ClusterRole, ClusterRoleBinding)
"""The kinds of manifest for authorization."""
