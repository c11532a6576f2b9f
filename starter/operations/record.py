"""Records a run: reads its histories, and renders its calls again from the journal, by the code that made them."""

import contextlib
import json
import os
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from pydantic import JsonValue, ValidationError
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client
from temporalio.converter import DataConverter
from temporalio.exceptions import CancelledError, TerminatedError
from temporalio.exceptions import TimeoutError as ChildTimeout
from temporalio.testing import ActivityEnvironment

from ...activities.context.lookup import find_executor, mcp_server_of
from ...activities.context.outside import OutsideCall, RecordedState, error_json
from ...activities.context.value_resolver import ValueResolver
from ...activities.forks import FORKED, field_of
from ...contracts.attachment import segments
from ...contracts.decisions import ApproveRequest, decision_id
from ...contracts.errors import BatonError, Failure, JournalLost, NotRecorded
from ...contracts.identity import REQUESTER, Identity
from ...contracts.inputs import FailedRun, ForkedRun, ForkRequest
from ...contracts.message import Head, Message, PersonDecision
from ...contracts.requests import CheckedArguments, Pinned, UseToolRequest, UseToolResult
from ...installation import version
from ...journal.accounts import Accounts
from ...journal.database import JournalIdentity
from ...journal.journal import Journal
from ...journal.rows import Row
from ...resources.agent import Agent
from ...resources.base import JsonObject
from ...resources.content import Data, data_url
from ...resources.functions import Function
from ...resources.loader import Loaded
from ...resources.mcp_server import MCPServer
from ...resources.query import Query
from ...resources.run_catalog import RunCatalog
from ...resources.strategies import OWN_WORKFLOWS
from ...resources.tool import OWN_ACTIVITIES, Tool
from ...temporal.executions import RunExecution, execution_chain, memo_of, run_tree
from ...temporal.histories import decode_payload
from ...worker import WorkerParts, open_parts, open_shared_parts
from ...workflows.calls.children import already_started, application_workflow_failure
from ...workflows.calls.effects import application_activity_failure
from ...workflows.state.constants import MAX_CONCURRENT_CALLS
from ..errors import UsageError
from ..history.decoder import CALL_ENDS, CHILD_ENDS, decode_failure, event_attributes
from ..history.follow import follow
from ..history.run_events import (
    REQUEST_TYPES,
    RESULT_TYPES,
    CallEnded,
    CallRequest,
    DecisionMade,
    DecisionRequested,
    RequestReceived,
    RunEvent,
    RunInfo,
)
from ..history.status import current_status
from ..runs.runs import RunHandle
from ..runs.start import original_input
from .recording import (
    RecordedCall,
    RecordedChange,
    RecordedFork,
    RecordedRequest,
    RecordedRow,
    Recording,
    is_too_deep,
    manifest_checksums,
    place_of,
    redacted_recording,
)

CALLING = ("ask_model", "select", "use_tool", "execute_agent", "perform", "check_arguments")
"""The activities that call something outside of the run, or after which it calls an application itself."""

SECOND_CHOICE_FAILED = error_json("ModelRejected", "the selector has failed when it was asked once more")
"""The answer of a selector's second call that has failed; nothing stores the reason, and the run has gone on."""

INSIDE = frozenset(
    {
        *("UnknownTool", "BadArguments", "NotApproved", "UnknownResource", "InvalidManifest", "RightMissing"),
        *("BudgetExceeded", "OutputRejected", "LeaseLost", "JournalLost", "JournalUnavailable"),
    }
)
"""The types of failures of a call that has not reached anybody: a replay comes to them by itself."""


@dataclass(frozen=True)
class _Activity:
    """An activity that calls: its run and the root of that, the idempotency key of the call, and its outcome.

    ``called`` is the type of the application's activity or workflow that has failed: then the request is one of
    ``requests``, of tool calls with the same arguments. ``was_interrupted``: the run has ended during the call.
    """

    root: str
    run: str
    run_id: str
    id: str
    type: str
    scheduled_at: datetime
    request: CallRequest
    failure: Failure | None = None
    called: str | None = None
    requests: Sequence[CallRequest] = ()
    was_interrupted: bool = False


