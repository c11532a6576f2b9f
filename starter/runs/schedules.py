"""Applies, finds, lists and triggers the Schedules that were created from manifests."""

import asyncio
import contextlib
import dataclasses
import hashlib
import json
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from google.protobuf.duration_pb2 import Duration
from temporalio.api.common.v1 import Memo, Payload, Payloads, WorkflowType
from temporalio.api.enums.v1 import ScheduleOverlapPolicy
from temporalio.api.errordetails.v1 import WorkflowExecutionAlreadyStartedFailure
from temporalio.api.schedule.v1 import Schedule as TemporalSchedule
from temporalio.api.schedule.v1 import ScheduleAction, SchedulePolicies, ScheduleSpec, ScheduleState
from temporalio.api.sdk.v1 import UserMetadata
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflow.v1 import NewWorkflowExecutionInfo
from temporalio.api.workflowservice.v1 import CreateScheduleRequest, UpdateScheduleRequest
from temporalio.client import (
    Client,
    ScheduleActionExecutionStartWorkflow,
    ScheduleActionResult,
    ScheduleDescription,
    ScheduleHandle,
)
from temporalio.service import RPCError, RPCStatusCode

from ...contracts.text import format_time
from ...resources.base import JsonObject, parse_duration
from ...resources.catalog import Catalog
from ...resources.query import Query
from ...resources.schedule import OverlapPolicy, Schedule
from ...temporal.client import WORKFLOW_TASK_TIMEOUT
from ...temporal.client import task_queue as default_task_queue
from ...temporal.executions import memo_of
from ...temporal.personal_data import personal_data_in
from ..text import format_age
from .runs import CATALOG
from .start import query_start

MAX_INPUT_BYTES = 1_000_000
"""Bytes of the manifests in a schedule: they are stored in the schedule itself, and Temporal's limit is 2 MB."""

OVERLAP: dict[OverlapPolicy, ScheduleOverlapPolicy.ValueType] = {
    "Skip": ScheduleOverlapPolicy.SCHEDULE_OVERLAP_POLICY_SKIP,
    "BufferOne": ScheduleOverlapPolicy.SCHEDULE_OVERLAP_POLICY_BUFFER_ONE,
    "BufferAll": ScheduleOverlapPolicy.SCHEDULE_OVERLAP_POLICY_BUFFER_ALL,
    "CancelOther": ScheduleOverlapPolicy.SCHEDULE_OVERLAP_POLICY_CANCEL_OTHER,
    "AllowAll": ScheduleOverlapPolicy.SCHEDULE_OVERLAP_POLICY_ALLOW_ALL,
}

VERSION = "scheduleVersion"
"""The memo entry of a schedule's runs that identifies the manifests it was created from."""


class ScheduleError(Exception):
    """A schedule can't be created or does not exist; the text says why."""


def schedule_id(namespace: str, name: str) -> str:
    """The id of a Schedule in Temporal, which is the prefix of its runs' ids. Names don't contain underscores."""
    return name if namespace == "default" else f"{namespace}_{name}"


async def schedule_request(
    client: Client, schedule: Schedule, query: Query, catalog: Catalog, task_queue: str
) -> TemporalSchedule:
    """The schedule as Temporal stores it. Raises ScheduleError."""
    spec = schedule.spec
    return TemporalSchedule(
        spec=ScheduleSpec(
            cron_string=[spec.schedule],
            timezone_name=spec.time_zone,
            jitter=_duration(parse_duration(spec.jitter)) if spec.jitter else None,
        ),
        action=await _action(client, schedule, query, catalog, task_queue),
        policies=SchedulePolicies(
            overlap_policy=OVERLAP[spec.overlap_policy],
            catchup_window=_duration(parse_duration(spec.catchup_window)),
            pause_on_failure=spec.pause_on_failure,
        ),
        state=ScheduleState(paused=bool(spec.paused), notes=spec.note),
    )


