"""A failed run is retried: it resumes before the failed call, and no call is repeated."""

import asyncio
import json
from collections import Counter
from typing import Any

import pytest
from temporalio import workflow
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from baton.contracts.errors import InvalidInput
from baton.contracts.status import Status
from baton.starter.runs.start import NotRetriedError, retry_run
from baton.testing import Reply, Request, ScriptedToolCall
from baton.workflows.discussion.agent_turn import INTERRUPTED
from tests.harness.environment import Environment, Json, agent, call, line, manifest, team
from tests.harness.panels import debate, panel, role_member
from tests.harness.tool_server import Answer, ToolServer

ABC = [agent("a"), agent("b"), agent("c")]
REFUSED = Reply(status=401, code="invalid_api_key", delay=0.9)
"""The refusal of a key. Calls that are made at the same time are answered before it, so that none is interrupted."""

REFUSED_LATE = REFUSED.model_copy(update={"delay": 9})
"""The same on a machine that is so busy that other calls were not answered before."""


class RefusingModel:
    """Answers by what it is asked, and refuses one request: the one with this number, counted from 1."""

    def __init__(self, refused: int = 0, refusal: Reply = REFUSED) -> None:
        self.asked: list[str] = []
        self._refused = refused
        self._refusal = refusal
        self._requests = 0

    def answer(self, request: Request) -> Reply:
        """The answer to a request, or a refusal."""
        self._requests += 1
        if self._requests == self._refused:
            return self._refusal
        self.asked.append(json.dumps(sorted(map(json.dumps, request["messages"]))))  # parallel members in any order
        system = request["messages"][0]["content"]
        tools = {tool["function"]["name"]: tool for tool in request.get("tools", [])}
        if select := tools.get("select-next-speaker"):
            names = select["function"]["parameters"]["properties"]["name"]["enum"]
            return Reply(calls=[ScriptedToolCall(name="select-next-speaker", arguments={"name": names[0]})])
        for role, answer in ROLES.items():
            if role in system:
                return Reply(text=json.dumps(answer))
        done = {message["tool_call_id"] for message in request["messages"] if message["role"] == "tool"}
        if tools and not done:
            return Reply(calls=[ScriptedToolCall(name=name, arguments={"input": name}) for name in tools])
        said = sum(message["role"] == "assistant" for message in request["messages"])
        return Reply(text=f"{system[:12]} {said + 1}")


ROLES: dict[str, Json] = {
    "You are the referee": {"critique": "Shorter."},
    "You moderate": {"nextSpeakers": ["pro", "con"], "done": False},
    "You judge": {"winner": None, "verdict": "Both are right.", "reasoning": "So it is."},
}

EDGES = [{"from": "a", "to": "b"}, {"from": "b", "to": "c"}]
DESK = manifest("Tool", "desk", {"type": "team", "team": {"name": "inner"}})
BOSS = agent("boss", tools=[{"name": "desk", "onError": "fail"}])
INNER = team("inner", "b", "c", strategy="sequential")
DEBATERS = {"name": "pro", "stance": "for"}, {"name": "con", "stance": "against"}

TEAMS: dict[str, list[Json]] = {
    "sequential": [*ABC, team("team", "a", "b", "c", strategy="sequential")],
    "round-robin": [*ABC, team("team", "a", "b", maxTurns=2, onMaxTurns="complete")],
    "selector": [*ABC, team("team", "a", "b", "c", strategy="selector", maxTurns=3, onMaxTurns="complete")],
    "graph": [*ABC, team("team", "a", "b", "c", strategy="graph", graph={"edges": EDGES}, maxTurns=5)],
    "handoff": [*ABC, team("team", "a", "b", "c", strategy="handoff", maxTurns=3, onMaxTurns="complete")],
    "parallel": [*ABC, team("team", "a", "b", "c", strategy="parallel", aggregator="a")],
    "nested teams": [*ABC, INNER, team("team", "a", "inner", strategy="sequential")],
    "nested in parallel": [*ABC, INNER, team("team", "a", "inner", strategy="parallel")],
    "a team as a tool": [*ABC, INNER, DESK, BOSS, team("team", "boss", "a", strategy="sequential")],
    "panel": [panel(role_member("a"), role_member("b"), maxRounds=2, referee=True)],
    "debate": [debate(*DEBATERS, maxRounds=2, moderator=True, judge=True, shuffleForJudge=False)],
}


