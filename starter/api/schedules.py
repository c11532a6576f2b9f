"""Schedules of queries for a program: ``baton.Schedule``, and the handle of a schedule in Temporal."""

from typing import TypedDict, Unpack

from temporalio.client import Client

from ...resources.base import JsonObject
from ...resources.schedule import OverlapPolicy, Schedule
from ...resources.stored import scheduled_query
from ..account import account_name
from ..runs.schedules import apply_schedule, describe_schedule, find_schedule, schedule_handle, trigger_schedule
from ..server.connection import ServerLocation
from .handle import Handle
from .resources import (
    Dependencies,
    QueryDefinition,
    ResourceDefinition,
    check,
    check_text,
    load_definitions,
    reject_unknown,
    spec_fields,
)


class ScheduleOptions(TypedDict, total=False):
    """More fields of a schedule, each as the manifest's field of that name in camelCase."""

    time_zone: str
    overlap_policy: OverlapPolicy
    catchup_window: str
    jitter: str
    pause_on_failure: bool
    paused: bool
    note: str


class ScheduleDefinition(ResourceDefinition):
    """A time table by which a ``Query`` is started: ``schedule`` is a cron expression, or ``@every 10m``."""

    def __init__(
        self,
        name: str,
        query: QueryDefinition,
        *,
        schedule: str,
        namespace: str = "default",
        **options: Unpack[ScheduleOptions],
    ) -> None:
        check(query, QueryDefinition, "query", "a Query")
        reject_unknown(ScheduleOptions, options, "Schedule")
        dependencies = Dependencies()
        spec = {"schedule": schedule, "query": dependencies.reference(query), **options}
        super().__init__("Schedule", name, spec_fields(spec), namespace=namespace, dependencies=dependencies)


class ScheduleHandle:
    """A schedule in Temporal. It starts runs whether or not a program holds a handle on it."""

    def __init__(self, client: Client, namespace: str, name: str) -> None:
        self._client, self.namespace, self.name = client, namespace, name
        self._schedule = schedule_handle(client, namespace, name)

    async def status(self) -> JsonObject:
        """How it is, as ``baton schedules list -o json`` shows it. Raises ScheduleError if it was deleted."""
        return (await find_schedule(self._client, self.namespace, self.name)).value

    async def pause(self, note: str = "") -> None:
        """Lets it start no more runs; those that are open go on."""
        check_text(note, "note")
        await self._schedule.pause(note=note or f"paused by {account_name()}")

    async def unpause(self, note: str = "") -> None:
        """Lets it start runs again, from now on."""
        check_text(note, "note")
        await self._schedule.unpause(note=note or f"unpaused by {account_name()}")

    async def trigger(self) -> Handle | None:
        """Starts a run now. None if its overlap policy has put that off or passed over it, as a run is open."""
        run = await trigger_schedule(self._client, self.namespace, self.name)
        return Handle(self._client, self._client.get_workflow_handle(run)) if run else None

    async def delete(self) -> None:
        """Deletes it; its open runs go on."""
        await self._schedule.delete()


async def apply_definition(
    client: Client, definition: ScheduleDefinition, server: ServerLocation, task_queue: str
) -> ScheduleHandle:
    """Makes a schedule in Temporal, or changes it in place.

    Raises ManifestError, ScheduleError, and ValueError if its query needs functions or keys that only this process has.
    """
    check(definition, ScheduleDefinition, "schedule", "a Schedule")
    loaded = load_definitions([definition])
    if definition.functions() or loaded.secrets:
        what = "functions" if definition.functions() else "a literal API key"
        raise ValueError(f"a scheduled query can't use {what}, as this process executes no run of it: a worker must")
    found = loaded.catalog.get("Schedule", definition.namespace, definition.name)
    assert isinstance(found, Schedule)
    query, catalog = scheduled_query(loaded, found, elsewhere=server.state_dir is None)
    if server.state_dir:
        server.state_dir.write_sources(catalog.sha, [])
    await apply_schedule(client, found, query, catalog, task_queue)
    return ScheduleHandle(client, found.namespace, found.name)


async def find_handle(client: Client, namespace: str, name: str) -> ScheduleHandle:
    """The handle of a schedule that exists. Raises ScheduleError."""
    check_text(name, "name")
    await describe_schedule(client, namespace, name)
    return ScheduleHandle(client, namespace, name)
