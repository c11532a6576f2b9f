"""A manifest of the store: one version of a resource."""

from typing import Annotated, NamedTuple

from pydantic import Field, TypeAdapter

from .catalog import Resource

Key = tuple[str, str, str]
"""Kind, namespace and name of a resource."""

_RESOURCE: TypeAdapter[Resource] = TypeAdapter(Annotated[Resource, Field(discriminator="kind")])


class StoredManifest(NamedTuple):
    """A version of a resource: its manifest as JSON, or an empty text where it was deleted or has a ``problem``.

    Versions are counted from 1, ``revision`` counts the changes of the whole store, ``changed`` is in
    seconds since 1970.
    """

    kind: str
    namespace: str
    name: str
    version: int
    revision: int
    changed: int
    manifest: str
    problem: str = ""
    """Why it can't be read, as a sentence."""

    @property
    def key(self) -> Key:
        """Kind, namespace and name."""
        return self.kind, self.namespace, self.name

    @property
    def place(self) -> str:
        """Its name in sentences; the sealed text belongs to it."""
        return f"{'/'.join(self.key)} version {self.version}"

    @property
    def is_deleted(self) -> bool:
        """Whether the resource was deleted by this version."""
        return not (self.manifest or self.problem)

    def resource(self) -> Resource | None:
        """The manifest; None where it was deleted. Raises ValueError if it can't be read.

        Fields that a newer Baton has added are ignored, as in a run's catalog.
        """
        if self.problem:
            raise ValueError(self.problem)
        if not self.manifest:
            return None
        resource = _RESOURCE.validate_json(self.manifest)
        if key_of(resource) != self.key:
            raise ValueError(f"it is that of {resource.id}")
        return resource


def key_of(manifest: Resource) -> Key:
    """Kind, namespace and name of a manifest."""
    return manifest.kind, manifest.namespace, manifest.name