@dataclass
class _Noted:
    """An ``Outside`` that takes note of the calls of an activity, which the journal has the answers of.

    ``unanswered`` is what is noted of a call without an answer there; None if all calls must have one.
    """

    calls: list[tuple[OutsideCall, JsonObject]] = field(default_factory=list)
    unanswered: JsonObject | None = None
    hides_secrets = True

    async def answer(self, call: OutsideCall, live: object) -> JsonObject:  # nothing is called
        """Takes note of a call without an answer, and raises NotRecorded; JournalLost if it must have one."""
        if self.unanswered is None:
            raise JournalLost(f"the journal has no answer to a call of {call.caller}")
        self.calls.append((call, self.unanswered))
        raise NotRecorded(f"a call of {call.caller} has no answer")

    async def note(self, call: OutsideCall, answer: JsonObject) -> None:
        """Adds a call."""
        self.calls.append((call, answer))

    def forked(self, run: str) -> RecordedState:  # no run is started
        """Always raises JournalLost."""
        raise JournalLost(f"{run} is only read")

    async def pin(self, values: ValueResolver, live: object) -> RunCatalog:  # no run is started
        """The catalog unchanged."""
        return values.catalog


@dataclass
class _People:
    """What people and clients have sent to a run while it ran, and what its root run has pinned.

    ``catalog`` is the id of its manifests: of a fork, those that were changed as well.
    """

    pinned: Pinned | None = None
    catalog: str = ""
    requests: list[RequestReceived] = field(default_factory=list)
    decisions: list[DecisionMade] = field(default_factory=list)

    def read(self, event: RunEvent) -> None:
        """Adds what an event tells."""
        match event:
            case CallEnded(result=Pinned() | FailedRun() as result, run=run) if run.parent is None:
                pinned = result if isinstance(result, Pinned) else result.pinned
                if pinned:
                    self.pinned = self.pinned or pinned
                    self.catalog = pinned.thread.catalog
            case RequestReceived(kind=kind) if kind not in ("pause", "resume"):
                self.requests.append(event)
            case DecisionMade(decision=decision) if decision.how != "remembered":
                self.decisions.append(event)


async def record_run(
    client: Client,
    handle: RunHandle,
    environment: Mapping[str, str] = os.environ,
    own: Loaded | None = None,
    functions: Sequence[Function] = (),
) -> Recording:
    """The recording of a run that has ended.

    It reads the histories of the run and the journal of ``environment``, and calls nothing. ``own`` are files with
    Secrets whose values are redacted, besides those in the environment. ``functions`` are needed if manifests name
    functions without describing them.

    Raises UsageError for a run that can't be replayed, and JournalLost if the journal does not have all of it.
    """
    try:
        return await _recorded(client, handle, environment, own or Loaded(), functions)
    except (RecursionError, ValidationError) as error:
        if not is_too_deep(error):
            raise
        raise UsageError(f"{handle.id} can't be recorded: a value is nested too deeply") from None


