"""The activity ``cancel_agent``: cancels at its server what a canceled execution of an agent has left open."""

from temporalio import activity

from ..conversation.contracts.remote_requests import CancelAgentRequest, CancelAgentResult
from ..resources.agent import Agent
from ..resources.duration import parse_duration
from .agent.executor import Execution
from .agent.executors import Executors
from .context.call_record import CallRecord
from .context.executor import find_executor
from .context.value_resolver import ValueResolver
from .journal.journal import Journal
from .process.secrets import SecretStore
from .runtime.ids import key_of


class CancelAgent:
    """The activity ``cancel_agent``. Twice is as once: a task that is canceled stays so."""

    def __init__(self, journal: Journal, executors: Executors, secrets: SecretStore) -> None:
        self._journal, self._executors, self._secrets = journal, executors, secrets

    @activity.defn(name="cancel_agent")
    async def cancel_agent(self, request: CancelAgentRequest) -> CancelAgentResult:
        """Asks the server of the agent to cancel, if the call may have begun something there and has no answer."""
        key = key_of(request.activity)
        values = await ValueResolver.of(self._journal, request.thread, self._secrets)
        agent = values.catalog.by_id(request.speaker)
        executor = find_executor(agent, values.catalog) if isinstance(agent, Agent) else None
        if not isinstance(agent, Agent) or executor is None or await self._journal.find(f"{key}/reply"):
            return CancelAgentResult()
        record = CallRecord(self._journal, self._secrets, request.thread.head, key)
        seconds = parse_duration(executor.spec.timeout).total_seconds()
        left_open = Execution(agent, executor, values, record, messages=(), seconds=seconds)
        return CancelAgentResult(asked=await (await self._executors.of(executor)).cancel(left_open))
