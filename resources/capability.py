"""``kind: Capability``: tools and context for default members of panels (round-robin pattern: ``uses``)."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from .agent_tool import AgentTool
from .base import JsonModel, Reference, Text
from .manifest import Manifest
from .union_by_shape import BY_SHAPE, LIST, SINGLE
from .values import Parameter

Context = Annotated[Annotated[Text, SINGLE] | Annotated[tuple[Parameter, ...], LIST], BY_SHAPE]
"""A text, or named values."""


class CapabilitySpec(JsonModel):
    """The ``spec`` of a Capability."""

    tools: tuple[AgentTool, ...] = Field((), description="tools {name, type}")
    context: Context | None = Field(
        None, description="context for the model: a text, or values {name, value} or {name, valueFrom}"
    )


class Capability(Manifest):
    """Tools and context under one name."""

    kind: Literal["Capability"] = "Capability"
    spec: CapabilitySpec = Field(description="the capability's tools and context")

    def _references(self) -> Iterator[Reference]:
        yield from super()._references()
        yield from tool_references(self, self.spec.tools)


def tool_references(owner: Manifest, tools: tuple[AgentTool, ...]) -> Iterator[Reference]:
    """References to the manifests of the tools that are not built-in."""
    for index, tool in enumerate(tools):
        if not tool.built_in:
            yield Reference(("spec", "tools", index, "name"), ("Tool",), owner.namespace, tool.name)
