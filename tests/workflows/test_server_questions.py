"""Tests of questions that servers ask in the middle of a call: a person answers, and the call continues."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from a2a.server.context import ServerCallContext
from a2a.types import Part, TaskState
from temporalio.client import WorkflowExecutionStatus

from baton.contracts.decisions import PendingDecision
from baton.starter.runs.decisions import pending_decisions
from tests.harness.agent_server import AgentServer, Turn
from tests.harness.environment import Environment, Handle, Json, agent, call, line
from tests.harness.mcp_process import McpServerProcess
from tests.harness.remote_agents import a2a_agent, a2a_server
from tests.starter.test_approvals import events
from tests.workflows.test_approval import approve, pending
from tests.workflows.test_people import ANN, people, refused, reply

BOOK = call("test-book", day="Monday")


@pytest.fixture(params=["2025", "2026"])
def hotel(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[McpServerProcess]:
    with McpServerProcess(request.param, tmp_path).running() as server:
        yield server


@pytest.fixture
def modern_hotel(tmp_path: Path) -> Iterator[McpServerProcess]:
    with McpServerProcess("2026", tmp_path).running() as server:
        yield server


@pytest.fixture
def agents() -> Iterator[AgentServer]:
    agents = AgentServer()
    agents.behaviour = travel
    with agents.serving():
        yield agents


async def travel(turn: Turn) -> None:
    """Asks for the day, then for an authorization, and books."""
    task, said = await turn.task(), turn.texts[-1]
    text = {"Book a trip!": "Which day?", "Monday": "Sign in at https://sign.example/1"}.get(
        said, f"Booked after {said}"
    )
    message = task.new_agent_message([Part(text=text)])
    await (task.requires_input if "day" in text else task.requires_auth if "Sign" in text else task.complete)(message)


async def start_trip(env: Environment, agents: AgentServer, *more: Json, **given: Any) -> Handle:
    oracle = a2a_agent("oracle")
    questions: Json = given.pop("questions", {})
    given = {"agent": "oracle", "input": "Book a trip!", **given}
    return await env.start("agent", {**given, "resources": [oracle, a2a_server(agents, questions=questions), *more]})


def user(tool: str, **spec: Any) -> Json:
    return agent("one", tools=[{"name": tool, "type": "mcp", **spec}])


async def start(env: Environment, server: McpServerProcess, says: Json, **questions: Any) -> Handle:
    """A run in which an agent uses a tool that asks."""
    env.script(line("one", says, "Done."))
    tool = says["calls"][0]["name"]
    return await env.start_query([user(tool), server.manifest(questions=questions)], "agent/one")


async def waiting(env: Environment, handle: Handle, before: PendingDecision | None = None) -> PendingDecision:
    """The question that a run below this one waits for, after another one."""
    while True:
        found = await pending_decisions(env.client, handle.id)
        if found and found[0] != before:
            return found[0]
        assert (await handle.describe()).status == WorkflowExecutionStatus.RUNNING, "it waits for nobody"
        await asyncio.sleep(0.02)


async def told(env: Environment, handle: Handle) -> list[Json]:
    """The messages of the conversation after the question."""
    status = await env.status(handle)
    head = status.responses[0].head
    assert head, status.error
    return env.transcript(head.id)[1:]


@pytest.mark.full
async def test_what_a_tool_asks_is_answered_by_a_person_and_the_call_is_carried_out_once(
    env: Environment, hotel: McpServerProcess
) -> None:
    handle = await start(env, hotel, BOOK)
    first = await waiting(env, handle)
    run = env.client.get_workflow_handle(first.run)
    assert (first.kind, first.speaker, first.asked_by) == ("question", "one", "MCPServer/default/test")
    assert first.question
    assert first.question.startswith("MCPServer/default/test, tool book, asks:\nWhich room?\nReply with JSON")
    assert "'room' is a required property" in await refused(run, "{}")
    await reply(run, '{"room": "blue"}')
    second = await waiting(env, handle, first)
    assert "How many nights in the blue room?" in (second.question or "")
    await reply(run, '{"nights": 2}', to=second.id)
    said = await told(env, handle)
    assert [each["content"] for each in said] == ["", "booked the blue room", "Done."]
    assert (said[1]["decision"]["by"], said[1]["decision"]["text"]) == ("ann@desk", "")
    assert hotel.calls == ["booked blue for 2 on Monday"]
    assert (await env.status(handle)).token_usage.tool_calls == 1


@pytest.mark.full
async def test_a_question_is_asked_though_the_server_ends_the_call_without_an_answer_with_an_error(
    env: Environment, hotel: McpServerProcess
) -> None:
    handle = await start(env, hotel, call("test-reserve"))
    run = env.client.get_workflow_handle((await waiting(env, handle)).run)
    await reply(run, '{"room": "blue"}')
    assert (await told(env, handle))[1]["content"] == "reserved the blue room"
    assert hotel.calls == ["reserved blue"]


@pytest.mark.full
async def test_a_person_may_decline_to_answer_a_server_and_the_server_is_told(
    env: Environment, hotel: McpServerProcess
) -> None:
    handle = await start(env, hotel, BOOK)
    run = env.client.get_workflow_handle((await waiting(env, handle)).run)
    await reply(run, "", declines=True)
    assert (await told(env, handle))[1]["content"] == "not booked: decline"
    assert hotel.calls == []


@pytest.mark.full
@pytest.mark.parametrize(
    ("on_timeout", "result"),
    [
        ("fail", "Error: no answer to MCPServer/default/test within 0.3 s"),
        ("skip", "not booked: cancel"),
    ],
)
async def test_without_an_answer_in_time_the_call_fails_or_the_server_is_told(
    env: Environment, hotel: McpServerProcess, on_timeout: str, result: str
) -> None:
    handle = await start(env, hotel, BOOK, timeout="300ms", onTimeout=on_timeout)
    assert (await told(env, handle))[1]["content"] == result


@pytest.mark.full
async def test_an_address_that_a_server_wants_to_be_opened_is_shown_to_a_person(
    env: Environment, hotel: McpServerProcess
) -> None:
    handle = await start(env, hotel, call("test-pay"))
    asked = await waiting(env, handle)
    assert (asked.question or "").endswith("Pay for it.\nOpen https://pay.example/7 and reply when it is done.")
    (hotel.folder / "paid").touch()
    await reply(env.client.get_workflow_handle(asked.run), "Done.")
    assert (await told(env, handle))[1]["content"] == "paid"
    assert hotel.calls == ["paid"]


async def test_an_address_that_nobody_opens_is_declined(env: Environment, hotel: McpServerProcess) -> None:
    handle = await start(env, hotel, call("test-pay"))
    asked = await waiting(env, handle)
    await reply(env.client.get_workflow_handle(asked.run), "", declines=True)
    result = (await told(env, handle))[1]["content"]
    assert "not paid: decline" in result or "can't continue without a person: Pay for it." in result
    assert hotel.calls == []


async def test_what_an_agent_elsewhere_asks_is_answered_by_a_person_in_its_open_task(
    env: Environment, agents: AgentServer
) -> None:
    handle = await start_trip(env, agents)
    asked = await waiting(env, handle)
    assert asked.question == "A2AServer/default/far, agent oracle, asks:\nWhich day?"
    await reply(handle, "Monday")
    second = await waiting(env, handle, asked)
    assert "requires authorization. Reply once it is granted:\nSign in at https://sign.ex" in (second.question or "")
    await reply(handle, "Done.", to=second.id)
    turn = await env.turn_result(handle)
    assert [(each.role, each.content) for each in turn.messages] == [
        ("assistant", "Which day?"),
        ("user", "Monday"),
        ("assistant", "Sign in at https://sign.example/1"),
        ("user", "Done."),
        ("assistant", "Booked after Done."),
    ]
    said = turn.messages[1]
    assert said.decision
    assert (said.name, said.decision.by) == ("ann@desk", "ann@desk")
    assert len({each.context.task_id for each in agents.turns}) == 1
    assert len(agents.turns) == 3


async def test_an_authorization_that_was_given_elsewhere_needs_no_message(
    env: Environment, agents: AgentServer
) -> None:
    handle = await start_trip(env, agents)
    first = await waiting(env, handle)
    await reply(handle, "Monday")
    await waiting(env, handle, first)
    task = agents.turns[0].context.current_task
    known = await agents.store.get(agents.turns[0].context.task_id or "", ServerCallContext())
    assert known, task
    known.status.state = TaskState.TASK_STATE_COMPLETED
    known.status.message.parts[0].text = "Booked by itself"
    await agents.store.save(known, ServerCallContext())
    await reply(handle, "Done.")
    assert (await env.turn_result(handle)).message == "Booked by itself"
    assert len(agents.turns) == 2


@pytest.mark.parametrize(
    ("declines", "says"), [(True, "I decline to answer: No."), (False, "There was no answer in time")]
)
async def test_an_agent_elsewhere_is_told_that_there_is_no_answer(
    env: Environment, agents: AgentServer, declines: bool, says: str
) -> None:
    questions = {} if declines else {"timeout": "300ms", "onTimeout": "skip"}
    handle = await start_trip(env, agents, questions=questions)
    if declines:
        await waiting(env, handle)
        await reply(handle, "No.", declines=True)
    assert (await env.turn_result(handle)).message.startswith(f"Booked after {says}")


async def test_the_turn_of_an_agent_whose_question_nobody_answers_fails(env: Environment, agents: AgentServer) -> None:
    turn = await env.turn_result(await start_trip(env, agents, questions={"timeout": "300ms"}))
    assert turn.failure
    assert (turn.failure.type, turn.messages[0].content) == ("ReplyOverdue", "Which day?")


async def test_only_what_a_server_asks_can_be_declined(env: Environment) -> None:
    handle = await env.start_team([people(ANN)])
    await pending(handle)
    assert "ann is a member of the team: only a server's question can be declined" in await refused(
        handle, "No.", declines=True
    )
    await reply(handle, "Yes.")
    await env.turn_result(handle)


@pytest.mark.full
async def test_a_long_run_continues_as_new_while_a_server_waits_for_an_answer(
    env_with_short_histories: Environment, modern_hotel: McpServerProcess
) -> None:
    env = env_with_short_histories
    env.script(line("one", BOOK, "Done."))
    user_of = user("test-book", approval={})
    resources = [user_of, modern_hotel.manifest(questions={})]
    handle = await env.start("agent", {"agent": "one", "input": "Why?", "resources": resources})
    await approve(handle, (await pending(handle))[0], arguments={"day": "Friday"})
    first = await waiting(env, handle)
    while first.kind == "approval":
        first = await waiting(env, handle, first)
    await reply(handle, '{"room": "blue"}', to=first.id)
    second = await waiting(env, handle, first)
    begun = (await handle.describe()).run_id
    handle = env.client.get_workflow_handle(handle.id)
    while (await handle.describe()).run_id == begun:
        await handle.signal("session", {"n": 1})
    assert (await pending(handle))[0] == second
    assert "is not JSON" in await refused(handle, "two", to=second.id)
    await reply(handle, '{"nights": 2}', to=second.id)
    assert (await env.turn_result(handle)).message == "Done."
    assert modern_hotel.calls == ["booked blue for 2 on Friday"]


@pytest.mark.full
async def test_the_events_of_a_call_in_which_a_server_asks_are_those_of_one_call(
    env: Environment, modern_hotel: McpServerProcess
) -> None:
    handle = await start(env, modern_hotel, BOOK)
    first = await waiting(env, handle)
    run = env.client.get_workflow_handle(first.run)
    await reply(run, '{"room": "blue"}')
    second = await waiting(env, handle, first)
    await reply(run, '{"nights": 2}', to=second.id)
    await env.status(handle)
    found = await events(env, handle)
    names = [each["event"] for each in found]
    assert [names.count(f"ToolCall{end}") for end in ("Started", "Completed", "Failed")] == [1, 1, 0]
    begun, ended = (
        next(each for each in found if each["event"] == f"ToolCall{end}") for end in ("Started", "Completed")
    )
    assert begun["call"] == ended["call"]
    assert [each["question"] for each in found if each["event"] in ("ReplyRequested", "ReplyGiven")] == [
        first.id,
        first.id,
        second.id,
        second.id,
    ]
