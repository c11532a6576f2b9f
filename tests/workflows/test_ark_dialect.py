"""The dialect of ARK: what plain clients read of a run, which a worker with BATON_DIALECT=ark has begun."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from temporalio.client import Client, WorkflowFailureError
from temporalio.exceptions import ApplicationError, CancelledError

from baton.activities.runtime.settings import Settings
from baton.contracts.settings import SettingsError
from baton.contracts.status import ARK_PHASES, Status
from baton.starter.runs.runs import live_status
from baton.testing import Reply, ScriptLine
from tests.activities.test_a2a import streamed
from tests.harness.agent_server import AgentServer
from tests.harness.environment import Environment, Handle, Json, agent, call, line, team
from tests.harness.remote_agents import a2a_agent, a2a_server

LIMIT = "Team conversation reached maximum turns limit"


@pytest_asyncio.fixture(loop_scope="session")
async def ark(client: Client, tmp_path: Path) -> AsyncIterator[Environment]:
    """An environment whose worker begins runs in the dialect of ARK."""
    async with Environment.running(client, tmp_path, dialect="ark") as env:
        yield env


async def result(handle: Handle) -> Json:
    """What a plain client reads: the result, or the details of the failure."""
    try:
        read: Json = await handle.result()
    except WorkflowFailureError as failure:
        assert isinstance(failure.cause, ApplicationError | CancelledError)
        read = failure.cause.details[0]
    return read


def completed(status: Json) -> tuple[str, str]:
    """The status and the reason of the condition Completed."""
    (condition,) = status["conditions"]
    assert condition["type"] == "Completed"
    assert condition["lastTransitionTime"]
    return condition["status"], condition["reason"]


async def test_a_query_that_is_done_has_one_response_with_its_content_and_all_messages(ark: Environment) -> None:
    ark.script(line("one", call("noop", message="x"), "The answer."))
    handle = await ark.start_query([agent("one", "noop")], target={"type": "agent", "name": "one"}, conversationId="c")
    read = await result(handle)
    assert (read["phase"], completed(read)) == ("done", ("True", "QuerySucceeded"))
    response = read["response"]
    assert response["target"] == {"type": "agent", "name": "one"}
    assert (response["content"], response["phase"]) == ("The answer.", "done")
    raw = json.loads(response["raw"])
    assert [each["role"] for each in raw] == ["assistant", "tool", "assistant"]
    assert raw[0]["tool_calls"][0]["function"]["name"] == "noop"
    assert raw[1]["tool_call_id"] == raw[0]["tool_calls"][0]["id"]
    assert (read["conversationId"], read["tokenUsage"]["cachedTokens"]) == ("c", 0)
    assert read["duration"].endswith("s")
    assert await handle.query("status") == read


async def test_batons_own_fields_stand_beside_those_of_ark_and_its_own_readers_know_both(ark: Environment) -> None:
    ark.script(line("one", "The answer."))
    handle = await ark.start_query([agent("one")], "agent/one")
    read = await result(handle)
    assert (read["message"], read["stopReason"], read["responses"][0]["status"]) == (
        "The answer.",
        "completed",
        "Success",
    )
    assert (await ark.status(handle)).phase == (await live_status(ark.client, handle)).phase == "Completed"


@pytest.mark.parametrize(("own", "theirs"), ARK_PHASES.items())
def test_each_phase_is_read_in_both_dialects(own: str, theirs: str) -> None:
    """In ARK's, a run that waits for a server is running."""
    for given in (own,) if own == "Waiting" else (own, theirs):
        assert (
            Status.model_validate({"phase": given, "tokenUsage": {}, "startTime": "2026-01-01T00:00:00Z"}).phase == own
        )


async def test_a_query_that_fails_has_the_phase_error_and_its_error_as_content(ark: Environment) -> None:
    ark.answer = lambda _: Reply(status=400, text="no such thing")
    read = await result(await ark.start_query([agent("one")], "agent/one"))
    assert (read["phase"], read["response"]["phase"]) == ("error", "error")
    assert completed(read) == ("True", "QueryErrored")
    assert read["response"]["content"] == read["conditions"][0]["message"] == read["error"]
    assert json.loads(read["response"]["raw"])[-1] == {"error": "target_execution_error", "message": read["error"]}


async def test_a_query_that_is_refused_before_anybody_is_asked_has_the_phase_error(ark: Environment) -> None:
    handle = await ark.start_query([], "agent/nobody")
    read = await result(handle)
    assert (read["phase"], read["response"]["phase"]) == ("error", "error")
    assert "Agent default/nobody" in read["response"]["content"]
    assert (await handle.query("status"))["phase"] == "error"


async def test_a_query_that_runs_and_is_canceled_says_so_in_arks_words(ark: Environment) -> None:
    wait: list[dict[str, Any]] = [{"type": "human", "name": "ann", "prompt": "Well?"}]
    given = team("desk", strategy="sequential") | {}
    given["spec"]["members"] = wait
    handle = await ark.start_query([given], "team/desk")
    while (read := await handle.query("status"))["phase"] != "input-required":
        assert read["phase"] in ("running", "Running")
    assert completed(read) == ("False", "QueryInputRequired")
    assert "duration" not in read
    assert (await live_status(ark.client, handle)).phase == "InputRequired"
    await handle.signal("cancel")
    read = await result(handle)
    assert (read["phase"], completed(read)) == ("canceled", ("True", "QueryCanceled"))


