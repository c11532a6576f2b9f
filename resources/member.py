"""Speakers and members of a team: agents, teams, and in a panel also default members and registered functions."""

from typing import Literal

from pydantic import Field

from .base import JsonModel, Name, Text


class Speaker(JsonModel):
    """An agent, a team or a registered function. Without ``type`` it is the agent of that name, else the team."""

    name: Name = Field(description="the name of an agent, a team, or a registered activity")
    type: Literal["agent", "team", "activity"] | None = Field(None, description="'agent', 'team' or 'activity'")
    namespace: Name | None = None


class Member(Speaker):
    """A member of a team: whom ``type`` and ``name`` name. Without ``type``, a panel's member without a manifest is a
    default member, made from its name and role.
    """

    type: Literal["agent", "team", "activity", "default"] | None = Field(  # type: ignore[assignment]  # one type more
        None, description="'agent', 'team', 'activity', or 'default' for a default member"
    )
    as_: Name | None = Field(None, alias="as", description="another name for it in this team")
    role: Text | None = Field(None, description="the role of a panel's default member, such as 'a fact-checker'")
    stance: Text | None = Field(None, description="the position that a debater argues for")

    @property
    def name_in_team(self) -> str:
        """Its name in the team: ``as``, else ``name``."""
        return self.as_ or self.name

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of manifest that it can be; none if it needs no manifest."""
        return KINDS[self.type]

    @property
    def only_in_panels(self) -> bool:
        """Whether it can be a member of a panel only: a function, or a default member."""
        return self.type in ("activity", "default")


KINDS = {"agent": ("Agent",), "team": ("Team",), "activity": (), "default": (), None: ("Agent", "Team")}
"""The kinds of manifest for each type."""
