"""What a status tells: failed members, attempts, why a query ran out of time, and how a run below it stands."""

import io
import json
from typing import Any

import pytest
from rich.console import Console
from temporalio.client import WorkflowFailureError

from baton.contracts.status import Status
from baton.starter.api.handle import Handle as PythonHandle
from baton.starter.console.status import print_status
from baton.starter.console.watch import Watch
from baton.starter.runs.runs import live_status
from tests.harness.environment import Environment, Handle, Json, agent, call, line, manifest, team, texts

BUSY: Json = {"status": 503, "text": "overloaded"}


async def plain_status(handle: Handle) -> Status:
    """The status as any Temporal client reads it."""
    return Status.model_validate_json(json.dumps(await handle.query("status")))


@pytest.mark.full
async def test_a_member_without_whom_a_parallel_team_has_gone_on_stands_in_the_status(env: Environment) -> None:
    env.script(line("one", "fine"), line("two", {"status": 400, "text": "broken"}))
    both = team("both", "one", "two", strategy="parallel", onMemberError="continue")
    outer = team("outer", "both", strategy="sequential")
    manifests = [agent("one"), agent("two"), both, outer]
    handle = await env.start_query(manifests, "team/both", "team/outer")
    status = await env.status(handle)
    assert (status.phase, status.error) == ("Completed", None)
    for response in status.responses:
        (failure,) = response.member_failures or ()
        assert (failure.member, failure.type, failure.turn, failure.attempts) == ("two", "ModelRejected", 2, 1)
        assert "broken" in failure.message
    handle = await env.start_team(manifests, "both")
    await handle.result()
    assert [each.member for each in (await plain_status(handle)).member_failures or ()] == ["two"]


async def test_a_failure_tells_how_often_the_call_was_tried(env: Environment) -> None:
    env.script(line("one", {"status": 400, "text": "no", "before": [BUSY, BUSY]}))
    status = await env.status(await env.start_query([agent("one")], "agent/one"))
    assert status.failure
    assert (status.failure.type, status.failure.attempts) == ("ModelRejected", 3)


@pytest.mark.full
async def test_a_timeout_tells_what_has_failed_before(env: Environment) -> None:
    nowhere = {"openai": {"baseUrl": "http://127.0.0.1:9/v1", "apiKey": "sk-none"}}
    env.script(line("one", "fine"), line("two", {"text": "late", "hang": True}))
    gone = manifest("Model", "gone", {"type": "completions", "provider": "openai", "model": "m", "config": nowhere})
    del nowhere["openai"]["apiKey"]
    inner = team("inner", "lost", strategy="sequential")
    outer = team("outer", "one", "inner", strategy="sequential")
    manifests = [agent("one"), agent("two"), agent("lost", modelRef={"name": "gone"}), gone, inner, outer]
    for seconds in (4, 40):  # a busy machine may need more than the first for three attempts
        status = await env.status(await env.start_query(manifests, "agent/two", "team/outer", timeout=f"{seconds}s"))
        assert (status.phase, status.stop_reason) == ("Failed", "timeout")
        slow, unreachable = (each.failure for each in status.responses)
        if unreachable and unreachable.cause and (unreachable.cause.attempts or 0) >= 3:
            break
    assert slow
    assert unreachable
    assert unreachable.cause
    assert (unreachable.type, unreachable.cause.type, unreachable.cause.family) == (
        "QueryTimeout",
        "ModelUnavailable",
        "ModelError",
    )
    assert (unreachable.cause.attempts or 0) >= 3
    assert unreachable.message.startswith(f"the query took longer than its timeout of {seconds} s; attempt ")
    assert "failed with ModelUnavailable: " in unreachable.message
    assert (slow.message, slow.cause) == (f"the query took longer than its timeout of {seconds} s", None)
    assert status.failure
    assert status.failure.cause == unreachable.cause
    assert status.responses[1].message == "fine"


