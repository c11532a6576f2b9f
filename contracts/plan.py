"""Plans: what a workflow needs to know of the manifests, without prompts, schemas and addresses."""

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Field

from ..resources.agent import OnError
from ..resources.base import Dialect, JsonModel, JsonObject
from ..resources.budget import Budget
from ..resources.manifest import ContextWindow
from ..resources.panel import Visibility
from ..resources.query import TargetType
from ..resources.team import NoProgress
from ..resources.tool import IdReusePolicy
from ..resources.values import ContributionsRef
from .decisions import QuestionsPlan


class TeamMember(JsonModel):
    """A member that is a team; ``strategy`` is its workflow type.

    ``joins`` selects which of its messages the parent's members read.
    """

    kind: Literal["team"]
    name: str
    namespace: str
    strategy: str
    joins: Literal["conversation", "result", "nothing"] = "conversation"


class ActivityMember(JsonModel):
    """A member that is a function registered with the worker."""

    kind: Literal["activity"]
    name: str
    namespace: str
    function: str


class HumanMember(JsonModel):
    """A member that is a person, who has ``timeout`` seconds to reply, or no limit.

    Without a reply in time, the turn is skipped (``skips``) or fails. With ``checked``, a reply has to fit the schema
    in the manifest.
    """

    kind: Literal["human"]
    name: str
    namespace: str
    timeout: float | None = None
    skips: bool = False
    checked: bool = False


class ConversationPlan(JsonModel):
    """The conversation that a query continues.

    Without an ``id`` it is named like the run. ``memory`` is the name of the Memory in ``namespace`` that stores it, or
    empty. If there is such a manifest (``remote``), the conversation is stored at its address, and ``on_error`` says
    whether the query fails if it can't be read; otherwise the journal stores it.
    """

    id: str
    namespace: str
    memory: str = ""
    remote: bool = False
    on_error: Literal["fail", "continue"] = "fail"

    @property
    def key(self) -> dict[str, str]:
        """The key under which the journal of a Temporal namespace stores it."""
        return {"namespace": self.namespace, "memory": self.memory, "id": self.id}


class DelegatePlan(JsonModel):
    """The agent or team that a tool delegates to, run by the workflow type ``workflow``."""

    kind: Literal["agent", "team"]
    name: str
    namespace: str
    workflow: str


class ActivityPlan(JsonModel):
    """The activity of an application that a tool calls, on a task queue, by default the run's own.

    It may wait ``schedule_to_start`` seconds for a worker. With ``heartbeat``, that many seconds may pass between two
    heartbeats.
    """

    type: str
    task_queue: str | None = None
    schedule_to_start: float
    heartbeat: float | None = None


class WorkflowPlan(JsonModel):
    """The workflow of an application that a tool starts as a child, on a task queue, by default the run's own."""

    type: str
    task_queue: str | None = None
    id_reuse_policy: IdReusePolicy = "AllowDuplicate"


class ApprovalPlan(JsonModel):
    """Calls of a tool may need human approval, for which they wait ``timeout`` seconds, or without a limit.

    ``rule`` is the id of the tool's manifest, or the name of a built-in tool. After the timeout a call is executed
    (``proceeds``) or rejected.
    """

    rule: str
    timeout: float | None = None
    proceeds: bool = False


class RetryPlan(JsonModel):
    """How often a call is attempted, and the seconds between two attempts: the first ones, and the most."""

    attempts: int | None = None
    initial: float
    maximum: float


class ToolPlan(JsonModel):
    """A tool of an agent: its error handling, its timeout in seconds, and whether its results are untrusted.

    ``asks`` is the agent or team that it delegates to in a child run, ``activity`` and ``workflow`` what the run itself
    calls in an application; ``by_client``: the client executes its calls; with ``approval``, its calls may need human
    approval; with ``questions``, its server may ask a person. ``reads_run``: a function, whose calls get the turn and
    the session.
    """

    name: str
    on_error: OnError = "feed"
    reads_run: bool = False
    timeout: float | None = None
    untrusted: bool = False
    asks: DelegatePlan | None = None
    activity: ActivityPlan | None = None
    workflow: WorkflowPlan | None = None
    by_client: bool = False
    approval: ApprovalPlan | None = None
    questions: QuestionsPlan | None = None
    retries: RetryPlan | None = None


class MemberPlace(JsonModel):
    """A member of a team, by the id of the team and its index."""

    team: str
    index: int


class HandoffPlan(JsonModel):
    """How the member at a ``place`` can transfer the conversation.

    ``tools`` has the indexes of the receiving members, by the names of the tools.
    """

    place: MemberPlace
    tools: dict[str, int]


class AgentPlan(JsonModel):
    """An agent, or a model that is called directly: that is an agent without prompt and tools.

    ``models`` are the names of its model and of the fallback models, in order; ``model_timeout`` is the longest of
    their timeouts in seconds, if any has one, and ``retries`` are their retry policies, in the same order, if any has
    one. ``default_agent`` is the id of a default agent, which has no manifest.
    ``engine`` is the name of the manifest that executes it elsewhere, within ``timeout`` seconds;
    then there are no models, and with ``questions`` it may ask a person. ``handoffs`` are for a member that can
    transfer the conversation. So many calls of the client's tools wait for it at the same time: ``client_calls``.
    """

    kind: Literal["agent", "model"]
    name: str
    namespace: str
    default_agent: str | None = None
    models: tuple[str, ...]
    model_timeout: float | None = None
    retries: tuple[RetryPlan | None, ...] = ()
    tools: tuple[ToolPlan, ...] = ()
    max_iterations: int = 25
    window: ContextWindow | None = None
    parallel_tool_calls: bool = False
    engine: str | None = None
    timeout: float | None = None
    budget: Budget | None = None
    questions: QuestionsPlan | None = None
    handoffs: HandoffPlan | None = None
    client_calls: int = 0

    def tool(self, name: str) -> ToolPlan:
        """Its tool of that name; a name invented by a model gets the default settings."""
        return next((tool for tool in self.tools if tool.name == name), ToolPlan(name=name))

    def of_default_agent(self, agent_id: str) -> "AgentPlan":
        """The plan for a default agent with this id."""
        return self.model_copy(update={"default_agent": agent_id})

    def with_handoffs(self, handoffs: HandoffPlan) -> "AgentPlan":
        """The plan of a member that can transfer the conversation."""
        return self.model_copy(update={"handoffs": handoffs})

    @property
    def speaker(self) -> str:
        """The id of its manifest, or of the default agent."""
        return self.default_agent or f"{self.kind.capitalize()}/{self.namespace}/{self.name}"


