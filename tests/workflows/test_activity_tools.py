"""Tests of tools that are activities of an application, on a worker of its own that knows nothing of Baton."""

import contextlib
import dataclasses
import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from temporalio import activity
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowFailureError
from temporalio.converter import DataConverter
from temporalio.exceptions import ApplicationError
from temporalio.worker import Worker

import baton
from baton.activities.registry import unbound_activities
from baton.plugin import BatonPlugin, EncryptionCodec
from baton.resources.tool import OWN_ACTIVITIES
from baton.starter.history.follow import follow
from baton.starter.history.run_events import CallEnded, RunEvent
from baton.starter.runs.start import retry_run
from baton.temporal.client import connect
from baton.temporal.encryption import ENCODING, Key
from baton.testing import Script, ScriptedModel
from baton.workflows.discussion.agent_turn import INTERRUPTED, WITHOUT_RESULT
from tests.harness.environment import KEY, Environment, Handle, Json, agent, call, line, manifest
from tests.harness.event_streams import read_events
from tests.harness.manifests import Writer
from tests.harness.payments import SCHEMA, Claim, Payments, application, tool
from tests.workflows.test_approval import approve, pending

CHARGE = call("charge", amount=120)
NONE: Json = {"type": "object", "properties": {}}
"""The schema of an activity without arguments."""


BY_POSITION: Json = {"arguments": ["amount", "currency"]}


async def start(env: Environment, *tools: Json, **spec: Any) -> Handle:
    adjuster = agent("adjuster", *(each["metadata"]["name"] for each in tools), **spec)
    return await env.start("agent", {"agent": "adjuster", "input": "Pay.", "resources": [adjuster, *tools]})


async def results(env: Environment, handle: Handle) -> list[str]:
    """The results of the run's tool calls."""
    return [each.content for each in (await env.turn_result(handle)).messages if each.role == "tool"]


async def scheduled(handle: Handle, kind: str) -> list[Any]:
    """The activities of a type in the history of a run."""
    events = (await handle.fetch_history()).events
    found = [event for event in events if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED]
    return [event for event in found if event.activity_task_scheduled_event_attributes.activity_type.name == kind]


@pytest.mark.full
async def test_an_activity_gets_the_arguments_by_position_with_the_defaults_of_the_schema(env: Environment) -> None:
    env.script(line("adjuster", CHARGE, "Paid."))
    async with application(env.client) as (payments, queue):
        handle = await start(env, tool(queue, activity=BY_POSITION, timeout="20s", description="Charges a card."))
        assert await results(env, handle) == ["charged 120 EUR"]
    assert payments.calls == [(120, "EUR")]
    (sent,) = env.model.requests[0].body["tools"]
    assert (sent["function"]["description"], sent["function"]["parameters"]) == ("Charges a card.", SCHEMA)
    (event,) = await scheduled(handle, "charge_card")
    summary = json.loads(event.user_metadata.summary.data)
    about = event.activity_task_scheduled_event_attributes
    assert (summary, about.task_queue.name, about.start_to_close_timeout.seconds) == ("adjuster uses charge", queue, 20)
    assert [json.loads(payload.data) for payload in about.input.payloads] == [120, "EUR"]


async def test_an_activity_gets_one_object_and_its_result_is_read_as_json(env: Environment) -> None:
    env.script(line("adjuster", call("pay", amount=7, currency="USD"), "Paid."))
    async with application(env.client) as (payments, queue):
        handle = await start(env, tool(queue, "pay", "pay_claim"))
        assert await results(env, handle) == ['{"amount":7,"currency":"USD"}']
    assert payments.calls == [Claim(7, "USD")]


async def test_arguments_after_the_last_one_are_left_to_the_activity(env: Environment) -> None:
    env.script(line("adjuster", CHARGE, "Paid."))
    schema = {"type": "object", "properties": {"amount": {"type": "integer"}, "currency": {"type": "string"}}}
    async with application(env.client) as (_, queue):
        handle = await start(env, tool(queue, activity=BY_POSITION, inputSchema=schema))
        assert await results(env, handle) == ["charged 120 CHF"]


