"""The base of all manifests: the model class, names, durations, field marks, and references between resources."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    JsonValue,
    SerializerFunctionWrapHandler,
    Tag,
    WithJsonSchema,
    model_serializer,
)
from pydantic.alias_generators import to_camel
from pydantic_core import CoreSchema, core_schema

Path = tuple[str | int, ...]
"""The path of a value in a manifest, such as ``("spec", "members", 0, "name")``."""

JsonObject = dict[str, JsonValue]


class FieldError(ValueError):
    """An error of one field, reported by a validator of the whole mapping."""

    def __init__(self, path: Path, text: str) -> None:
        self.path = path
        super().__init__(text)


API_VERSION: Literal["ark.mckinsey.com/v1alpha1"] = "ark.mckinsey.com/v1alpha1"
PREALPHA: Literal["ark.mckinsey.com/v1prealpha1"] = "ark.mckinsey.com/v1prealpha1"


class JsonModel(BaseModel):
    """An immutable value that is stored as JSON in a manifest, a history or the journal.

    Keys are camelCase in JSON and snake_case in Python. Unknown keys are ignored, so that workers of two versions can
    share a run; only the loader uses ``extra="forbid"``. Errors don't repeat the input, which may contain a secret.
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

    @property
    def without_defaults(self) -> Self:
        """The same value with default-valued fields unset: they take no space in a payload."""
        bare = self.model_copy()
        fields = type(self).__pydantic_fields__.items()
        bare.model_fields_set.difference_update(
            [name for name, field in fields if getattr(self, name) == field.default]
        )
        return bare

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy with other values for some fields. The name of no field, which pydantic would ignore, is an error."""
        if update and (unknown := update.keys() - type(self).__pydantic_fields__.keys()):
            raise TypeError(f"{type(self).__name__} has no field {', '.join(sorted(unknown))}")
        return super().model_copy(update=update, deep=deep)

    @model_serializer(mode="wrap")
    def _without_nulls(self, serialize: SerializerFunctionWrapHandler) -> dict[str, object]:
        # Not JsonObject: in Python's mode values are not JSON, such as a datetime, and pydantic would warn of each.
        return {key: value for key, value in serialize(self).items() if value is not None}


@dataclass(frozen=True)
class NotSupportedYet:
    """Marks a field, or some of its values, that is valid in a manifest but not supported yet by any run."""

    values: frozenset[str] = frozenset()

    def __str__(self) -> str:
        return f"not supported yet{': ' if self.values else ''}{', '.join(sorted(self.values))}"


NOT_SUPPORTED_YET = NotSupportedYet()


@dataclass(frozen=True)
class NoEffect:
    """Marks a field that is valid, and that every run ignores."""

    why: str
    values: frozenset[str] = frozenset()

    def __str__(self) -> str:
        return f"ignored: {self.why}"


@dataclass(frozen=True)
class Deprecated:
    """Marks values of older releases of ARK; ``instead`` is the replacement."""

    values: frozenset[str]
    instead: str

    def __str__(self) -> str:
        return f"deprecated: {', '.join(sorted(self.values))}; write {self.instead.format('…')}"


Mark = NotSupportedYet | NoEffect | Deprecated
"""The field marks that commands report."""


@dataclass(frozen=True)
class IsSecret:
    """Marks a field whose literal value is a secret."""


SECRET = IsSecret()


@dataclass(frozen=True)
class Pattern:
    """Marks text that must fully match a pattern; pattern and error message are also in the JSON Schema."""

    pattern: str
    wrong: str

    def check(self, text: str) -> str:
        """The text itself; raises ValueError for one that doesn't match."""
        if not re.fullmatch(self.pattern, text):
            raise ValueError(self.wrong)
        return text

    def __get_pydantic_core_schema__(self, source: type, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonObject:
        return {**handler(schema), "pattern": f"^(?:{self.pattern})$", "patternErrorMessage": self.wrong}


Text = Annotated[str, Field(min_length=1)]
"""Text with at least one character."""

NAME = Pattern(
    r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?",
    "is not a name: lower-case letters, digits, '-' and '.', at most 253 characters",
)

Name = Annotated[str, NAME]

SetByServer = Annotated[JsonValue, WithJsonSchema({"doNotSuggest": True})]
"""A field that a Kubernetes API server adds: it is read and ignored, and editors don't suggest it."""


class Ref(JsonModel):
    """A reference to another resource; without a namespace, in the namespace of its owner."""

    name: Name = Field(description="the name of the resource it refers to")
    namespace: Name | None = Field(None, description="its namespace, if it is not the same")


def _as_ref(value: object) -> object:
    return {"name": value} if isinstance(value, str) else value


NameOrRef = Annotated[Ref, BeforeValidator(_as_ref, json_schema_input_type=Name | Ref)]
"""A reference; in a manifest also a plain name."""


@dataclass(frozen=True, slots=True)
class Reference:
    """A reference to another resource: its path in the manifest, and the possible kinds, the namespace and the name."""

    path: Path
    kinds: tuple[str, ...]
    namespace: str
    name: str
    optional: bool = False

    def __str__(self) -> str:
        return f"{' or '.join(self.kinds)} {self.namespace}/{self.name}"


def walk(model: JsonModel, path: Path = ()) -> Iterator[tuple[Path, JsonModel]]:
    """A value and all values in it, with their paths."""
    yield path, model
    fields = type(model).__pydantic_fields__
    for name, value in vars(model).items():
        if isinstance(value, JsonModel | tuple | dict) and name in fields:
            for step, item in _items(value):
                yield from walk(item, (*path, fields[name].alias or name, *step))


def _items(value: "JsonModel | tuple[object, ...] | dict[str, object]") -> Iterator[tuple[Path, JsonModel]]:
    if isinstance(value, JsonModel):
        yield (), value
    else:
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        yield from (((key,), item) for key, item in pairs if isinstance(item, JsonModel))


SHAPE = "of:"
"""The prefix of steps in an error's path that name a shape and not a field."""

SINGLE, MAPPING, LIST = (Tag(f"{SHAPE}{shape}") for shape in ("single", "mapping", "list"))


def _shape(value: object) -> str:
    shape = MAPPING if isinstance(value, dict | JsonModel) else LIST if isinstance(value, list | tuple) else SINGLE
    return shape.tag


BY_SHAPE = Discriminator(_shape)
"""Selects the type of a union by shape, so that an error refers to the intended type."""


_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_PART = r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(h|ms|m|s|us|µs|ns)"
_SPELLED = Pattern(f"(?:{_PART})+", "is not a duration: write '300s', '5m' or '1h30m'")
_SHORTEST = 1e-3
_LONGEST = timedelta(days=3650).total_seconds()


def parse_duration(text: str) -> timedelta:
    """Reads ``300s``, ``1h30m`` or ``1.5h``.

    Raises:
        ValueError: the text is not a duration, or is not between 1 ms and ten years.
    """
    parts = re.findall(_PART, _SPELLED.check(text))
    seconds = sum(float(number) * _SECONDS[unit] for number, unit in parts)
    if not _SHORTEST <= seconds <= _LONGEST:
        raise ValueError("is not a usable duration: from 1ms to ten years")
    return timedelta(seconds=seconds)


def parse_age(text: str) -> timedelta:
    """Reads a duration, or days such as ``30d``. Raises ValueError."""
    days = re.fullmatch("([0-9]{1,5})d", text)
    return parse_duration(f"{24 * int(days[1])}h" if days else text)


def _check(text: str) -> str:
    parse_duration(text)
    return text


Duration = Annotated[str, _SPELLED, AfterValidator(_check)]


Dialect = Literal["baton", "ark"]
"""``ark`` is ARK's current dialect (ARK: today's dialect)."""
