"""A run is pinned within its first workflow task; what takes longer holds nothing up, and nothing is lost meanwhile."""

import asyncio
import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from temporalio.service import RPCError

from tests.stage import Handle, Stage, agent, line, team

SOLO = [agent("one"), team("team", "one", maxTurns=2, onMaxTurns="complete")]
ASKED = {"spec": {"input": "Why?", "targets": [{"type": "team", "name": "team"}]}, "resources": SOLO}


@contextlib.contextmanager
def locked(journal: Path) -> Iterator[None]:
    """Nobody else can write to the journal while the block runs."""
    with contextlib.closing(sqlite3.connect(journal, isolation_level=None)) as connection:
        connection.execute("begin immediate")
        yield
        connection.execute("rollback")


async def pins(handle: Handle) -> list[str]:
    """What a run's history tells of its pins."""
    found = list[str]()
    for event in (await handle.fetch_history()).events:
        marker = event.marker_recorded_event_attributes
        if marker.marker_name == "core_local_activity":
            found.append("not at once" if marker.HasField("failure") else "at once")
        elif event.activity_task_scheduled_event_attributes.activity_type.name == "pin":
            found.append("pin")
    return found


async def test_a_run_is_pinned_without_an_activity_of_its_own(stage: Stage) -> None:
    stage.script(line("one", "a", "b"))
    handle = await stage.start("query", ASKED)
    assert (await stage.status(handle)).phase == "Completed"
    assert [await pins(each) async for each in stage.handles()] == [["at once"], ["at once"]]


async def test_a_run_whose_journal_is_held_up_answers_and_is_pinned_later(stage: Stage) -> None:
    stage.script(line("one", "a", "b"))
    with locked(stage.journal):
        handle = await stage.start("query", ASKED)
        while await pins(handle) != ["not at once", "pin"]:
            assert (await handle.query("status"))["phase"] == "Running"
    assert (await stage.status(handle)).phase == "Completed"


async def test_who_is_told_something_before_a_team_has_begun_hears_it_in_the_first_call(stage: Stage) -> None:
    stage.script(line("one", "a", "b"))
    handle = await stage.start("query", ASKED, start_signal="steer", start_signal_args=[{"text": "Be kind."}])
    assert (await stage.status(handle)).phase == "Completed"
    assert "Be kind." in [each["content"] for each in stage.model.asked[0].request["messages"]]


async def test_a_query_that_is_to_wait_from_the_beginning_asks_nobody_before_it_may(stage: Stage) -> None:
    stage.script(line("one", "a", "b"))
    handle = await stage.start("query", ASKED, start_signal="pause")
    team = stage.client.get_workflow_handle(f"{handle.id}/target-1/team")
    with contextlib.suppress(RPCError):
        while await pins(team) != ["at once"]:
            assert not stage.model.asked
    await asyncio.sleep(0.5)
    assert not stage.model.asked
    await handle.signal("resume")
    assert (await stage.status(handle)).phase == "Completed"
