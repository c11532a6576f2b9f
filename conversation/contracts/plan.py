"""What must a workflow know of the manifests? Their decisions, without prompts, schemas or addresses."""

from typing import Annotated, Literal

from pydantic import Field

from ...resources.agent import OnError
from ...resources.base import JsonModel, JsonObject
from ...resources.panel import Visibility
from ...resources.query import TargetType
from ...resources.team_fields import NoProgress
from ...resources.values import ContributionsRef
from ...resources.window import ContextWindow


class ToolPlan(JsonModel):
    """A tool that an agent may use, what becomes of its failures, and how many seconds one use may take."""

    name: str
    on_error: OnError = "feed"
    timeout: float | None = None


class AgentPlan(JsonModel):
    """How an agent takes its turn, or a model that is asked by itself, which is an agent without prompt and tools.

    ``models`` names its model and the fallbacks behind it.
    """

    kind: Literal["agent", "model"]
    name: str
    namespace: str
    cast: str | None = None
    models: tuple[str, ...]
    tools: tuple[ToolPlan, ...] = ()
    max_iterations: int = 25
    window: ContextWindow | None = None
    parallel_tool_calls: bool = False

    @property
    def speaker(self) -> str:
        """The id of its manifest, or under which its team has cast it."""
        return self.cast or f"{self.kind.capitalize()}/{self.namespace}/{self.name}"


class ToolTarget(JsonModel):
    """A tool that a query is put to."""

    kind: Literal["tool"]
    name: str
    namespace: str
    timeout: float | None = None


class TeamMember(JsonModel):
    """A member that is a team; its strategy names the workflow that runs it. ``joins``: how much of what it says."""

    kind: Literal["team"]
    name: str
    namespace: str
    strategy: str
    joins: Literal["conversation", "result", "nothing"] = "conversation"


class ActivityMember(JsonModel):
    """A member of a panel that is a function which the worker has registered."""

    kind: Literal["activity"]
    name: str
    namespace: str
    function: str


MemberPlan = Annotated[AgentPlan | TeamMember | ActivityMember, Field(discriminator="kind")]


class EdgePlan(JsonModel):
    """An edge of a graph, by the places of its members."""

    from_: int
    to: int
    conditional: bool = False


class SelectorPlan(JsonModel):
    """How a selector's model is asked: it and the fallbacks behind it, and whether it can end the team."""

    models: tuple[str, ...]
    can_end: bool = False


class PanelPlan(JsonModel):
    """How a panel goes about its rounds: its members' names, and the speakers beside them by their ``parts``."""

    max_rounds: int
    roster: tuple[str, ...]
    parts: dict[str, MemberPlan] = {}
    stances: tuple[str, ...] = ()
    audit: str | None = None
    contributions: ContributionsRef | None = None
    session: JsonObject = {}
    visibility: Visibility = Visibility()


class TeamPlan(JsonModel):
    """How a team discusses. The unit of ``max_turns`` is the strategy's own."""

    kind: Literal["discussion"]
    name: str
    namespace: str
    strategy: str
    members: tuple[MemberPlan, ...]
    max_turns: int | None = None
    on_max_turns: Literal["fail", "complete"] = "fail"
    loops: bool = False
    edges: tuple[EdgePlan, ...] = ()
    chooser: SelectorPlan | None = None
    aggregator: AgentPlan | None = None
    max_concurrency: int | None = None
    on_member_error: Literal["fail", "continue"] = "fail"
    no_progress: NoProgress | None = None
    conditional: bool = False
    panel: PanelPlan | None = None

    @property
    def id(self) -> str:
        """The id of the team's manifest."""
        return f"Team/{self.namespace}/{self.name}"


class TargetPlan(JsonModel):
    """A target of a query; ``workflow`` names the workflow that answers for it."""

    type: TargetType
    name: str
    namespace: str
    workflow: str


class QueryPlan(JsonModel):
    """Whom a query asks, and for how long, in seconds."""

    kind: Literal["query"]
    name: str | None = None
    namespace: str = "default"
    targets: tuple[TargetPlan, ...]
    timeout: float | None = None
    fail_fast: bool = False


Plan = Annotated[QueryPlan | TeamPlan | AgentPlan | ToolTarget, Field(discriminator="kind")]
