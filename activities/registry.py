"""The activities that a worker runs, by the role of the worker that runs them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..journal.journal import Journal
from .agent.executors import Executors
from .agent_calls import AgentActivities
from .context.calls import Calls
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
from .tool.tools import Tools
from .tool_calls import ToolActivities

Activities = Mapping[Role, Sequence[Callable[..., Any]]]


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
) -> Activities:
    """The activities of each role."""
    return _by_role(
        pin,
        RunActivities(journal),
        MemoryActivities(journal, memory, secrets),
        TeamActivities(journal, functions, secrets),
        PeopleActivities(journal, secrets),
        NotificationActivities(journal, secrets),
        ModelActivities(journal, providers, tools, functions, secrets),
        AgentActivities(journal, executors, tools, functions, secrets, calls),
        ToolActivities(journal, tools, secrets),
    )


def unbound_activities() -> Activities:
    """The activities before their parts exist, for registration with a worker: ``PartsByRun`` executes others."""
    return _by_role(
        object.__new__(Pin),
        object.__new__(RunActivities),
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
            runs.last_failures,
            runs.expire,
            memories.recall,
            memories.remember,
            teams.evaluate,
            teams.brief,
            teams.conclude,
            people.ask_person,
            people.check_reply,
            notifications.notify,
            tool_calls.delegate,
            tool_calls.check_arguments,
            tool_calls.review,
        ],
        "models": [models.ask_model, models.select, agents.execute_agent, agents.cancel_agent],
        "tools": [tool_calls.use_tool, teams.perform],
    }