@pytest.mark.full
async def test_a_running_query_shows_what_its_targets_have_said_and_used(env: Environment) -> None:
    env.script(line("one", "first", "second"), line("two", "third", {"text": "late", "held": True}))
    inner = team("inner", "one", "two", "two", strategy="sequential")
    handle = await env.start_query(
        [agent("one"), agent("two"), inner, team("outer", "one", "inner", strategy="sequential")], "team/outer"
    )
    await env.wait_for_calls(4)
    plain = await plain_status(handle)
    (response,) = plain.responses
    assert (response.status, response.run) == ("Running", f"{handle.id}/target-1/outer")
    below = await plain_status(env.client.get_workflow_handle(response.run or ""))
    assert (texts(below.messages), below.turns) == (["first"], 1)
    assert below.runs == (f"{response.run}/turn-2/inner",)
    live = await live_status(env.client, handle)
    (response,) = live.responses
    assert (response.status, response.turns, response.message) == ("Running", 1, "third")
    assert texts(response.messages) == ["first", "second", "third"]
    assert (live.token_usage.model_calls, live.message) == (3, "third")
    env.model.release()
    status = await env.status(handle)
    (response,) = status.responses
    assert response.token_usage == status.token_usage
    assert (response.turns, status.token_usage.model_calls) == (2, 4)


@pytest.mark.full
async def test_a_running_query_shows_what_its_only_agent_and_whom_that_asks_have_said_and_used(
    env: Environment,
) -> None:
    ask = manifest("Tool", "ask", {"type": "agent", "agent": {"name": "two"}})
    env.script(
        line("one", call("noop", text="first"), call("ask", input="?")), line("two", {"text": "late", "hang": True})
    )
    handle = await env.start_query([agent("one", "noop", "ask"), agent("two"), ask], "agent/one")
    await env.wait_for_calls(3)
    plain = await plain_status(handle)
    (response,) = plain.responses
    assert (response.status, response.run, response.token_usage) == ("Running", handle.id, plain.token_usage)
    assert (texts(response.messages)[0], plain.token_usage.model_calls) == ("first", 2)
    assert plain.runs
    assert plain.runs[0].startswith(f"{handle.id}/call-")
    assert (await live_status(env.client, handle)).token_usage.model_calls == 2
    await handle.cancel()
    with pytest.raises(WorkflowFailureError):
        await handle.result()


ZERO = {"promptTokens": 0, "completionTokens": 0, "totalTokens": 0, "modelCalls": 0, "toolCalls": 0, "cachedTokens": 0}


def _targets(status: Json) -> list[tuple[Any, ...]]:
    return [
        (each["target"]["name"], each["status"], each.get("error"), each["tokenUsage"]) for each in status["responses"]
    ]


async def test_targets_that_were_never_asked_end_as_their_query_does(env: Environment) -> None:
    """A query that was canceled, or whose Memory failed, tells this of each target, and its usage is zeros."""
    manifests = [agent("one"), team("both", "one", strategy="sequential")]
    handle = await env.start_query(manifests, "agent/one", "team/both", cancel=True)
    with pytest.raises(WorkflowFailureError):
        await handle.result()
    status = await handle.query("status")
    assert (status["phase"], status["error"], status["tokenUsage"]) == ("Canceled", "canceled", ZERO)
    assert _targets(status) == [("one", "Canceled", "canceled", ZERO), ("both", "Canceled", "canceled", ZERO)]
    memory = manifest("Memory", "gone", {"address": {"value": "http://127.0.0.1:9"}, "timeout": "1s"})
    handle = await env.start_query([*manifests, memory], "agent/one", "team/both", timeout="2s", memory="gone")
    status = json.loads((await env.status(handle)).model_dump_json(exclude_unset=True))
    assert (status["phase"], status["stopReason"], status["tokenUsage"]) == ("Failed", "timeout", ZERO)
    assert _targets(status) == [(name, "Failed", status["error"], ZERO) for name in ("one", "both")]
    assert status["message"] == f"Error: {status['error']}"


async def test_a_refused_query_has_a_response_for_each_target_that_it_names(env: Environment) -> None:
    """Those in its spec, in its manifest, or in the worker's; entries that are no targets are left out."""
    targets: list[Any] = [{"type": "agent", "name": "one"}, {"type": "team", "name": "nobody"}, {"type": "x"}, 7]
    spec: Json = {"input": "Why?", "targets": targets}
    for start in (
        {"spec": spec},
        {"name": "asked", "resources": [manifest("Query", "asked", spec)]},
    ):
        handle = await env.start("query", start)
        status = json.loads((await env.status(handle)).model_dump_json(exclude_unset=True))
        assert (status["phase"], status["tokenUsage"]) == ("Failed", ZERO)
        assert _targets(status) == [(name, "Failed", status["error"], ZERO) for name in ("one", "nobody")]