async def _recorded(
    client: Client,
    handle: RunHandle,
    environment: Mapping[str, str],
    own: Loaded,
    functions: Sequence[Function],
) -> Recording:
    described = await handle.describe()
    run_id = handle.run_id or described.run_id
    if described.close_time is None:
        raise UsageError(f"the run {handle.id} has not ended: a recording needs all of its answers")
    workflow, run_input = await original_input(client, handle.id, run_id)
    status = await current_status(client, handle)
    if status.stop_reason == "timeout":
        raise UsageError(
            f"{handle.id} was ended by its timeout, which a replay never reaches: calls take no time there"
        )
    people = _People()
    attempts = await _attempts(client, handle.id, run_id)
    for attempt in attempts:
        await follow(client, client.get_workflow_handle(handle.id, run_id=attempt), people.read, wait=False)
    if people.pinned is None:
        raise UsageError(f"the run {handle.id} has not begun: {status.error or 'it was not pinned'}")
    activities: list[_Activity] = []
    taken = _TakenDecisions()
    states: dict[str, _State] = {}
    for execution, was_retried in await _executions(client, handle.id, attempts):
        part = await _read_part(client, handle.id, execution, was_retried=was_retried)
        activities += await _activities(client.data_converter, part)
        await taken.read(client.data_converter, part)
        if forked := await _forked(client.data_converter, part):
            states[part.workflow_id] = _State(part.run_id, forked)
    activities.sort(key=lambda activity: activity.scheduled_at)
    noted = _Noted()
    async with contextlib.AsyncExitStack() as opened:
        shared = await opened.enter_async_context(open_shared_parts(client, environment))
        shared.journal.leases.only_read()
        journal_identity = await JournalIdentity.read(shared.journal.database.engine)
        opening = open_parts(shared, client.identity, journal_identity, own, environment, functions, noted)
        parts = await opened.enter_async_context(opening)
        reader = _Reader(client, shared.journal, parts, noted)
        calls = [call for activity in activities async for call in reader.calls(activity)]
        answered = [activity.request for activity in activities if isinstance(activity.request, UseToolRequest)]
        replies = {request.decision_id: request.answer or "" for request in answered}
        decisions = [_decision(made, replies, taken) for made in people.decisions]
        times = [at for at, _ in calls]
        thread = people.pinned.thread
        catalog = await shared.journal.catalog(people.catalog)
        question = await shared.journal.row(thread.question)
        before = await shared.journal.read(people.pinned.before) if people.pinned.before else []
        recording = Recording(
            run=handle.id,
            baton=version(),
            question=question.message.content,
            answer=status.message,
            phase=status.phase,
            stop_reason=status.stop_reason,
            error=status.error or None,
            workflow=workflow,
            input=_input(run_input),
            requester=requester_in(await memo_of(described)),
            query=await _query(run_input, catalog, shared.journal, people.pinned) if workflow == "query" else None,
            before=tuple(row.message.without_placeholders for row in before),
            attachments=await _attachments(before, shared.journal),
            manifests=manifest_checksums(catalog),
            mcp_tools=_mcp_tools(catalog),
            operations=_operations(catalog),
            descriptions=_descriptions(catalog),
            requests=tuple(_requests(people.requests, times)),
            calls=(*(call for _, call in calls), *decisions),
            fork=await _fork(handle.id, run_input, states, shared.journal) if "forks" in run_input else None,
        )
        return redacted_recording(recording, parts.secrets.redact)


async def _attempts(client: Client, run: str, run_id: str) -> list[str]:
    """The run ids of the failed runs that a run has retried, and its own, in order."""
    attempts: list[str] = []
    while run_id and run_id not in attempts:
        attempts.append(run_id)
        (_, started), *_ = await execution_chain(client, run, run_id)
        (value,) = await client.data_converter.decode(started.input.payloads, [dict[str, JsonValue]])
        run_id = str(value.get("retries") or "")
    return attempts[::-1]


async def _executions(client: Client, run: str, attempts: Sequence[str]) -> list[tuple[RunExecution, bool]]:
    """The executions of all attempts of a run and their child runs, and whether the attempt was retried."""
    executions: dict[str, tuple[RunExecution, bool]] = {}
    for attempt in attempts:
        for execution in await run_tree(client, run, attempt):
            executions[execution.run_id] = execution, attempt != attempts[-1]
    return [*executions.values()]


@dataclass(frozen=True)
class _Part:
    """A part of a run: the history of one execution, and the ``root`` of its tree.

    ``was_retried``: what it had in progress when it failed is left out, as the retry has done it again.
    """

    root: str
    workflow_id: str
    run_id: str
    events: Sequence[HistoryEvent]
    was_retried: bool


async def _read_part(client: Client, root: str, execution: RunExecution, *, was_retried: bool) -> _Part:
    handle = client.get_workflow_handle(execution.workflow_id, run_id=execution.run_id)
    events = [event async for event in handle.fetch_history_events()]
    return _Part(
        root=root,
        workflow_id=execution.workflow_id,
        run_id=execution.run_id,
        events=events,
        was_retried=was_retried,
    )


@dataclass(frozen=True)
class _State:
    """The state from which a run of a fork, with that run id, has gone on."""

    run_id: str
    forked: ForkedRun


async def _forked(converter: DataConverter, part: _Part) -> ForkedRun | None:
    """The state from which a run has gone on; None if it is no fork."""
    scheduled = set[int]()
    for event in part.events:
        name, attributes = event_attributes(event)
        if name == "activity_task_scheduled" and attributes.activity_type.name == "read_fork":
            scheduled.add(event.event_id)
        elif name == "activity_task_completed" and attributes.scheduled_event_id in scheduled:
            return await decode_payload(converter, attributes.result, ForkedRun)
    return None


