"""Takes literal secrets out of manifests and leaves references, so that no catalog or history contains a secret."""

from collections.abc import Iterator
from typing import TypeVar

from pydantic import JsonValue, SecretStr

from .base import IsSecret, JsonObject, Path, Reference
from .manifest import Manifest, Metadata
from .problems import dotted_path
from .secret import Secret
from .values import Header, ValueSource

M = TypeVar("M", bound=Manifest)


class Secrets:
    """The Secrets of a set of files, by namespace and name."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], Secret] = {}

    def __len__(self) -> int:
        return len(self._known)

    def add(self, secret: Secret) -> None:
        """Adds a Secret."""
        self._known[secret.namespace, secret.name] = secret

    def get(self, namespace: str, name: str) -> Secret | None:
        """The Secret of that namespace and name."""
        return self._known.get((namespace, name))

    def values(self) -> Iterator[str]:
        """The values under all keys of all Secrets."""
        for secret in self._known.values():
            found = (secret.value(key) for key in {*secret.data, *secret.string_data})
            yield from (value for value in found if value)

    def find(self, reference: Reference) -> Secret | None:
        """The Secret that a reference leads to."""
        return self.get(reference.namespace, reference.name) if "Secret" in reference.kinds else None


def extract_secrets(manifest: M, secrets: Secrets) -> M:
    """The manifest with references in place of its literal secrets, which are added to ``secrets``."""
    spelled_out = [*_spelled_out(manifest)]
    if not spelled_out:
        return manifest
    name = manifest.own_secret
    values = {dotted_path(path): SecretStr(value) for path, value in spelled_out}
    metadata = Metadata(name=name, namespace=manifest.namespace)
    secrets.add(Secret(api_version="v1", metadata=metadata, string_data=values))
    data: JsonObject = manifest.model_dump(mode="json", exclude_unset=True)
    for path, _ in spelled_out:
        _put(data, path, {"valueFrom": {"secretKeyRef": {"name": name, "key": dotted_path(path)}}})
    return type(manifest).model_validate(data)


def _spelled_out(manifest: Manifest) -> Iterator[tuple[Path, str]]:
    """The literal secrets in a manifest, each with its path."""
    for path, item in (((), manifest), *manifest.parts):
        if isinstance(item, Header) and item.is_secret:
            yield (*path, "value"), item.value.value or ""
        for name, field in type(item).model_fields.items():
            source = getattr(item, name)
            marked = any(isinstance(mark, IsSecret) for mark in field.metadata)
            if marked and isinstance(source, ValueSource) and source.value:
                yield (*path, field.alias or name), source.value


def _put(data: JsonValue, path: Path, value: JsonObject) -> None:
    for step in path[:-1]:
        data = data[step]  # type: ignore[index]  # the path leads through what was just dumped
    data[path[-1]] = value  # type: ignore[index]
