"""The activities ``execute_agent`` and ``cancel_agent``: calls of agents that are executed elsewhere."""

from collections.abc import Sequence
from dataclasses import dataclass

from temporalio import activity

from ..contracts.decisions import Question, decision_id
from ..contracts.errors import UnknownResource
from ..contracts.message import Head, Message, latest_within
from ..contracts.requests import AskModelRequest, AskModelResult, CancelAgentRequest, CancelAgentResult
from ..contracts.text import truncate
from ..journal.journal import Journal
from ..journal.rows import Row
from ..observability.spans import call_span, found_call, note_call, note_content
from ..resources.a2a_server import A2AServer
from ..resources.agent import Agent
from ..resources.base import JsonObject, parse_duration
from ..resources.execution_engine import ExecutionEngine
from ..temporal.activity import idempotency_key, key_of, on_text
from .agent.executor import AgentExecutor, Execution
from .agent.executors import Executors
from .context.call_record import CallRecord
from .context.calls import Calls
from .context.lookup import Executor, find_executor
from .context.metering import Meter, estimate
from .context.output_schema import normalized, output_error, output_schema
from .context.value_resolver import ValueResolver
from .model.call_attributes import answer_attributes, answer_content, asked_content
from .model.provider import ModelRequest
from .panel import panel_output_schema, speaker_messages
from .runtime.functions import FunctionRegistry
from .runtime.secrets import SecretStore
from .tool.tools import Tools
from .tool_calls import MAX_QUESTION


@dataclass(frozen=True)
class _Context:
    """What a request refers to: the agent, what executes it, and the JSON Schema that its answer has to fit."""

    agent: Agent
    executor: Executor
    schema: JsonObject | None
    values: ValueResolver


class AgentActivities:
    """The activities of agents that an ExecutionEngine or an A2AServer executes."""

    def __init__(
        self,
        journal: Journal,
        executors: Executors,
        tools: Tools,
        functions: FunctionRegistry,
        secrets: SecretStore,
        calls: Calls,
    ) -> None:
        self._journal = journal
        self._executors = executors
        self._tools = tools
        self._functions = functions
        self._secrets = secrets
        self._calls = calls

    @activity.defn(name="execute_agent")
    async def execute_agent(self, request: AskModelRequest) -> AskModelResult:
        """Returns the answer that the journal holds for this activity; executes the agent only if there is none."""
        key = idempotency_key()
        context = await self._context(request)
        meter = Meter(self._journal, request.thread, request.speaker, context.values.catalog, key)
        last = await self._journal.find(f"{key}/reply")
        if last:
            found_call("invoke_agent", context.agent.name, lambda: _agent_attributes(context.agent))
        else:
            head = await self._journal.append(request.thread.head, request.pending, key)
            executor = await self._executors.of(context.executor)
            execution = await self._execution(request, head, context, key)
            async with meter.reserved(estimate(execution.messages, execution.tools, None)):
                said = await self._execute(executor, execution)
            *earlier, answer = [await self._secrets.redact_message(message) for message in said]
            answer = await normalized(answer, context.schema)
            last = await self._journal.append_once(head, answer, f"{key}/reply", earlier)
        await meter.settle(last.message.usage)
        question: Question | None = None
        wrong: str | None = None
        if last.message.remote and last.message.remote.waits:  # no final answer: it has to fit no schema
            if isinstance(context.executor, A2AServer) and context.executor.spec.questions:
                question = _question(last, context)
        else:
            wrong = await output_error(last.message, context.schema)
        result = AskModelResult(
            message=last.message.truncated(),
            head=last.head,
            wrong=wrong,
            earlier=latest_within(row.message for row in await self._journal.earlier_rows(last)),
            question=question,
        )
        return result.without_defaults

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
        return CancelAgentResult(requested=await (await self._executors.of(executor)).cancel(left_open))

    async def _execute(self, executor: AgentExecutor, execution: Execution) -> list[Message]:
        span = call_span("invoke_agent", execution.agent.name, lambda: _agent_attributes(execution.agent))
        async with self._calls.make("agent", execution.executor, execution.values, span=span) as call:
            note_content(lambda: asked_content(ModelRequest(execution.messages)))
            messages = await executor.execute(execution, on_text)
            note_call(lambda: answer_attributes(messages[-1]))
            note_content(lambda: answer_content(messages[-1], "stop"))
            call.used(messages[-1].usage)
            return messages

    async def _context(self, request: AskModelRequest) -> _Context:
        values = await ValueResolver.of(self._journal, request.thread, self._secrets)
        agent = values.catalog.by_id(request.speaker)
        executor = find_executor(agent, values.catalog) if isinstance(agent, Agent) else None
        if not isinstance(agent, Agent) or executor is None:
            raise UnknownResource(f"{request.speaker} is not executed elsewhere")
        schema = output_schema(agent) or panel_output_schema(values.catalog, request.brief)
        return _Context(agent, executor, schema, values.used_by(agent))

    async def _execution(self, request: AskModelRequest, head: Head, context: _Context, key: str) -> Execution:
        agent = context.agent
        values = context.values
        # The executor gets the agent's prompt by itself, with the agent.
        messages = await speaker_messages(request, head, agent.without_prompt, values, self._journal, self._functions)
        tools = await self._tools.of_agent(agent, values) if isinstance(context.executor, ExecutionEngine) else []
        question = await self._journal.row(request.thread.question)
        rows = await self._journal.read(head, lambda row: _is_of(row, agent))
        begun = bool(rows) and _is_of(rows[0], agent)
        return Execution(
            agent=agent,
            executor=context.executor,
            values=values,
            record=CallRecord(self._journal, self._secrets, request.thread.head, key),
            messages=messages,
            seconds=parse_duration(context.executor.spec.timeout).total_seconds(),
            tools=[tool.definition for tool in tools],
            schema=context.schema,
            previous=rows[0].message.remote if begun else None,
            since=[values.message_of(each, question) for each in _without_summaries(rows[1:])] if begun else (),
        )


def _agent_attributes(agent: Agent) -> JsonObject:
    return {"gen_ai.agent.name": agent.name, "gen_ai.agent.id": agent.id}


def _question(last: Row, context: _Context) -> Question:
    """What the agent's server asks: its last message."""
    auth = last.message.remote is not None and last.message.remote.state == "auth-required"
    waits = "waits for an authorization. Reply when it is given:" if auth else "asks:"
    text = f"{context.executor.id}, agent {context.agent.name}, {waits}\n{truncate(last.message.content, MAX_QUESTION)}"
    return Question(id=decision_id(last.id, "question"), text=text)


def _without_summaries(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row.message.summarizes is None]


def _is_of(row: Row, agent: Agent) -> bool:
    """Whether a row is the agent's own, from the server that executes it."""
    return row.message.remote is not None and row.message.remote.agent == agent.id
