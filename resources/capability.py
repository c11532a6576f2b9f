"""``kind: Capability``: tools and context under one name, for the default members of panels (seed 002, ``uses``)."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from .agent import AgentTool
from .base import JsonModel, Reference, Text
from .manifest import Manifest
from .union_by_shape import BY_SHAPE, LIST, SINGLE
from .values import Parameter

Context = Annotated[Annotated[Text, SINGLE] | Annotated[tuple[Parameter, ...], LIST], BY_SHAPE]
"""A text, or values by their names."""


class CapabilitySpec(JsonModel):
    """A capability's ``spec``."""

    tools: tuple[AgentTool, ...] = Field((), description="tools {name, type}")
    context: Context | None = Field(
        None, description="what is to be known: a text, or values {name, value} or {name, valueFrom}"
    )


class Capability(Manifest):
    """A bundle of tools and context."""

    kind: Literal["Capability"] = "Capability"
    spec: CapabilitySpec = Field(description="the capability's tools and context")

    def references(self) -> Iterator[Reference]:
        yield from super().references()
        yield from tool_references(self, self.spec.tools)


def tool_references(owner: Manifest, tools: tuple[AgentTool, ...]) -> Iterator[Reference]:
    """The manifests of those tools that are not built in."""
    for index, tool in enumerate(tools):
        if not tool.built_in:
            yield Reference(("spec", "tools", index, "name"), ("Tool",), owner.namespace, tool.name)