async def _fork(root: str, run_input: JsonObject, states: Mapping[str, _State], journal: Journal) -> RecordedFork:
    """What a fork and the runs below it have gone on from."""
    request = ForkRequest.model_validate(run_input["forks"])
    rows = await _rows([state.forked for state in states.values()], journal)
    accounts = Accounts(journal.database)
    spent = {run: await accounts.carried_over(f"{state.run_id}/{FORKED}") for run, state in states.items()}
    own = states[root].forked.carried if root in states else None
    before = await journal.catalog(own.pinned.thread.catalog) if own and request.changes else None
    changes = {
        place: RecordedChange(before=field_of(before, place) if before else None, after=value)
        for place, value in request.changes.items()
    }
    return RecordedFork(
        forked=request.fork.run,
        at=request.at,
        changes=changes,
        states={place_of(run, root): state.forked for run, state in states.items()},
        rows=tuple(
            RecordedRow(id=row.id, parent=row.parent, depth=row.depth, message=row.message.without_placeholders)
            for row in rows
        ),
        attachments=await _attachments(rows, journal),
        spent={
            place_of(run, root): {owner: vars(amount) for owner, amount in amounts.items()}
            for run, amounts in spent.items()
            if amounts
        },
    )


async def _attachments(rows: Sequence[Row], journal: Journal) -> dict[str, str]:
    """The attachments of messages (Base64) by their ids."""
    stored = {attachment.stored for row in rows for attachment in row.message.attachments if attachment.stored}
    return {id_: b64encode(await journal.attachment(id_)).decode() for id_ in sorted(stored)}


async def _rows(states: Sequence[ForkedRun], journal: Journal) -> list[Row]:
    """The conversations to which states refer, whatever the field that has the id of a row."""
    rows: dict[str, Row] = {}
    for text in {*_texts([state.model_dump(mode="json", by_alias=True, exclude_defaults=True) for state in states])}:
        if "/" in text and (row := await journal.find(text)):
            rows |= {row.id: row for row in await journal.read(row.head)}
    return sorted(rows.values(), key=lambda row: (row.depth, row.id))


def _texts(value: JsonValue) -> Iterator[str]:
    match value:
        case str():
            yield value
        case list():
            for item in value:
                yield from _texts(item)
        case dict():
            for item in value.values():
                yield from _texts(item)


async def _activities(converter: DataConverter, part: _Part) -> list[_Activity]:
    """The activities of a part of a run that have called something."""
    open_activities: dict[int, _Activity] = {}
    applications = _ApplicationCalls(converter)
    ended: list[_Activity] = []
    before_last = 0  # how many had ended when the last call began
    for event in part.events:
        name, attributes = event_attributes(event)
        if name == "activity_task_scheduled" and attributes.activity_type.name in CALLING:
            activity_type = attributes.activity_type.name
            open_activities[event.event_id] = _Activity(
                root=part.root,
                run=part.workflow_id,
                run_id=part.run_id,
                id=attributes.activity_id,
                type=activity_type,
                scheduled_at=event.event_time.ToDatetime(UTC),
                request=await decode_payload(converter, attributes.input, REQUEST_TYPES[activity_type]),
            )
            if not getattr(open_activities[event.event_id].request, "fallback", 0):  # else it goes on with a call
                before_last = len(ended)
        elif name in CALL_ENDS and attributes.scheduled_event_id in open_activities:
            activity = open_activities.pop(attributes.scheduled_event_id)
            if name == "activity_task_completed":
                result = await decode_payload(converter, attributes.result, RESULT_TYPES[activity.type])
                writer, number = _writer(result) or (activity.run_id, activity.id)
                activity = replace(activity, run_id=writer, id=number)
                applications.note(activity, result)
                if not isinstance(result, CheckedArguments):
                    ended.append(activity)
            elif hasattr(attributes, "failure"):
                failure = await decode_failure(converter, attributes.failure, activity.type)
                ended.append(replace(activity, failure=failure))
            else:
                ended.append(replace(activity, was_interrupted=True))
        elif failed := await applications.read(event):
            ended.append(failed)
    while part.was_retried and len(ended) > before_last and (ended[-1].failure or ended[-1].was_interrupted):
        ended.pop()
    return ended


def _writer(result: object) -> tuple[str, str] | None:
    """The run id and the activity id under which the journal has an answer: after a reset, those of the run before."""
    asks = isinstance(result, UseToolResult) and result.question  # there is no answer yet
    head = None if asks else getattr(result, "head", None)
    parts = head.id.split("/") if head else []
    return (parts[0], parts[1]) if len(parts) == 3 and parts[2] == "reply" else None


