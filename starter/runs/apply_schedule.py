"""Creates or updates a schedule in Temporal, so that it is as its manifest says."""

import uuid
from typing import Literal

from temporalio.api.errordetails.v1 import WorkflowExecutionAlreadyStartedFailure
from temporalio.api.schedule.v1 import Schedule as TemporalSchedule
from temporalio.api.schedule.v1 import ScheduleState
from temporalio.api.workflowservice.v1 import CreateScheduleRequest, UpdateScheduleRequest
from temporalio.client import Client, ScheduleDescription
from temporalio.service import RPCError, RPCStatusCode

from ...conversation.temporal import temporal_client
from ...resources.catalog import Catalog
from ...resources.query import Query
from ...resources.schedule import Schedule
from .schedule_request import VERSION, ScheduleError, schedule_id, schedule_memo, schedule_request, schedule_version
from .schedules import describe_schedule, memo_of_runs

Applied = Literal["created", "configured", "unchanged"]
"""What has become of a manifest, in the words of ``kubectl apply``."""

ATTEMPTS = 5
"""How often an update is tried while others change the schedule, too."""


async def apply_schedule(
    client: Client, schedule: Schedule, query: Query, catalog: Catalog, task_queue: str | None = None
) -> Applied:
    """Makes the schedule, or changes it in place: its runs, its last times and a pause by a person stay.

    Raises ScheduleError, and RPCError if Temporal refuses it.
    """
    queue = task_queue or temporal_client.task_queue()
    version = schedule_version(schedule, catalog, queue)
    wanted = await schedule_request(client, schedule, query, catalog, queue)
    if await _create(client, schedule, wanted):
        return "created"
    sent = False
    for _ in range(ATTEMPTS):
        found = await describe_schedule(client, schedule.namespace, schedule.name)
        wanted.state.CopyFrom(_state(schedule, found.raw_description.schedule.state))
        there = found.raw_description.schedule
        if (await memo_of_runs(found)).get(VERSION) == version and there.state == wanted.state:
            return "configured" if sent else "unchanged"
        await _update(client, schedule, wanted, found)
        sent = True
    raise ScheduleError(f"{schedule.id} is changed by others all the time: nothing was applied")


async def _create(client: Client, schedule: Schedule, wanted: TemporalSchedule) -> bool:
    """Whether there was none before."""
    request = CreateScheduleRequest(
        namespace=client.namespace,
        schedule_id=schedule_id(schedule.namespace, schedule.name),
        schedule=wanted,
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


async def _update(client: Client, schedule: Schedule, wanted: TemporalSchedule, found: ScheduleDescription) -> None:
    """Changes it, unless somebody else has changed it meanwhile: then Temporal passes over the request."""
    request = UpdateScheduleRequest(
        namespace=client.namespace,
        schedule_id=schedule_id(schedule.namespace, schedule.name),
        schedule=wanted,
        conflict_token=found.raw_description.conflict_token,
        identity=client.identity,
        request_id=str(uuid.uuid4()),
    )
    await client.workflow_service.update_schedule(request, retry=True)


def _state(schedule: Schedule, found: ScheduleState) -> ScheduleState:
    """What is to be paused and noted: as it is, unless the manifest says otherwise.

    A note on why somebody has paused it stays as long as that pause does.
    """
    state, spec = ScheduleState(), schedule.spec
    state.CopyFrom(found)
    if spec.paused is not None:
        state.paused = spec.paused
    if spec.note and (spec.paused is not None or not state.paused):
        state.notes = spec.note
    return state
