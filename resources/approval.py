"""``approval``: which calls of a tool require human approval (ARK: approvals)."""

import json
from functools import lru_cache
from typing import Literal

from pydantic import Field, JsonValue, field_validator
from pydantic_core import SchemaError, SchemaValidator, ValidationError, core_schema

from .base import Duration, JsonModel, JsonObject, Text, parse_duration

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


class Approval(JsonModel):
    """A tool's calls require human approval: all of them, or those with an argument that matches."""

    required: bool = Field(True, description="false for calls that need no approval")
    timeout: Duration | None = Field(None, description="how long a call waits, such as '1h'; by default without limit")
    on_timeout: OnTimeout = Field("reject", description="after that time: 'reject' the call, or 'proceed' with it")
    argument_matches: tuple[ArgumentMatch, ...] = Field(
        (), description="{argument, pattern}: only calls that match one of them require approval"
    )

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
    return Approval(timeout=timeout, on_timeout=on_timeout, argument_matches=matches)


@lru_cache(1_000)
def _searcher(pattern: str) -> SchemaValidator:
    """The compiled pattern of a library that always searches in linear time."""
    return SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))


def _matches(pattern: str, value: JsonValue) -> bool:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    try:
        _searcher(pattern).validate_python(text)
    except ValidationError:
        return False
    return True