@pytest.mark.slow
@pytest.mark.parametrize("shape", TEAMS)
async def test_whichever_call_has_failed_a_team_its_retry_ends_like_a_run_without_a_failure(
    env: Environment, shape: str
) -> None:
    manifests = TEAMS[shape]
    name = manifests[-1]["metadata"]["name"]
    undisturbed = RefusingModel()
    env.answer = undisturbed.answer
    status = await env.status(await env.start_query(manifests, f"team/{name}"))
    assert status.phase == "Completed", status.message
    expected = messages(status)
    calls = len(undisturbed.asked)
    assert calls > 1
    for refused in range(1, calls + 1):
        for refusal in (REFUSED, REFUSED_LATE):
            model = RefusingModel(refused, refusal)
            env.answer = model.answer
            handle = await env.start_query(manifests, f"team/{name}")
            failed = await env.status(handle)
            assert (failed.phase, "invalid_api_key" in failed.message) == ("Failed", False), refused
            status = await env.status(await retry_run(env.client, handle))
            assert (status.phase, messages(status)) == ("Completed", expected), refused
            if Counter(model.asked) == Counter(undisturbed.asked):
                break
        assert Counter(model.asked) == Counter(undisturbed.asked), f"asked twice after call {refused}"


def messages(status: Status) -> Any:
    """What was said, and the answer, in an order that does not depend on who has failed."""
    (response,) = status.responses
    said = sorted((message.name or "", message.content) for message in response.messages)
    return said, sorted(response.message.split("\n\n"))  # of parallel members, those first that have not failed


async def test_only_the_targets_that_failed_are_asked_again(env: Environment) -> None:
    model = RefusingModel()
    left = [REFUSED]
    env.answer = lambda request: left.pop() if left and "You are b" in str(request) else model.answer(request)
    handle = await env.start_query(ABC, "agent/a", "agent/b", "agent/c")
    failed = await env.status(handle)
    assert [response.status for response in failed.responses] == ["Success", "Failed", "Success"]
    status = await env.status(await retry_run(env.client, handle))
    assert [response.message for response in status.responses] == ["You are a. 1", "You are b. 1", "You are c. 1"]
    assert sorted(asked.count("You are b") for asked in model.asked) == [0, 0, 1]


TOOLS = "pay", "book", "mail"


def http_tools(server: ToolServer) -> list[Json]:
    """Three tools that POST to a path of their names."""
    return [
        manifest("Tool", name, {"type": "http", "http": {"url": f"{server.url}/{name}", "method": "POST"}})
        for name in TOOLS
    ]


async def test_tool_calls_that_succeeded_beside_one_that_failed_are_not_repeated(
    env: Environment, tool_server: ToolServer
) -> None:
    model = RefusingModel()
    env.answer = model.answer
    tool_server.answers(Answer("paid"), Answer("no", status=400), Answer("mailed"), Answer("booked"))
    buyer = agent("buyer", tools=[{"name": name, "onError": "fail"} for name in TOOLS])
    manifests = [buyer, *http_tools(tool_server)]
    handle = await env.start_query(manifests, "agent/buyer")
    failed = await env.status(handle)
    assert failed.phase == "Failed"
    status = await env.status(await retry_run(env.client, handle))
    assert (status.phase, len(model.asked)) == ("Completed", 2)
    asked = [seen.path for seen in tool_server.seen]
    assert Counter(asked)["/pay"] == 1
    assert asked.count("/book") == 2


