"""Labels: Kubernetes label selectors, and the labels for the priority and the tenant of a run."""

from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from .base import FieldError, JsonModel, Text

PRIORITY = "baton/priority"
TENANT = "baton/tenant"
"""Labels of the resource that a run starts with: the priority of its activities, and its fairness key."""

MAX_TENANT = 63

Operator = Literal["In", "NotIn", "Exists", "DoesNotExist"]


class Requirement(JsonModel):
    """One expression of a label selector. ``NotIn`` is also true if there is no such label."""

    key: Text = Field(description="the label's name")
    operator: Operator = Field(description="'In', 'NotIn', 'Exists' or 'DoesNotExist'")
    values: tuple[str, ...] = Field((), description="the values of 'In' and 'NotIn'")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.operator in ("In", "NotIn") and not self.values:
            raise FieldError(("values",), f"is missing: '{self.operator}' needs at least one")
        if self.operator in ("Exists", "DoesNotExist") and self.values:
            raise FieldError(("values",), f"can't be used with '{self.operator}': remove it")
        return self

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Whether these labels satisfy it."""
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
    """A Kubernetes label selector; an empty one, which would match everything, is an error."""

    match_labels: dict[Text, str] = Field({}, description="labels and their values, all of which must match")
    match_expressions: tuple[Requirement, ...] = Field((), description="expressions {key, operator, values}")

    @model_validator(mode="after")
    def _selects_something(self) -> Self:
        if not (self.match_labels or self.match_expressions):
            raise ValueError("needs matchLabels or matchExpressions: without them it would match everything")
        return self

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether these labels satisfy all its requirements."""
        expressions = all(expression.holds(labels) for expression in self.match_expressions)
        return expressions and self.match_labels.items() <= labels.items()


def priority_of(labels: Mapping[str, str]) -> int | None:
    """The priority, from 1 (highest) to 5; None without the label. Raises FieldError for other values."""
    priority = labels.get(PRIORITY)
    if priority not in (None, *"12345"):
        raise FieldError((PRIORITY,), "is not a priority: write '1' (highest) to '5'")
    return int(priority) if priority else None


def tenant_of(labels: Mapping[str, str]) -> str | None:
    """The tenant; None without the label. Raises FieldError if it is empty or too long."""
    tenant = labels.get(TENANT)
    if tenant is not None and not 0 < len(tenant.encode()) <= MAX_TENANT:
        raise FieldError((TENANT,), f"is not a tenant: write 1 to {MAX_TENANT} bytes")
    return tenant


def _check_labels(labels: dict[str, str]) -> dict[str, str]:
    priority_of(labels)
    tenant_of(labels)
    return labels


Labels = Annotated[dict[str, str], AfterValidator(_check_labels)]
"""The labels of a resource; Baton uses those for the priority and the tenant."""
