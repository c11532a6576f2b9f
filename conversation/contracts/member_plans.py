"""The plans of members of a team that are no agents: a team, a function of the worker, and a person."""

from typing import Literal

from ...resources.base import JsonModel


class TeamMember(JsonModel):
    """A member that is a team; ``strategy`` is its workflow type.

    ``joins`` tells which of its messages the parent's members read.
    """

    kind: Literal["team"]
    name: str
    namespace: str
    strategy: str
    joins: Literal["conversation", "result", "nothing"] = "conversation"


class ActivityMember(JsonModel):
    """A member of a panel that is a function registered with the worker."""

    kind: Literal["activity"]
    name: str
    namespace: str
    function: str


class HumanMember(JsonModel):
    """A member that is a person, who has ``timeout`` seconds to reply, or all the time.

    Without a reply in time, the turn is skipped if it ``skips``, and else fails. A reply that is ``checked`` has to fit
    the schema in the manifest.
    """

    kind: Literal["human"]
    name: str
    namespace: str
    timeout: float | None = None
    skips: bool = False
    checked: bool = False