async def _action(
    client: Client, schedule: Schedule, query: Query, catalog: Catalog, task_queue: str
) -> ScheduleAction:
    """The action that starts the workflow ``query`` with the same input as ``start_query``."""
    converter = dataclasses.replace(client.data_converter, external_storage=None)
    start = query_start(query, catalog)
    version = schedule_version(schedule, catalog, task_queue)
    memo: JsonObject = {**start.memo, "schedule": schedule.name, "cron": schedule.spec.schedule, VERSION: version}
    plain: list[object] = [start.input, start.summary]
    if personal_data := personal_data_in(client):
        plain = [await personal_data.start(start.input), await personal_data.text(start.summary)]
    run_input, summary, *memo_values = await converter.encode([*plain, *memo.values()])
    if run_input.ByteSize() > MAX_INPUT_BYTES:
        size = f"{run_input.ByteSize():,} bytes, and a schedule stores at most {MAX_INPUT_BYTES:,}"
        raise ScheduleError(f"the manifests that {query.id} needs have {size}")
    run = NewWorkflowExecutionInfo(
        workflow_id=schedule_id(schedule.namespace, schedule.name),
        workflow_type=WorkflowType(name="query"),
        task_queue=TaskQueue(name=task_queue),
        input=Payloads(payloads=[run_input]),
        workflow_task_timeout=_duration(WORKFLOW_TASK_TIMEOUT),
        memo=Memo(fields=dict(zip(memo, memo_values, strict=True))),
        user_metadata=UserMetadata(summary=summary),
    )
    return ScheduleAction(start_workflow=run)


def schedule_version(schedule: Schedule, catalog: Catalog, task_queue: str) -> str:
    """A digest of everything that a schedule is created from, without the fields that people change in Temporal.

    Schedules are compared by it, because Temporal rewrites cron expressions, and encryption is not deterministic.
    """
    spec = schedule.spec.model_dump(mode="json", exclude={"paused", "note"})
    made_from = json.dumps([spec, catalog.sha, task_queue], sort_keys=True)
    return hashlib.sha256(made_from.encode()).hexdigest()[:16]


async def schedule_memo(client: Client, schedule: Schedule) -> Memo:
    """The memo that identifies a schedule as one of Baton's."""
    memo = {"kind": schedule.kind, "name": schedule.name, "namespace": schedule.namespace}
    payloads: list[Payload] = await client.data_converter.encode([*memo.values()])
    return Memo(fields=dict(zip(memo, payloads, strict=True)))


def _duration(span: timedelta) -> Duration:
    duration = Duration()
    duration.FromTimedelta(span)
    return duration


COLUMNS = "NAME", "NAMESPACE", "SCHEDULE", "TIME ZONE", "STATE", "LAST RUN", "NEXT RUN", "NOTE"

TRIGGER_TIMEOUT = 10.0
"""Seconds to wait until a triggered schedule has started or skipped its run."""

POLL_INTERVAL = 0.1


@dataclass(frozen=True)
class ListedSchedule:
    """A schedule in Temporal."""

    name: str
    namespace: str
    cron: str
    query: str
    description: ScheduleDescription

    @property
    def last(self) -> tuple[str, datetime] | None:
        """The id and the start time of its latest run."""
        for action in reversed(self.description.info.recent_actions):
            if run := _run_id(action):
                return run, action.started_at
        return None

    @property
    def value(self) -> JsonObject:
        """The schedule as JSON."""
        schedule = self.description.schedule
        last = self.last
        policies = self.description.raw_description.schedule.policies
        due = self.description.info.next_action_times
        value: JsonObject = {
            "name": self.name,
            "namespace": self.namespace,
            "query": self.query,
            "schedule": self.cron,
            "timeZone": schedule.spec.time_zone_name,
            "overlapPolicy": next((name for name, number in OVERLAP.items() if number == policies.overlap_policy), ""),
            "catchupWindowSeconds": policies.catchup_window.ToTimedelta().total_seconds(),
            "pauseOnFailure": schedule.policy.pause_on_failure,
            "paused": schedule.state.paused,
            "note": schedule.state.note,
            "runs": self.description.info.num_actions,
            "missed": self.description.info.num_actions_missed_catchup_window,
            "skipped": self.description.info.num_actions_skipped_overlap,
            "lastRun": last and last[0],
            "lastTime": last and format_time(last[1]),
            "nextTime": None if schedule.state.paused or not due else format_time(due[0]),
        }
        return {key: item for key, item in value.items() if item not in (None, "")}

    @property
    def row(self) -> tuple[str, ...]:
        """The schedule as the cells of a table, in the order of COLUMNS."""
        value = self.value
        last = self.last
        return (
            self.name,
            self.namespace,
            self.cron,
            str(value["timeZone"]),
            "Paused" if value["paused"] else "Active",
            f"{format_age(last[1])} ago" if last else "",
            str(value.get("nextTime", "" if value["paused"] else "never")),
            str(value.get("note", "")),
        )