async def test_temporal_retries_an_activity_with_the_policy_of_the_tool(env: Environment) -> None:
    env.script(line("adjuster", CHARGE, "Paid."))
    policy = {"maximumAttempts": 3, "initialInterval": "10ms"}
    async with application(env.client) as (payments, queue):
        payments.failures = [RuntimeError("busy"), RuntimeError("busy")]
        handle = await start(env, tool(queue, activity=BY_POSITION, retryPolicy=policy))
        assert await results(env, handle) == ["charged 120 EUR"]
    assert len(payments.calls) == 3
    assert len(await scheduled(handle, "charge_card")) == 1


async def test_a_failure_is_told_to_the_model_by_its_message(env: Environment) -> None:
    env.script(line("adjuster", CHARGE, "Declined, then."))
    async with application(env.client) as (payments, queue):
        details = "Money", {"wait": "until tomorrow"}
        payments.failures = [ApplicationError("the card was declined", *details, type="Declined", non_retryable=True)]
        handle = await start(env, tool(queue, activity=BY_POSITION))
        turn = await env.turn_result(handle)
    assert [each.content for each in turn.messages if each.role == "tool"] == ["Error: the card was declined"]
    assert (turn.message, len(payments.calls), turn.usage.tool_calls) == ("Declined, then.", 1, 1)
    events = list[RunEvent]()
    await follow(env.client, handle, events.append)
    (failed,) = [event for event in events if isinstance(event, CallEnded) and event.failure]
    assert failed.failure
    assert (failed.call.activity_type, failed.failure.message, failed.failure.wait) == (
        "charge_card",
        "the card was declined",
        None,
    )
    (told,) = [event for event in await read_events(handle, env.client) if event.type == "tool.failed"]
    assert (told.speaker, told.tool, told.error) == ("adjuster", "charge_card", "the card was declined")


async def test_a_failure_fails_the_turn_of_an_agent_that_says_so_and_a_retry_calls_it_again(env: Environment) -> None:
    env.script(line("adjuster", CHARGE, "Paid."))
    tools = [{"name": "charge", "onError": "fail"}]
    async with application(env.client) as (payments, queue):
        payments.failures = [ApplicationError("the card was declined", non_retryable=True)]
        charge = tool(queue, activity=BY_POSITION)
        handle = await env.start_query([agent("adjuster", tools=tools), charge], "agent/adjuster")
        status = await env.status(handle)
        assert status.failure
        assert (status.phase, status.failure.type, status.failure.message) == (
            "Failed",
            "ToolFailed",
            "the card was declined",
        )
        assert (await env.status(await retry_run(env.client, handle))).message == "Paid."
    assert len(payments.calls) == 2


@pytest.mark.full
async def test_an_activity_that_has_answered_is_not_called_again_by_a_retry_of_the_run(env: Environment) -> None:
    env.script(line("adjuster", call("pay", amount=7), "Paid."))
    fails = {"name": "jq", "value": ".amount.currency"}
    async with application(env.client) as (payments, queue):
        adjuster = agent("adjuster", tools=[{"name": "pay", "onError": "fail", "functions": [fails]}])
        handle = await env.start_query([adjuster, tool(queue, "pay", "pay_claim")], "agent/adjuster")
        failed = await env.status(handle)
        assert failed.failure
        assert failed.failure.type == "FilterFailed"
        assert (await env.status(await retry_run(env.client, handle))).message == "Paid."
    assert len(payments.calls) == 1
    assert env.model.requests[-1].body["messages"][-1]["content"] == WITHOUT_RESULT


async def test_an_activity_reads_encrypted_arguments_with_the_codec_of_baton(client: Client, tmp_path: Path) -> None:
    keys = str(Key.generate("k1"))
    codec = EncryptionCodec.from_environment({"BATON_ENCRYPTION_KEYS": keys})
    converter = dataclasses.replace(DataConverter.default, payload_codec=codec)
    own = await connect(client.service_client.config.target_host, {"BATON_ENCRYPTION_KEYS": keys})
    async with (
        application(client, converter) as (payments, queue),
        Environment.running(own, tmp_path, encryption_keys=keys) as env,
    ):
        env.script(line("adjuster", CHARGE, "Paid."))
        handle = await start(env, tool(queue, activity=BY_POSITION))
        assert await results(env, handle) == ["charged 120 EUR"]
        assert payments.calls == [(120, "EUR")]
        (event,) = await scheduled(handle, "charge_card")
        payloads = event.activity_task_scheduled_event_attributes.input.payloads
        assert {payload.metadata["encoding"] for payload in payloads} == {ENCODING}


