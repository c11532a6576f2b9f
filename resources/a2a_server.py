"""``kind: A2AServer``: a server with agents that speaks the Agent2Agent (A2A) protocol (ARK: agent execution, A2A)."""

from typing import Annotated, Literal

from pydantic import Field

from .base import PREALPHA, Duration, JsonModel, NoEffect
from .manifest import CircuitBreaker, Manifest, Questions
from .values import Address, Headers, ValueSource


class A2AServerSpec(JsonModel):
    """The ``spec`` of an A2AServer."""

    address: Address = Field(description="the server's address, as {value: ADDRESS}")
    headers: Headers = Field((), description="headers of each request")
    description: str | None = Field(None, description="a description for people")
    timeout: Duration = Field("5m", description="how long a task may take, such as '5m' or '12h'")
    poll_interval: Annotated[Duration | None, NoEffect("the agent's card is read before each call")] = Field(
        None, description="how often its agents are listed again"
    )
    circuit_breaker: CircuitBreaker | None = Field(
        None, description="{failures, window, openFor, onOpen}: opens a circuit breaker if a server fails often"
    )
    idempotent: bool = Field(False, description="true if it processes a message with the same messageId only once")
    questions: Questions | None = Field(
        None, description="lets people answer questions of the agent; {} for all defaults"
    )


class A2AServer(Manifest):
    """An external server with agents."""

    api_version: Literal["ark.mckinsey.com/v1prealpha1"] = Field(description=f"'{PREALPHA}'")  # type: ignore[assignment]
    kind: Literal["A2AServer"] = "A2AServer"
    spec: A2AServerSpec = Field(description="where the server is")

    @property
    def address(self) -> ValueSource:
        """The server's address."""
        return self.spec.address


class AnnotatedA2AServer(A2AServer):
    """The server of an agent whose annotations contain its address; it has no manifest of its own."""

    agent_id: str = Field(exclude=True)

    @property
    def declared_in(self) -> str:
        """The id of the agent."""
        return self.agent_id
