"""The activities that a worker runs, by the role of the worker that runs them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..journal.journal import Journal
from ..temporal.search_attributes import KnownAttributes
from .agent.executors import Executors
from .agent_calls import AgentActivities
from .audit import AuditActivities
from .context.calls import Calls
from .context.metering import Meters
from .context.outside import Outside
from .forks import ForkActivities, HistoryReplay
from .memory import HttpMemory, MemoryActivities
from .model.providers import Providers
from .model_calls import ModelActivities
from .notifications import NotificationActivities
from .people import PeopleActivities
from .pin import Pin
from .runs import RunActivities
from .runtime.functions import FunctionRegistry
from .runtime.secrets import SecretStore
from .runtime.settings import Role
from .teams import TeamActivities
from .tenants import TenantActivities
from .tool.tools import Tools
from .tool_calls import ToolActivities

Activities = Mapping[Role, Sequence[Callable[..., Any]]]

SECRETS_OF: Mapping[Role, frozenset[str]] = {
    "workflows": frozenset({"MCPServer", "A2AServer", "Memory", "Query"}),
    "models": frozenset({"Model", "Agent", "A2AServer", "ExecutionEngine", "Query"}),
    "tools": frozenset({"Tool", "MCPServer"}),
}
"""The kinds of manifests whose Secrets the activities of a role read: a worker with this role alone needs no others."""


def activities_of(
    pin: Pin,
    journal: Journal,
    providers: Providers,
    executors: Executors,
    memory: HttpMemory,
    tools: Tools,
    functions: FunctionRegistry,
    secrets: SecretStore,
    calls: Calls,
    replays: HistoryReplay,
    attributes: KnownAttributes,
    meters: Meters,
    outside: Outside | None = None,
) -> Activities:
    """The activities of each role. ``outside`` answers the calls of tools, remote agents and functions."""
    return _by_role(
        pin,
        RunActivities(journal),
        AuditActivities(journal, secrets),
        TenantActivities(journal, meters),
        ForkActivities(journal, replays, attributes, outside),
        MemoryActivities(journal, memory, secrets),
        TeamActivities(journal, functions, secrets, outside),
        PeopleActivities(journal, secrets),
        NotificationActivities(journal, secrets),
        ModelActivities(journal, providers, tools, functions, secrets, meters),
        AgentActivities(journal, executors, tools, functions, secrets, calls, meters, outside),
        ToolActivities(journal, tools, secrets, meters, outside),
    )


def unbound_activities() -> Activities:
    """The activities before their parts exist, for registration with a worker: ``PartsByRun`` executes others."""
    return _by_role(
        object.__new__(Pin),
        object.__new__(RunActivities),
        object.__new__(AuditActivities),
        object.__new__(TenantActivities),
        object.__new__(ForkActivities),
        object.__new__(MemoryActivities),
        object.__new__(TeamActivities),
        object.__new__(PeopleActivities),
        object.__new__(NotificationActivities),
        object.__new__(ModelActivities),
        object.__new__(AgentActivities),
        object.__new__(ToolActivities),
    )


def _by_role(
    pin: Pin,
    runs: RunActivities,
    audits: AuditActivities,
    tenants: TenantActivities,
    forks: ForkActivities,
    memories: MemoryActivities,
    teams: TeamActivities,
    people: PeopleActivities,
    notifications: NotificationActivities,
    models: ModelActivities,
    agents: AgentActivities,
    tool_calls: ToolActivities,
) -> Activities:
    return {
        "workflows": [
            pin.pin,
            runs.append,
            runs.grant,
            runs.read_failed_run,
            forks.read_fork,
            runs.last_failures,
            runs.expire,
            audits.audit,
            tenants.admit_run,
            tenants.release_run,
            memories.recall,
            memories.remember,
            teams.evaluate,
            teams.brief,
            teams.conclude,
            people.ask_person,
            people.check_reply,
            people.check_identity,
            notifications.notify,
            tool_calls.delegate,
            tool_calls.check_arguments,
            tool_calls.review,
        ],
        "models": [models.ask_model, models.select, agents.execute_agent, agents.cancel_agent],
        "tools": [tool_calls.use_tool, teams.perform],
    }