async def test_a_filter_is_applied_to_the_result(env: Environment) -> None:
    env.script(line("adjuster", call("pay", amount=7), "Paid."))
    tools = [{"name": "pay", "functions": [{"name": "jq", "value": ".amount"}]}]
    async with application(env.client) as (_, queue):
        adjuster = agent("adjuster", tools=tools)
        given = {"agent": "adjuster", "input": "?", "resources": [adjuster, tool(queue, "pay", "pay_claim")]}
        assert await results(env, await env.start("agent", given)) == ["7"]


@pytest.mark.full
async def test_arguments_that_do_not_fit_or_are_too_large_are_told_and_nothing_is_called(env: Environment) -> None:
    large = call("charge", amount=1, currency="x" * 70_000)
    env.script(line("adjuster", call("charge"), large, call("charge", amount=1, to="me"), "Well."))
    async with application(env.client) as (payments, queue):
        missing, too_large, unknown = await results(env, await start(env, tool(queue, activity=BY_POSITION)))
    assert missing.startswith("Error: the arguments of charge don't match its schema: $: 'amount' is a required")
    assert too_large == "Error: the arguments of charge have 70,011 bytes, and may have at most 64,000"
    assert unknown == "Error: charge has no argument 'to'; its arguments: amount, currency"
    assert payments.calls == []


async def test_a_result_that_only_the_application_can_read_is_an_error(env: Environment) -> None:
    env.script(line("adjuster", call("seal"), "Well."))
    async with application(env.client) as (_, queue):
        (result,) = await results(
            env, await start(env, tool(queue, "seal", "sealed", inputSchema=NONE, activity={"arguments": []}))
        )
    assert result == "Error: seal was executed, but its result can't be read: its encoding is 'binary/sealed'"


async def test_a_task_queue_without_a_worker_is_told_to_the_model(env: Environment) -> None:
    env.script(line("adjuster", CHARGE, "Nobody pays."))
    handle = await start(env, tool("nowhere", activity={"scheduleToStartTimeout": "1s"}))
    assert await results(env, handle) == [
        "Error: no worker of the task queue 'nowhere' has started the activity 'charge_card' within 1 s"
    ]


@pytest.mark.full
async def test_an_attempt_that_takes_too_long_is_told_to_the_model(env: Environment) -> None:
    env.script(line("adjuster", call("bank"), "Well."))
    once = {"timeout": "1s", "retryPolicy": {"maximumAttempts": 1}}
    async with application(env.client) as (payments, queue):
        slow = tool(queue, "bank", "wait_for_bank", inputSchema=NONE, activity={"arguments": []}, **once)
        (result,) = await results(env, await start(env, slow))
        await payments.canceled.wait()
    assert result.startswith("Error: the activity 'wait_for_bank' took too long: ")


@pytest.mark.full
@pytest.mark.parametrize("request_", ["cancel", "terminate now"])
async def test_the_end_of_the_run_cancels_the_activity(env: Environment, request_: str) -> None:
    env.script(line("adjuster", call("bank"), "Well."))
    async with application(env.client) as (payments, queue):
        waits = {"arguments": [], "heartbeatTimeout": "5s"}
        handle = await start(env, tool(queue, "bank", "wait_for_bank", inputSchema=NONE, activity=waits))
        await payments.called.wait()
        if request_ == "cancel":
            await handle.cancel()
        else:
            await handle.signal("terminate_team", {"now": True})
        with contextlib.suppress(WorkflowFailureError):
            await handle.result()
        await payments.canceled.wait()
        status = await handle.query("status")
    assert status["stopReason"] == ("canceled" if request_ == "cancel" else "terminated")
    (result,) = [message["content"] for message in status["messages"] if message["role"] == "tool"]
    assert result == INTERRUPTED


async def test_an_approved_call_gets_the_arguments_that_a_person_has_changed(env: Environment) -> None:
    env.script(line("adjuster", CHARGE, "Paid."))
    async with application(env.client) as (payments, queue):
        handle = await start(env, tool(queue, activity=BY_POSITION, approval={"required": True}))
        (asked,) = await pending(handle)
        assert payments.calls == []
        await approve(handle, asked, arguments={"amount": 80})
        assert (await results(env, handle))[0].startswith("charged 80 EUR")
    assert payments.calls == [(80, "EUR")]


