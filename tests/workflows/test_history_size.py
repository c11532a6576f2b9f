"""A turn costs little history, and as much at the end of a run as at its start; benchmarks/history_size.py measures."""

import contextlib
import json
import sqlite3
from pathlib import Path

import pytest
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import WorkflowHistory

from baton.contracts.message import Head
from baton.contracts.requests import AskModelRequest
from baton.contracts.turn import Thread
from baton.installation import version
from baton.temporal.converter import DATA_CONVERTER
from baton.testing import Reply
from tests.harness.environment import Environment, agent, team

TURNS = 24
REPLY = "x" * 1_000
NAMES = "brainstormer-agent", "critic-agent"

BESIDES_REPLY = 1_130
"""Bytes of a turn besides the reply and the worker's identity, which stands there five times."""


def per_turn(history: WorkflowHistory) -> list[list[HistoryEvent]]:
    """The events from the beginning of each model call to that of the next."""
    turns: list[list[HistoryEvent]] = []
    for event in history.events:
        if event.activity_task_scheduled_event_attributes.activity_type.name == "ask_model":
            turns.append([])
        if turns:
            turns[-1].append(event)
    return turns[:-1]


async def turns_of_a_team(env: Environment) -> list[list[HistoryEvent]]:
    """The events of the turns of a team that has run."""
    env.answer = lambda _: Reply(text=REPLY)
    handle = await env.start_team([*map(agent, NAMES), team("team", *NAMES, maxTurns=TURNS // len(NAMES))])
    await env.turn_result(handle)
    return per_turn(await handle.fetch_history())


@pytest.mark.full
async def test_a_turn_costs_no_more_history_later_than_at_the_beginning(env: Environment) -> None:
    turns = await turns_of_a_team(env)
    assert len(turns) == TURNS - 1
    sizes = [sum(event.ByteSize() for event in turn) for turn in turns]
    early, late = sum(sizes[:11]) / 11, sum(sizes[-11:]) / 11
    identity = turns[-1][1].activity_task_started_event_attributes.identity
    assert late <= len(REPLY) + BESIDES_REPLY + 5 * len(identity)
    assert late <= 1.05 * early  # numbers grow by a digit
    messages = [len(message) for message in written(env.journal)]
    assert len(messages) == TURNS + 1
    assert max(messages) <= 1_500


@pytest.mark.full
async def test_a_turns_request_holds_its_place_and_its_number_alone(env: Environment) -> None:
    scheduled, started, completed, *_ = (await turns_of_a_team(env))[-1]
    request = json.loads(scheduled.activity_task_scheduled_event_attributes.input.payloads[0].data)
    assert request.keys() == {"thread", "speaker", "begun", "turn", "turns"}
    assert request["thread"].keys() == {"catalog", "question", "head"}
    assert json.loads(scheduled.user_metadata.summary.data) == f"turn {TURNS - 1} · {NAMES[0]} · default"
    ran = started.activity_task_started_event_attributes
    assert (ran.identity.rpartition("/")[2], ran.worker_version.build_id) == ("-", version())
    result = json.loads(completed.activity_task_completed_event_attributes.result.payloads[0].data)
    assert result["message"]["usage"].keys() == {"promptTokens", "completionTokens", "totalTokens"}


async def test_fields_with_their_default_are_left_out_of_a_request_and_read_back() -> None:
    thread = Thread(catalog="c", question="q/1", head=Head(id="q/1", depth=1), run=None)
    full = AskModelRequest(thread=thread, speaker="Agent/default/one", begun=1, pending=(), fallback=0, turn=2)
    (payload,) = await DATA_CONVERTER.encode([full.without_defaults])
    assert json.loads(payload.data).keys() == {"thread", "speaker", "begun", "turn"}
    assert await DATA_CONVERTER.decode([payload], [AskModelRequest]) == [full]


def written(journal: Path) -> list[str]:
    """What stands in the rows of a journal, as it is written."""
    with contextlib.closing(sqlite3.connect(journal)) as database:
        return [message for (message,) in database.execute("select message from baton_messages")]
