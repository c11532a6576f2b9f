"""Recorded histories replay with the present code, and stored names and shapes never change; runs can be reset."""

import json
from pathlib import Path
from typing import get_args

import pytest
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer

from baton.contracts.turn import StopReason
from tests.harness.environment import Environment, texts
from tests.harness.replayer import SandboxRunner, replay
from tests.harness.resets import reset, reset_points
from tests.replay import applications
from tests.replay.compatibility import incompatible
from tests.replay.nondeterministic import DrawsNumber, ReadsClock
from tests.replay.recorded import HISTORIES, RecordedHistories
from tests.replay.scenarios import SCENARIOS, TEAM, TRIO, run_scenario, trio
from tests.replay.stored import STORED, stored


def test_names_and_shapes_that_are_stored_neither_vanish_nor_change() -> None:
    assert incompatible(json.loads(STORED.read_text()), json.loads(json.dumps(stored()))) == []


def test_every_name_and_shape_that_is_stored_is_recorded() -> None:
    assert json.loads(json.dumps(stored())) == json.loads(STORED.read_text()), "make record-histories adds new ones"


EXAMPLE = Path(__file__).parent / "example"

RECORDED = {file.stem: file.read_text() for file in sorted(HISTORIES.glob("*.json"))}


@pytest.mark.parametrize("name", RECORDED)
async def test_a_run_recorded_by_an_earlier_version_goes_on_in_this_one(name: str) -> None:
    started = json.loads(RECORDED[name])["events"][0]["workflowExecutionStartedEventAttributes"]
    await replay([WorkflowHistory.from_json(started["workflowId"], RECORDED[name])])


OF_APPLICATIONS = {file.stem: file.read_text() for file in sorted(applications.FOLDER.glob("*.json"))}


@pytest.mark.parametrize("name", OF_APPLICATIONS)
async def test_a_workflow_of_an_application_that_asks_teams_goes_on_in_this_version(name: str) -> None:
    """``baton.workflow`` is executed in it: its commands have to stay as they were."""
    started = json.loads(OF_APPLICATIONS[name])["events"][0]["workflowExecutionStartedEventAttributes"]
    history = WorkflowHistory.from_json(started["workflowId"], OF_APPLICATIONS[name])
    await Replayer(workflows=applications.WORKFLOWS).replay_workflow(history)


def test_no_recorded_history_has_the_path_of_a_folder_of_its_machine() -> None:
    assert [name for name, text in RECORDED.items() if 'File \\"/' in text] == []


@pytest.mark.parametrize("code", [ReadsClock, DrawsNumber])
async def test_a_replay_refuses_code_that_is_not_deterministic_though_the_history_fits_it(code: type) -> None:
    history = WorkflowHistory.from_json("reminder", (EXAMPLE / "before_patch.json").read_text())
    with pytest.raises(RuntimeError, match="Cannot access"):
        await Replayer(workflows=[code], workflow_runner=SandboxRunner()).replay_workflow(history)


def test_a_history_is_recorded_of_every_workflow_type_and_every_way_to_end() -> None:
    assert RecordedHistories().scenarios() == set(SCENARIOS), "make record-histories adds those that are missing"
    assert {file.name.split(".")[2] for file in HISTORIES.glob("*.json")} == set(stored()["workflows"])


def reasons(last: HistoryEvent) -> set[str]:
    """The stop reasons of a run and its members, from its last event."""
    if last.HasField("workflow_execution_canceled_event_attributes"):
        return {"canceled"}
    ends = last.workflow_execution_completed_event_attributes, last.workflow_execution_failed_event_attributes
    details = ends[1].failure.application_failure_info.details
    stored_json = b"".join(each.data for each in (*ends[0].result.payloads, *details.payloads))
    return {reason for reason in get_args(StopReason) if f'"stopReason":"{reason}"'.encode() in stored_json}


@pytest.mark.full
def test_a_history_is_recorded_of_every_reason_to_stop() -> None:
    histories = [WorkflowHistory.from_json(name, text) for name, text in RECORDED.items()]
    found = [reasons(history.events[-1]) for history in histories]
    assert {each for recorded in found for each in recorded} == {*get_args(StopReason)}


@pytest.mark.full
@pytest.mark.parametrize("name", ["max_turns", "terminated_by_a_member", "failed_member", "nested", "query"])
async def test_a_run_whose_worker_forgets_it_after_every_step_ends_as_it_should(env: Environment, name: str) -> None:
    handle = await run_scenario(env, SCENARIOS[name])
    remembered = await handle.query("status")
    async with env.without_cache() as other:
        handle = await run_scenario(other, SCENARIOS[name])
        forgotten = await handle.query("status")
    keep = "phase", "stopReason", "error", "message", "tokenUsage"
    assert {key: forgotten.get(key) for key in keep} == {key: remembered.get(key) for key in keep}


@pytest.mark.full
async def test_a_team_that_is_reset_in_its_midst_goes_on_from_there_and_asks_anew(env: Environment) -> None:
    trio(env)
    handle = await env.start_team([*TRIO, TEAM])
    first = await env.turn_result(handle)
    third = (await reset_points(handle))[3]
    other = await reset(env, handle, third)
    again = await env.turn_result(other)
    assert (again.stop_reason, texts(again.messages)) == (first.stop_reason, texts(first.messages))
    assert [row["content"] for row in env.transcript(again.head.id)] == ["Why?", *texts(first.messages)]
    assert 9 < len(env.model.requests) < 18, "what was said before the reset is not asked again"


async def test_a_query_that_is_reset_in_its_midst_finds_its_teams_again(env: Environment) -> None:
    trio(env)
    handle = await env.start_query([*TRIO, TEAM], "team/team", "agent/critic")
    first = await env.status(handle)
    second = (await reset_points(handle))[1]
    other = await reset(env, handle, second)
    again = await env.status(other)
    assert (again.phase, again.message, again.error) == (first.phase, first.message, first.error)


@pytest.mark.full
async def test_a_query_that_is_reset_to_before_its_team_spoke_starts_that_team_anew(env: Environment) -> None:
    trio(env, slow=1.5)
    handle = await env.start_query([*TRIO, TEAM], "team/team")
    await env.wait_for_calls(5)
    other = await reset(env, handle, (await reset_points(handle))[0])
    again = await env.status(other)
    assert (again.stop_reason, len(again.responses[0].messages)) == ("max_turns", 9)


async def test_a_query_that_is_reset_while_its_team_speaks_goes_on_with_that_team(env: Environment) -> None:
    trio(env, slow=1.5)
    handle = await env.start_query([*TRIO, TEAM], "team/team")
    await env.wait_for_calls(5)
    other = await reset(env, handle, (await reset_points(handle))[-1])
    again = await env.status(other)
    assert (again.stop_reason, len(again.responses[0].messages)) == ("max_turns", 9)
