"""The activities that a worker runs, by the role of the worker that runs them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .agent.executors import Executors
from .append import Append
from .ask_model import AskModel
from .ask_person import AskPerson
from .brief import Brief
from .cancel_agent import CancelAgent
from .check_reply import CheckReply
from .conclude import Conclude
from .context.calls import Calls
from .delegate import Delegate
from .evaluate import Evaluate
from .execute_agent import ExecuteAgent
from .expire import Expire
from .grant import Grant
from .journal.journal import Journal
from .last_failures import FindLastFailures
from .memory.http_memory import HttpMemory
from .model.providers import Providers
from .perform import Perform
from .pin import Pin
from .process.functions import FunctionRegistry
from .process.secrets import SecretStore
from .process.settings import Role
from .process.tracing import Tracing
from .recall import Recall
from .remember import Remember
from .report_spans import ReportSpans
from .review import Review
from .select import Select
from .tool.tools import Tools
from .use_tool import UseTool

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
    tracing: Tracing,
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
            ReportSpans(tracing).report_spans,
        ],
        "models": [
            AskModel(journal, providers, tools, functions, secrets).ask_model,
            ExecuteAgent(journal, executors, tools, functions, secrets, calls).execute_agent,
            CancelAgent(journal, executors, secrets).cancel_agent,
            Select(journal, providers, secrets).select,
        ],
        "tools": [UseTool(journal, tools, secrets).use_tool, Perform(journal, functions, secrets).perform],
    }
