"""Budgets of queries, teams and agents: limits on the usage of everything below them."""

from typing import Literal, Self, TypeVar

from pydantic import Field, model_validator

from .approval import WhoApproves
from .base import Duration, FieldError, JsonModel, parse_duration

OnExceeded = Literal["stop", "fail", "ask"]

MAX_COUNT = 10**15
MAX_DOLLARS = 10**6
"""The highest limits for tokens and calls, and for costs."""

NANO = 1_000_000_000
"""Costs are integers in billionths of a US dollar."""


class Budget(JsonModel):
    """Limits on the usage of everything below its owner in one run."""

    tokens: int | None = Field(None, ge=1, le=MAX_COUNT, description="tokens of prompts and answers")
    cost: float | None = Field(None, gt=0, le=MAX_DOLLARS, description="US dollars, by the prices of the models")
    model_calls: int | None = Field(None, ge=1, le=MAX_COUNT, description="model calls")
    tool_calls: int | None = Field(None, ge=1, le=MAX_COUNT, description="tool calls")
    duration: Duration | None = Field(None, description="the time after its first call in which calls may begin")
    on_exceeded: OnExceeded = Field(
        "stop", description="'stop' ends its owner normally, 'fail' fails it, 'ask' waits for a person's decision"
    )
    approvers: WhoApproves = ()

    @model_validator(mode="after")
    def _asks_approvers(self) -> Self:
        if self.approvers and self.on_exceeded != "ask":
            raise FieldError(("approvers",), "nobody is asked: this needs 'onExceeded: ask'")
        return self

    @model_validator(mode="after")
    def _bounds_something(self) -> Self:
        if not self.model_fields_set & {"tokens", "cost", "model_calls", "tool_calls", "duration"}:
            raise ValueError("has no limit: set tokens, cost, modelCalls, toolCalls or duration")
        return self

    @property
    def ends_runs(self) -> bool:
        """Whether it limits a run that would otherwise keep calling models."""
        return any(limit is not None for limit in (self.tokens, self.cost, self.model_calls, self.duration))

    def raised_by(self, more: "Budget") -> "Budget":
        """The same budget with its limits raised by ``more``, except ``duration``, which restarts at an approval."""
        return Budget(
            tokens=_raised(self.tokens, more.tokens, MAX_COUNT),
            cost=_raised(self.cost, more.cost, MAX_DOLLARS),
            model_calls=_raised(self.model_calls, more.model_calls, MAX_COUNT),
            tool_calls=_raised(self.tool_calls, more.tool_calls, MAX_COUNT),
            duration=self.duration,
            on_exceeded=self.on_exceeded,
            approvers=self.approvers,
        ).without_defaults

    @property
    def seconds(self) -> float | None:
        """Its ``duration`` in seconds."""
        return parse_duration(self.duration).total_seconds() if self.duration else None


Number = TypeVar("Number", int, float)


def _raised(limit: Number | None, more: Number | None, most: Number) -> Number | None:
    """A limit raised by a grant, up to the highest valid limit."""
    return None if limit is None else min(limit + (more or 0), most)


class Pricing(JsonModel):
    """The price of a million tokens of a model, in US dollars."""

    input: float = Field(ge=0, le=10**6, description="US dollars for a million tokens of a prompt")
    output: float = Field(ge=0, le=10**6, description="US dollars for a million tokens of an answer")
    cached_input: float | None = Field(
        None, ge=0, le=10**6, description="for a million prompt tokens served from the provider's cache"
    )

    def cost(self, prompt: int, completion: int, cached: int = 0) -> int:
        """The cost in billionths of a dollar; ``cached`` prompt tokens were served from the provider's cache."""
        cheaper = self.input if self.cached_input is None else self.cached_input
        per_million = (prompt - cached) * self.input + cached * cheaper + completion * self.output
        return round(per_million * NANO / 1_000_000)
