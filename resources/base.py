"""What do all manifests have in common? Their envelope, their names, and how one refers to another."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    SerializerFunctionWrapHandler,
    model_serializer,
)
from pydantic.alias_generators import to_camel

Path = tuple[str | int, ...]
"""Where a value stands inside a manifest, as in ``("spec", "members", 0, "name")``."""

JsonObject = dict[str, JsonValue]


class FieldError(ValueError):
    """What a validator of a whole mapping finds wrong with one field of it."""

    def __init__(self, path: Path, text: str) -> None:
        self.path = path
        super().__init__(text)


API_VERSION: Literal["ark.mckinsey.com/v1alpha1"] = "ark.mckinsey.com/v1alpha1"


class Plain(BaseModel):
    """An immutable value that stands as JSON in a manifest, a history or the journal.

    Keys are camelCase outside and snake_case inside. Unknown keys are ignored, so that workers of two versions can
    share a run; only the loader asks for ``extra="forbid"``. No error repeats the input, which may hold a secret.
    """

    model_config = ConfigDict(
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        serialize_by_alias=True,
        frozen=True,
        hide_input_in_errors=True,
        protected_namespaces=(),
    )

    @model_serializer(mode="wrap")
    def _without_nulls(self, serialize: SerializerFunctionWrapHandler) -> JsonObject:
        return {key: value for key, value in serialize(self).items() if value is not None}


@dataclass(frozen=True)
class NotYet:
    """Marks a field, or some of its values, that is valid in a manifest but that no run carries out yet."""

    values: frozenset[str] = frozenset()


NOT_YET = NotYet()

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


def _check_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError("is not a name: lower-case letters, digits, '-' and '.', at most 253 characters")
    return name


Name = Annotated[str, AfterValidator(_check_name)]


class Metadata(Plain):
    """A manifest's ``metadata``; what a Kubernetes API server adds to it is accepted and passed over."""

    name: Name = Field(description="the resource's name")
    namespace: Name = Field("default", description="the resource's namespace")
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    uid: JsonValue = None
    generation: JsonValue = None
    generate_name: JsonValue = None
    resource_version: JsonValue = None
    creation_timestamp: JsonValue = None
    deletion_timestamp: JsonValue = None
    owner_references: JsonValue = None
    managed_fields: JsonValue = None
    finalizers: JsonValue = None


class Ref(Plain):
    """A reference to another resource; without a namespace it looks in its owner's."""

    name: Name = Field(description="the name of the resource it refers to")
    namespace: Name | None = None


def _as_ref(value: object) -> object:
    return {"name": value} if isinstance(value, str) else value


NameOrRef = Annotated[Ref, BeforeValidator(_as_ref)]
"""A reference that may also be written as the bare name."""


@dataclass(frozen=True)
class Reference:
    """One use of another resource: where it is written and what it must lead to."""

    path: Path
    kinds: tuple[str, ...]
    namespace: str
    name: str
    optional: bool = False

    def __str__(self) -> str:
        return f"{' or '.join(self.kinds)} {self.namespace}/{self.name}"


class Manifest(Plain):
    """The envelope of a resource."""

    api_version: Literal["ark.mckinsey.com/v1alpha1"] = Field(description=f"'{API_VERSION}'")
    kind: str
    metadata: Metadata = Field(description="the resource's name and namespace")
    status: JsonValue = None

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def namespace(self) -> str:
        return self.metadata.namespace

    @property
    def id(self) -> str:
        """``Kind/namespace/name``, as errors and the catalog spell it."""
        return f"{self.kind}/{self.namespace}/{self.name}"

    def references(self) -> Iterator[Reference]:
        """The resources that this one needs in order to run."""
        yield from ()

    def _refer(self, path: Path, kinds: tuple[str, ...], ref: Ref, *, optional: bool = False) -> Reference:
        return Reference(path, kinds, ref.namespace or self.namespace, ref.name, optional)