@dataclass(frozen=True)
class _ApplicationCall:
    """An open activity or workflow of an application.

    A workflow has an id, and an activity a task queue, on which it may wait ``schedule_to_start`` seconds.
    """

    type: str
    arguments: list[JsonValue]
    workflow_id: str = ""
    queue: str = ""
    schedule_to_start: float = 0


class _ApplicationCalls:
    """The calls of an application's activities and workflows in a history. Those that succeed end with ``use_tool``.

    The run makes them after their arguments are checked. So a call that fails is one whose arguments are equal, and
    that has not ended yet; if there are several, the types of their tools tell which.
    """

    def __init__(self, converter: DataConverter) -> None:
        self._converter = converter
        self._begun: list[tuple[_Activity, CheckedArguments]] = []
        self._open: dict[int, _ApplicationCall] = {}

    def note(self, activity: _Activity, result: object) -> None:
        """Notes a call whose arguments have been checked, or that has its result."""
        if isinstance(result, CheckedArguments):
            self._begun.append((activity, result))
        elif isinstance(used := activity.request, UseToolRequest):
            self._begun = [begun for begun in self._begun if _place_of_call(begun[0].request) != _place_of_call(used)]

    async def read(self, event: HistoryEvent) -> _Activity | None:
        """Reads an event; returns the call that has failed with it."""
        name, attributes = event_attributes(event)
        failure: BatonError
        match name:
            case "activity_task_scheduled" if attributes.activity_type.name not in OWN_ACTIVITIES:
                self._open[event.event_id] = _ApplicationCall(
                    type=attributes.activity_type.name,
                    arguments=await self._converter.decode(attributes.input.payloads),
                    queue=attributes.task_queue.name,
                    schedule_to_start=attributes.schedule_to_start_timeout.ToTimedelta().total_seconds(),
                )
            case "start_child_workflow_execution_initiated" if attributes.workflow_type.name not in OWN_WORKFLOWS:
                self._open[event.event_id] = _ApplicationCall(
                    type=attributes.workflow_type.name,
                    arguments=await self._converter.decode(attributes.input.payloads),
                    workflow_id=attributes.workflow_id,
                )
            case "request_cancel_external_workflow_execution_initiated":  # the run does not wait for it any more
                canceled = attributes.workflow_execution.workflow_id
                number = next((number for number, call in self._open.items() if call.workflow_id == canceled), 0)
                return self._interrupted(self._open.pop(number, None))
            case "activity_task_cancel_requested":
                return self._interrupted(self._open.pop(attributes.scheduled_event_id, None))
            case "activity_task_completed":
                self._open.pop(attributes.scheduled_event_id, None)
            case "activity_task_failed" | "activity_task_timed_out" if call := self._open.pop(
                attributes.scheduled_event_id, None
            ):
                cause = await self._converter.decode_failure(attributes.failure)
                failure = application_activity_failure(cause, call.type, call.queue, call.schedule_to_start)
                return self._failed(call, failure)
            case "child_workflow_execution_completed":
                self._open.pop(attributes.initiated_event_id, None)
            case "start_child_workflow_execution_failed" if call := self._open.pop(attributes.initiated_event_id, None):
                return self._failed(call, already_started(call.type, call.workflow_id))
            case _ if name in CHILD_ENDS and (call := self._open.pop(attributes.initiated_event_id, None)):
                cause = await self._cause_of(name, attributes)
                return self._failed(call, application_workflow_failure(cause, call.type))
        return None

    async def _cause_of(self, name: str, attributes: Any) -> BaseException:
        """Why a child workflow has ended without a result."""
        match name:
            case "child_workflow_execution_timed_out":
                return ChildTimeout(name, type=None, last_heartbeat_details=[])
            case "child_workflow_execution_terminated":
                return TerminatedError(name)
            case "child_workflow_execution_canceled":
                return CancelledError()
        return await self._converter.decode_failure(attributes.failure)

    def _failed(self, call: _ApplicationCall, failure: BatonError) -> _Activity | None:
        begun = self._begun_as(call)
        return replace(begun, failure=failure.as_failure()) if begun else None

    def _interrupted(self, call: _ApplicationCall | None) -> _Activity | None:
        begun = self._begun_as(call) if call else None
        return replace(begun, was_interrupted=True) if begun else None

    def _begun_as(self, call: _ApplicationCall) -> _Activity | None:
        """The tool calls with the arguments of an application's call, as one that has called it."""
        begun = [begun for begun in self._begun if [*begun[1].arguments] == call.arguments]
        if len(begun) == 1:
            self._begun.remove(begun[0])
        requests = [activity.request for activity, _ in begun]
        return replace(begun[0][0], called=call.type, requests=requests) if begun else None