async def test_a_tool_that_is_the_target_of_a_query_calls_its_activity(env: Environment) -> None:
    async with application(env.client) as (payments, queue):
        handle = await env.start_query([tool(queue, activity=BY_POSITION)], "tool/charge", input='{"amount": 5}')
        assert (await env.status(handle)).message == "charged 5 EUR"
    assert payments.calls == [(5, "EUR")]


async def test_a_call_counts_once_in_a_budget(env: Environment) -> None:
    env.script(line("adjuster", CHARGE, CHARGE, "Paid."))
    async with application(env.client) as (payments, queue):
        turn = await env.turn_result(await start(env, tool(queue, activity=BY_POSITION), budget={"toolCalls": 1}))
    assert (turn.stop_reason, len(payments.calls)) == ("budget", 1)


async def test_a_preset_argument_is_sent_and_one_with_a_secret_is_refused(tmp_path: Path, client: Client) -> None:
    preset = {"parameters": [{"name": "currency", "value": "{{ .Query.currency }}"}]}
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "bank"},
        "stringData": {"key": "top-secret-123"},
    }
    async with application(client) as (payments, queue):
        charge = tool(queue, activity=BY_POSITION, partial=preset)
        loaded = Writer(tmp_path).load(agent("adjuster", "charge"), charge, secret)
        async with Environment.running(client, tmp_path, catalog=loaded) as env:
            env.script(line("adjuster", CHARGE, "Paid."))
            plain: Json = {"name": "currency", "value": "USD"}
            status = await env.status(await env.start_query([], "agent/adjuster", parameters=[plain]))
            assert status.message == "Paid."
            assert payments.calls == [(120, "USD")]
            env.script(line("adjuster", CHARGE, "Well."))
            hidden: Json = {"name": "currency", "valueFrom": {"secretKeyRef": {"name": "bank", "key": "key"}}}
            handle = await env.start_query([], "agent/adjuster", parameters=[hidden])
            assert (await env.status(handle)).message == "Well."
            error = env.model.requests[-1].body["messages"][-1]["content"]
            assert "the arguments of charge contain a Secret" in error
            assert len(payments.calls) == 1
            assert "top-secret" not in (await handle.fetch_history()).to_json()


@pytest.mark.parametrize("who", ["the tool", "the agent", "a parameter of the agent"])
def test_a_preset_argument_that_reads_a_secret_is_a_violation(tmp_path: Path, who: str) -> None:
    reads = {"name": "currency", "valueFrom": {"secretKeyRef": {"name": "bank", "key": "key"}}}
    presets = {"parameters": [reads]}
    mine: Json = {"name": "charge"}
    spec: Json = {}
    if who == "the agent":
        mine["partial"] = presets
    elif who == "a parameter of the agent":
        spec["parameters"] = [reads]
        mine["partial"] = {"parameters": [{"name": "currency", "value": "{{currency}}"}]}
    charge = tool("payments", **({"partial": presets} if who == "the tool" else {}))
    place = "Tool/default/charge: spec" if who == "the tool" else "Agent/default/adjuster: spec.tools[0]"
    problems = Writer(tmp_path).refusal(agent("adjuster", tools=[mine], **spec), charge)
    text = "reads a Secret, but the history of a run has the arguments of activities"
    assert [problem for problem in problems if f"{place}.partial.parameters[0]: {text}" in problem]


async def test_an_inline_tool_that_calls_an_activity_is_refused(env: Environment, tmp_path: Path) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    async with Environment.running(env.client, folder, variables={"BATON_INLINE_MANIFESTS": "no-secrets"}) as careful:
        status = await careful.status(await careful.start_query([tool("payments")], "tool/charge"))
    assert status.failure
    assert status.failure.type == "InvalidInput"
    assert "Tool/default/charge: spec.activity: an inline Tool can't call activities" in status.failure.message


