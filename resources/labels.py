"""What do labels say? Whom a selector matches, as in Kubernetes, and whose turn it is where many wait."""

from collections.abc import Mapping
from typing import Literal, Self

from pydantic import Field, model_validator

from .base import FieldError, JsonModel, Text

PRIORITY, TENANT = "baton/priority", "baton/tenant"
"""Labels of what a run is started with: how soon its calls are made, and with whom it shares the workers fairly."""

MAX_TENANT = 63

Operator = Literal["In", "NotIn", "Exists", "DoesNotExist"]


class Requirement(JsonModel):
    """One expression of a label selector. ``NotIn`` also holds where there is no such label."""

    key: Text = Field(description="the label's name")
    operator: Operator = Field(description="'In', 'NotIn', 'Exists' or 'DoesNotExist'")
    values: tuple[str, ...] = Field((), description="the values of 'In' and 'NotIn'")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.operator in ("In", "NotIn") and not self.values:
            raise FieldError(("values",), f"is missing: '{self.operator}' needs at least one")
        if self.operator in ("Exists", "DoesNotExist") and self.values:
            raise FieldError(("values",), f"has no use with '{self.operator}': take it out")
        return self

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Whether these labels meet it."""
        match self.operator:
            case "In":
                return labels.get(self.key) in self.values
            case "NotIn":
                return labels.get(self.key) not in self.values
            case "Exists":
                return self.key in labels
            case "DoesNotExist":
                return self.key not in labels


class LabelSelector(JsonModel):
    """A Kubernetes label selector; an empty one, which would match everything, is taken for a mistake."""

    match_labels: dict[Text, str] = Field({}, description="labels and their values, all of which must be there")
    match_expressions: tuple[Requirement, ...] = Field((), description="expressions {key, operator, values}")

    @model_validator(mode="after")
    def _asks_for_something(self) -> Self:
        if not (self.match_labels or self.match_expressions):
            raise ValueError("needs matchLabels or matchExpressions: without them it would match everything")
        return self

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether these labels meet all that it asks for."""
        expressions = all(each.holds(labels) for each in self.match_expressions)
        return expressions and self.match_labels.items() <= labels.items()


def priority_of(labels: Mapping[str, str]) -> int | None:
    """1, the first, to 5, if there is such a label; raises ValueError for any other."""
    given = labels.get(PRIORITY)
    if given not in (None, *"12345"):
        raise ValueError("is not a priority: write '1', which comes first, to '5'")
    return int(given) if given else None


def tenant_of(labels: Mapping[str, str]) -> str | None:
    """Who shares with others, if there is such a label; raises ValueError for one that is empty or too long."""
    given = labels.get(TENANT)
    if given is not None and not 0 < len(given.encode()) <= MAX_TENANT:
        raise ValueError(f"is not a tenant: write 1 to {MAX_TENANT} bytes")
    return given