def _place_of_call(request: CallRequest) -> tuple[str | None, int] | None:
    """The answer of a model with a tool call, and the number of the call."""
    return (request.reply, request.call) if isinstance(request, UseToolRequest) else None


class _Reader:
    """Renders the calls of activities again. Each runs with its own ids, and finds its answer in the journal."""

    def __init__(self, client: Client, journal: Journal, parts: WorkerParts, noted: _Noted) -> None:
        self._client = client
        self._journal = journal
        self._by_type = parts.of_activities.by_type
        self._noted = noted

    async def calls(self, activity: _Activity) -> AsyncIterator[tuple[datetime, RecordedCall]]:
        """The calls of an activity, with the time at which it was scheduled."""
        function: Any = self._by_type[activity.type]
        environment = ActivityEnvironment(self._client)
        environment.info = replace(
            environment.info,
            activity_id=activity.id,
            activity_type=activity.type,
            workflow_id=activity.run,
            workflow_run_id=activity.run_id,
        )
        self._noted.calls.clear()
        self._noted.unanswered = SECOND_CHOICE_FAILED if activity.type == "select" else None
        if activity.failure or activity.was_interrupted:
            await self._failed(environment, function, activity)
        else:
            await self._check(activity)
            await environment.run(function, activity.request)
        for call, answer in self._noted.calls:
            yield (
                activity.scheduled_at,
                RecordedCall(
                    kind=call.kind,
                    caller=call.caller,
                    purpose=call.purpose,
                    place=place_of(call.run, activity.root),
                    request=call.request,
                    answer=answer,
                ),
            )

    async def _failed(self, environment: ActivityEnvironment, function: Any, activity: _Activity) -> None:
        """Adds the calls of an activity that has no answer, unless it has failed before it called anybody.

        The last of them is the one that has failed. Raises UsageError for one that a replay would not fail at.
        """
        answer: JsonObject = {"interrupted": True}
        if failure := activity.failure:
            waits = failure.wait is not None  # for the end of an outage, after which the call is made again
            if waits or failure.type in INSIDE:
                return
            answer = error_json(failure.type, failure.message)
        if isinstance(activity.request, UseToolRequest):
            for request in activity.requests or [activity.request]:
                called = (activity.called,) if activity.called else ()
                call: OutsideCall | None = await environment.run(function.__self__.failed_call, request, *called)
                if call:
                    await self._noted.note(call, answer)
                    break
            return
        self._noted.unanswered = answer
        with contextlib.suppress(NotRecorded):
            await environment.run(function, activity.request)
        if not self._noted.calls:
            raise UsageError(
                f"the activity {activity.id} of {activity.run} has failed before it called anything: a replay would "
                "not repeat that"
            )
        *earlier, (last, _) = self._noted.calls  # the journal may have an answer that came too late
        if activity.type == "select" and activity.failure and earlier:
            raise UsageError(
                f"the selector of {last.caller} failed when it was asked again after naming "
                "nobody: a replay would go on without a second answer"
            )
        self._noted.calls[-1] = last, answer

    async def _check(self, activity: _Activity) -> None:
        """Raises JournalLost before an activity runs whose answer is not in the journal."""
        names = {"select": ("choice",), "use_tool": ("reply", "asked")}.get(activity.type, ("reply",))
        key = f"{activity.run_id}/{activity.id}"
        if not [name for name in names if await self._journal.find(f"{key}/{name}")]:
            raise JournalLost(
                f"the journal has no answer of the activity {activity.id} of {activity.run}: it was pruned, it is "
                "another journal, or the run was reset"
            )