async def test_an_application_with_the_plugin_serves_its_activity_on_the_queue_of_the_run(
    client: Client, tmp_path: Path
) -> None:
    payments = Payments()
    model = ScriptedModel(Script(lines=[line("adjuster", CHARGE, "Paid.")]).answer)
    folder = tmp_path / "teams"
    folder.mkdir()
    Writer(folder).file(agent("adjuster", "charge"), tool(None, activity=BY_POSITION))
    queue = f"claims-{uuid.uuid4().hex[:8]}"
    with model.serve() as url:
        settings = {"BATON_HOME": str(tmp_path), "OPENAI_BASE_URL": url, "OPENAI_API_KEY": KEY}
        own = await Client.connect(client.service_client.config.target_host)
        plugin = BatonPlugin(folder, settings=settings)
        async with Worker(own, task_queue=queue, activities=[payments.charge_card], plugins=[plugin]):
            given = {"agent": "adjuster", "input": "Pay."}
            result = await own.execute_workflow("agent", given, id=queue, task_queue=queue)
    assert (result["message"], payments.calls) == ("Paid.", [(120, "EUR")])


async def test_an_activity_of_the_application_is_a_tool_with_the_schema_of_its_signature(
    client: Client, tmp_path: Path
) -> None:
    payments = Payments()
    adjuster = baton.Agent("adjuster", prompt="You are adjuster.", model="gpt", tools=[payments.charge_card])
    model = ScriptedModel(Script(lines=[line("adjuster", call("charge-card", amount=3), "Paid.")]).answer)
    queue = f"claims-{uuid.uuid4().hex[:8]}"
    with model.serve() as url:
        settings = {"BATON_HOME": str(tmp_path), "OPENAI_BASE_URL": url, "OPENAI_API_KEY": KEY}
        own = await Client.connect(client.service_client.config.target_host)
        plugin = BatonPlugin(adjuster, settings=settings)
        async with Worker(own, task_queue=queue, activities=[payments.charge_card], plugins=[plugin]):
            given = {"agent": "adjuster", "input": "Pay."}
            handle = await own.start_workflow("agent", given, id=queue, task_queue=queue)
            assert (await handle.result())["message"] == "Paid."
    assert payments.calls == [(3, "CHF")]
    assert len(await scheduled(handle, "charge_card")) == 1
    (sent,) = model.requests[0].body["tools"]
    assert sent["function"]["description"].startswith("Fails as often as there are failures")
    assert sent["function"]["parameters"]["required"] == ["amount"]


def test_the_names_of_batons_own_activities_are_those_that_no_tool_may_call(tmp_path: Path) -> None:
    registered = [
        activity._Definition.must_from_callable(each).name for role in unbound_activities().values() for each in role
    ]
    assert {*registered} == OWN_ACTIVITIES
    (problem,) = Writer(tmp_path).refusal(tool("payments", "charge", "append"))
    assert "Tool/default/charge: spec.activity.type: 'append' is an activity of Baton" in problem


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ({"activity": None}, "spec.activity: is missing: a tool of type 'activity' needs {type}"),
        ({"activity": {"name": "f"}}, "spec.activity.type: is missing"),
        ({"activity": {"type": "t", "arguments": ["amount", "to"]}}, "spec.activity.arguments[1]: 'to' is not a"),
        ({"activity": {"type": "t", "arguments": ["amount"]}}, "spec.activity.arguments: 'currency' of inputSchema is"),
        ({"activity": {"type": "t", "arguments": ["amount", "amount"]}}, "spec.activity.arguments: 'amount' appears"),
        ({"activity": {"type": "t", "heartbeatTimeout": "soon"}}, "spec.activity.heartbeatTimeout: is not a timeout"),
        ({"activity": {"type": "t", "taskQueue": "/_sys/q"}}, "spec.activity.taskQueue: begins with '/_sys/'"),
        ({"activity": {"type": "t" * 251}}, "spec.activity.type: "),
        ({"activity": {"type": "t"}, "function": {"name": "f"}}, "spec.function: can't be used for a tool of type"),
        ({"type": "team", "team": {"name": "t"}, "timeout": "3s"}, "spec.timeout: can't be used for a tool of type"),
        ({"type": "function"}, "spec.function: is missing: a tool of type 'function' needs {name}"),
        ({"type": "function", "function": {"tool": "f"}}, "spec.function.tool: is not a field of FunctionName"),
        ({"type": "function", "function": 3}, "spec.function: "),
    ],
)
def test_combinations_that_make_no_sense_are_reported(tmp_path: Path, spec: Json, problem: str) -> None:
    given = {name: value for name, value in {"type": "activity", "inputSchema": SCHEMA, **spec}.items() if value}
    problems = Writer(tmp_path).refusal(manifest("Tool", "t", given))
    assert any(f"Tool/default/t: {problem}" in each for each in problems), problems
