"""A turn costs as much history at the end of a run as at its start; benchmarks/history_size.py measures long runs."""

import contextlib
import sqlite3
from pathlib import Path

from temporalio.client import WorkflowHistory

from baton.starter.scripted_model.script import Reply
from tests.harness.environment import Environment, agent, team

TURNS = 24
REPLY = "x" * 1_000
NAMES = "brainstormer-agent", "critic-agent"


def per_turn(history: WorkflowHistory) -> list[int]:
    """Bytes of history from the beginning of each model call to that of the next."""
    sizes: list[int] = []
    for event in history.events:
        if event.activity_task_scheduled_event_attributes.activity_type.name == "ask_model":
            sizes.append(0)
        if sizes:
            sizes[-1] += event.ByteSize()
    return sizes[:-1]


async def test_a_turn_costs_no_more_history_later_than_at_the_beginning(env: Environment) -> None:
    env.answer = lambda _: Reply(text=REPLY)
    handle = await env.start_team([*map(agent, NAMES), team("team", *NAMES, maxTurns=TURNS // len(NAMES))])
    await env.turn_result(handle)
    sizes = per_turn(await handle.fetch_history())
    assert len(sizes) == TURNS - 1
    early, late = sum(sizes[:11]) / 11, sum(sizes[-11:]) / 11
    assert late <= 2_500
    assert late <= 1.05 * early  # numbers grow by a digit
    messages = [len(message) for message in written(env.journal)]
    assert len(messages) == TURNS + 1
    assert max(messages) <= 1_500


def written(journal: Path) -> list[str]:
    """What stands in the rows of a journal, as it is written."""
    with contextlib.closing(sqlite3.connect(journal)) as database:
        return [message for (message,) in database.execute("select message from baton_messages")]