class _TakenDecisions:
    """The approvals and rejections that runs have taken, by the ids of the decisions: of several people, each one."""

    def __init__(self) -> None:
        self._by_id: dict[str, list[PersonDecision]] = {}

    async def read(self, converter: DataConverter, part: _Part) -> None:
        """Reads the updates that a part of a run has carried out."""
        accepted: dict[int, str] = {}
        for event in part.events:
            name, attributes = event_attributes(event)
            if name == "workflow_execution_update_accepted" and attributes.accepted_request.input.name == "approve":
                request = await decode_payload(converter, attributes.accepted_request.input.args, ApproveRequest)
                accepted[event.event_id] = request.call
                continue
            if name != "workflow_execution_update_completed" or not attributes.outcome.HasField("success"):
                continue
            if id_ := accepted.get(attributes.accepted_event_id):
                decision = await decode_payload(converter, attributes.outcome.success, PersonDecision)
                self._by_id.setdefault(id_, []).append(decision)

    def of(self, made: DecisionMade) -> Sequence[PersonDecision]:
        """The decisions of all who have made this one, in order; empty if no update of its run has."""
        ids = [made.pending.id]
        if rule := made.pending.rule:  # the run may have waited for the same budget several times at once
            ids = [decision_id(made.run.id, rule, str(number)) for number in range(MAX_CONCURRENT_CALLS)]
        taken = (self._by_id.pop(id_) for id_ in ids if id_ in self._by_id)
        return [] if made.decision.how == "timeout" else next(taken, [])


def _decision(made: DecisionMade, replies: Mapping[str, str], taken: _TakenDecisions) -> RecordedCall:
    """A decision of a person, or the result of a client's tool, as a call."""
    pending = made.pending
    decision = made.decision
    if pending.kind == "client_tool":
        decision = decision.with_text(replies.get(pending.id, ""))
    return RecordedCall(
        kind="person",
        caller=_waiting(pending),
        purpose=pending.kind,
        place=place_of(made.run.id, _root_of(made.run).id),
        request=decision_request(pending.kind, pending.call.name, pending.arguments),
        answer=_decision_json(decision, taken.of(made)),
    )


def _root_of(run: RunInfo) -> RunInfo:
    return _root_of(run.parent) if run.parent else run


def _waiting(pending: DecisionRequested) -> str:
    """Who waits for a decision, by the name that the status of a run has for it."""
    if pending.kind in ("approval", "client_tool") and isinstance(pending.call.request, UseToolRequest):
        return pending.call.request.speaker.rpartition("/")[2]
    return pending.who


def decision_request(kind: str, tool: str | None, text: str | None) -> JsonObject:
    """What a run asks of a person: ``text`` is the question, or the arguments of the ``tool`` as JSON."""
    match kind:
        case "question":
            return {"question": text}
        case "budget":
            return {}
    try:
        arguments: JsonValue = json.loads(text or "{}")
    except ValueError:  # they are shown truncated
        arguments = text
    return {"tool": tool, "arguments": arguments}


def _decision_json(decision: PersonDecision, taken: Sequence[PersonDecision]) -> JsonObject:
    """A decision as a recording holds it; ``taken`` are those of all who have made it."""
    *earlier, last = taken or [decision]
    rendered: JsonObject = decision.model_dump(
        mode="json", by_alias=True, exclude_defaults=True, exclude={"at", "digest", "earlier", "missing"}
    )
    if last.arguments is None:  # a grant has amounts also if nobody has changed them
        rendered.pop("arguments", None)
    who: JsonObject = {"approved": decision.approved, **rendered, **_person(last)}
    return {**who, "earlier": [_person(given) for given in earlier]} if earlier else who


def _person(decision: PersonDecision) -> JsonObject:
    """Who has decided, and whether a gateway has verified that."""
    return decision.model_dump(mode="json", include={"by", "verified", "groups"}, exclude_defaults=True)


def requester_in(memo: Mapping[str, object]) -> str | None:
    """The name of who has started a run over a gateway, by the memo of the run."""
    signed = memo.get(REQUESTER)
    return Identity.model_validate_json(signed).name if isinstance(signed, str) else None


def _requests(requests: Sequence[RequestReceived], times: Sequence[datetime]) -> Iterator[RecordedRequest]:
    for request in requests:
        during = sum(at <= request.at for at in times)
        yield RecordedRequest(kind=request.kind, data=request.data, by=request.by, during=during)


NOT_REPLAYED = ("forks", "resources", "retries", "carried", "after", "thread", "pinned", "spec", "name", "redacted")
"""The fields of a run's input that a replay does not need: it gets the manifests, makes its own query, and has no
personal data."""


