"""``kind: Secret``: values that only the worker reads, at the moment of use."""

import base64
import binascii
import json
from collections.abc import Iterator
from typing import Annotated, Literal, Self, TypeVar

from pydantic import Field, JsonValue, SecretStr, WithJsonSchema, model_validator

from .base import FieldError, IsSecret, JsonObject, Path, Reference, SetByServer, walk
from .documents import NOT_REPLACED, VARIABLE
from .manifest import Manifest, Metadata
from .problems import dotted_path
from .query import ALLOW_INLINE
from .values import Header, ValueSource

Hidden = Annotated[SecretStr, WithJsonSchema({"type": "string"})]
"""Text that is hidden in logs and errors."""

SHOWN = "***"
"""Stands for a value where a Secret is shown. It is not base64, so that what is shown can't be applied."""


class Secret(Manifest):
    """A ``v1`` Secret. It is never part of a catalog or a history, which only contain references to it."""

    api_version: Literal["v1"] = Field(description="'v1'")  # type: ignore[assignment]  # a kind of the core group
    kind: Literal["Secret"] = "Secret"
    data: dict[str, Hidden] = Field({}, description="values in base64, each under its key")
    string_data: dict[str, Hidden] = Field({}, description="values as plain text, each under its key")
    type: str = "Opaque"
    immutable: SetByServer = None

    @model_validator(mode="after")
    def _decodable(self) -> Self:
        for field, values in (("data", self.data), ("stringData", self.string_data)):
            for key, value in values.items():
                if variable := VARIABLE.fullmatch(value.get_secret_value().strip()):
                    in_base64 = "; its value must be base64 here, and plain text under stringData"
                    raise FieldError((field, key), f"'{variable[0]}' {NOT_REPLACED}{in_base64 * (field == 'data')}")
                if value.get_secret_value().startswith(SHOWN):
                    raise FieldError((field, key), f"'{SHOWN}' stands for a value that is never shown: write the value")
        for key, value in self.data.items():
            if _decoded(value) is None:
                raise FieldError(("data", key), "is not base64 of UTF-8 text; plain text goes under stringData")
        return self

    @property
    def keys(self) -> set[str]:
        """The keys of its values."""
        return {*self.data, *self.string_data}

    @property
    def canonical(self) -> str:
        """JSON with its values, which the store encrypts: equal for equal Secrets."""
        values = {key: self.value(key) or "" for key in self.keys}
        return json.dumps(self._with({key: base64.b64encode(value.encode()).decode() for key, value in values.items()}))

    def masked(self, other: "Secret | None" = None, mark: str = "") -> JsonObject:
        """The Secret without its values. Values that differ from those of another Secret have a ``mark``."""
        differ = {key for key in other.keys & self.keys if other.value(key) != self.value(key)} if other else set()
        return self._with({key: f"{SHOWN} ({mark})" if key in differ else SHOWN for key in self.keys})

    def _with(self, values: dict[str, str]) -> JsonObject:
        """The manifest with these values. Other tools' annotations are left out: kubectl's contains the values."""
        annotations = {name: text for name, text in self.metadata.annotations.items() if name == ALLOW_INLINE}
        metadata: JsonObject = {"name": self.name, "namespace": self.namespace}
        if self.metadata.labels:
            metadata["labels"] = {**self.metadata.labels}
        if annotations:
            metadata["annotations"] = {**annotations}
        data: JsonObject = {key: values[key] for key in sorted(values)}
        return {
            "apiVersion": self.api_version,
            "kind": self.kind,
            "metadata": metadata,
            "type": self.type,
            "data": data,
        }

    def value(self, key: str) -> str | None:
        """The text under ``key``; ``stringData`` has precedence, as in Kubernetes. None if there is no such key."""
        if key in self.string_data:
            return self.string_data[key].get_secret_value()
        return _decoded(self.data[key]) if key in self.data else None


def _decoded(value: SecretStr) -> str | None:
    try:
        return base64.b64decode("".join(value.get_secret_value().split()), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None


M = TypeVar("M", bound=Manifest)


class Secrets:
    """The Secrets of a set of files, by namespace and name."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], Secret] = {}

    def __len__(self) -> int:
        return len(self._known)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secrets) and self._known == other._known

    __hash__ = None  # type: ignore[assignment]  # Secrets are added to it

    def __iter__(self) -> Iterator[Secret]:
        return iter(self._known.values())

    def add(self, secret: Secret) -> None:
        """Adds a Secret."""
        self._known[secret.namespace, secret.name] = secret

    def get(self, namespace: str, name: str) -> Secret | None:
        """The Secret of that namespace and name."""
        return self._known.get((namespace, name))

    def values(self) -> Iterator[str]:
        """The values under all keys of all Secrets."""
        for secret in self._known.values():
            values = (secret.value(key) for key in secret.keys)
            yield from (value for value in values if value)

    def find(self, reference: Reference) -> Secret | None:
        """The Secret that a reference leads to."""
        return self.get(reference.namespace, reference.name) if "Secret" in reference.kinds else None


def extract_secrets(manifest: M, secrets: Secrets) -> M:
    """The manifest with references instead of its literal secrets, which are added to ``secrets``."""
    literals = [*_literal_secrets(manifest)]
    if not literals:
        return manifest
    name = manifest.own_secret
    values = {dotted_path(path): SecretStr(value) for path, value in literals}
    metadata = Metadata(name=name, namespace=manifest.namespace)
    secrets.add(Secret(api_version="v1", metadata=metadata, string_data=values))
    data: JsonObject = manifest.model_dump(mode="json", exclude_unset=True)
    for path, _ in literals:
        _put(data, path, {"valueFrom": {"secretKeyRef": {"name": name, "key": dotted_path(path)}}})
    return type(manifest).model_validate(data)


def _literal_secrets(manifest: Manifest) -> Iterator[tuple[Path, str]]:
    """The literal secrets in a manifest, with their paths."""
    for path, item in walk(manifest):
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
