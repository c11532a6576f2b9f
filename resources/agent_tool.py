"""A tool of an agent, and what the agent says about it (ARK: teams, manifests)."""

from typing import Literal, Self

from pydantic import Field, model_validator

from .approval import Approval
from .base import FieldError, JsonModel
from .partial import Partial
from .problems import did_you_mean
from .values import Function

BUILT_INS: tuple[str, ...] = ("noop", "terminate", "terminate_team", "calculator", "format-text")
TERMINATING = frozenset({"terminate", "terminate_team"})


ToolKind = Literal["built-in", "builtin", "custom", "http", "mcp", "agent", "team", "activity", "openapi"]
OnError = Literal["feed", "fail", "retry"]


class AgentTool(JsonModel):
    """A tool of an agent. Without ``type`` it is the built-in tool of that name, else a custom tool."""

    name: str = Field(min_length=1, description="the tool's name")
    type: ToolKind | None = Field(None, description="'built-in', 'custom' for a Tool, or the type of that Tool")
    description: str | None = Field(None, description="a description for the model, instead of the tool's own")
    functions: tuple[Function, ...] = Field((), description="filters {name: jq, value} for its result, in their order")
    partial: Partial | None = Field(None, description="{name, parameters} of arguments that the model does not choose")
    untrusted_content: bool | None = Field(None, description="whether its result is marked as untrusted")
    approval: Approval | None = Field(
        None, description="which of its calls wait for a person's yes, besides those that its Tool names"
    )
    on_error: OnError = Field(
        "feed", description="if it fails: 'feed' tells the model, 'fail' ends the turn, 'retry' retries"
    )

    @model_validator(mode="after")
    def _known(self) -> Self:
        if self.built_in and self.own_name not in BUILT_INS:
            path = ("partial", "name") if self.partial and self.partial.name else ("name",)
            hint = did_you_mean(self.own_name, BUILT_INS)
            raise FieldError(path, f"'{self.own_name}' is not a built-in tool; {hint}")
        return self

    @property
    def own_name(self) -> str:
        """The name of the built-in tool or of the manifest; ``name`` is what the agent calls it."""
        return (self.partial and self.partial.name) or self.name

    @property
    def built_in(self) -> bool:
        return self.type in ("built-in", "builtin") or (self.type is None and self.own_name in BUILT_INS)

    @property
    def terminates(self) -> bool:
        return self.built_in and self.own_name in TERMINATING
