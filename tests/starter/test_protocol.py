"""The schema of the protocol of runs: it is up to date, complete, and fits what runs take and return."""

import asyncio
import json
import typing
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from temporalio import workflow
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError

from baton.contracts.protocol import QUERIES, SIGNALS, UPDATES, WORKFLOW_TYPES, protocol_schema
from baton.contracts.status import Status
from baton.resources.base import JsonModel
from baton.testing import Reply
from baton.workflows.registry import WORKFLOWS
from tests.harness.environment import Environment, Json, agent, call, line, manifest, team
from tests.harness.processes import ROOT, baton, process_env

SCHEMA: Json = protocol_schema()
DEFINITIONS = {
    str(definition.name): definition
    for definition in map(workflow._Definition.must_from_class, WORKFLOWS)
    if definition.name not in ("expire", "notify")  # no client starts them
}


def validator(*place: str) -> Draft202012Validator:
    """The schema at a place of the protocol, such as ``updates``, ``steer``, ``argument``."""
    schema = SCHEMA
    for name in place:
        schema = schema["properties"][name]
    return Draft202012Validator({**schema, "$defs": SCHEMA["$defs"]})


def test_the_committed_schema_is_up_to_date() -> None:
    printed = baton("schema", "--protocol", env=process_env())
    assert printed.returncode == 0
    assert (ROOT / "clients" / "protocol.schema.json").read_text() == printed.stdout, "write it anew with: make schema"


def test_the_protocol_has_each_workflow_type_that_clients_start() -> None:
    assert {*WORKFLOW_TYPES} == {*DEFINITIONS}


@pytest.mark.parametrize("name", sorted(DEFINITIONS))
def test_the_protocol_has_each_message_that_a_workflow_takes_from_clients(name: str) -> None:
    definition = DEFINITIONS[name]
    described = {str(each.name): each.description or "" for each in definition.signals.values() if each.name}
    assert {each for each, text in described.items() if not text.startswith("Internal:")} == {*SIGNALS}
    queries = {str(each.name): each for each in definition.queries.values() if each.name}
    of_clients = {each for each, query in queries.items() if not (query.description or "").startswith("Internal:")}
    assert of_clients == {*QUERIES}
    updates = {str(each.name): each for each in definition.updates.values()}
    taken = {each: (_model(update.arg_types), _model([update.ret_type])) for each, update in updates.items()}
    assert taken == UPDATES


def _model(types: list[Any] | None) -> type[JsonModel] | None:
    (type_,) = types or [None]
    return type_ if isinstance(type_, type) and not typing.get_args(type_) and issubclass(type_, JsonModel) else None


@pytest.mark.parametrize("name", [*WORKFLOW_TYPES])
def test_an_input_has_what_a_client_may_set_and_nothing_else(name: str) -> None:
    kind = WORKFLOW_TYPES[name]
    common = {"namespace", "resources", "session"}
    title = f"{kind.title()}Input" if kind else "QueryInput"
    own = {kind, "input"} if kind else {"name", "spec", "after"}
    assert {*SCHEMA["$defs"][title]["properties"]} == common | own


def test_the_schema_is_valid_and_complete() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    text = json.dumps(SCHEMA)
    assert all(f'"#/$defs/{name}"' in text for name in SCHEMA["$defs"])


def check(status: Status | Json, *place: str) -> None:
    """Checks a value that a run has sent."""
    value = status.model_dump(mode="json", exclude_unset=True) if isinstance(status, Status) else status
    assert [error.message for error in validator(*place).iter_errors(value)] == []


async def test_what_runs_return_fits_the_schema(env: Environment) -> None:
    tool: Json = {
        "type": "http",
        "http": {"url": "http://127.0.0.1:1/{city}"},
        "approval": {"required": True},
        "inputSchema": {"type": "object", "properties": {"city": {"type": "string"}}},
    }
    env.script(line("a", call("forecast", city="Bern"), "Rain."))
    member = {"name": "inner", "type": "team"}
    manifests = [
        manifest("Team", "t", {"strategy": "sequential", "members": [member]}),
        team("inner", "a", strategy="sequential"),
        agent("a", "forecast"),
        manifest("Tool", "forecast", tool),
    ]
    given = {"team": "t", "input": "Why?", "resources": manifests}
    assert validator("workflows", "sequential", "input").is_valid(given)
    handle = await env.start("sequential", given)
    await env.wait_for_calls(1)
    while not (waiting := (await handle.query("status")).get("waitingRuns")):
        await asyncio.sleep(0.02)
    check(await handle.query("status"), "queries", "status")
    child = env.client.get_workflow_handle(waiting[0])
    status: Json = await child.query("status")
    check(status, "queries", "status")
    steered = await handle.execute_update("steer", {"text": "Be brief."})
    check(steered, "updates", "steer", "result")
    check(await handle.execute_update("session", {"a": 1}), "updates", "session", "result")
    (pending,) = status["pendingDecisions"]
    decision = {"call": pending["id"], "approved": False, "reason": "no"}
    check(decision, "updates", "approve", "argument")
    check(await child.execute_update("approve", decision), "updates", "approve", "result")
    check(await handle.result(), "workflows", "sequential", "result")
    check(await child.result(), "memberResult")


async def test_the_details_of_a_failure_fit_the_schema(env: Environment) -> None:
    env.answer = lambda _: Reply(status=401)
    handle = await env.start_query([agent("a")], "agent/a")
    with pytest.raises(WorkflowFailureError) as failed:
        await handle.result()
    assert isinstance(failed.value.cause, ApplicationError)
    check(failed.value.cause.details[0], "failure")
