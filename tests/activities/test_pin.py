"""Tests of pinning: it runs within the first workflow task, and where it takes longer, nothing is blocked or lost."""

import contextlib
import dataclasses
import sqlite3
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from temporalio.client import WorkflowFailureError

from baton import worker
from baton.starter.history.ark_events import EventRecorder
from baton.starter.history.follow import follow
from tests.harness.environment import Environment, Handle, agent, line, team

SOLO = [agent("one"), team("team", "one", maxTurns=2, onMaxTurns="complete")]
ASKED = {"spec": {"input": "Why?", "targets": [{"type": "team", "name": "team"}]}, "resources": SOLO}
NOT_AT_ONCE = ["not at once", "pin"]
"""What a history has of a pinning for which a local activity takes too long."""


@contextlib.contextmanager
def locked(journal: Path) -> Iterator[None]:
    """Locks the journal's database while the block runs."""
    with contextlib.closing(sqlite3.connect(journal, isolation_level=None)) as connection:
        connection.execute("begin immediate")
        yield
        connection.execute("rollback")


async def pins(handle: Handle) -> list[str]:
    """The events of a run's history that belong to pinning."""
    found = list[str]()
    for event in (await handle.fetch_history()).events:
        marker = event.marker_recorded_event_attributes
        if marker.marker_name == "core_local_activity":
            found.append("not at once" if marker.HasField("failure") else "at once")
        elif event.activity_task_scheduled_event_attributes.activity_type.name == "pin":
            found.append("pin")
    return found


async def test_a_run_is_pinned_by_a_local_activity(env: Environment) -> None:
    env.script(line("one", "a", "b"))
    found = [NOT_AT_ONCE]
    while found[-1] == NOT_AT_ONCE and len(found) < 6:  # a busy machine may need longer than a local activity may take
        handle = await env.start("query", ASKED)
        assert (await env.status(handle)).phase == "Completed"
        found.append(await pins(handle))
    assert found[-1] == ["at once"]


async def test_a_child_run_is_pinned_by_an_activity_so_that_its_parents_signals_come_first(
    env: Environment,
) -> None:
    env.script(line("one", "a", "b"))
    handle = await env.start("query", ASKED)
    assert (await env.status(handle)).phase == "Completed"
    assert await pins(env.client.get_workflow_handle(f"{handle.id}/target-1/team")) == ["pin"]


async def test_a_run_that_is_canceled_before_a_worker_takes_it_has_a_start_in_its_events(env: Environment) -> None:
    later = dataclasses.replace(env, task_queue=uuid.uuid4().hex)
    handle = await later.start("query", ASKED)
    await handle.cancel()
    async with worker.run_worker(env.client, env.catalog, later.worker_env):
        with pytest.raises(WorkflowFailureError):
            await handle.result()
    names = list[str]()
    recorder = EventRecorder()
    await follow(env.client, handle, lambda each: names.extend(event.name for event in recorder.record(each)))
    assert names == ["QueryReceived", "CancellationRequested", "QueryStarted", "QueryCanceled"]


async def test_a_run_whose_journal_is_locked_answers_queries_and_is_pinned_later(env: Environment) -> None:
    env.script(line("one", "a", "b"))
    with locked(env.journal):
        handle = await env.start("query", ASKED)
        while await pins(handle) != NOT_AT_ONCE:
            assert (await handle.query("status"))["phase"] == "Running"
    assert (await env.status(handle)).phase == "Completed"
    assert [row["content"] for row in env.rows()].count("Why?") == 1


async def test_a_run_whose_journal_refuses_what_it_writes_fails_at_once_with_the_reason(env: Environment) -> None:
    with contextlib.closing(sqlite3.connect(env.journal)) as connection:
        connection.execute("drop table baton_messages")
    turn = await env.turn_result(await env.start("agent", {"agent": "one", "input": "Why?", "resources": SOLO}))
    assert turn.failure
    assert (turn.failure.family, turn.failure.type) == ("MemoryError", "JournalUnavailable")
    assert turn.failure.message == "the journal rejects a statement: no such table: baton_messages"