class ToolTarget(JsonModel):
    """A tool that is a query's target."""

    kind: Literal["tool"]
    name: str
    namespace: str
    timeout: float | None = None
    asks: DelegatePlan | None = None
    activity: ActivityPlan | None = None
    workflow: WorkflowPlan | None = None
    approval: ApprovalPlan | None = None
    questions: QuestionsPlan | None = None
    retries: RetryPlan | None = None


MemberPlan = Annotated[AgentPlan | TeamMember | ActivityMember | HumanMember, Field(discriminator="kind")]


class EdgePlan(JsonModel):
    """An edge of a graph, by the indexes of its members."""

    from_: int
    to: int
    conditional: bool = False


class SelectorPlan(JsonModel):
    """The model and fallback models of a selector, as in an AgentPlan, and whether it can end the team.

    If a ``function`` chooses, there are no models.
    """

    models: tuple[str, ...]
    function: str | None = None
    model_timeout: float | None = None
    retries: tuple[RetryPlan | None, ...] = ()
    can_end: bool = False


class PanelPlan(JsonModel):
    """The settings of a panel: the names of its members (``roster``), and its other speakers by role (``parts``)."""

    max_rounds: int
    roster: tuple[str, ...]
    parts: dict[str, MemberPlan] = {}
    stances: tuple[str, ...] = ()
    audit: str | None = None
    contributions: ContributionsRef | None = None
    session: JsonObject = {}
    visibility: Visibility = Visibility()


class TeamPlan(JsonModel):
    """A team: its strategy, members and limits. What ``max_turns`` counts depends on the strategy.

    ``bounded_by_default``: ``max_turns`` is not from its manifest but a default, because nothing else limits the run.
    In ARK's ``dialect``, reaching it ends the team as in ARK. ``first`` is the index of the member that begins: the one
    to which an earlier query of the conversation was transferred.
    """

    kind: Literal["discussion"]
    name: str
    namespace: str
    strategy: str
    members: tuple[MemberPlan, ...]
    first: int = 0
    max_turns: int | None = None
    bounded_by_default: bool = False
    on_max_turns: Literal["fail", "complete"] = "fail"
    loops: bool = False
    edges: tuple[EdgePlan, ...] = ()
    selector: SelectorPlan | None = None
    aggregator: AgentPlan | None = None
    max_concurrency: int | None = None
    on_member_error: Literal["fail", "continue"] = "fail"
    no_progress: NoProgress | None = None
    conditional: bool = False
    panel: PanelPlan | None = None
    budget: Budget | None = None
    dialect: Dialect | None = None

    def beginning_with(self, member: int) -> "TeamPlan":
        """The plan with the index of the member that begins."""
        return self.model_copy(update={"first": member}) if member else self

    @property
    def id(self) -> str:
        """The id of the team's manifest."""
        return f"Team/{self.namespace}/{self.name}"


class TargetPlan(JsonModel):
    """A target of a query, and the type of the workflow that runs it.

    With ``turn`` it is the only target, and the query takes that turn in its own run.
    """

    type: TargetType
    name: str
    namespace: str
    workflow: str
    turn: Annotated[AgentPlan | ToolTarget, Field(discriminator="kind")] | None = None

    def with_turn(self, turn: AgentPlan | ToolTarget) -> "TargetPlan":
        """The target whose turn the query itself takes."""
        return self.model_copy(update={"turn": turn})


class QueryPlan(JsonModel):
    """The targets of a query, its timeout, and the conversation that it continues, if there is one.
    The timeout is in seconds. ``ttl`` is the number of seconds after its end until all its data is deleted. With
    ``cancel`` it is canceled before any target starts.
    """

    kind: Literal["query"]
    name: str | None = None
    namespace: str = "default"
    targets: tuple[TargetPlan, ...]
    timeout: float | None = None
    fail_fast: bool = False
    budget: Budget | None = None
    conversation: ConversationPlan | None = None
    ttl: float | None = None
    cancel: bool = False

    def taking_turn(self, target: TargetPlan) -> "QueryPlan":
        """The plan of a query that takes the turn of its only target."""
        return self.model_copy(update={"targets": (target,)})

    def with_targets(self, targets: Iterable[TargetPlan]) -> "QueryPlan":
        """The plan of a query that was refused, with the targets that it names."""
        return self.model_copy(update={"targets": tuple(targets)})

    @property
    def without_conversation(self) -> "QueryPlan":
        """The plan of a query that neither reads nor stores a conversation."""
        return self.model_copy(update={"conversation": None})

    def under(self, budget: Budget | None) -> "QueryPlan":
        """The plan with a budget that people have raised."""
        return self.model_copy(update={"budget": budget})


Plan = Annotated[QueryPlan | TeamPlan | AgentPlan | ToolTarget, Field(discriminator="kind")]
