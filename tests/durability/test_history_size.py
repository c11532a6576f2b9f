"""What a turn leaves in a history: the reply, and nothing that is said twice or has its default."""

import itertools
import json
from importlib.metadata import version

from temporalio.api.history.v1 import HistoryEvent

from baton.conversation.contracts.requests import AskModelRequest
from baton.conversation.messages.message import Head
from baton.conversation.messages.turn import Thread
from baton.conversation.temporal.temporal_client import DATA_CONVERTER
from baton.starter.scripted_model.script import Reply
from tests.harness.environment import Environment, agent, team

MEMBERS = [agent("one"), agent("two")]
TEAM = team("team", "one", "two", strategy="round-robin", maxTurns=4, onMaxTurns="complete")
TURNS, REPLY = 8, 1_000

BESIDES_REPLY = 1_100
"""Bytes of the events of a turn besides the reply and the worker's identity, whose length depends on the machine."""


async def events_of_turns(env: Environment) -> list[list[HistoryEvent]]:
    """The events of each turn of a team, from the call of the model to the next one."""
    env.answer = lambda _: Reply(text="x" * REPLY)
    handle = await env.start_team([*MEMBERS, TEAM])
    assert (await env.turn_result(handle)).turns == TURNS
    events = (await handle.fetch_history()).events
    begins = [
        place
        for place, event in enumerate(events)
        if event.activity_task_scheduled_event_attributes.activity_type.name == "ask_model"
    ]
    return [[*events[one:other]] for one, other in itertools.pairwise(begins)]


async def test_a_turn_takes_little_history_besides_its_reply(env: Environment) -> None:
    turns = await events_of_turns(env)
    identity = turns[0][1].activity_task_started_event_attributes.identity
    sizes = [sum(event.ByteSize() for event in turn) - REPLY - 5 * len(identity) for turn in turns]
    assert max(sizes) <= BESIDES_REPLY, sizes


async def test_a_turns_request_holds_its_place_and_its_number_alone(env: Environment) -> None:
    scheduled, started, completed, *_ = (await events_of_turns(env))[-1]
    request = json.loads(scheduled.activity_task_scheduled_event_attributes.input.payloads[0].data)
    assert request.keys() == {"thread", "speaker", "begun", "turn", "turns"}
    assert request["thread"].keys() == {"catalog", "question", "head"}
    assert json.loads(scheduled.user_metadata.summary.data) == f"turn {TURNS - 1} · one"
    ran = started.activity_task_started_event_attributes
    assert (ran.identity.rpartition("/")[2], ran.worker_version.build_id) == ("-", version("baton"))
    result = json.loads(completed.activity_task_completed_event_attributes.result.payloads[0].data)
    assert result["message"]["usage"].keys() == {"promptTokens", "completionTokens", "totalTokens"}


async def test_fields_with_their_default_are_left_out_of_a_request_and_read_back() -> None:
    thread = Thread(catalog="c", question="q/1", head=Head(id="q/1", depth=1), run=None)
    full = AskModelRequest(thread=thread, speaker="Agent/default/one", begun=1, pending=(), fallback=0, turn=2)
    (payload,) = await DATA_CONVERTER.encode([full.without_defaults])
    assert json.loads(payload.data).keys() == {"thread", "speaker", "begun", "turn"}
    assert await DATA_CONVERTER.decode([payload], [AskModelRequest]) == [full]
