"""Makes a Schedule of Temporal from a manifest and the query that it starts."""

import dataclasses
import hashlib
import json
from datetime import timedelta

from google.protobuf.duration_pb2 import Duration
from temporalio.api.common.v1 import Memo, Payload, Payloads, WorkflowType
from temporalio.api.enums.v1 import ScheduleOverlapPolicy
from temporalio.api.schedule.v1 import Schedule as TemporalSchedule
from temporalio.api.schedule.v1 import ScheduleAction, SchedulePolicies, ScheduleSpec, ScheduleState
from temporalio.api.sdk.v1 import UserMetadata
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflow.v1 import NewWorkflowExecutionInfo
from temporalio.client import Client

from ...conversation.temporal.temporal_client import WORKFLOW_TASK_TIMEOUT
from ...resources.base import JsonObject
from ...resources.catalog import Catalog
from ...resources.duration import parse_duration
from ...resources.query import Query
from ...resources.schedule import OverlapPolicy, Schedule
from .query_start import query_start

MAX_INPUT_BYTES = 1_000_000
"""Bytes of the manifests that a schedule can keep: they stand in the schedule itself, and Temporal takes twice that."""

OVERLAP: dict[OverlapPolicy, ScheduleOverlapPolicy.ValueType] = {
    "Skip": ScheduleOverlapPolicy.SCHEDULE_OVERLAP_POLICY_SKIP,
    "BufferOne": ScheduleOverlapPolicy.SCHEDULE_OVERLAP_POLICY_BUFFER_ONE,
    "BufferAll": ScheduleOverlapPolicy.SCHEDULE_OVERLAP_POLICY_BUFFER_ALL,
    "CancelOther": ScheduleOverlapPolicy.SCHEDULE_OVERLAP_POLICY_CANCEL_OTHER,
    "AllowAll": ScheduleOverlapPolicy.SCHEDULE_OVERLAP_POLICY_ALLOW_ALL,
}

VERSION = "scheduleVersion"
"""The entry in the memo of a run by which a schedule is known to have been made from the same manifests."""


class ScheduleError(Exception):
    """A schedule can't be made, or there is none of that name; the text says why."""


def schedule_id(namespace: str, name: str) -> str:
    """The id of a Schedule in Temporal, with which the ids of its runs begin. No name has an underscore."""
    return name if namespace == "default" else f"{namespace}_{name}"


async def schedule_request(
    client: Client, schedule: Schedule, query: Query, catalog: Catalog, task_queue: str
) -> TemporalSchedule:
    """What Temporal is to keep of a schedule. Raises ScheduleError."""
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
    """Starts the workflow ``query`` with the same input as ``start_query``."""
    converter = dataclasses.replace(client.data_converter, external_storage=None)
    start, spec = query_start(query, catalog), schedule.spec
    version = schedule_version(schedule, catalog, task_queue)
    memo: JsonObject = {**start.memo, "schedule": schedule.name, "cron": spec.schedule, VERSION: version}
    given, summary, *noted = await converter.encode([start.input, start.summary, *memo.values()])
    if given.ByteSize() > MAX_INPUT_BYTES:
        size = f"{given.ByteSize():,} bytes, and a schedule keeps {MAX_INPUT_BYTES:,}"
        raise ScheduleError(f"the manifests that {query.id} needs have {size}")
    run = NewWorkflowExecutionInfo(
        workflow_id=schedule_id(schedule.namespace, schedule.name),
        workflow_type=WorkflowType(name="query"),
        task_queue=TaskQueue(name=task_queue),
        input=Payloads(payloads=[given]),
        workflow_task_timeout=_duration(WORKFLOW_TASK_TIMEOUT),
        memo=Memo(fields=dict(zip(memo, noted, strict=True))),
        user_metadata=UserMetadata(summary=summary),
    )
    return ScheduleAction(start_workflow=run)


def schedule_version(schedule: Schedule, catalog: Catalog, task_queue: str) -> str:
    """A digest of all that a schedule is made from, without what people change while it runs.

    Schedules are compared by it: Temporal rewrites cron expressions, and encryption never gives the same bytes twice.
    """
    spec = schedule.spec.model_dump(mode="json", exclude={"paused", "note"})
    made_from = json.dumps([spec, catalog.sha, task_queue], sort_keys=True)
    return hashlib.sha256(made_from.encode()).hexdigest()[:16]


async def schedule_memo(client: Client, schedule: Schedule) -> Memo:
    """The memo by which a schedule is known as one of Baton's."""
    memo = {"kind": schedule.kind, "name": schedule.name, "namespace": schedule.namespace}
    payloads: list[Payload] = await client.data_converter.encode([*memo.values()])
    return Memo(fields=dict(zip(memo, payloads, strict=True)))


def _duration(span: timedelta) -> Duration:
    duration = Duration()
    duration.FromTimedelta(span)
    return duration
