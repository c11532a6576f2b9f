"""Finds, lists and triggers the schedules that were made from manifests."""

import asyncio
import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from temporalio.client import (
    Client,
    ScheduleActionExecutionStartWorkflow,
    ScheduleActionResult,
    ScheduleDescription,
    ScheduleHandle,
)
from temporalio.service import RPCError, RPCStatusCode

from ...conversation.contracts.status import format_time
from ...resources.base import JsonObject
from ..text.units import format_age
from .schedule_request import OVERLAP, ScheduleError, schedule_id

COLUMNS = "NAME", "NAMESPACE", "SCHEDULE", "TIME ZONE", "STATE", "LAST RUN", "NEXT RUN", "NOTE"

TRIGGER_TIMEOUT = 10.0
"""Seconds to wait until a schedule that was triggered has started its run, or has passed over it."""

POLL_INTERVAL = 0.1


@dataclass(frozen=True)
class ListedSchedule:
    """A schedule as Temporal has it."""

    name: str
    namespace: str
    cron: str
    query: str
    description: ScheduleDescription

    @property
    def last(self) -> tuple[str, datetime] | None:
        """The id of its latest run, and when that began."""
        ran = [(run, each.started_at) for each in self.description.info.recent_actions if (run := _run_id(each))]
        return ran[-1] if ran else None

    @property
    def value(self) -> JsonObject:
        """The schedule as JSON."""
        schedule, last = self.description.schedule, self.last
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
        return {key: each for key, each in value.items() if each not in (None, "")}

    @property
    def row(self) -> tuple[str, ...]:
        """The schedule as the cells of a table, in the order of COLUMNS."""
        value, last = self.value, self.last
        due = str(value.get("nextTime", "" if value["paused"] else "never"))
        state = "Paused" if value["paused"] else "Active"
        ran = f"{format_age(last[1])} ago" if last else ""
        return self.name, self.namespace, self.cron, str(value["timeZone"]), state, ran, due, str(value.get("note", ""))


def schedule_handle(client: Client, namespace: str, name: str) -> ScheduleHandle:
    """The handle of a schedule, whether or not there is one."""
    return client.get_schedule_handle(schedule_id(namespace, name))


async def describe_schedule(client: Client, namespace: str, name: str) -> ScheduleDescription:
    """The schedule as it is now. Raises ScheduleError."""
    handle = schedule_handle(client, namespace, name)
    try:
        found = await handle.describe()
    except RPCError as error:
        if error.status != RPCStatusCode.NOT_FOUND:
            raise
        raise ScheduleError(f"there is no schedule '{name}' in namespace '{namespace}'") from None
    memo = await found.memo()
    if (memo.get("kind"), memo.get("name"), memo.get("namespace")) != ("Schedule", name, namespace):
        raise ScheduleError(f"the schedule '{handle.id}' in Temporal was not made from a manifest: delete it first")
    return found


async def list_schedules(client: Client, namespace: str | None = None) -> list[ListedSchedule]:
    """The schedules that were made from manifests, by namespace and name; with a ``namespace``, those in it alone."""
    found: list[tuple[str, str]] = []
    async for each in await client.list_schedules():
        memo = await each.memo()
        if memo.get("kind") == "Schedule" and namespace in (None, memo.get("namespace")):
            found.append((str(memo.get("namespace")), str(memo.get("name"))))
    listed: list[ListedSchedule] = []
    for namespace_and_name in sorted(found):
        with contextlib.suppress(ScheduleError):  # it was deleted meanwhile
            listed.append(await find_schedule(client, *namespace_and_name))
    return listed


async def find_schedule(client: Client, namespace: str, name: str) -> ListedSchedule:
    """The schedule of that name. Raises ScheduleError."""
    described = await describe_schedule(client, namespace, name)
    memo = await memo_of_runs(described)
    return ListedSchedule(name, namespace, str(memo.get("cron", "")), str(memo.get("query", "")), described)


async def memo_of_runs(described: ScheduleDescription) -> Mapping[str, object]:
    """The memo that a schedule's runs get."""
    fields = described.raw_description.schedule.action.start_workflow.memo.fields
    values = await described.data_converter.decode([*fields.values()]) if fields else []
    return dict(zip(fields, values, strict=True))


async def trigger_schedule(client: Client, namespace: str, name: str) -> str | None:
    """Starts a run now; its id. None if the overlap policy has put it off or passed over it, as a run is open.

    Raises ScheduleError.
    """
    before = await describe_schedule(client, namespace, name)
    known = {_run_id(each) for each in before.info.recent_actions}
    await schedule_handle(client, namespace, name).trigger()
    deadline = time.monotonic() + TRIGGER_TIMEOUT
    while time.monotonic() < deadline:
        now = await describe_schedule(client, namespace, name)
        if new := [run for each in now.info.recent_actions if (run := _run_id(each)) not in known]:
            return new[-1]
        if now.info.num_actions_skipped_overlap > before.info.num_actions_skipped_overlap:
            return None
        await asyncio.sleep(POLL_INTERVAL)
    return None


def _run_id(result: ScheduleActionResult) -> str | None:
    action = result.action
    return action.workflow_id if isinstance(action, ScheduleActionExecutionStartWorkflow) else None


async def has_active_schedules(client: Client) -> bool:
    """Whether any schedule is not paused; false if Temporal can't answer."""
    try:
        async for each in await client.list_schedules("TemporalSchedulePaused = false", page_size=1):
            return bool(each)
    except RPCError:
        return False
    return False
