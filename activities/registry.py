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
    runs = RunActivities(journal)
    memories = MemoryActivities(journal, memory, secrets)
    teams = TeamActivities(journal, functions, secrets)
    people = PeopleActivities(journal, secrets)
    models = ModelActivities(journal, providers, tools, functions, secrets)
    agents = AgentActivities(journal, executors, tools, functions, secrets, calls)
    tool_calls = ToolActivities(journal, tools, secrets)
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
            tool_calls.delegate,
            tool_calls.review,
        ],
        "models": [models.ask_model, models.select, agents.execute_agent, agents.cancel_agent],
        "tools": [tool_calls.use_tool, teams.perform],
    }
