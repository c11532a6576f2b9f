"""Preset arguments of a tool: the model neither sees nor chooses them (ARK: partial tools)."""

from collections.abc import Iterator

from pydantic import Field, field_validator

from .base import JsonModel, Name
from .template import names_in
from .values import Parameter

QUERY = "Query."
"""The prefix of the query's parameters in the templates of preset arguments, as in ``{{ .Query.city }}``."""


class PresetArguments(JsonModel):
    """Arguments with values of their own, in which ``{{name}}`` stands for a parameter."""

    parameters: tuple[Parameter, ...] = Field(
        (), description="the preset arguments {name, value}, or {name, valueFrom}"
    )

    @field_validator("parameters")
    @classmethod
    def _distinct(cls, parameters: tuple[Parameter, ...]) -> tuple[Parameter, ...]:
        names = [each.name for each in parameters]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"'{twice}' appears twice")
        for each in parameters:
            names_in(each.value or "")
        return parameters

    def templates(self) -> Iterator[tuple[int, str]]:
        """The values that are templates, each with its index; what comes from elsewhere is none."""
        yield from ((index, each.value) for index, each in enumerate(self.parameters) if each.value)


class Partial(PresetArguments):
    """Preset arguments of an agent's tool, which may have another name for the agent than its manifest has."""

    name: Name | None = Field(None, description="the name of the Tool, if the agent knows it under another name")
