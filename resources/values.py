"""Values and their sources: literals, Secrets, ConfigMaps, services and parameters."""

import json
import re
from collections.abc import Iterator
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from .base import FieldError, JsonModel, Name, Path, Text, walk
from .template import TemplateError, check_names, names_in


class KeyRef(JsonModel):
    """One key of a Secret or a ConfigMap, in the namespace of the owner."""

    name: Name = Field(description="the name of the Secret or ConfigMap")
    key: str = Field(min_length=1, description="the key in its data")
    optional: bool = Field(False, description="true if it may be missing")


SCHEME_PORTS = {"http": "80", "https": "443"}
"""The ports of services whose names are schemes."""


class ServiceRef(JsonModel):
    """A service, whose address the worker derives from its name (ARK: ValueSource)."""

    name: Name = Field(description="the service's name")
    namespace: Name | None = Field(None, description="its namespace; by default that of the manifest")
    port: Annotated[Text, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,13}[a-z0-9])?$")] | None = Field(
        None, description="the number of its port, or `http` (80) or `https` (443); by default none"
    )
    path: Text | None = Field(None, description="the path of the address")

    @field_validator("port", mode="before")
    @classmethod
    def _as_text(cls, value: object) -> object:
        return str(value) if type(value) is int else value

    def address(self, template: str, namespace: str) -> str:
        """The address by a template such as ``http://{service}.{namespace}:{port}``.

        Without a port, ``:{port}`` is left out. Raises ValueError for a port whose number is unknown.
        """
        port = SCHEME_PORTS.get(self.port or "", self.port)
        if port is None:
            template = template.replace(":{port}", "")
        elif "{port}" in template and not port.isdecimal():
            raise ValueError(f"the number of the port '{port}' of the service {self.name} is unknown: write the number")
        names = {"{service}": self.name, "{namespace}": self.namespace or namespace, "{port}": port or ""}
        for name, value in names.items():
            template = template.replace(name, value)
        path = f"/{self.path.removeprefix('/')}" if self.path else ""
        return f"{template.rstrip('/')}{path}"


class ParameterRef(JsonModel):
    """A parameter of the query of this run."""

    name: str = Field(min_length=1, description="the parameter's name")


class ContributionsRef(JsonModel):
    """The transcript of a panel under a key of a session, written by the latest run that uses this key."""

    session: Annotated[Text, Field(max_length=255)] | None = Field(
        None, description="the session; by default the id of the run that a client has started"
    )
    key: Annotated[Text, Field(max_length=255)] = Field(
        "contributions", description="the key; different for each panel of a session"
    )


class ValueFrom(JsonModel):
    """The source of a value; exactly one field is set."""

    secret_key_ref: KeyRef | None = Field(None, description="a key of a Secret")
    config_map_key_ref: KeyRef | None = Field(None, description="a key of a ConfigMap")
    service_ref: ServiceRef | None = Field(None, description="the address of a service")
    query_parameter_ref: ParameterRef | None = Field(None, description="a parameter of the query of this run")
    contributions_ref: ContributionsRef | None = Field(None, description="the transcript of a panel, {session, key}")

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if len(self.model_fields_set) != 1:
            places = "secretKeyRef, configMapKeyRef, serviceRef, queryParameterRef, contributionsRef"
            raise ValueError(f"needs exactly one of {places}")
        return self


class ValueSource(JsonModel):
    """A literal ``value``, or a source ``valueFrom``."""

    value: Text | None = Field(None, description="the value itself")
    value_from: ValueFrom | None = Field(None, description="the source of the value")

    @model_validator(mode="after")
    def _value_or_source(self) -> Self:
        if (self.value is None) == (self.value_from is None):
            raise ValueError("needs either value or valueFrom")
        return self

    @property
    def is_from_run(self) -> bool:
        """Whether the value comes from the run, not from a manifest."""
        origin = self.value_from
        return bool(origin and (origin.query_parameter_ref or origin.contributions_ref))

    def needs(self) -> Iterator[tuple[str, str, KeyRef]]:
        """The required keys of Secrets and ConfigMaps: the name of the field, the kind, the key."""
        if self.value_from and self.value_from.secret_key_ref:
            yield "secretKeyRef", "Secret", self.value_from.secret_key_ref
        if self.value_from and self.value_from.config_map_key_ref:
            yield "configMapKeyRef", "ConfigMap", self.value_from.config_map_key_ref