async def test_a_message_that_nobody_has_read_before_the_failure_is_read_once_by_the_retry(env: Environment) -> None:
    model = RefusingModel(2, REFUSED.model_copy(update={"held": True}))
    env.answer = model.answer
    handle = await env.start_query([*ABC, team("team", "a", "b", strategy="sequential")], "team/team")
    await env.wait_for_calls(2)
    await handle.execute_update("steer", {"text": "Hurry."})
    env.model.release()
    assert (await env.status(handle)).phase == "Failed"
    status = await env.status(await retry_run(env.client, handle))
    (response,) = status.responses
    assert response.head
    said = [row["content"] for row in env.transcript(response.head.id)]
    assert said == ["Why?", "You are a. 1", "Hurry.", "You are b. 2"]


async def test_a_model_that_ignored_its_output_schema_gets_all_its_attempts_again(env: Environment) -> None:
    answers = [*["no"] * 3, "{}"]
    env.answer = lambda _: Reply(text=answers.pop(0))
    handle = await env.start_query([agent("a", outputSchema={"type": "object"})], "agent/a")
    assert (await env.status(handle)).phase == "Failed"
    assert (await env.status(await retry_run(env.client, handle))).message == "{}"


@pytest.mark.full
async def test_a_retry_that_fails_is_retried_and_the_conversation_goes_on(env: Environment) -> None:
    env.answer = lambda request: REFUSED if "You are b" in str(request) else Reply(text="Fine.")
    handle = await env.start_query([*ABC, team("team", "a", "b", strategy="sequential")], "team/team")
    for _ in range(2):
        assert (await env.status(handle)).phase == "Failed"
        handle = await retry_run(env.client, handle)
    assert (await env.status(handle)).phase == "Failed"
    env.answer = lambda _: Reply(text="Fine.")
    status = await env.status(await retry_run(env.client, handle))
    assert [message.content for message in status.responses[0].messages] == ["Fine.", "Fine."]
    assert status.token_usage.model_calls == 2


async def test_a_condition_that_could_not_be_evaluated_is_evaluated_by_the_retry(env: Environment) -> None:
    env.answer = lambda _: Reply(text="Fine.")
    spec = {"maxRounds": 3, "synthesizer": False, "terminateWhen": "int(session.limit) <= round"}
    limited = panel(role_member("a"), role_member("b"), **spec, session={"limit": "one"})
    handle = await env.start_team([limited], "panel")
    first = await env.turn_result(handle)
    again = await env.turn_result(await retry_run(env.client, handle))
    assert first.failure
    assert again.failure
    assert (first.failure.type, again.failure.type) == ("ConditionFailed", "ConditionFailed")
    assert (again.turns, len(env.model.requests)) == (2, 2)


async def test_a_run_that_could_not_be_pinned_is_started_again_with_its_own_input(env: Environment) -> None:
    handle = await env.start("round-robin", {"team": "missing", "input": "Why?"})
    first = await env.turn_result(handle)
    again = await env.turn_result(await retry_run(env.client, handle))
    assert first.failure
    assert first.failure == again.failure


async def test_only_failed_runs_that_no_other_run_has_started_are_retried(env: Environment) -> None:
    env.answer = lambda _: Reply(text="Fine.")
    done = await env.start_query(ABC, "agent/a")
    await env.status(done)
    with pytest.raises(NotRetriedError, match="has not failed: it is completed"):
        await retry_run(env.client, done)
    env.answer = lambda _: REFUSED
    failed = await env.start_query([*ABC, team("team", "a", strategy="sequential")], "team/team")
    await env.status(failed)
    child = env.client.get_workflow_handle(f"{failed.id}/target-1/team")
    with pytest.raises(NotRetriedError, match=f"is a child of {failed.id}: retry that run"):
        await retry_run(env.client, child)