def _input(run_input: JsonObject) -> JsonObject:
    return {key: value for key, value in run_input.items() if key not in NOT_REPLAYED}


async def _query(run_input: JsonObject, catalog: RunCatalog, journal: Journal, pinned: Pinned) -> JsonObject | None:
    """The manifest of the run's query: as the client has sent it, or that of the worker.

    Of a worker's query, the journal has the messages, if its input is a list of messages.
    """
    query = catalog.query
    if query is None:
        return None
    stored: JsonObject = query.model_dump(mode="json", by_alias=True, exclude_unset=True)
    spec = run_input.get("spec")
    if isinstance(spec, dict):
        return {**stored, "spec": spec}
    resources = run_input.get("resources")
    for manifest in resources if isinstance(resources, list) else []:
        if isinstance(manifest, dict) and manifest.get("kind") == "Query":
            sent = Query.model_validate(manifest)
            if sent.id == query.id:
                return manifest
    question = await journal.row(pinned.thread.question)
    first = (pinned.before or Head()).depth + 1
    rows = await journal.read(question.head, lambda row: row.depth <= first)
    if not (question.message.attachments or len(rows) > 1):
        return stored
    written = stored["spec"]
    assert isinstance(written, dict)
    messages = [await _sent_message(row.message, journal) for row in rows]
    return {**stored, "spec": {**written, "type": "messages", "input": [*messages]}}


async def _sent_message(message: Message, journal: Journal) -> JsonObject:
    """A message as the input of a query has it."""
    parts: list[JsonValue] = []
    for part in segments(message.content, message.attachments):
        if isinstance(part, str):
            parts.append({"type": "text", "text": part})
            continue
        url = part.url
        if part.stored:
            url = data_url(Data(part.media_type or "", await journal.attachment(part.stored)))
        name: JsonObject = {"filename": part.name} if part.name else {}
        detail: JsonObject = {"detail": part.detail} if part.detail else {}
        if part.kind == "image":
            parts.append({"type": "image_url", "image_url": {"url": url, **name, **detail}})
        else:
            parts.append({"type": "file", "file": {"file_url" if part.url else "file_data": url, **name}})
    return {"role": message.role, "content": parts}


def _mcp_tools(catalog: RunCatalog) -> dict[str, tuple[JsonObject, ...]]:
    """The tools of each MCPServer that the run has used, as the server has listed them."""
    tools: dict[str, list[JsonObject]] = {}
    order = [reference for agent in catalog.manifests if isinstance(agent, Agent) for _, reference in agent.tools()]
    used = [catalog.find(reference) for reference in order if reference]
    unique = {tool.id: tool for tool in (*used, *catalog.manifests) if tool}
    for tool in unique.values():  # in the order of the server, which its users have
        server = mcp_server_of(tool, catalog) if isinstance(tool, Tool) else None
        if isinstance(tool, Tool) and server and "*" not in tool.mcp_name:
            hints = tool.spec.annotations
            tools.setdefault(server.id, []).append(
                {
                    "name": tool.mcp_name,
                    "description": tool.model_description,
                    "inputSchema": tool.spec.input_schema,
                    "annotations": hints.model_dump(mode="json", by_alias=True, exclude_unset=True) if hints else None,
                }
            )
    silent = {server.id: () for server in catalog.manifests if isinstance(server, MCPServer)}  # it listed no tools
    return {**silent, **{server: tuple(listed) for server, listed in tools.items()}}


def _operations(catalog: RunCatalog) -> dict[str, dict[str, JsonObject]]:
    """The Tools for the operations of each Tool of type 'openapi', by their names."""
    sources = [tool for tool in catalog.manifests if isinstance(tool, Tool) and tool.spec.openapi]
    return {
        source.id: {
            tool.name: tool.model_dump(mode="json", by_alias=True, exclude_unset=True)
            for tool in catalog.manifests
            if isinstance(tool, Tool) and tool.namespace == source.namespace and tool.name.startswith(f"{source.name}-")
        }
        for source in sources
    }


def _descriptions(catalog: RunCatalog) -> dict[str, str]:
    """The descriptions of remotely executed agents: their own, or those of their servers."""
    return {
        agent.id: agent.spec.description
        for agent in catalog.manifests
        if isinstance(agent, Agent) and agent.spec.description and find_executor(agent, catalog)
    }
