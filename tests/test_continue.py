"""A run whose history becomes long goes on in a new one: nobody who starts, steers or waits for it notices."""

from temporalio.client import WorkflowHistory

from starter.script import Reply, Request
from tests.stage import Handle, Stage, agent, team, texts

BOUND = 150
"""Events that a run may have where it is to go on in a new one after fifty: one step more, with all that it takes."""


def counted(request: Request) -> Reply:
    """The model says how many answers it was shown before."""
    return Reply(text=str(sum(message["role"] == "assistant" for message in request["messages"]) + 1))


async def chain(stage: Stage, handle: Handle) -> list[WorkflowHistory]:
    """The histories of a run and of those in which it went on, the first one first."""
    histories = []
    run_id = (await handle.describe()).raw_description.workflow_execution_info.first_run_id
    while run_id:
        history = await stage.client.get_workflow_handle(handle.id, run_id=run_id).fetch_history()
        histories.append(history)
        run_id = history.events[-1].workflow_execution_continued_as_new_event_attributes.new_execution_run_id
    return histories


async def check(stage: Stage, handle: Handle, at_least: int = 3) -> list[WorkflowHistory]:
    """The run went on several times, and none of its histories is long."""
    histories = await chain(stage, handle)
    assert len(histories) >= at_least
    assert max(len(history.events) for history in histories) <= BOUND
    return histories


def numbers(upto: int) -> list[str]:
    return [str(number) for number in range(1, upto + 1)]


async def test_a_round_robin_of_many_turns_says_each_message_once_and_in_order(relay: Stage) -> None:
    relay.answer = counted
    members = "one", "two", "three"
    handle = await relay.start_team([*map(agent, members), team("team", *members, maxTurns=40)])
    turn = await relay.turn(handle)
    assert (turn.stop_reason, turn.turns) == ("max_turns", 120)
    assert turn.usage.model_calls == len(relay.model.asked) == 120
    said = relay.transcript(turn.head.id)
    assert [row["content"] for row in said] == ["Why?", *numbers(120)]
    assert [row["name"] for row in said[1:]] == [*members] * 40
    assert texts(turn.messages) == numbers(120)
    await check(relay, handle, 12)
