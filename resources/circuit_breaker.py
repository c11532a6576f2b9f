"""The circuit breaker of a model or a server: how many failures open it, and what becomes of calls then."""

from typing import Literal

from pydantic import Field

from .base import JsonModel
from .duration import Duration


class CircuitBreaker(JsonModel):
    """After so many failures within a time no call begins for a while; then one tries (ARK: queries, recovery)."""

    failures: int = Field(5, ge=1, le=1_000, description="how many failures of the server open it")
    window: Duration = Field("1m", description="the time within which they happen, such as '1m'")
    open_for: Duration = Field("30s", description="how long no call begins, such as '30s'; then one call tries")
    on_open: Literal["wait", "fail"] = Field("wait", description="'wait' until it closes; 'fail': calls fail at once")