def schedule_handle(client: Client, namespace: str, name: str) -> ScheduleHandle:
    """The handle of a schedule, which may not exist."""
    return client.get_schedule_handle(schedule_id(namespace, name))


async def describe_schedule(client: Client, namespace: str, name: str) -> ScheduleDescription:
    """The current description of the schedule. Raises ScheduleError."""
    handle = schedule_handle(client, namespace, name)
    try:
        description = await handle.describe()
    except RPCError as error:
        if error.status != RPCStatusCode.NOT_FOUND:
            raise
        raise ScheduleError(f"there is no schedule '{name}' in namespace '{namespace}'") from None
    memo = await memo_of(description)
    if (memo.get("kind"), memo.get("name"), memo.get("namespace")) != ("Schedule", name, namespace):
        raise ScheduleError(f"the schedule '{handle.id}' in Temporal was not created from a manifest: delete it first")
    return description


async def list_schedules(client: Client, namespace: str | None = None) -> list[ListedSchedule]:
    """The schedules created from manifests, sorted by namespace and name; with a ``namespace``, only those in it."""
    names: list[tuple[str, str]] = []
    async for entry in await client.list_schedules():
        memo = await memo_of(entry)
        if memo.get("kind") == "Schedule" and namespace in (None, memo.get("namespace")):
            names.append((str(memo.get("namespace")), str(memo.get("name"))))
    listed: list[ListedSchedule] = []
    for schedule_namespace, name in sorted(names):
        with contextlib.suppress(ScheduleError):  # it was deleted meanwhile
            listed.append(await find_schedule(client, schedule_namespace, name))
    return listed


async def find_schedule(client: Client, namespace: str, name: str) -> ListedSchedule:
    """The schedule with that name. Raises ScheduleError."""
    described = await describe_schedule(client, namespace, name)
    memo = await memo_of_runs(described)
    return ListedSchedule(name, namespace, str(memo.get("cron", "")), str(memo.get("query", "")), described)


async def memo_of_runs(described: ScheduleDescription) -> Mapping[str, object]:
    """The memo of a schedule's runs."""
    fields = described.raw_description.schedule.action.start_workflow.memo.fields
    values = await described.data_converter.decode([*fields.values()]) if fields else []
    return dict(zip(fields, values, strict=True))


async def trigger_schedule(client: Client, namespace: str, name: str) -> str | None:
    """Starts a run now and returns its id. None if an open run makes the overlap policy buffer or skip this one.

    Raises ScheduleError.
    """
    before = await describe_schedule(client, namespace, name)
    known = {_run_id(action) for action in before.info.recent_actions}
    await schedule_handle(client, namespace, name).trigger()
    deadline = time.monotonic() + TRIGGER_TIMEOUT
    while time.monotonic() < deadline:
        now = await describe_schedule(client, namespace, name)
        for action in reversed(now.info.recent_actions):
            run = _run_id(action)
            if run not in known:
                return run
        if now.info.num_actions_skipped_overlap > before.info.num_actions_skipped_overlap:
            return None
        await asyncio.sleep(POLL_INTERVAL)
    return None


