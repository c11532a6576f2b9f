"""What all manifests have in common: apiVersion, kind, metadata and status, and references to other resources."""

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, Literal, Self

from pydantic import Field

from .base import API_VERSION, JsonModel, Name, Path, Ref, Reference, SetByServer, walk
from .budget import Budget
from .values import sources
from .window import Summarize


class Metadata(JsonModel):
    """The ``metadata`` of a manifest; fields that a Kubernetes API server adds are read and ignored."""

    name: Name = Field(description="the resource's name")
    namespace: Name = Field("default", description="the resource's namespace")
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    uid: SetByServer = None
    generation: SetByServer = None
    generate_name: SetByServer = None
    resource_version: SetByServer = None
    creation_timestamp: SetByServer = None
    deletion_timestamp: SetByServer = None
    owner_references: SetByServer = None
    managed_fields: SetByServer = None
    finalizers: SetByServer = None


class Manifest(JsonModel):
    """The base class of all kinds."""

    api_version: Literal["ark.mckinsey.com/v1alpha1"] = Field(description=f"'{API_VERSION}'")
    kind: str
    metadata: Metadata = Field(description="the resource's name and namespace")
    status: SetByServer = None

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def namespace(self) -> str:
        return self.metadata.namespace

    @property
    def id(self) -> str:
        """The id of the resource: ``Kind/namespace/name``."""
        return f"{self.kind}/{self.namespace}/{self.name}"

    @property
    def budget(self) -> Budget | None:
        """How much may be used for all that is done below it in one run: of queries, teams and agents."""
        found: Budget | None = getattr(getattr(self, "spec", None), "budget", None)
        return found

    @property
    def own_secret(self) -> str:
        """The name of the Secret with the literal keys that stand in it."""
        return f"inline.{self.kind.lower()}.{self.name}"

    @cached_property
    def parts(self) -> tuple[tuple[Path, JsonModel], ...]:
        """All values in it, each with its path; without itself, as comparing two of them would never end."""
        return tuple(walk(self))[1:]

    @cached_property
    def references(self) -> tuple[Reference, ...]:
        """The resources that this one needs."""
        return tuple(self._references())

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy that keeps nothing that was found out about this one: of pydantic, it would."""
        copied = super().model_copy(update=update, deep=deep)
        for name in copied.__dict__.keys() - type(self).model_fields.keys():
            del copied.__dict__[name]
        return copied

    def _references(self) -> Iterator[Reference]:
        """The resources that each kind needs; here those that its values come from."""
        for path, source in sources(self.parts):
            for name, kind, ref in source.needs():
                yield Reference((*path, "valueFrom", name, "name"), (kind,), self.namespace, ref.name, ref.optional)
        for path, item in self.parts:
            if isinstance(item, Summarize) and item.model:
                yield self._refer((*path, "model", "name"), ("Model",), item.model)

    def _refer(self, path: Path, kinds: tuple[str, ...], ref: Ref, *, optional: bool = False) -> Reference:
        return Reference(path, kinds, ref.namespace or self.namespace, ref.name, optional)
