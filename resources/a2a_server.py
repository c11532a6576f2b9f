"""``kind: A2AServer``: a server of agents that speaks the Agent-to-Agent protocol (seed 004, A2A Execution Path)."""

from typing import Literal

from pydantic import Field

from .base import PREALPHA, JsonModel
from .duration import Duration
from .manifest import Manifest
from .values import Address, Headers


class A2AServerSpec(JsonModel):
    """A server's ``spec``."""

    address: Address = Field(description="the server's address, as {value: ADDRESS}")
    headers: Headers = Field((), description="headers of each request")
    description: str | None = Field(None, description="a word for people")
    timeout: Duration | None = Field(None, description="how long an answer may take, such as '5m'")
    poll_interval: Duration | None = Field(None, description="how often its agents are listed anew")


class A2AServer(Manifest):
    """A server whose agents are elsewhere."""

    api_version: Literal["ark.mckinsey.com/v1prealpha1"] = Field(description=f"'{PREALPHA}'")  # type: ignore[assignment]
    kind: Literal["A2AServer"] = "A2AServer"
    spec: A2AServerSpec = Field(description="where the server is")