def _run_id(result: ScheduleActionResult) -> str | None:
    action = result.action
    return action.workflow_id if isinstance(action, ScheduleActionExecutionStartWorkflow) else None


async def has_active_schedules(client: Client) -> bool:
    """Whether any schedule is not paused; False if Temporal is unreachable."""
    try:
        async for _ in await client.list_schedules("TemporalSchedulePaused = false", page_size=1):
            return True
    except RPCError:
        return False
    return False


async def catalogs_of_schedules(client: Client) -> set[str]:
    """The inline manifests of all schedules, paused or not. Raises RPCError, and SettingsError if a key is missing."""
    handles = [client.get_schedule_handle(listed.id) async for listed in await client.list_schedules()]
    return {str((await memo_of_runs(await handle.describe())).get(CATALOG)) for handle in handles}


Applied = Literal["created", "configured", "unchanged"]
"""The result of applying a manifest, as reported by ``kubectl apply``."""

ATTEMPTS = 5
"""The number of attempts to update a schedule in case of concurrent changes."""


async def apply_schedule(
    client: Client, schedule: Schedule, query: Query, catalog: Catalog, task_queue: str | None = None
) -> Applied:
    """Creates the schedule, or updates it in place: its runs, its recent actions and a person's pause remain.

    Raises ScheduleError, and RPCError if Temporal rejects it.
    """
    queue = task_queue or default_task_queue()
    version = schedule_version(schedule, catalog, queue)
    desired = await schedule_request(client, schedule, query, catalog, queue)
    if await _create(client, schedule, desired):
        return "created"
    sent = False
    for _ in range(ATTEMPTS):
        current = await describe_schedule(client, schedule.namespace, schedule.name)
        current_state = current.raw_description.schedule.state
        desired.state.CopyFrom(_state(schedule, current_state))
        if (await memo_of_runs(current)).get(VERSION) == version and current_state == desired.state:
            return "configured" if sent else "unchanged"
        await _update(client, schedule, desired, current)
        sent = True
    raise ScheduleError(f"{schedule.id} was changed concurrently too often: nothing was applied")


async def _create(client: Client, schedule: Schedule, desired: TemporalSchedule) -> bool:
    """Creates the schedule; returns False if it exists."""
    request = CreateScheduleRequest(
        namespace=client.namespace,
        schedule_id=schedule_id(schedule.namespace, schedule.name),
        schedule=desired,
        memo=await schedule_memo(client, schedule),
        identity=client.identity,
        request_id=str(uuid.uuid4()),
    )
    try:
        await client.workflow_service.create_schedule(request, retry=True)
    except RPCError as error:
        details = error.grpc_status.details
        if error.status != RPCStatusCode.ALREADY_EXISTS or not (
            details and details[0].Is(WorkflowExecutionAlreadyStartedFailure.DESCRIPTOR)
        ):
            raise
        return False
    return True


async def _update(client: Client, schedule: Schedule, desired: TemporalSchedule, current: ScheduleDescription) -> None:
    """Updates the schedule; Temporal ignores the request if it has changed since ``current``."""
    request = UpdateScheduleRequest(
        namespace=client.namespace,
        schedule_id=schedule_id(schedule.namespace, schedule.name),
        schedule=desired,
        conflict_token=current.raw_description.conflict_token,
        identity=client.identity,
        request_id=str(uuid.uuid4()),
    )
    await client.workflow_service.update_schedule(request, retry=True)


def _state(schedule: Schedule, current: ScheduleState) -> ScheduleState:
    """The desired pause and note: the current ones, unless the manifest sets them.

    The note of a person's pause remains as long as that pause.
    """
    spec = schedule.spec
    state = ScheduleState()
    state.CopyFrom(current)
    if spec.paused is not None:
        state.paused = spec.paused
    if spec.note and (spec.paused is not None or not state.paused):
        state.notes = spec.note
    return state