async def test_a_run_goes_on_with_no_run_but_one_of_its_own_id(env: Environment) -> None:
    env.answer = lambda _: REFUSED
    other = await env.start("agent", {"agent": "a", "input": "Why?", "resources": ABC})
    await env.turn_result(other)
    handle = await env.start("agent", {"retries": other.first_execution_run_id})
    turn = await env.turn_result(handle)
    assert turn.failure
    assert (turn.failure.type, "has deleted the run" in turn.failure.message) == (InvalidInput.__name__, True)


@pytest.mark.full
@pytest.mark.parametrize("field", ["carried", "thread", "pinned"])
async def test_a_client_can_not_pass_the_state_of_a_run(env: Environment, field: str) -> None:
    """It has a plan, with the rules of approval, which only ``pin`` makes."""
    env.answer = lambda request: REFUSED
    failed = await env.start("agent", {"agent": "a", "input": "Why?", "resources": ABC})
    await env.turn_result(failed)
    state: Json = await failed.query("retry_input")
    values = {"carried": state["carried"], **state["carried"]["pinned"], "pinned": state["carried"]["pinned"]}
    given = {"agent": "a", **({} if field == "thread" else {"input": "Why?"}), field: values[field]}
    handle = await env.start("agent", given)
    with pytest.raises(WorkflowFailureError) as raised:
        await handle.result()
    assert f"{field}: only Baton's own workflows set this field" in str(raised.value.cause)


@pytest.mark.full
@pytest.mark.parametrize("is_first_known", [False, True])
async def test_a_client_can_not_pass_the_state_of_a_run_by_a_cron(env: Environment, is_first_known: bool) -> None:
    """Temporal repeats the input in a run that continues the one before, as Baton's workflows do."""
    env.answer = lambda request: REFUSED
    failed = await env.start("agent", {"agent": "a", "input": "Why?", "resources": ABC})
    await env.turn_result(failed)
    state: Json = await failed.query("retry_input")
    if is_first_known:
        state["carried"]["firstRun"] = failed.first_execution_run_id
    calls = len(env.model.requests)
    handle = await env.start("agent", state, cron_schedule="@every 1s")
    runs = set[str]()
    while len(runs) < 3:  # the first two have ended
        runs.add((await handle.describe()).run_id)
        await asyncio.sleep(0.05)
    await handle.terminate()
    assert len(env.model.requests) == calls


@pytest.mark.full
async def test_a_parallel_team_all_of_whose_members_have_failed_is_retried(env: Environment) -> None:
    env.answer = lambda _: REFUSED
    handle = await env.start_query(TEAMS["parallel"], "team/team")
    assert (await env.status(handle)).phase == "Failed"
    env.answer = RefusingModel().answer
    status = await env.status(await retry_run(env.client, handle))
    assert [message.name for message in status.responses[0].messages] == ["a", "b", "c", "a"]


async def test_a_parallel_team_that_is_canceled_before_any_member_has_spoken_ends(env: Environment) -> None:
    env.answer = lambda _: Reply(text="Never read.", hang=True)
    handle = await env.start_team([*ABC, team("team", "a", "b", strategy="parallel")])
    await env.wait_for_calls(2)
    await handle.signal("cancel")
    turn = await env.turn_result(handle)
    assert (turn.stop_reason, turn.messages) == ("canceled", ())


async def test_of_two_who_retry_a_run_one_is_told(env: Environment) -> None:
    env.answer = lambda _: REFUSED
    handle = await env.start_query(ABC, "agent/a")
    await env.status(handle)
    env.answer = lambda _: Reply(text="Fine.", delay=0.5)
    both = await asyncio.gather(*(retry_run(env.client, handle) for _ in range(2)), return_exceptions=True)
    (error,) = (each for each in both if isinstance(each, NotRetriedError))
    assert str(error).startswith(f"{handle.id} has not failed: it is ")
    (again,) = (each for each in both if not isinstance(each, BaseException))
    assert (await env.status(again)).message == "Fine."


