"""The Python interface of Baton: everything that ``import baton`` offers."""

from ...contracts.decisions import PendingDecision
from ...contracts.message import PersonDecision
from ...contracts.panel import (
    Briefing,
    Contribution,
    Critique,
    DebateShape,
    Decision,
    PanelInput,
    PanelShape,
    PanelState,
    RefereeOutput,
    Verdict,
)
from ...contracts.status import Status
from ...resources.functions import Context, function, tool
from ...resources.problems import ManifestError
from ...temporal.client import ConnectionFailed
from ..errors import UnreachableError
from ..history.events import (
    AttemptFailedEvent,
    CalledTool,
    ConditionsEvaluatedEvent,
    Event,
    HandoffEvent,
    MemoryReadEvent,
    MemoryWrittenEvent,
    MessageEvent,
    ModelAnsweredEvent,
    ModelCalledEvent,
    ModelFailedEvent,
    NoticeEvent,
    RoundEndedEvent,
    RoundStartedEvent,
    RunEndedEvent,
    RunForkedEvent,
    RunResetEvent,
    RunRetriedEvent,
    RunStartedEvent,
    SessionChangedEvent,
    SpeakerSelectedEvent,
    SteeredEvent,
    StopRequestedEvent,
    TextDeltaEvent,
    TextRetractedEvent,
    ToolCalledEvent,
    ToolFailedEvent,
    ToolReturnedEvent,
    TurnEndedEvent,
    TurnStartedEvent,
    WaitEndedEvent,
    WaitStartedEvent,
)
from ..history.follow import CursorError
from ..runs.runs import NoSuchRunError, NotServedError
from ..runs.schedules import ScheduleError
from ..runs.start import NotForkedError, NotRetriedError
from .client import (
    Connection,
    apply_schedule,
    attach,
    connect,
    contributions,
    find_schedule,
    retry,
    run,
    run_sync,
    start,
)
from .content import File, Image
from .definitions import EnvironmentSecret as Secret
from .definitions import Manifests, load
from .definitions import ResourceDefinition as Manifest
from .evaluate import compare, evaluate
from .handle import Handle, NoValueError, Refused, Result, RunFailed, ScheduleHandle
from .resources import A2AServerDefinition as A2AServer
from .resources import AgentDefinition as Agent
from .resources import ExecutionEngineDefinition as ExecutionEngine
from .resources import MCPServerDefinition as MCPServer
from .resources import ModelDefinition as Model
from .resources import QueryDefinition as Query
from .resources import ScheduleDefinition as Schedule
from .resources import SkillDefinition as Skill
from .teams import MemberDefinition as Member
from .teams import TeamDefinition as Team
from .teams import debate, referee, roster_agent, round_robin, synthesizer

__all__ = [
    "A2AServer",
    "Agent",
    "AttemptFailedEvent",
    "Briefing",
    "CalledTool",
    "ConditionsEvaluatedEvent",
    "Connection",
    "ConnectionFailed",
    "Context",
    "Contribution",
    "Critique",
    "CursorError",
    "DebateShape",
    "Decision",
    "Event",
    "ExecutionEngine",
    "File",
    "Handle",
    "HandoffEvent",
    "Image",
    "MCPServer",
    "Manifest",
    "ManifestError",
    "Manifests",
    "Member",
    "MemoryReadEvent",
    "MemoryWrittenEvent",
    "MessageEvent",
    "Model",
    "ModelAnsweredEvent",
    "ModelCalledEvent",
    "ModelFailedEvent",
    "NoSuchRunError",
    "NoValueError",
    "NotForkedError",
    "NotRetriedError",
    "NotServedError",
    "NoticeEvent",
    "PanelInput",
    "PanelShape",
    "PanelState",
    "PendingDecision",
    "PersonDecision",
    "Query",
    "RefereeOutput",
    "Refused",
    "Result",
    "RoundEndedEvent",
    "RoundStartedEvent",
    "RunEndedEvent",
    "RunFailed",
    "RunForkedEvent",
    "RunResetEvent",
    "RunRetriedEvent",
    "RunStartedEvent",
    "Schedule",
    "ScheduleError",
    "ScheduleHandle",
    "Secret",
    "SessionChangedEvent",
    "Skill",
    "SpeakerSelectedEvent",
    "Status",
    "SteeredEvent",
    "StopRequestedEvent",
    "Team",
    "TextDeltaEvent",
    "TextRetractedEvent",
    "ToolCalledEvent",
    "ToolFailedEvent",
    "ToolReturnedEvent",
    "TurnEndedEvent",
    "TurnStartedEvent",
    "UnreachableError",
    "Verdict",
    "WaitEndedEvent",
    "WaitStartedEvent",
    "apply_schedule",
    "attach",
    "compare",
    "connect",
    "contributions",
    "debate",
    "evaluate",
    "find_schedule",
    "function",
    "load",
    "referee",
    "retry",
    "roster_agent",
    "round_robin",
    "run",
    "run_sync",
    "start",
    "synthesizer",
    "tool",
]
