"""``kind: ExecutionEngine``: a service that takes an agent's turns (seed 004, External Execution Path)."""

from typing import Literal, Self

from pydantic import Field, model_validator

from .base import PREALPHA, FieldError, JsonModel, Text
from .manifest import Manifest
from .values import Address

A2A = "a2a"
"""The engine that every agent of an A2AServer has; it needs no manifest, and none may take its name."""


class ExecutionEngineSpec(JsonModel):
    """An engine's ``spec``."""

    type: Text = Field(description="what kind of engine it is, in its maker's words")
    address: Address = Field(description="the engine's address, as {value: ADDRESS}")
    description: str | None = Field(None, description="a word for people")


class ExecutionEngine(Manifest):
    """A service that runs agents in its own way."""

    api_version: Literal["ark.mckinsey.com/v1prealpha1"] = Field(description=f"'{PREALPHA}'")  # type: ignore[assignment]
    kind: Literal["ExecutionEngine"] = "ExecutionEngine"
    spec: ExecutionEngineSpec = Field(description="where the engine is")

    @model_validator(mode="after")
    def _not_reserved(self) -> Self:
        if self.name == A2A:
            raise FieldError(("metadata", "name"), f"'{A2A}' is reserved for the agents of A2AServers: take another")
        return self
