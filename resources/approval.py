"""``approval``: which calls of a tool require human approval (ARK: approvals), and ``approvers``: who may decide."""

import hashlib
import json
from collections.abc import Collection
from functools import lru_cache
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, JsonValue, field_validator, model_validator
from pydantic_core import SchemaError, SchemaValidator, ValidationError, core_schema

from .base import Duration, FieldError, JsonModel, JsonObject, Text, parse_duration

OnTimeout = Literal["reject", "proceed"]


class ArgumentMatch(JsonModel):
    """An argument, and a regular expression that must match somewhere in its text."""

    argument: Text = Field(description="the argument's name")
    pattern: str = Field(
        max_length=1_000, description="a regular expression for its text; a value that is not text is matched as JSON"
    )

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, pattern: str) -> str:
        try:
            _searcher(pattern)
        except SchemaError as error:
            raise ValueError(f"is not a regular expression: {str(error).splitlines()[-1].strip()[:200]}") from None
        return pattern

    def holds(self, arguments: JsonObject) -> bool:
        """Whether the pattern matches the argument; False without such an argument."""
        return self.argument in arguments and _matches(self.pattern, arguments[self.argument])


MAX_NAME = 64
"""Characters of a caller's name in histories."""


def caller_name(name: str) -> str:
    """The name of a caller as it is in histories and journal: of a longer one its SHA-256."""
    return name if len(name) <= MAX_NAME else hashlib.sha256(name.encode()).hexdigest()


MAX_APPROVERS = 100
"""Names, and groups, in one rule: they are in the status of a run that waits."""

PersonName = Annotated[str, Field(min_length=1, max_length=256)]


class Approvers(JsonModel):
    """Who may decide: people with one of the ``names``, or in one of the ``groups``; without both, everyone.

    Only an identity counts that a gateway has verified.
    """

    names: tuple[PersonName, ...] = Field(
        (), max_length=MAX_APPROVERS, description="people, by the names of their keys or their OIDC subjects"
    )
    groups: tuple[PersonName, ...] = Field(
        (), max_length=MAX_APPROVERS, description="groups of people, as in the gateway's keys or in their OIDC tokens"
    )
    required: int = Field(1, ge=1, le=10, description="how many different people must approve; one can reject")
    not_requester: bool = Field(False, description="not the person who started the run")

    def admit(self, name: str, groups: Collection[str]) -> bool:
        """Whether a person with that verified name, who is in these groups, may decide."""
        is_named = name in map(caller_name, self.names)
        return not (self.names or self.groups) or is_named or not set(groups).isdisjoint(self.groups)

    def __str__(self) -> str:
        """Who may decide, in words, such as ``2 people of ann, the group finance``."""
        who = ", ".join([*self.names, *(f"the group {group}" for group in self.groups)])
        several = f"{self.required} people" if self.required > 1 else ""
        parts = " of ".join(filter(None, (several, who))) or "anyone"
        return f"{parts}, but not the person who started the run" if self.not_requester else parts


def who_decides(rules: Collection[Approvers]) -> str:
    """Who may decide by these rules, in words; empty without any."""
    return "; and by ".join(map(str, rules))


def _one_reply(approvers: tuple[Approvers, ...]) -> tuple[Approvers, ...]:
    if any(rule.required > 1 for rule in approvers):
        raise ValueError("'required' is for approvals: a question has one reply")
    return approvers


WhoApproves = Annotated[
    tuple[Approvers, ...],
    Field(max_length=10, description="who may decide; each of these rules has to be met. By default, anyone"),
]
WhoReplies = Annotated[
    tuple[Approvers, ...],
    Field(max_length=1, description="who may reply; by default, anyone"),
    AfterValidator(_one_reply),
]


class Approval(JsonModel):
    """A tool's calls require human approval: all of them, or those with an argument that matches."""

    required: bool = Field(True, description="false for calls that need no approval")
    timeout: Duration | None = Field(None, description="how long a call waits, such as '1h'; by default without limit")
    on_timeout: OnTimeout = Field("reject", description="after that time: 'reject' the call, or 'proceed' with it")
    argument_matches: tuple[ArgumentMatch, ...] = Field(
        (), description="{argument, pattern}: only calls that match one of them require approval"
    )
    approvers: WhoApproves = ()

    @model_validator(mode="after")
    def _waits_for_approvers(self) -> Self:
        if self.approvers and self.on_timeout == "proceed":
            raise FieldError(("onTimeout",), "'proceed' would call the tool without the approvers")
        return self

    @property
    def seconds(self) -> float | None:
        """The timeout in seconds."""
        return parse_duration(self.timeout).total_seconds() if self.timeout else None

    def is_needed(self, arguments: JsonObject) -> bool:
        """Whether a call with these arguments requires approval."""
        return self.required and (
            not self.argument_matches or any(match.holds(arguments) for match in self.argument_matches)
        )


def strictest(*rules: Approval | None) -> Approval | None:
    """The strictest combination: an agent's rule can't loosen its tool's. None if no call requires approval."""
    required = [rule for rule in rules if rule and rule.required]
    if len(required) < 2:
        return required[0] if required else None
    on_timeout: OnTimeout = "proceed" if all(rule.on_timeout == "proceed" for rule in required) else "reject"
    limited = sorted((rule for rule in required if rule.seconds is not None), key=lambda rule: rule.seconds or 0)
    timeout: Duration | None = None
    if on_timeout == "reject" and limited:
        timeout = limited[0].timeout  # a call is rejected at the earliest timeout
    elif on_timeout == "proceed" and len(limited) == len(required):
        timeout = limited[-1].timeout  # and proceeds only after the latest timeout
    matches: tuple[ArgumentMatch, ...] = ()
    if all(rule.argument_matches for rule in required):  # a rule without matches applies to all calls
        matches = tuple(match for rule in required for match in rule.argument_matches)
    approvers = tuple(dict.fromkeys(approvers for rule in required for approvers in rule.approvers))
    return Approval(timeout=timeout, on_timeout=on_timeout, argument_matches=matches, approvers=approvers)


@lru_cache(1_000)
def _searcher(pattern: str) -> SchemaValidator:
    """The compiled pattern of a library that always searches in linear time."""
    return SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))


def _with_integers(value: JsonValue) -> JsonValue:
    """A value with whole numbers as integers: 4800.0 and 4.8e3 are valid where a schema asks for an integer."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_with_integers(item) for item in value]
    return {name: _with_integers(item) for name, item in value.items()} if isinstance(value, dict) else value


def _matches(pattern: str, value: JsonValue) -> bool:
    text = value if isinstance(value, str) else json.dumps(_with_integers(value), ensure_ascii=False)
    try:
        _searcher(pattern).validate_python(text)
    except ValidationError:
        return False
    return True
