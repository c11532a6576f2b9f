"""``kind: ServiceAccount``, ``Role`` and ``RoleBinding``: authorization of runs (ARK: queries, service account)."""

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from .base import JsonModel, Name, SetByServer, Text
from .manifest import Manifest

RBAC: Literal["rbac.authorization.k8s.io/v1"] = "rbac.authorization.k8s.io/v1"
RBAC_GROUP = "rbac.authorization.k8s.io"
GRANTING = frozenset({"get", "use", "*"})
"""The verbs that permit the use of a resource; all others have no effect here."""


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
    verbs: tuple[Text, ...] = Field(min_length=1, description="'get' or 'use', which mean the same, or '*'")
    resource_names: tuple[Text, ...] = Field((), description="names; by default all")

    def grants(self, group: str, resource: str, name: str) -> bool:
        """Whether it permits the use of the resource with that group, plural and name."""
        of_kind = {group, "*"}.intersection(self.api_groups) and {resource, "*"}.intersection(self.resources)
        named = not self.resource_names or name in self.resource_names
        return bool(of_kind and GRANTING.intersection(self.verbs) and named)


class Role(Manifest):
    """A ``rbac.authorization.k8s.io/v1`` Role: rights to resources in its namespace."""

    api_version: Literal["rbac.authorization.k8s.io/v1"] = Field(  # type: ignore[assignment]  # Kubernetes' group
        description=f"'{RBAC}'"
    )
    kind: Literal["Role"] = "Role"
    rules: tuple[Rule, ...] = Field((), description="what it allows")


class RoleRef(JsonModel):
    """The Role of a RoleBinding."""

    api_group: Literal["rbac.authorization.k8s.io"] = Field("rbac.authorization.k8s.io", description=f"'{RBAC_GROUP}'")
    kind: Literal["Role"] = Field("Role", description="'Role'")
    name: Name = Field(description="the Role's name, in the namespace of the RoleBinding")


class Subject(JsonModel):
    """A subject of a RoleBinding. Only ServiceAccounts get rights; users and groups exist only in Kubernetes."""

    kind: Literal["ServiceAccount", "User", "Group"] = Field(description="'ServiceAccount'; others get no rights here")
    api_group: str | None = Field(None, description="'' for a ServiceAccount")
    name: Text = Field(description="the ServiceAccount's name")
    namespace: Name | None = Field(None, description="its namespace, if it is not that of the RoleBinding")


class RoleBinding(Manifest):
    """A ``rbac.authorization.k8s.io/v1`` RoleBinding: gives the rights of a Role to ServiceAccounts."""

    api_version: Literal["rbac.authorization.k8s.io/v1"] = Field(  # type: ignore[assignment]  # Kubernetes' group
        description=f"'{RBAC}'"
    )
    kind: Literal["RoleBinding"] = "RoleBinding"
    role_ref: RoleRef = Field(description="the Role, as {kind: Role, name: NAME}")
    subjects: tuple[Subject, ...] = Field((), description="who gets its rights, as {kind: ServiceAccount, name: NAME}")

    def accounts(self) -> Iterator[tuple[str, str]]:
        """Namespaces and names of the ServiceAccounts that get its rights."""
        for subject in self.subjects:
            if subject.kind == "ServiceAccount":
                yield subject.namespace or self.namespace, subject.name


RIGHTS = (ServiceAccount, Role, RoleBinding)
"""The kinds of manifest for authorization."""
