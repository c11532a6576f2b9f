"""The activities ``execute_agent`` and ``cancel_agent``: calls to an ExecutionEngine or an A2AServer."""

from collections.abc import Sequence
from dataclasses import dataclass

from temporalio import activity

from ..contracts.decisions import Question, decision_id
from ..contracts.errors import UnknownResource
from ..contracts.message import Head, Message, latest_within
from ..contracts.requests import AskModelRequest, AskModelResult, CancelAgentRequest, CancelAgentResult
from ..contracts.text import truncate
from ..journal.journal import Journal
from ..journal.leases import Lease
from ..journal.rows import Row
from ..observability.spans import call_span, note_call, note_content, recorded_call
from ..resources.a2a_server import A2AServer
from ..resources.agent import Agent
from ..resources.base import JsonObject, parse_duration
from ..resources.execution_engine import ExecutionEngine
from ..temporal.activity import idempotency_key, is_restated, key_of, on_text, workflow_id
from .agent.executor import Execution
from .agent.executors import Executors
from .context.call_record import CallRecord
from .context.calls import Calls
from .context.lookup import Executor, find_executor
from .context.metering import Meters
from .context.output_schema import normalized, output_error, output_schema
from .context.outside import Outside, OutsideCall, canonical_request, check_not_blocked, raise_recorded
from .context.value_resolver import ValueResolver
from .model.call_attributes import answer_attributes, answer_content, request_content
from .model.provider import ModelRequest
from .model.rendered import answer_json, rendered_messages, rendered_tools
from .panel import panel_output_schema, speaker_messages
from .runtime.functions import FunctionRegistry
from .runtime.secrets import SecretStore
from .tool.tools import Tools
from .tool_calls import MAX_QUESTION