def sources(model: JsonModel) -> Iterator[tuple[Path, ValueSource]]:
    """The value sources in a manifest, with their paths."""
    for path, item in walk(model):
        if isinstance(item, ValueSource):
            yield path, item


def check_url(url: str) -> None:
    """Raises ValueError for anything but an HTTP address, and for one with a password."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("is not an address: it must begin with http:// or https:// and name a host")
    if parts.username or parts.password:
        raise ValueError("contains a user or a password: put keys into a Secret")


def _as_value(value: object) -> object:
    return {"value": value} if isinstance(value, str) else value


def _as_property(value: object) -> object:
    return {"value": json.dumps(value)} if isinstance(value, bool | int | float) else _as_value(value)


TextOrValue = Annotated[ValueSource, BeforeValidator(_as_value, json_schema_input_type=Text | ValueSource)]
"""A value source; in a manifest also a plain text."""

Property = Annotated[
    ValueSource, BeforeValidator(_as_property, json_schema_input_type=Text | float | bool | ValueSource)
]
"""A value source; in a manifest also a plain text, a number, true or false."""


def _check_address(source: ValueSource) -> ValueSource:
    if source.value:
        check_url(source.value)
    return source


Address = Annotated[TextOrValue, AfterValidator(_check_address)]
"""The address of a service; a literal value must be an HTTP address."""


class Parameter(ValueSource):
    """A named value for templates."""

    name: str = Field(min_length=1, description="the parameter's name")

    @model_validator(mode="after")
    def _is_no_address(self) -> Self:
        if self.value_from and self.value_from.service_ref:
            raise FieldError(("valueFrom", "serviceRef"), "is for the addresses of servers, not for parameters")
        return self


def check_parameters(parameters: tuple[Parameter, ...], field: str, text: str) -> None:
    """Raises FieldError for a duplicate name, and for an unknown name in the template ``text``.

    If there are no parameters, the text is not a template: braces in it are plain text.
    """
    names = [parameter.name for parameter in parameters]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise FieldError(("parameters",), f"'{twice}' appears twice")
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
        """Whether a literal value is a secret. A template is not: it only references secrets."""
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
"""Headers as a list of ``{name, value}``, or as a mapping (ARK: queries, tool execution)."""


class Function(JsonModel):
    """A jq filter for a tool's result (ARK: agent execution)."""

    name: Literal["jq"] = Field(description="'jq'")
    value: Annotated[str, Field(max_length=2_000)] = Field(".", description="the filter, such as '.items[0].name'")


QUERY = "Query."
"""The prefix of the query's parameters in the templates of preset arguments, as in ``{{ .Query.city }}``."""


class PresetArguments(JsonModel):
    """Preset arguments of a tool, whose values may contain parameters as ``{{name}}``."""

    parameters: tuple[Parameter, ...] = Field(
        (), description="the preset arguments {name, value}, or {name, valueFrom}"
    )

    @field_validator("parameters")
    @classmethod
    def _distinct(cls, parameters: tuple[Parameter, ...]) -> tuple[Parameter, ...]:
        names = [parameter.name for parameter in parameters]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"'{twice}' appears twice")
        for parameter in parameters:
            names_in(parameter.value or "")
        return parameters

    def templates(self) -> Iterator[tuple[int, str]]:
        """The literal values, which are templates, with their indexes."""
        yield from ((index, parameter.value) for index, parameter in enumerate(self.parameters) if parameter.value)


class Partial(PresetArguments):
    """Preset arguments of an agent's tool, whose name in the agent may differ from that of its manifest."""

    name: Name | None = Field(None, description="the name of the Tool, if the agent uses another name for it")