async def test_several_targets_have_responses_as_earlier_versions_of_ark_have_them(ark: Environment) -> None:
    ark.script(line("one", "First."), line("two", "Second."))
    read = await result(await ark.start_query([agent("one"), agent("two")], "agent/one", "agent/two"))
    assert "response" not in read
    assert [(each["content"], each["phase"]) for each in read["responses"]] == [("First.", "done"), ("Second.", "done")]


async def test_a_team_that_is_started_directly_is_told_in_the_same_way(ark: Environment) -> None:
    ark.script(line("one", "First."), line("two", "Second."))
    given = [team("team", "one", "two", strategy="sequential"), agent("one"), agent("two")]
    read = await result(await ark.start_team(given))
    assert (read["phase"], read["response"]["target"]) == ("done", {"type": "team", "name": "team"})
    assert [each["content"] for each in json.loads(read["response"]["raw"])] == ["First.", "Second."]


async def test_an_agent_of_an_a2a_server_names_its_context_and_task(ark: Environment) -> None:
    server = AgentServer()
    server.behaviour = streamed
    with server.serving():
        read = await result(await ark.start_query([a2a_agent("far"), a2a_server(server)], "agent/far"))
    assert {*read["response"]["a2a"]} == {"contextId", "taskId"}
    assert read["response"]["content"] == "Because it is."


@pytest.mark.parametrize(
    ("strategy", "spec", "said"),
    [
        ("sequential", {"loops": True, "maxTurns": 3}, ["a", "b", "a"]),
        ("round-robin", {"maxTurns": 3}, ["a", "b", "a"]),
        ("selector", {"maxTurns": 3}, ["a", "b", "a"]),
        (
            "graph",
            {"maxTurns": 3, "graph": {"edges": [{"from": "a", "to": "b"}, {"from": "b", "to": "a"}]}},
            ["a", "b", "a"],
        ),
    ],
)
async def test_a_team_that_reaches_max_turns_is_done_with_a_system_message(
    ark: Environment, strategy: str, spec: Json, said: list[str]
) -> None:
    chosen = {"system": "You moderate", "agent": "selector", "say": [call("select-next-speaker", name="a")]}
    ark.script(line("a", "a", "a"), line("b", "b", "b"), ScriptLine.model_validate(chosen))
    given = [team("team", "a", "b", strategy=strategy, **spec), agent("a"), agent("b")]
    read = await result(await ark.start_query(given, "team/team"))
    assert (read["phase"], read["stopReason"]) == ("done", "max_turns")
    raw = json.loads(read["response"]["raw"])
    assert [each["content"] for each in raw] == [*said, f"{LIMIT} (3)"]
    assert (raw[-1]["role"], read["response"]["content"]) == ("system", said[-1])
    assert [each["content"] for each in ark.transcript(read["responses"][0]["head"]["id"])][-1] == f"{LIMIT} (3)"


async def test_a_nested_team_that_reaches_max_turns_lets_the_team_above_go_on(ark: Environment) -> None:
    ark.script(line("a", "a", "a"), line("last", "End."))
    inner = team("inner", "a", strategy="sequential", loops=True, maxTurns=2)
    outer = team("outer", "inner", "last", strategy="sequential")
    read = await result(await ark.start_query([outer, inner, agent("a"), agent("last")], "team/outer"))
    assert (read["phase"], read["response"]["content"]) == ("done", "End.")
    asked = [each["content"] for each in ark.model.requests[-1].body["messages"]]
    assert f"{LIMIT} (2)" in str(asked)


async def test_on_max_turns_of_a_manifest_counts_in_every_dialect(ark: Environment) -> None:
    ark.script(line("a", "a", "a"))
    given = [team("team", "a", strategy="sequential", loops=True, maxTurns=2, onMaxTurns="fail"), agent("a")]
    read = await result(await ark.start_query(given, "team/team"))
    assert (read["phase"], read["error"]) == ("error", "team sequential MaxTurns reached team")


async def test_without_the_setting_max_turns_counts_rounds_and_fails(env: Environment) -> None:
    env.script(line("a", "a", "a"), line("b", "b", "b"))
    given = [team("team", "a", "b", maxTurns=2), agent("a"), agent("b")]
    read = await result(await env.start_query(given, "team/team"))
    assert (read["phase"], read["error"]) == ("Failed", "team round-robin MaxTurns reached team")
    assert len(env.model.requests) == 4
    assert not {"response", "conditions", "duration"} & {*read}


def labelled(given: Json) -> Json:
    given["metadata"]["labels"] = {"part": "front"}
    return given


@pytest.mark.parametrize(("dialect", "asked"), [("ark", ["agent/z"]), ("baton", ["agent/z", "team/a"])])
async def test_a_selector_finds_the_first_agent_in_the_dialect_of_ark(
    client: Client, tmp_path: Path, dialect: str, asked: list[str]
) -> None:
    given = [labelled(agent("z")), labelled(team("a", "z", strategy="sequential"))]
    async with Environment.running(client, tmp_path, dialect=dialect) as env:
        handle = await env.start_query(given, selector={"matchLabels": {"part": "front"}})
        status = await env.status(handle)
    assert [f"{each.target.type}/{each.target.name}" for each in status.responses] == asked


def test_an_unknown_dialect_is_refused_by_the_name_of_its_variable() -> None:
    with pytest.raises(SettingsError, match="BATON_DIALECT: Input should be 'baton' or 'ark'"):
        Settings.of({"BATON_DIALECT": "klingon"})
