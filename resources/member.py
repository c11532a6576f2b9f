"""Who speaks in a team? Agents, teams, and in a panel also default members and registered activities."""

from typing import Literal

from pydantic import Field

from .base import JsonModel, Name, Text


class Speaker(JsonModel):
    """Who speaks. Without ``type`` it is the agent of that name, else the team of that name."""

    name: Name = Field(description="the name of an agent, a team, or a registered activity")
    type: Literal["agent", "team", "activity"] | None = Field(None, description="'agent', 'team' or 'activity'")
    namespace: Name | None = None


class Member(Speaker):
    """One member. In a panel, one of whom there is no manifest is a default member, by its name and role."""

    as_: Name | None = Field(None, alias="as", description="another name for it in this team")
    role: Text | None = Field(None, description="who a panel's default member is, such as 'a fact-checker'")
    stance: Text | None = Field(None, description="what a debater stands for")

    @property
    def name_in_team(self) -> str:
        """The name that it is known by in its team."""
        return self.as_ or self.name

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of manifest that it may be; none, where it needs no manifest."""
        if self.role or self.type == "activity":
            return ()
        return KINDS[self.type]


KINDS = {"agent": ("Agent",), "team": ("Team",), "activity": (), None: ("Agent", "Team")}
"""The kinds of manifest that a type stands for."""