@pytest.mark.slow
async def test_a_retry_that_fails_before_a_child_that_had_failed_still_goes_on_with_that_child(
    env: Environment,
) -> None:
    """The child failed in its second turn. The first retry fails as well: the child is asked nothing twice."""
    model = RefusingModel()
    env.answer = lambda request: REFUSED if "You are c" in str(request["messages"][0]) else model.answer(request)
    handle = await env.start_query(TEAMS["nested teams"], "team/team")
    for _ in range(2):
        assert (await env.status(handle)).phase == "Failed"
        handle = await retry_run(env.client, handle)
    assert (await env.status(handle)).phase == "Failed"
    env.answer = model.answer
    assert (await env.status(await retry_run(env.client, handle))).phase == "Completed"
    assert len(model.asked) == len({*model.asked}) == 3


@pytest.mark.full
async def test_a_call_of_which_it_is_unknown_whether_it_was_made_is_told_to_the_model_and_not_made_again(
    env: Environment, tool_server: ToolServer
) -> None:
    env.script(line("buyer", call("pay"), "I don't know."))
    tool_server.answers(Answer(hang=True))
    manifests = [agent("buyer", "pay"), *http_tools(tool_server)]
    for timeout in ("2s", "20s"):  # a busy machine may need more than the first until the tool is called
        handle = await env.start_query(manifests, "agent/buyer", timeout=timeout)
        failed = await env.status(handle)
        assert failed.failure
        assert failed.failure.type == "QueryTimeout"
        if tool_server.seen:
            break
    status = await env.status(await retry_run(env.client, handle))
    assert (status.phase, status.message) == ("Completed", "I don't know.")
    told = [message for message in env.model.requests[-1].body["messages"] if message["role"] == "tool"]
    assert [message["content"] for message in told] == [INTERRUPTED]
    assert len(tool_server.seen) == 1


async def test_what_a_failed_run_has_spent_counts_in_its_retry(env: Environment) -> None:
    env.answer = lambda request: REFUSED if "You are b" in str(request["messages"][0]) else Reply(text="Fine.")
    abc = team("team", "a", "b", "c", strategy="sequential")
    handle = await env.start_query([*ABC, abc], "team/team", budget={"modelCalls": 2})
    assert (await env.status(handle)).phase == "Failed"
    env.answer = lambda _: Reply(text="Fine.")
    status = await env.status(await retry_run(env.client, handle))
    assert (status.stop_reason, status.token_usage.model_calls) == ("budget", 2)


@workflow.defn(name="agent")
class Forged:
    """A workflow of a client's own worker that looks like a failed run of Baton."""

    @workflow.run
    async def run(self, state: Json) -> None:
        self.state = state
        raise ApplicationError("failed", non_retryable=True)

    @workflow.query
    def retry_input(self) -> Json:
        return self.state


async def test_no_state_is_taken_from_a_run_of_another_task_queue(env: Environment) -> None:
    env.answer = lambda _: REFUSED
    failed = await env.start("agent", {"agent": "a", "input": "Why?", "resources": ABC})
    await env.turn_result(failed)
    state: Json = await failed.query("retry_input")
    queue = f"{env.task_queue}-forged"
    async with Worker(env.client, task_queue=queue, workflows=[Forged], workflow_runner=UnsandboxedWorkflowRunner()):
        forged = await env.client.start_workflow("agent", state, id=queue, task_queue=queue)
        with pytest.raises(WorkflowFailureError):
            await forged.result()
        given = {"retries": forged.first_execution_run_id}
        handle = await env.client.start_workflow("agent", given, id=queue, task_queue=env.task_queue)
        turn = await env.turn_result(handle)
    assert turn.failure
    assert turn.failure.message.endswith(f"is not of the type agent on the task queue {env.task_queue}")