async def test_the_message_of_a_failed_query_is_its_failure_and_its_responses_have_what_was_said(
    env: Environment,
) -> None:
    env.script(line("one", "my words"), line("two", {"status": 400, "text": "broken"}))
    both = team("both", "one", "two", strategy="sequential")
    status = await env.status(await env.start_query([agent("one"), agent("two"), both], "team/both"))
    assert status.message == f"Error: gpt-4.1-mini at {env.model_host} answered HTTP 400: broken"
    assert (status.responses[0].message, status.said) == ("my words", "my words")


async def test_the_status_of_a_query_that_was_terminated_in_temporal_has_what_was_said_and_used(
    env: Environment,
) -> None:
    env.script(line("one", "my words"), line("two", {"text": "too late", "hang": True}))
    both = team("both", "one", "two", strategy="sequential")
    handle = await env.start_query([agent("one"), agent("two"), both], "team/both")
    await env.wait_for_calls(2)
    await handle.terminate()
    status = await live_status(env.client, handle)
    error = "the run was closed in Temporal: terminated"
    assert (status.phase, status.message, status.said) == ("Failed", f"Error: {error}", "my words")
    assert (status.token_usage.model_calls, status.completion_time is not None) == (1, True)
    (response,) = status.responses
    assert (response.status, response.error, response.message) == ("Failed", error, "my words")
    assert response.token_usage == status.token_usage
    assert await PythonHandle(env.client, handle).status() == status


async def test_fields_of_a_query_without_effect_on_its_worker_stand_in_the_notices(env: Environment) -> None:
    """A Memory that nobody has, and an account where there are no Roles."""
    env.script(line("one", "fine"))
    handle = await env.start_query([agent("one")], "agent/one", memory="notes", serviceAccount="clerk")
    status = await env.status(handle)
    assert status.phase == "Completed"
    assert status.notices == (
        "Query/default/q: spec.memory: there is no Memory default/notes: the journal keeps the conversation",
        "Query/default/q: spec.serviceAccount: the ServiceAccount default/clerk has no effect: "
        "there is no Role, RoleBinding or ServiceAccount for the namespace default, "
        "so the run may use everything there",
    )


async def test_failed_members_and_notices_appear_in_text(env: Environment) -> None:
    """They are printed with the status of a run that completed without them, also by who only watched it."""
    env.script(line("one", "fine"), line("two", {"status": 400, "text": "broken"}))
    both = team("both", "one", "two", strategy="parallel", onMemberError="continue")
    handle = await env.start_query([agent("one"), agent("two"), both], "team/both", serviceAccount="clerk")
    status = await env.status(handle)
    watch = Watch(env.client, Console(file=io.StringIO()))
    await watch.follow(handle)
    for shown in (status, watch.state.runs[handle.id].status):
        text = io.StringIO()
        print_status(Console(file=text, width=200), "q", shown)
        assert (
            f"note: two has failed in turn 2: gpt-4.1-mini at {env.model_host} answered HTTP 400: broken"
            in text.getvalue()
        )
        assert "note: Query/default/q: spec.serviceAccount: the ServiceAccount default/clerk" in text.getvalue()


@pytest.mark.parametrize("answer", ['{"approved": true}', "[1, 2]", "12", "{broken", "Yes."])
async def test_a_client_in_any_language_gets_a_json_answer_as_a_value(env: Environment, answer: str) -> None:
    env.script(line("one", answer))
    query = await env.start_query([agent("one")], "agent/one")
    alone = await env.start("agent", {"agent": "one", "input": "Why?", "resources": [agent("one")]})
    expected = {'{"approved": true}': {"approved": True}, "[1, 2]": [1, 2]}.get(answer)
    for handle in (query, alone):
        result = await handle.result()
        assert (result["message"], result.get("value")) == (answer, expected)
        assert (await handle.query("status")).get("value") == expected
