"""``kind: ExecutionEngine``: a service that executes agents (ARK: agent execution, external execution)."""

from typing import Literal, Self

from pydantic import Field, model_validator

from .base import PREALPHA, Duration, FieldError, JsonModel, Text
from .manifest import CircuitBreaker, Manifest
from .values import Address, Headers, ValueSource

A2A = "a2a"
"""The engine name of agents of A2AServers; it is reserved and has no manifest."""


class ExecutionEngineSpec(JsonModel):
    """The ``spec`` of an ExecutionEngine."""

    type: Text = Field(description="the type of the engine")
    address: Address = Field(description="the engine's address, as {value: ADDRESS}; POST /execute is added to it")
    headers: Headers = Field((), description="headers of each request")
    timeout: Duration = Field("5m", description="how long one execution may take, such as '5m'")
    circuit_breaker: CircuitBreaker | None = Field(
        None, description="{failures, window, openFor, onOpen}: opens a circuit breaker if a server fails often"
    )
    idempotent: bool = Field(False, description="true if it executes a request with the same Idempotency-Key only once")
    send_keys: bool = Field(False, description="true to send it the keys and headers of the agent's model")
    description: str | None = Field(None, description="a description for people")


class ExecutionEngine(Manifest):
    """A service that executes agents."""

    api_version: Literal["ark.mckinsey.com/v1prealpha1"] = Field(description=f"'{PREALPHA}'")  # type: ignore[assignment]
    kind: Literal["ExecutionEngine"] = "ExecutionEngine"
    spec: ExecutionEngineSpec = Field(description="where the engine is")

    @model_validator(mode="after")
    def _not_reserved(self) -> Self:
        if self.name == A2A:
            raise FieldError(
                ("metadata", "name"), f"'{A2A}' is reserved for the agents of A2AServers: choose another name"
            )
        return self

    @property
    def address(self) -> ValueSource:
        """The server's address."""
        return self.spec.address