@dataclass(frozen=True)
class _Context:
    """The agent of a request, its executor, and the JSON Schema of its answer."""

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
        meters: Meters,
        outside: Outside | None = None,
    ) -> None:
        self._journal = journal
        self._executors = executors
        self._tools = tools
        self._functions = functions
        self._secrets = secrets
        self._calls = calls
        self._meters = meters
        self._outside = outside

    @activity.defn(name="execute_agent")
    async def execute_agent(self, request: AskModelRequest) -> AskModelResult:
        """Returns the answer that the journal has for this activity; executes the agent only if there is none."""
        key = idempotency_key()
        context = await self._context(request)
        last = await self._journal.find(f"{key}/reply")
        if last:
            recorded_call("invoke_agent", context.agent.name, lambda: _agent_attributes(context.agent))
            if self._outside:
                before = [row.message for row in await self._journal.earlier_rows(last)]
                head = await self._journal.append(request.thread.head, request.pending, key)
                execution = await self._execution(request, head, context, key)
                await self._outside.note(self._call(execution), _messages_json([*before, last.message]))
        else:
            head = await self._journal.append(request.thread.head, request.pending, key)
            execution = await self._execution(request, head, context, key)
            meter = await self._meters.of(request.thread, request.speaker, context.values.catalog)
            charge = await meter.model_charge(execution.messages, execution.tools, None)
            async with self._journal.leases.hold(f"{key}/reply", charge) as lease:
                if not lease.is_answered:
                    messages = await self._answer(lease, execution)
                    *earlier, answer = [await self._secrets.redact_message(message) for message in messages]
                    await self._journal.answer(lease, head, await normalized(answer, context.schema), earlier)
            last = await self._journal.row(f"{key}/reply")
        question: Question | None = None
        wrong: str | None = None
        if last.message.remote and last.message.remote.waits:  # not a final answer, so no schema applies
            if isinstance(context.executor, A2AServer) and context.executor.spec.questions:
                question = _question(last, context)
        else:
            wrong = await output_error(last.message, context.schema)
        result = AskModelResult(
            message=last.message.in_history,
            head=last.head,
            wrong=wrong,
            earlier=latest_within(row.message.in_history for row in await self._journal.earlier_rows(last)),
            question=question,
            restated=await is_restated(last.message.content),
        )
        return result.without_defaults

    @activity.defn(name="cancel_agent")
    async def cancel_agent(self, request: CancelAgentRequest) -> CancelAgentResult:
        """Requests cancellation from the agent's server if the call may have started a task there and has no answer."""
        key = key_of(request.activity)
        values = await ValueResolver.of(self._journal, request.thread, self._secrets)
        agent = values.catalog.by_id(request.speaker)
        executor = find_executor(agent, values.catalog) if isinstance(agent, Agent) else None
        if not isinstance(agent, Agent) or executor is None or await self._journal.find(f"{key}/reply"):
            return CancelAgentResult()
        record = CallRecord(self._journal, self._secrets, request.thread.head, key)
        seconds = parse_duration(executor.spec.timeout).total_seconds()
        execution = Execution(agent, executor, values, record, messages=(), seconds=seconds)
        was_sent = executor.spec.idempotent or await self._journal.leases.was_sent(f"{key}/reply")
        requested = await (await self._executors.of(executor)).cancel(execution, was_sent=was_sent)
        return CancelAgentResult(requested=requested)

    def _call(self, execution: Execution) -> OutsideCall:
        """The execution as a recording holds it."""
        agent = execution.agent
        rendered: JsonObject = {
            "server": execution.executor.id,
            "prompt": execution.values.prompt(agent),
            "messages": rendered_messages(execution.messages, execution.contents),
            "tools": rendered_tools(execution.tools),
            "schema": execution.schema,
        }
        return OutsideCall(
            kind="agent",
            caller=agent.id,
            purpose=execution.executor.id,
            run=workflow_id(),
            request=canonical_request(rendered, self._secrets.redact),
        )

    async def _answer(self, lease: Lease, execution: Execution) -> list[Message]:
        """The messages of the agent's server, or recorded ones."""
        if self._outside is None:
            return await self._execute(lease, execution)

        async def live() -> JsonObject:
            return _messages_json(await self._execute(lease, execution))

        answer = await self._outside.answer(self._call(execution), live)
        raise_recorded(answer)
        messages = answer["messages"]
        assert isinstance(messages, list)
        return [Message.model_validate(message) for message in messages]

    async def _execute(self, lease: Lease, execution: Execution) -> list[Message]:
        check_not_blocked(execution.executor.id)
        executor = await self._executors.of(execution.executor)
        span = call_span("invoke_agent", execution.agent.name, lambda: _agent_attributes(execution.agent))
        async with self._calls.make(lease, "agent", execution.executor, execution.values, span=span) as call:
            note_content(lambda: request_content(ModelRequest(execution.messages)))
            messages = await executor.execute(lease, execution, on_text)
            note_call(lambda: answer_attributes(messages[-1]))
            note_content(lambda: answer_content(messages[-1], "stop"))
            call.used(messages[-1].usage)
            return messages

    async def _context(self, request: AskModelRequest) -> _Context:
        values = await ValueResolver.of(self._journal, request.thread, self._secrets)
        agent = values.catalog.by_id(request.speaker)
        executor = find_executor(agent, values.catalog) if isinstance(agent, Agent) else None
        if not isinstance(agent, Agent) or executor is None:
            raise UnknownResource(f"{request.speaker} is not an agent with an executor")
        schema = output_schema(agent) or panel_output_schema(values.catalog, request.brief)
        return _Context(agent, executor, schema, values.used_by(agent))

    async def _execution(self, request: AskModelRequest, head: Head, context: _Context, key: str) -> Execution:
        agent = context.agent
        values = context.values
        # The executor receives the agent, and with it the prompt.
        messages = await speaker_messages(request, head, agent.without_prompt, values, self._journal, self._functions)
        tools = await self._tools.of_agent(agent, values) if isinstance(context.executor, ExecutionEngine) else []
        question = await self._journal.row(request.thread.question)
        rows = await self._journal.read(head, lambda row: _is_of(row, agent))
        begun = bool(rows) and _is_of(rows[0], agent)
        since = [values.message_of(row, question) for row in _without_summaries(rows[1:])] if begun else []
        is_a2a = isinstance(context.executor, A2AServer)  # an ExecutionEngine takes only text
        asked = (*messages[-1:], *since[-1:]) if is_a2a else ()
        stored = {attachment.stored for message in asked for attachment in message.attachments if attachment.stored}
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
            since=since,
            contents={attachment_id: await self._journal.attachment(attachment_id) for attachment_id in stored},
        )


def _messages_json(messages: Sequence[Message]) -> JsonObject:
    """The messages of an execution as a recording holds them."""
    return {"messages": [answer_json(message) for message in messages]}


def _agent_attributes(agent: Agent) -> JsonObject:
    return {"gen_ai.agent.name": agent.name, "gen_ai.agent.id": agent.id}


def _question(last: Row, context: _Context) -> Question:
    """The question of the agent's server, which is its last message."""
    auth = last.message.remote is not None and last.message.remote.state == "auth-required"
    verb = "requires authorization. Reply once it is granted:" if auth else "asks:"
    text = f"{context.executor.id}, agent {context.agent.name}, {verb}\n{truncate(last.message.content, MAX_QUESTION)}"
    return Question(id=decision_id(last.id, "question"), text=text, authorizes=auth).without_defaults


def _without_summaries(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row.message.summarizes is None]


def _is_of(row: Row, agent: Agent) -> bool:
    """Whether a row is an answer of this agent from its server."""
    return row.message.remote is not None and row.message.remote.agent == agent.id
