"""Speakers and members of a team: agents, teams, people, functions, and in a panel also default members."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from .approval import WhoReplies
from .base import Duration, FieldError, JsonModel, Name, Text
from .json_schema import JsonSchema

MAX_QUESTION = 4_000
"""Characters of the question for a person, which is stored with every turn of that person."""


class Speaker(JsonModel):
    """An agent, a team or a registered function. Without ``type``, an agent of that name, or otherwise a team."""

    name: Name = Field(description="the name of an agent, a team, or a registered activity")
    type: Literal["agent", "team", "activity"] | None = Field(None, description="'agent', 'team' or 'activity'")
    namespace: Name | None = Field(None, description="its namespace, if it is not the same")


class Member(Speaker):
    """A member of a team, identified by ``type`` and ``name``.

    Without ``type``, a panel's member that has no manifest is a default member, created from its name and role.
    """

    type: Literal["agent", "team", "human", "activity", "default"] | None = Field(  # type: ignore[assignment]  # more
        None, description="'agent', 'team', 'human', 'activity', or 'default' for a default member"
    )
    as_: Name | None = Field(None, alias="as", description="another name for it in this team")
    role: Text | None = Field(None, description="the role of a panel's default member, such as 'a fact-checker'")
    stance: Text | None = Field(None, description="the position that a debater argues for")
    prompt: Annotated[Text, Field(max_length=MAX_QUESTION)] | None = Field(
        None, description="the question for a person"
    )
    timeout: Duration | None = Field(None, description="how long a person may take, such as '24h'; no limit by default")
    on_timeout: Literal["fail", "skip"] | None = Field(
        None, description="what to do without a person's reply: 'fail' (default), or 'skip' to continue without it"
    )
    output_schema: JsonSchema | None = Field(None, description="a JSON Schema that a person's reply must match")
    approvers: WhoReplies = ()
    handoffs: tuple[Name, ...] | None = Field(
        None,
        description="the members to which it can transfer the conversation, with 'strategy: handoff'; by default all",
    )

    @model_validator(mode="after")
    def _of_a_person(self) -> Self:
        for name in ("prompt", "timeout", "on_timeout", "output_schema"):
            if getattr(self, name) is not None and self.type != "human":
                raise FieldError((type(self).model_fields[name].alias or name,), "is only for members of 'type: human'")
        if self.approvers and self.type != "human":
            raise FieldError(("approvers",), "is only for members of 'type: human'")
        if self.on_timeout and not self.timeout:
            raise FieldError(("timeout",), "is missing: onTimeout needs it")
        return self

    @property
    def name_in_team(self) -> str:
        """Its name in the team: ``as``, or otherwise ``name``."""
        return self.as_ or self.name

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of manifest that it can be; none if it needs no manifest."""
        return KINDS[self.type]

    @property
    def is_human(self) -> bool:
        """Whether it is a person."""
        return self.type == "human"

    @property
    def only_in_panels(self) -> bool:
        """Whether it can be a member of a panel only: a default member."""
        return self.type == "default"

    @property
    def makes_panel(self) -> bool:
        """Whether a team that may be a panel is one because of it: a function, or a default member."""
        return self.type in ("activity", "default")


KINDS: dict[str | None, tuple[str, ...]] = {
    "agent": ("Agent",),
    "team": ("Team",),
    **dict.fromkeys(("human", "activity", "default"), ()),
    None: ("Agent", "Team"),
}
"""The kinds of manifest by type."""
