"""``kind: Quota``: what the runs of one tenant may use, all together: runs at once, calls, tokens and money."""

from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from .base import FieldError, JsonModel, Name, Text
from .budget import MAX_COUNT, MAX_DOLLARS, NANO
from .manifest import Manifest

QuotaPeriod = Literal["minute", "day", "month"]
"""A calendar period in UTC, by the clock of the journal's database."""

ANY_MODEL = "*"

Count = Annotated[int, Field(ge=1, le=MAX_COUNT)]


class QuotaAmounts(JsonModel):
    """The amounts that the runs of a tenant may use in one period."""

    tokens: Count | None = Field(None, description="tokens of prompts and answers")
    cost: float | None = Field(None, gt=0, le=MAX_DOLLARS, description="US dollars, by the prices of the models")
    model_calls: Count | None = Field(None, description="model calls")
    tool_calls: Count | None = Field(None, description="tool calls")

    @model_validator(mode="after")
    def _bounds_something(self) -> Self:
        if not self.limits:
            raise ValueError("has no limit: set tokens, cost, modelCalls or toolCalls")
        return self

    @property
    def limits(self) -> dict[str, int]:
        """The limits by the names of ``journal.accounts.Amount``; the cost in billionths of a dollar."""
        cost = None if self.cost is None else round(self.cost * NANO)
        amounts = {"tokens": self.tokens, "cost": cost, "model_calls": self.model_calls, "tool_calls": self.tool_calls}
        return {name: limit for name, limit in amounts.items() if limit is not None}


class QuotaSpec(JsonModel):
    """The ``spec`` of a Quota: its tenant, that tenant's share of the workers, and its limits."""

    service_account: Name | None = Field(
        None, description="only the runs of this ServiceAccount; by default all runs of the Quota's namespace"
    )
    each_namespace: bool = Field(
        False,
        description="every namespace without a Quota of its own has these limits, each for itself; only in the "
        "namespace 'default'",
    )
    weight: float | None = Field(
        None, ge=0.001, le=1_000, description="the tenant's share while tenants compete, relative to others; 1 if unset"
    )
    priority: int | None = Field(
        None, ge=1, le=5, description="from 1 (highest) to 5; 3 if unset. Higher ones are served first"
    )
    max_concurrent_runs: int | None = Field(
        None, ge=1, le=100_000, description="how many runs may be open; further ones wait in their order"
    )
    calls_per_minute: dict[Text, Annotated[int, Field(ge=1, le=1_000_000)]] = Field(
        {}, description="model calls in a minute by the Model's name; '*' for each other model. Further ones wait"
    )
    per_day: QuotaAmounts | None = Field(None, description="limits for a day in UTC")
    per_month: QuotaAmounts | None = Field(None, description="limits for a calendar month in UTC")
    on_exceeded: Literal["wait", "fail"] = Field(
        "wait", description="after perDay or perMonth is used up: runs 'wait' until the next day or month, or 'fail'"
    )

    @model_validator(mode="after")
    def _one_tenant(self) -> Self:
        if self.each_namespace and self.service_account:
            raise FieldError(("eachNamespace",), "can't be combined with serviceAccount: keep one of them")
        return self


class Quota(Manifest):
    """The limits of a tenant: of a namespace, or of a ServiceAccount in it."""

    kind: Literal["Quota"] = "Quota"
    spec: QuotaSpec = Field(description="whose limits, and which")

    @model_validator(mode="after")
    def _for_all_from_default(self) -> Self:
        if self.spec.each_namespace and self.namespace != "default":
            raise FieldError(("spec", "eachNamespace"), "is only possible in the namespace 'default'")
        return self

    @property
    def periods(self) -> Iterator[tuple[QuotaPeriod, QuotaAmounts]]:
        """The limited periods with their limits."""
        if self.spec.per_day:
            yield "day", self.spec.per_day
        if self.spec.per_month:
            yield "month", self.spec.per_month

    def calls_per_minute(self, model: str) -> int | None:
        """The number of calls of a model in a minute; None without a limit."""
        return self.spec.calls_per_minute.get(model, self.spec.calls_per_minute.get(ANY_MODEL))
