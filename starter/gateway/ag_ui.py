"""AG-UI: a run as a stream of events for user interfaces. https://docs.ag-ui.com

A run of AG-UI is a durable run, whose id is derived from ``threadId`` and ``runId``: the same request again joins it.
When the run waits for people, the stream ends with interrupts. The id of an interrupt says where to go on: it has the
id of the run, that of the decision, and the cursor of the last event of the stream.
"""

import contextlib
import hashlib
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, singledispatchmethod
from typing import Any, Literal, NamedTuple

from ag_ui.core import events as ag
from ag_ui.core import types as ag_types
from pydantic import JsonValue
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ...contracts.decisions import ApproveRequest, GiveResultRequest, PendingDecision, ReplyRequest
from ...contracts.message import TokenUsage
from ...contracts.status import Status
from ...contracts.text import format_time
from ...resources.agent import Agent
from ...resources.base import JsonObject
from ...resources.client import ClientTool
from ..history.events import (
    Event,
    MessageEvent,
    ModelAnsweredEvent,
    ModelFailedEvent,
    RunEndedEvent,
    SessionChangedEvent,
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
from ..runs.listing import MAX_SEARCHED
from ..runs.start import to_json
from .access import Caller
from .errors import BadRequestError, ConflictError, GatewayError, NotFoundError, as_gateway_error
from .protocol import Protocol, caller_of, read_body
from .question import TargetQuestion
from .run import Run, RunWaits, prompt_of
from .runs import Runs
from .speeches import Answers
from .sse import EventStream, encode
from .targets import ServedTarget, Targets

PATH = "/ag-ui"

THREAD = "ag-ui.thread"
"""The memo entry of a run with the id of the conversation of its thread."""

VERSION = "1.0"
"""The version of the protocol."""

RETRACTED = "baton.textRetracted"
"""The name of the custom event for a message whose attempt has failed: the next message takes its place."""

REASONS = {"approval": "tool_call", "question": "input_required", "budget": "confirmation"}
"""The reasons of interrupts, by the kind of the decision."""

APPROVAL_SCHEMA: JsonObject = {
    "type": "object",
    "properties": {
        "approved": {"type": "boolean"},
        "reason": {"type": "string"},
        "arguments": {"type": "object", "description": "other arguments for the call"},
    },
    "required": ["approved"],
}
REPLY_SCHEMA: JsonObject = {
    "type": "object",
    "properties": {"reply": {"type": "string", "minLength": 1}},
    "required": ["reply"],
}


CLIENT_TOOL = "client-tool/"
"""The beginning of the id of a call of a client's tool, followed by a place. No run has an id of this form."""


class StreamPlace(NamedTuple):
    """What an id of an interrupt says: the run, the decision, and the cursor of the last event before it."""

    run: str
    decision: str
    cursor: str

    @classmethod
    def of(cls, text: str) -> "StreamPlace":
        """The place in an id. Raises BadRequestError."""
        run, _, rest = text.partition("/")
        decision, _, cursor = rest.rpartition("/")
        if not (run and decision and cursor):
            raise BadRequestError(f"'{text[:200]}' is not an id of this gateway", param="resume")
        return cls(run, decision, cursor)

    @property
    def text(self) -> str:
        """The id."""
        return "/".join(self)


Answer = ag_types.ResumeEntry | ag_types.ToolMessage
"""What a run has waited for: the answer to an interrupt, or the result of a client's tool."""


class AgUi:
    """The requests of AG-UI."""

    def __init__(self, targets: Targets, runs: Runs) -> None:
        self._targets = targets
        self._runs = runs

    async def run(self, request: Request) -> Response:
        """Starts a run, joins it, or goes on with one that was interrupted; then streams its events."""
        asked = await read_body(request, ag_types.RunAgentInput)
        caller = caller_of(request)
        target = await self._targets.find(caller, request.path_params["target"])
        if answers := _answers(asked):
            run, after = await self._resume(caller, asked, answers)
        else:
            run, after = await self._start(caller, target, asked), None
        spec = await run.spec()
        tools = [tool.name for tool in spec.client.tools] if spec and spec.client else ()
        return EventStream(_stream(run, after, asked, tools))

    async def _start(self, caller: Caller, target: ServedTarget, asked: ag_types.RunAgentInput) -> Run:
        """The run of ``runId``. It is joined whatever else is in the request: the messages have grown since."""
        key = _key(asked.thread_id, asked.run_id)
        try:
            return await self._runs.find(caller, self._runs.id_of(caller, target, key))
        except NotFoundError:
            question = await self._question(caller, target, asked)
            memo = {THREAD: _conversation(caller, asked.thread_id)}
            return await self._runs.start(caller, target, question, protocol="ag-ui", key=key, memo=memo)

    async def _question(self, caller: Caller, target: ServedTarget, asked: ag_types.RunAgentInput) -> TargetQuestion:
        """What the user has said since the last answer. All before it is in the conversation of the thread.

        With ``parentRunId`` the question follows that run, whatever was said in the thread since.
        """
        question = TargetQuestion(
            input=_input(asked.messages),
            parameters=_parameters(asked.forwarded_props),
            session=_session(asked.state),
            conversation=_conversation(caller, asked.thread_id),
            tools=[_tool(tool) for tool in asked.tools or ()],
            settings=_settings(target, asked),
        )
        if asked.parent_run_id is None:
            return question
        parent = await self._parent(caller, target, asked.thread_id, asked.parent_run_id)
        status = await parent.status()
        head = status.responses[0].head if status.responses else status.head
        if status.is_open or head is None:
            raise BadRequestError(
                "parentRunId: that run has no answer that another run could follow", param="parentRunId"
            )
        return question.model_copy(update={"after": head, "conversation": None})

    async def _parent(self, caller: Caller, target: ServedTarget, thread: str, parent: str) -> Run:
        """The run that has begun with the ``runId`` ``parent``, or was answered with it. Raises NotFoundError."""
        key = _key(thread, parent)
        with contextlib.suppress(NotFoundError):
            return await self._runs.find(caller, self._runs.id_of(caller, target, key))
        conversation = _conversation(caller, thread)
        listed, _ = await self._runs.by_change(caller, MAX_SEARCHED, lambda run: run.memo.get(THREAD) == conversation)
        for each in listed:
            with contextlib.suppress(NotFoundError):  # it was deleted
                run = await self._runs.find(caller, each.id)
                if await run.has_taken(key):
                    return run
        text = f"parentRunId: no run '{parent[:200]}' has begun in this thread, or has answered one of its runs"
        raise NotFoundError(text, param="parentRunId")

    async def _resume(
        self, caller: Caller, asked: ag_types.RunAgentInput, answers: Mapping[StreamPlace, Answer]
    ) -> tuple[Run, str]:
        """The run that was interrupted, once it has the answers, and the cursor after which the stream goes on.

        The same answers again have no further effect. Raises BadRequestError if some are missing or invalid, and
        ConflictError if the caller may not give one; then none is given. Whether an answer matches a schema, only the
        workers know: if one does not, ConflictError is raised after those before it are given.
        """
        *_, last = answers
        if any(place.run != last.run for place in answers):
            raise BadRequestError("resume: these interrupts belong to several runs", param="resume")
        run = await self._runs.find(caller, last.run)
        waiting = await run.undecided_with([place.decision for place in answers]) if await run.is_open() else ()
        undecided = {decision.id: decision for decision in waiting}
        given = {place.decision: answer for place, answer in answers.items() if place.decision in undecided}
        after = await _place_after(run, answers)
        missing = [
            decision
            for decision in undecided.values()
            if decision.id not in given and decision.kind != "client_tool"  # a later result may follow later
        ]
        if given and missing:
            later = await _begun_after(run, after)  # the client is told of them in the stream that follows
            missing = [decision for decision in missing if decision.id not in later]
        if given and missing:
            names = ", ".join(map(prompt_of, missing))
            raise BadRequestError(f"resume: all open interrupts need an answer; missing: {names}", param="resume")
        key = _key(asked.thread_id, asked.run_id)
        actions = [
            _action(run, undecided[decision], answer, f"{key}/{_digest(decision, answer.model_dump_json())}")
            for decision, answer in given.items()
        ]
        for act in actions:
            await act()
        return run, after


async def _place_after(run: Run, answers: Collection[StreamPlace]) -> str:
    """The cursor of the answer to what the run has begun to wait for last: clients send results in any order.

    Raises BadRequestError for a cursor that is not one.
    """
    cursors = {place.decision: place.cursor for place in answers}
    *_, cursor = cursors.values()
    if len({*cursors.values()}) == 1:
        return cursor
    for wait in await _begun_after(run, cursor):
        cursor = cursors.get(wait, cursor)
    return cursor


async def _begun_after(run: Run, cursor: str) -> Sequence[str]:
    """What the run has begun to wait for after a cursor, in its order. Raises BadRequestError for one that is none."""
    try:
        async with contextlib.aclosing(run.events(cursor, wait=False, live=False)) as events:
            return [event.wait async for event in events if isinstance(event, WaitStartedEvent)]
    except CursorError as error:
        raise BadRequestError(str(error), param="resume") from None


def _answers(asked: ag_types.RunAgentInput) -> Mapping[StreamPlace, Answer]:
    """The answers to interrupts, after the results of the client's tools at the end of the messages."""
    answers: dict[StreamPlace, Answer] = {}
    for message in reversed(asked.messages):
        if not isinstance(message, ag_types.ToolMessage) or not message.tool_call_id.startswith(CLIENT_TOOL):
            break
        answers = {StreamPlace.of(message.tool_call_id.removeprefix(CLIENT_TOOL)): message, **answers}
    return {**answers, **{StreamPlace.of(entry.interrupt_id): entry for entry in asked.resume or ()}}


def _key(thread: str, run: str) -> str:
    """The idempotency key of a run of AG-UI; both ids may have any length."""
    return f"ag-ui:{_digest(thread, run)}"


def _digest(*texts: str) -> str:
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()


def _conversation(caller: Caller, thread: str) -> str:
    """The conversation of a thread, which each caller has for itself."""
    text = json.dumps([str(caller.account), caller.name, thread])
    return f"ag-ui-{hashlib.sha256(text.encode()).hexdigest()[:40]}"


def _input(messages: Sequence[ag_types.Message]) -> str | list[JsonObject]:
    """The user's messages after the last other one, as the input of a query. Raises BadRequestError."""
    said: list[ag_types.UserMessage] = []
    for message in reversed(messages):
        if isinstance(message, ag_types.UserMessage):
            said.insert(0, message)
        elif message.role in ("assistant", "tool"):
            break
    if not said:
        raise BadRequestError("messages: the last one must be from the user", param="messages")
    if all(isinstance(message.content, str) for message in said):
        return "\n\n".join(str(message.content) for message in said)
    return [{"role": "user", "content": _content(message.content)} for message in said]


def _content(content: str | Sequence[ag_types.ContentPart]) -> JsonValue:
    if isinstance(content, str):
        return content
    return [_part(part) for part in content]


def _part(part: ag_types.ContentPart) -> JsonObject:
    if isinstance(part, ag_types.TextPart):
        return {"type": "text", "text": part.text}
    source = part.source
    if isinstance(source, ag_types.FileSource) or part.type not in ("image", "document"):
        raise BadRequestError("messages: only texts, and images and documents with a URL or data, can be read")
    has_data = isinstance(source, ag_types.DataSource)
    url = f"data:{source.mime_type};base64,{source.value}" if has_data else source.value
    if part.type == "image":
        return {"type": "image_url", "image_url": {"url": url}}
    return {"type": "file", "file": {"file_data" if has_data else "file_url": url}}


def _tool(tool: ag_types.Tool) -> ClientTool:
    given = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return ClientTool.model_validate({name: value for name, value in given.items() if value})


def _settings(target: ServedTarget, asked: ag_types.RunAgentInput) -> JsonObject:
    """The context and the system messages as instructions, if the agent's manifest lets clients give them."""
    agent = target.manifest
    if not isinstance(agent, Agent) or "instructions" not in agent.client_access.allowed_settings:
        return {}
    texts = [str(message.content) for message in asked.messages if message.role in ("system", "developer")]
    texts += [f"{each.description}: {each.value}" for each in asked.context or ()]
    return {"instructions": "\n\n".join(texts)} if texts else {}


def _parameters(forwarded: object) -> dict[str, str]:
    """The values for templates: ``forwardedProps.parameters``."""
    given = forwarded.get("parameters", {}) if isinstance(forwarded, dict) else {}
    if not isinstance(given, dict) or not all(isinstance(value, str) for value in given.values()):
        text = "forwardedProps.parameters: must be an object whose values are strings"
        raise BadRequestError(text, param="forwardedProps")
    return given


def _session(state: object) -> JsonObject:
    """The initial values of the session: ``state.session``, as the state has them."""
    session = state.get("session") if isinstance(state, dict) else None
    return session if isinstance(session, dict) else {}


def _action(run: Run, decision: PendingDecision, answer: Answer, request: str) -> Callable[[], Awaitable[object]]:
    """What carries an answer out, with the id ``request``.

    Raises BadRequestError and ConflictError for one that does not fit.
    """
    if (decision.kind == "client_tool") != isinstance(answer, ag_types.ToolMessage):
        raise BadRequestError("resume: a tool of the client needs a tool message, and an interrupt an entry of resume")
    if isinstance(answer, ag_types.ToolMessage):
        output = _result_text(answer)
        _check(run, decision, GiveResultRequest(call=decision.id, output=output))
        return partial(run.give_result, decision.id, output, request=request)
    if decision.kind == "question":
        return _reply(run, decision, answer, request)
    if answer.status == "cancelled":
        _check(run, decision, ApproveRequest(call=decision.id, approved=False))
        return partial(run.decide, decision.id, approved=False, request=request)
    payload = answer.payload
    given = {"approved": payload} if isinstance(payload, bool) else payload
    approved = given.get("approved") if isinstance(given, dict) else None
    if not isinstance(given, dict) or not isinstance(approved, bool):
        raise BadRequestError("resume: the payload has to be {approved: true} or {approved: false}", param="resume")
    arguments, reason = given.get("arguments"), given.get("reason") or ""
    if not (arguments is None or isinstance(arguments, dict)) or not isinstance(reason, str):
        raise BadRequestError("resume: arguments must be an object, and a reason a string", param="resume")
    if not approved:
        arguments = None
    _check(run, decision, ApproveRequest(call=decision.id, approved=approved, arguments=arguments, reason=reason))
    return partial(run.decide, decision.id, approved=approved, arguments=arguments, reason=reason, request=request)


def _check(run: Run, decision: PendingDecision, request: ApproveRequest | ReplyRequest | GiveResultRequest) -> None:
    """Raises BadRequestError for an answer that is too large, and ConflictError if the caller may not give it."""
    if request.problem:
        raise BadRequestError(f"resume: {request.problem}", param="resume")
    if not isinstance(request, GiveResultRequest) and (refusal := run.refusal(decision, request)):
        raise ConflictError(refusal, param="resume")


def _reply(
    run: Run, decision: PendingDecision, answer: ag_types.ResumeEntry, request: str
) -> Callable[[], Awaitable[object]]:
    """What replies to a question. Raises BadRequestError and ConflictError for a reply that does not fit."""
    payload = answer.payload
    if answer.status == "cancelled":
        if decision.asked_by:
            _check(run, decision, ReplyRequest(text="", to=decision.id, declines=True))
            return partial(run.reply, "", decision.id, declines=True, request=request)
        # A person of the team can't decline its turn.
        return partial(run.cancel, "the question was not answered")
    text = payload.get("reply") if isinstance(payload, dict) else payload
    if decision.reply_schema:
        text = json.dumps(payload)
    elif not isinstance(text, str) or not text.strip():
        raise BadRequestError("resume: the payload must be a string, or {reply: TEXT}", param="resume")
    _check(run, decision, ReplyRequest(text=text, to=decision.id))
    return partial(run.reply, text, decision.id, request=request)


def _result_text(message: ag_types.ToolMessage) -> str:
    """What a client's tool has returned. Raises BadRequestError if that is more than texts."""
    if message.error:
        return f"Error: {message.error}"
    if isinstance(message.content, str):
        return message.content
    texts = [part.text for part in message.content if isinstance(part, ag_types.TextPart)]
    if len(texts) < len(message.content):
        raise BadRequestError("messages: the result of a tool must be a string", param="messages")
    return "\n".join(texts)


def _interrupt(run: Run, decision: PendingDecision, cursor: str) -> ag_types.Interrupt:
    """What a run needs of a person."""
    schema = APPROVAL_SCHEMA
    if decision.kind == "question":
        schema = decision.reply_schema or REPLY_SCHEMA
    return ag_types.Interrupt(
        id=StreamPlace(run.id, decision.id, cursor).text,
        reason=REASONS.get(decision.kind, decision.kind),
        message=prompt_of(decision),
        response_schema=schema,
        expires_at=format_time(decision.until) if decision.until else None,
        metadata={"baton": to_json(decision)},
    )


@dataclass
class _Step:
    """A turn that is in progress."""

    name: str
    speaker: str


@dataclass
class _Message:
    """A message whose text is being sent, and whether this stream has begun it."""

    id: str
    is_begun: bool = False


@dataclass
class Translator:
    """Translates the events of a run, and keeps what is open in the stream."""

    run: str
    session: JsonObject
    client_tools: Collection[str] = ()
    """The names of the tools that the client executes."""

    phase: str = "Running"
    steps: dict[tuple[object, ...], _Step] = field(default_factory=dict)
    messages: dict[str, _Message] = field(default_factory=dict)
    answers: Answers = field(default_factory=Answers)
    """What models have answered, of which conversations have a copy."""

    replies: set[tuple[str, str]] = field(default_factory=set)
    """The replies of people, each with its run."""

    @singledispatchmethod
    def translate(self, event: Event) -> Iterable[ag.BaseEvent]:
        """What an event is in AG-UI; most are nothing."""
        return ()

    def close(self) -> Iterable[ag.BaseEvent]:
        """Ends what is open, before the end of the stream."""
        for call in [*self.messages]:
            yield from self._end_message(call)
        for step in reversed(self.steps.values()):
            yield ag.StepFinishedEvent(step_name=step.name)
        self.steps.clear()

    @property
    def snapshot(self) -> ag.StateSnapshotEvent:
        """The state: the id of the durable run, its phase, who speaks, and the values of its session."""
        speakers = [step.speaker for step in self.steps.values()]
        state = {"run": self.run, "phase": self.phase, "speakers": speakers, "session": self.session}
        return ag.StateSnapshotEvent(snapshot=state)

    @translate.register
    def _start_step(self, event: TurnStartedEvent) -> Iterable[ag.BaseEvent]:
        base = event.speaker if event.turn is None else f"{event.speaker} (turn {event.turn})"
        names = {step.name for step in self.steps.values()}
        number = 1
        name = base
        while name in names:  # of an inner team; the name has to identify an open step
            number += 1
            name = f"{base} {number}"
        self.steps[_turn(event)] = _Step(name, event.speaker)
        yield ag.StepStartedEvent(step_name=name)
        yield self.snapshot

    @translate.register
    def _end_step(self, event: TurnEndedEvent) -> Iterable[ag.BaseEvent]:
        if step := self.steps.pop(_turn(event), None):  # it may have begun in the stream before the interrupt
            yield ag.StepFinishedEvent(step_name=step.name)

    @translate.register
    def _delta(self, event: TextDeltaEvent) -> Iterable[ag.BaseEvent]:
        if event.tool:
            return
        message = self.messages.setdefault(_call(event), _Message(_message_id(event)))
        if event.text and not message.is_begun:
            message.is_begun = True
            yield ag.TextMessageStartEvent(message_id=message.id, role="assistant", name=event.speaker)
        if event.text:
            yield ag.TextMessageContentEvent(message_id=message.id, delta=event.text)

    @translate.register
    def _retract(self, event: TextRetractedEvent) -> Iterable[ag.BaseEvent]:
        if event.tool:
            return
        yield from self._end_message(_call(event))
        yield ag.CustomEvent(name=RETRACTED, value={"messageId": _message_id(event)})

    @translate.register
    def _answer(self, event: ModelAnsweredEvent) -> Iterable[ag.BaseEvent]:
        call = _call(event)
        if event.text and call not in self.messages:  # of a text that was being sent, the rest came before
            yield from _whole_message(_message_id(event), "assistant", event.speaker, event.text)
        yield from self._end_message(call)

    @translate.register
    def _fail(self, event: ModelFailedEvent) -> Iterable[ag.BaseEvent]:
        yield from self._end_message(_call(event))

    @translate.register
    def _note_reply(self, event: WaitEndedEvent) -> Iterable[ag.BaseEvent]:
        if event.outcome == "replied" and event.text:
            self.replies.add((event.run, event.text))
        return ()

    @translate.register
    def _call_client(self, event: WaitStartedEvent) -> Iterable[ag.BaseEvent]:
        if event.kind == "client_tool":
            call = CLIENT_TOOL + StreamPlace(self.run, event.wait, event.cursor).text
            yield from _tool_call(call, event.tool or "", event.text)

    @translate.register
    def _change_session(self, event: SessionChangedEvent) -> Iterable[ag.BaseEvent]:
        changed = {**self.session, **event.changes}
        self.session = {name: value for name, value in changed.items() if value is not None}
        yield self.snapshot

    def _end_message(self, call: str) -> Iterable[ag.BaseEvent]:
        message = self.messages.pop(call, None)
        if message and message.is_begun:
            yield ag.TextMessageEndEvent(message_id=message.id)

    @translate.register
    def _call_tool(self, event: ToolCalledEvent) -> Iterable[ag.BaseEvent]:
        if event.tool not in self.client_tools:  # of its own, the client is told when the run begins to wait for it
            yield from _tool_call(_call(event), event.tool, event.arguments)

    @translate.register
    def _return(self, event: ToolReturnedEvent | ToolFailedEvent) -> Iterable[ag.BaseEvent]:
        is_application = isinstance(event, ToolFailedEvent) and event.tool_call is None  # it was not told as a call
        if event.tool in self.client_tools or is_application:
            return
        call = _call(event)
        text = event.text if isinstance(event, ToolReturnedEvent) else event.error
        yield ag.ToolCallResultEvent(message_id=f"{call}/result", tool_call_id=call, content=text or "", role="tool")

    @translate.register
    def _message(self, event: MessageEvent) -> Iterable[ag.BaseEvent]:
        """A message that no model has just sent: of a function, or a person."""
        if self.answers.have(event) or not event.text:
            return
        message = f"{event.run}/message-{event.number}"
        is_users = event.from_person or (event.run, event.text) in self.replies
        role: Literal["assistant", "user"] = "user" if is_users else "assistant"
        yield from _whole_message(message, role, event.name, event.text)


def _turn(event: TurnStartedEvent | TurnEndedEvent) -> tuple[object, ...]:
    return event.run, event.team, event.speaker, event.turn, event.round, event.part


def _call(
    event: TextDeltaEvent
    | TextRetractedEvent
    | ModelAnsweredEvent
    | ModelFailedEvent
    | ToolCalledEvent
    | ToolReturnedEvent
    | ToolFailedEvent,
) -> str:
    """The id of a call among all of the root run: that of a message, or of a tool call.

    Each execution of a run, which its events' ids begin with, has its own calls.
    """
    execution = event.id.partition("/")[0]
    return f"{execution}/{event.call}"


def _message_id(event: TextDeltaEvent | TextRetractedEvent | ModelAnsweredEvent) -> str:
    """The id of a call's message, the same in every stream: each draft is another message."""
    return f"{_call(event)}/{event.draft}" if event.draft > 1 else _call(event)


def _whole_message(id_: str, role: Literal["assistant", "user"], name: str, text: str) -> Iterable[ag.BaseEvent]:
    yield ag.TextMessageStartEvent(message_id=id_, role=role, name=name)
    yield ag.TextMessageContentEvent(message_id=id_, delta=text)
    yield ag.TextMessageEndEvent(message_id=id_)


def _tool_call(id_: str, tool: str, arguments: str | None) -> Iterable[ag.BaseEvent]:
    yield ag.ToolCallStartEvent(tool_call_id=id_, tool_call_name=tool)
    if arguments:
        yield ag.ToolCallArgsEvent(tool_call_id=id_, delta=arguments)
    yield ag.ToolCallEndEvent(tool_call_id=id_)


async def _stream(
    run: Run, after: str | None, asked: ag_types.RunAgentInput, client_tools: Collection[str]
) -> AsyncGenerator[bytes, None]:
    """The events of a run after a cursor, encoded."""
    async with contextlib.aclosing(_events(run, after, asked, client_tools)) as events:
        async for event in events:
            yield encode(event.model_dump_json(by_alias=True))


async def _events(
    run: Run, after: str | None, asked: ag_types.RunAgentInput, client_tools: Collection[str]
) -> AsyncGenerator[ag.BaseEvent, None]:
    ids = {"thread_id": asked.thread_id, "run_id": asked.run_id}
    translator = Translator(run.id, _session(asked.state), client_tools)
    yield ag.RunStartedEvent(**ids, protocol_version=VERSION, parent_run_id=asked.parent_run_id)
    yield translator.snapshot
    cursor = after or ""
    usage: TokenUsage | None = None
    try:
        async with contextlib.aclosing(run.events_until_waiting(after)) as events:
            async for event in events:
                if isinstance(event, RunWaits):
                    for closing in translator.close():
                        yield closing
                    translator.phase = "InputRequired"
                    yield translator.snapshot
                    decisions = [decision for decision in event.decisions if decision.kind != "client_tool"]
                    interrupts = [_interrupt(run, decision, cursor) for decision in decisions]
                    # Without interrupts, the client has to execute its tools, and to send their results.
                    outcome = ag.RunFinishedInterruptOutcome(interrupts=interrupts) if interrupts else None
                    yield ag.RunFinishedEvent(**ids, outcome=outcome)
                    return
                cursor = event.cursor or cursor
                if isinstance(event, RunEndedEvent) and event.run == run.id:
                    usage = event.usage
                translator.answers.read(event)
                for translated in translator.translate(event):
                    yield translated
        status = await run.result()
    except CursorError as error:
        yield ag.RunErrorEvent(message=str(error), code="invalid_request")
        return
    except Exception as error:
        translated_error = as_gateway_error(error)
        if translated_error is None:
            raise
        # The run goes on: the same request again joins it.
        yield ag.RunErrorEvent(message=translated_error.message, code=translated_error.code)
        return
    for closing in translator.close():
        yield closing
    translator.phase = status.phase
    yield translator.snapshot
    yield _end(ids, status, usage)


def _end(ids: Mapping[str, Any], status: Status, usage: TokenUsage | None) -> ag.BaseEvent:
    """The last event of a run that has ended."""
    used = [_usage(usage)] if usage else None
    if status.phase == "Failed":
        code = status.failure.type if status.failure else "failed"
        return ag.RunErrorEvent(message=status.message or "the run has failed", code=code, usage=used)
    if status.phase == "Canceled":
        return ag.RunFinishedEvent(**ids, outcome=ag.RunFinishedCancelledOutcome(), usage=used)
    result = status.value if status.value is not None else status.message
    return ag.RunFinishedEvent(**ids, result=result, outcome=ag.RunFinishedSuccessOutcome(), usage=used)


def _usage(usage: TokenUsage) -> ag.TokenUsage:
    return ag.TokenUsage(
        input_tokens=usage.prompt_tokens,
        output_tokens=usage.completion_tokens,
        total_tokens=usage.total_tokens,
        cached_input_tokens=usage.cached_tokens,
    )


def error_form(error: GatewayError) -> Response:
    """The response for an error before the stream: what the stream's error would be."""
    event = ag.RunErrorEvent(message=error.message, code=error.code)
    return JSONResponse(event.model_dump(mode="json", by_alias=True), int(error.status))


def protocol(targets: Targets, runs: Runs) -> Protocol:
    """AG-UI over HTTP."""
    return Protocol(PATH, [Route(PATH + "/{target:path}", AgUi(targets, runs).run, methods=["POST"])], error_form)
