"""The activities that a worker runs, by the role of the worker that runs them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..journal.journal import Journal
from .agent.executors import Executors
from .ask_model import AskModel
from .context.calls import Calls
from .evaluate import Evaluate, Perform
from .execute_agent import CancelAgent, ExecuteAgent
from .memory import HttpMemory, Recall, Remember
from .model.providers import Providers
from .panel import Brief, Conclude
from .people import AskPerson, CheckReply
from .pin import Pin
from .runs import Append, Expire, FindLastFailures, Grant
from .runtime.functions import FunctionRegistry
from .runtime.secrets import SecretStore
from .runtime.settings import Role
from .select import Select
from .tool.tools import Tools
from .use_tool import Delegate, Review, UseTool

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
    return {
        "workflows": [
            pin.pin,
            Append(journal).append,
            Recall(journal, memory, secrets).recall,
            Remember(journal, memory, secrets).remember,
            Evaluate(journal, functions).evaluate,
            Brief(journal, secrets).brief,
            Conclude(journal, secrets).conclude,
            AskPerson(journal, secrets).ask_person,
            CheckReply(journal).check_reply,
            FindLastFailures().last_failures,
            Expire(journal).expire,
            Grant(journal).grant,
            Delegate(journal, tools, secrets).delegate,
            Review(journal, tools, secrets).review,
        ],
        "models": [
            AskModel(journal, providers, tools, functions, secrets).ask_model,
            ExecuteAgent(journal, executors, tools, functions, secrets, calls).execute_agent,
            CancelAgent(journal, executors, secrets).cancel_agent,
            Select(journal, providers, secrets).select,
        ],
        "tools": [UseTool(journal, tools, secrets).use_tool, Perform(journal, functions, secrets).perform],
    }
