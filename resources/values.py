"""Where does a value come from? Literals, Secrets, ConfigMaps, services, and the parameters made of them."""

import re
from collections.abc import Iterator
from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, JsonValue, model_validator

from .base import NOT_SUPPORTED_YET, FieldError, JsonModel, Name, Path, Text, walk
from .template import TemplateError, check_names


class KeyRef(JsonModel):
    """One key of a Secret or a ConfigMap, in its owner's namespace."""

    name: Name = Field(description="the name of the Secret or ConfigMap")
    key: str = Field(min_length=1, description="the key in its data")
    optional: bool = Field(False, description="true where nothing is wrong if it is missing")


class ServiceRef(JsonModel):
    """A Kubernetes service."""

    name: Name
    namespace: Name | None = None
    port: str | None = None
    path: str | None = None


class ParameterRef(JsonModel):
    """A parameter of the query that runs."""

    name: str = Field(min_length=1, description="the parameter's name")


class ContributionsRef(JsonModel):
    """Under which key of a session the contributions to a panel stand: those of the latest run that began there."""

    session: Annotated[Text, Field(max_length=255)] | None = Field(
        None, description="the session; by default the id of the run that was started from outside"
    )
    key: Annotated[Text, Field(max_length=255)] = Field(
        "contributions", description="the key, distinct where several panels share a session"
    )


class ValueFrom(JsonModel):
    """The places a value can come from; exactly one is given."""

    secret_key_ref: KeyRef | None = Field(None, description="a key of a Secret")
    config_map_key_ref: KeyRef | None = Field(None, description="a key of a ConfigMap")
    service_ref: Annotated[ServiceRef | None, NOT_SUPPORTED_YET] = Field(None, description="a service's address")
    query_parameter_ref: ParameterRef | None = Field(None, description="a parameter of the query that runs")
    contributions_ref: ContributionsRef | None = Field(None, description="what was said in a panel, {session, key}")

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if len(self.model_fields_set) != 1:
            places = "secretKeyRef, configMapKeyRef, serviceRef, queryParameterRef, contributionsRef"
            raise ValueError(f"needs exactly one of {places}")
        return self


class ValueSource(JsonModel):
    """A literal ``value``, or ``valueFrom`` somewhere else."""

    value: Text | None = Field(None, description="the value itself")
    value_from: ValueFrom | None = Field(None, description="where the value stands")

    @model_validator(mode="after")
    def _value_or_source(self) -> Self:
        if (self.value is None) == (self.value_from is None):
            raise ValueError("needs either value or valueFrom")
        return self

    def needs(self) -> Iterator[tuple[str, str, KeyRef]]:
        """The keys of Secrets and ConfigMaps that it needs: the field's name, the kind, the key."""
        if self.value_from and self.value_from.secret_key_ref:
            yield "secretKeyRef", "Secret", self.value_from.secret_key_ref
        if self.value_from and self.value_from.config_map_key_ref:
            yield "configMapKeyRef", "ConfigMap", self.value_from.config_map_key_ref


def sources(model: JsonModel) -> Iterator[tuple[Path, ValueSource]]:
    """The value sources in a manifest, each with its place."""
    for path, item in walk(model):
        if isinstance(item, ValueSource):
            yield path, item


def check_url(url: str) -> None:
    """Raises ValueError for what is no HTTP address, or for one that holds a password."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("is not an address: it must begin with http:// or https:// and name a host")
    if parts.username or parts.password:
        raise ValueError("holds a user or a password: a key belongs in a Secret")


def _as_value(value: object) -> object:
    return {"value": value} if isinstance(value, str) else value


TextOrValue = Annotated[ValueSource, BeforeValidator(_as_value, json_schema_input_type=Text | ValueSource)]
"""A value source that may also be written as the bare text."""


def _check_address(source: ValueSource) -> ValueSource:
    if source.value:
        check_url(source.value)
    return source


Address = Annotated[TextOrValue, AfterValidator(_check_address)]
"""The address of a service; what stands literally must be one."""


class Parameter(ValueSource):
    """A named value for templates."""

    name: str = Field(min_length=1, description="the parameter's name")


def check_parameters(parameters: tuple[Parameter, ...], field: str, text: str) -> None:
    """Raises FieldError for a name that stands twice, or in ``text`` a name that nothing stands for.

    A text without parameters is no template: braces in it are only braces.
    """
    names = [parameter.name for parameter in parameters]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise FieldError(("parameters",), f"'{twice}' stands there twice")
    try:
        check_names(text if parameters else "", names)
    except TemplateError as error:
        raise FieldError((field,), str(error)) from None


class Header(JsonModel):
    """An HTTP header."""

    name: str = Field(min_length=1, description="the header's name")
    value: TextOrValue = Field(description="the header's value")

    @property
    def is_secret(self) -> bool:
        """Whether a literal value is one that nobody should see; a template holds no secret, but names of some."""
        literal = self.value.value
        return bool(literal and "{{" not in literal and _SECRET_HEADER.search(self.name))


_SECRET_HEADER = re.compile(r"auth|key|token|secret|cookie|password", re.IGNORECASE)


def _as_headers(value: object) -> object:
    if isinstance(value, dict):
        return tuple({"name": name, "value": item} for name, item in value.items())
    return tuple(value) if isinstance(value, list) else value


Headers = Annotated[
    tuple[Header, ...],
    BeforeValidator(_as_headers, json_schema_input_type=tuple[Header, ...] | dict[Text, TextOrValue]),
]
"""Headers as ARK's list of ``{name, value}``, or as seed 003's mapping."""


class Function(JsonModel):
    """A function applied to a tool's result."""

    name: str
    value: JsonValue = None
