"""The Python interface of Baton: everything that ``import baton`` offers."""

from ...conversation.contracts.decisions import PendingDecision
from ...conversation.contracts.status import Status
from ...conversation.messages.panel import (
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
from ...conversation.messages.person_decision import PersonDecision
from ...conversation.temporal.temporal_client import ConnectionFailed
from ...resources.functions import function, tool
from ...resources.problems import ManifestError
from ..errors import UnreachableError
from ..runs.find_run import NoSuchRunError
from ..runs.schedule_request import ScheduleError
from .client import Connection, apply_schedule, attach, connect, contributions, find_schedule, run, start
from .handle import Handle
from .manifest import ResourceDefinition as Manifest
from .message_stream import MessageEvent
from .outcome import Refused, Result, RunFailed
from .panels import debate, referee, roster_agent, round_robin, synthesizer
from .resources import AgentDefinition as Agent
from .resources import ModelDefinition as Model
from .resources import QueryDefinition as Query
from .resources import SkillDefinition as Skill
from .schedules import ScheduleDefinition as Schedule
from .schedules import ScheduleHandle
from .teams import MemberDefinition as Member
from .teams import TeamDefinition as Team

__all__ = [
    "Agent",
    "Briefing",
    "Connection",
    "ConnectionFailed",
    "Contribution",
    "Critique",
    "DebateShape",
    "Decision",
    "Handle",
    "Manifest",
    "ManifestError",
    "Member",
    "MessageEvent",
    "Model",
    "NoSuchRunError",
    "PanelInput",
    "PanelShape",
    "PanelState",
    "PendingDecision",
    "PersonDecision",
    "Query",
    "RefereeOutput",
    "Refused",
    "Result",
    "RunFailed",
    "Schedule",
    "ScheduleError",
    "ScheduleHandle",
    "Skill",
    "Status",
    "Team",
    "UnreachableError",
    "Verdict",
    "apply_schedule",
    "attach",
    "connect",
    "contributions",
    "debate",
    "find_schedule",
    "function",
    "referee",
    "roster_agent",
    "round_robin",
    "run",
    "start",
    "synthesizer",
    "tool",
]
