"""Recordings of runs: what their files hold, how they are replayed, and what is said about differences."""

import asyncio
import contextlib
import json
import os
import re
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from pydantic import JsonValue
from sqlalchemy import select
from temporalio import activity
from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.worker import Worker

import baton
import baton.testing
from baton.activities.context.outside import OutsideCall
from baton.contracts.decisions import ApproveRequest, PendingDecision, ReplyRequest
from baton.contracts.identity import IDENTITY_KEY, REQUESTER, START, Identity, IdentityKeys
from baton.journal import schema
from baton.resources.base import JsonObject
from baton.starter.api.handle import Handle
from baton.starter.api.teams import MemberInput
from baton.starter.errors import UsageError
from baton.starter.operations.recording import SUFFIX, RecordedAnswers, RecordedCall, Recording, redacted_recording
from baton.starter.runs.decisions import NotDecided, decide, reply
from baton.testing import Reply, Request, Script, ScriptedModel, ScriptedToolCall, block_model_requests, replay
from baton.testing.pytest import EnvironmentFactory, baton_environment, baton_server
from tests.harness.environment import Json, agent
from tests.harness.payments import tool as activity_tool
from tests.harness.processes import ROOT, USERS_PYTEST, process_env
from tests.harness.processes import baton as run_baton
from tests.harness.settlements import settlements, workflow_tool
from tests.harness.tool_server import Answer, ToolServer
from tests.harness.user_machine import UserMachine
from tests.recordings.record import FOLDER, RUNS, record_sample

pytestmark = pytest.mark.full

__all__ = ["baton_environment", "baton_server"]

SAMPLES = ROOT / "samples"
KEY = "sk-0123456789-secret"


def weigh(parcel: str) -> str:
    """Weighs a parcel."""
    return f"{parcel}: 2 kg"


def clerk(prompt: str = "You weigh parcels.", tools: bool = True) -> baton.Agent:
    """An agent with a tool."""
    return baton.Agent("clerk", prompt=prompt, tools=[weigh] if tools else [])


def answer(request: Request) -> Reply | str:
    """Calls the tool once, and repeats its result."""
    if request.agent != "clerk" or "tool" in [message["role"] for message in request["messages"]]:
        return f"{request.agent}: done"
    return Reply(calls=[ScriptedToolCall(name="weigh", arguments={"parcel": "7"})])


def recorded(factory: EnvironmentFactory, path: Path, target: baton.Agent | baton.Team) -> Path:
    """Records a run."""
    env = factory(target, model=answer)
    run = env.wait(env.start(f"{target.kind.lower()}/{target.name}", "Weigh parcel 7."))
    env.wait(run.result())
    env.wait(env.record(run, path))
    return path


@pytest.fixture
def parcel(baton_environment: EnvironmentFactory, tmp_path: Path) -> Path:
    """A recording of an agent that calls a tool."""
    return recorded(baton_environment, tmp_path / f"parcel{SUFFIX}", clerk())


def test_every_sample_has_a_recording() -> None:
    samples = {sample.stem for sample in SAMPLES.glob("*.yaml")}
    assert samples == {*RUNS} == {file.name.removesuffix(SUFFIX) for file in FOLDER.glob(f"*{SUFFIX}")}
    assert max(file.stat().st_size for file in FOLDER.glob(f"*{SUFFIX}")) < 50_000


@pytest.mark.parametrize(
    "name",
    [name if name in ("debate", "purchase") else pytest.param(name, marks=pytest.mark.full) for name in sorted(RUNS)],
)
def test_a_sample_is_replayed_without_any_server_of_a_model_or_a_tool(name: str) -> None:
    with block_model_requests():
        run = replay(FOLDER / f"{name}{SUFFIX}", SAMPLES / f"{name}.yaml")
    assert run.unchanged, run.report
    assert not run.changed_manifests
    assert run.live_calls == 0
    print(f"{name}: {run.seconds:.2f} s")


def test_a_recording_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"the recording .*none.run.json can't be read: No such file"):
        Recording.read(tmp_path / f"none{SUFFIX}")


def nested() -> baton.Team:
    """A clerk with a tool in a team, between two agents of the team above."""
    first, last = (baton.Agent(name, prompt=f"You are {name}.") for name in ("first", "last"))
    office = baton.Team("office", strategy="sequential", members=[clerk(), baton.Agent("checker", prompt="You check.")])
    return baton.Team("desk", strategy="sequential", members=[first, office, last])


@pytest.mark.parametrize(
    ("at", "say", "kinds"),
    [
        ("2/1/call-1", "Be brief.", "tool model model model"),
        *(
            pytest.param(*case, marks=pytest.mark.full)
            for case in (
                ("0", "Be brief.", "model model tool model model model"),
                ("1", None, "model tool model model model"),
                ("2/1/call-1/tools", "Be brief.", "model model model"),
                ("2/1", "Be brief.", "model model"),
                ("2", "Be brief.", "model"),
            )
        ),
    ],
)
def test_a_fork_is_replayed_on_its_own_from_its_place_on(
    baton_environment: EnvironmentFactory, tmp_path: Path, at: str, say: str | None, kinds: str
) -> None:
    env = baton_environment(nested(), model=answer)
    run = env.wait(env.start("team/desk", "Weigh parcel 7."))
    env.wait(run.result())
    path = tmp_path / f"fork{SUFFIX}"
    fork = env.wait(run.fork(at, say=say, name="ann"))
    forked = env.wait(fork.result())
    env.wait(env.record(fork, path))
    recording = Recording.read(path)
    assert [call.kind for call in recording.calls] == kinds.split()
    assert (recording.question, recording.run) == ("Weigh parcel 7.", fork.id)
    assert (say or "") in str(recording.calls)
    replayed = replay(path, nested())
    assert replayed.unchanged, replayed.report
    assert [message.content for message in replayed.messages] == [message.content for message in forked.messages]
    if at == "1":
        again = env.wait(fork.fork("2/1/call-1"))
        env.wait(again.result())
        env.wait(env.record(again, path))
        assert replay(path, nested()).unchanged, "a fork of a fork"


def test_a_retried_run_is_recorded_without_the_call_that_had_failed_it(
    baton_environment: EnvironmentFactory, tmp_path: Path
) -> None:
    broken = [True]

    @baton.tool("weigh", on_error="fail")
    def weigh_or_fail(parcel: str) -> str:
        """Weighs a parcel."""
        if broken:
            raise ValueError(f"the scale is broken: {broken.pop()}")
        return f"{parcel}: 2 kg"

    agent = baton.Agent("clerk", prompt="You weigh parcels.", tools=[weigh_or_fail])
    env = baton_environment(agent, model=answer)
    run = env.wait(env.start("agent/clerk", "Weigh parcel 7."))
    with pytest.raises(baton.RunFailed, match="the scale is broken"):
        env.wait(run.result())
    env.wait(env.wait(env.retry(run.id)).result())
    path = tmp_path / f"retried{SUFFIX}"
    env.wait(env.record(run, path))
    assert [call.kind for call in Recording.read(path).calls] == ["model", "tool", "model"]
    assert replay(path, agent).unchanged


def test_what_a_fork_has_changed_is_changed_in_its_replay_unless_the_manifests_have_changed_since(
    baton_environment: EnvironmentFactory, tmp_path: Path
) -> None:
    def team(clerks: str = "You weigh parcels.", first: str = "You are first.") -> baton.Team:
        members = [baton.Agent("first", prompt=first), clerk(clerks), baton.Agent("last", prompt="You are last.")]
        return baton.Team("desk", strategy="sequential", members=members)

    env = baton_environment(team(), model=answer)
    run = env.wait(env.start("team/desk", "Weigh parcel 7.", session={"tone": "formal"}))
    env.wait(run.result())
    changes: JsonObject = {"clerk.prompt": "You weigh fast.", "first.prompt": "You were first."}
    fork = env.wait(run.fork("1", changes=changes, session={"tone": "short"}))
    env.wait(fork.result())
    path = tmp_path / f"fork{SUFFIX}"
    env.wait(env.record(fork, path))
    for same in (team(), team("You weigh fast.", "You were first.")):
        replayed = replay(path, same)
        assert replayed.unchanged, replayed.report
        assert not replayed.changed_manifests
    (difference,) = replay(path, team("You weigh slowly.")).differences
    assert (difference.recorded, difference.now) == ("You weigh fast.", "You weigh slowly.")
    removed = replay(path, baton.Team("desk", strategy="sequential", members=[clerk()]))
    assert "keep the places of members" in removed.differences[0].problem


def test_a_fork_has_spent_of_its_budget_what_it_rests_on(baton_environment: EnvironmentFactory, tmp_path: Path) -> None:
    budget = {"modelCalls": 3}
    members = [{"name": name, "type": "agent"} for name in ("one", "two", "three")]
    team = baton.Manifest("Team", "desk", {"strategy": "sequential", "members": members, "budget": budget})
    agents = [baton.Agent(name, prompt="You talk.") for name in ("one", "two", "three")]
    env = baton_environment(team, *agents, model=answer)
    run = env.wait(env.start("team/desk", "Talk."))
    env.wait(run.result())
    fork = env.wait(run.fork("2"))
    env.wait(fork.result())
    path = tmp_path / f"fork{SUFFIX}"
    env.wait(env.record(fork, path))
    recording = Recording.read(path)
    assert recording.fork
    (spent,) = recording.fork.spent["target-1/desk"].values()
    assert spent["model_calls"] == 2
    assert replay(path, [team, *agents]).unchanged
    data = json.loads(path.read_text())
    (amounts,) = data["fork"]["spent"]["target-1/desk"].values()
    amounts["model_calls"] = 3
    path.write_text(json.dumps(data))
    assert replay(path, [team, *agents]).status.stop_reason == "budget"


def test_a_fork_of_a_failed_run_is_recorded_without_the_call_that_has_failed(
    baton_environment: EnvironmentFactory, tmp_path: Path
) -> None:
    refusals = iter([True])

    def refused_once(request: Request) -> Reply | str:
        return Reply(status=400) if request.agent == "last" and next(refusals, False) else answer(request)

    env = baton_environment(nested(), model=refused_once)
    run = env.wait(env.start("team/desk", "Weigh parcel 7."))
    with pytest.raises(baton.RunFailed):
        env.wait(run.result())
    fork = env.wait(run.fork())
    env.wait(fork.result())
    path = tmp_path / f"fork{SUFFIX}"
    env.wait(env.record(fork, path))
    assert len(Recording.read(path).calls) == 1
    assert replay(path, nested()).unchanged


def test_a_retried_run_is_replayed_without_its_failure(baton_environment: EnvironmentFactory, tmp_path: Path) -> None:
    refusals = iter([True])

    def refused_once(request: Request) -> Reply | str:
        return Reply(status=400) if request.agent == "checker" and next(refusals, False) else answer(request)

    env = baton_environment(nested(), model=refused_once)
    run = env.wait(env.start("team/desk", "Weigh parcel 7."))
    with pytest.raises(baton.RunFailed):
        env.wait(run.result())
    retried = env.wait(env.retry(run.id))
    env.wait(retried.result())
    path = tmp_path / f"desk{SUFFIX}"
    env.wait(env.record(retried, path))
    assert not [call for call in Recording.read(path).calls if "error" in call.answer]
    replayed = replay(path, nested())
    assert replayed.unchanged, replayed.report


COUNTED = """
import json, sys
connections = []
sys.addaudithook(
    lambda event, arguments: event in ("socket.connect", "socket.getaddrinfo") and connections.append(repr(arguments))
)
from baton.testing import replay
for recording, manifests in json.loads(sys.argv[1]):
    run = replay(recording, manifests)
    assert run.unchanged, run.report
print(json.dumps([connection for connection in connections if "127.0.0.1" not in connection]))
"""


@pytest.mark.slow
def test_a_replay_connects_to_nothing_but_its_own_server() -> None:
    names = ["assistant", "openapi", "travel", "underwriting", "weather"]  # MCP, a document, A2A, an engine, HTTP
    pairs = json.dumps([[str(FOLDER / f"{name}{SUFFIX}"), str(SAMPLES / f"{name}.yaml")] for name in names])
    command = [sys.executable, "-P", "-c", COUNTED, pairs]
    done = subprocess.run(command, env=process_env(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == []


@pytest.mark.parametrize("name", [pytest.param("code-review", marks=pytest.mark.full), "purchase"])
def test_a_sample_that_is_recorded_again_gives_the_same_file(name: str, tmp_path: Path, baton_server: str) -> None:
    again = record_sample(name, tmp_path / f"{name}{SUFFIX}", server=baton_server)
    before, after = (Recording.read(path) for path in (FOLDER / again.name, again))
    assert sorted(call.key for call in before.calls) == sorted(call.key for call in after.calls)
    assert (before.answer, before.manifests) == (after.answer, after.manifests)


def test_the_command_plays_recordings_and_writes_a_report_for_junit(tmp_path: Path) -> None:
    changed = tmp_path / "brainstorming.yaml"
    changed.write_text((SAMPLES / "brainstorming.yaml").read_text().replace("a creative", "a careful"))
    files: list[str | Path] = ["-f", SAMPLES / "support.yaml", "-f", changed]
    paths = [FOLDER / f"support{SUFFIX}", FOLDER / f"brainstorming{SUFFIX}"]
    env = process_env(BATON_HOME=str(tmp_path / "home"))
    done = run_baton("test", *files, "--junit", tmp_path / "report.xml", *paths, env=env, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert re.search(rf"^unchanged  {paths[0]}  \d+ calls · [\d.]+ s$", done.stdout, re.MULTILINE)
    assert "    the nearest is call 1; it differs first in messages[0].content\n" in done.stdout
    assert max(map(len, done.stdout.replace(str(FOLDER), "").splitlines())) <= 80
    assert done.stdout.endswith("1 of 2 unchanged\n")
    suite = ET.parse(tmp_path / "report.xml").getroot()[0]
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")
    (failure,) = suite.iter("failure")
    assert "You are a careful brainstormer" in (failure.text or "")
    assert not (tmp_path / "home").exists(), "no server of the user's own is started"


def test_a_file_that_is_no_recording_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "a.run.json").write_text('{"calls": 1}')
    done = run_baton("test", "-f", SAMPLES / "support.yaml", "a.run.json", env=process_env(), cwd=tmp_path)
    assert done.returncode == 1
    assert "a.run.json is not a recording of a run" in done.stderr


def test_a_tool_answers_as_in_the_recording_and_is_not_called(parcel: Path) -> None:
    def broken(parcel: str) -> str:
        """Weighs a parcel."""
        raise AssertionError("it is called")

    broken.__name__ = "weigh"
    run = replay(parcel, baton.Agent("clerk", prompt="You weigh parcels.", tools=[broken]))
    assert run.calls_unchanged
    assert run.answer == "clerk: done"
    assert [message.role for message in run.messages] == ["assistant", "tool", "assistant"]
    assert "7: 2 kg" in run.messages[1].content


def test_a_changed_prompt_fails_the_run_and_names_the_first_difference(parcel: Path) -> None:
    run = replay(parcel, clerk("You measure parcels."))
    assert not run.calls_unchanged
    assert run.status.phase == "Failed"
    assert run.status.error
    (difference,) = run.differences
    assert (difference.nearest, difference.field) == (1, "messages[0].content")
    assert (difference.recorded, difference.now) == ("You weigh parcels.", "You measure parcels.")
    assert run.changed_manifests == ("Agent/default/clerk has changed",)


def test_a_removed_tool_is_named(parcel: Path) -> None:
    (difference,) = replay(parcel, clerk(tools=False)).differences
    assert (difference.nearest, difference.field, difference.now) == (1, "tools[weigh]", None)


def test_other_arguments_of_a_tool_are_named(parcel: Path) -> None:
    data = json.loads(parcel.read_text())
    (call,) = [call for call in data["calls"] if call["kind"] == "tool"]
    call["request"]["arguments"]["parcel"] = "8"
    parcel.write_text(json.dumps(data))
    difference = replay(parcel, clerk()).differences[0]
    assert difference.call == "Agent/default/clerk calls the tool weigh"
    assert (difference.field, difference.recorded, difference.now) == ("arguments.parcel", "8", "7")


def test_a_swapped_member_is_named(baton_environment: EnvironmentFactory, tmp_path: Path) -> None:
    def team(second: str) -> baton.Team:
        members = [baton.Agent("writer", prompt="You write."), baton.Agent(second, prompt="You edit.")]
        return baton.Team("desk", strategy="sequential", members=members)

    path = recorded(baton_environment, tmp_path / f"desk{SUFFIX}", team("editor"))
    (difference,) = replay(path, team("lector")).differences
    assert difference.call == "Agent/default/lector asks the model default"
    assert (difference.nearest, difference.field) == (2, "caller")
    assert (difference.recorded, difference.now) == ("Agent/default/editor", "Agent/default/lector")


def test_a_recorded_call_that_is_not_made_is_named(baton_environment: EnvironmentFactory, tmp_path: Path) -> None:
    def team(*names: str) -> baton.Team:
        return baton.Team("desk", strategy="sequential", members=[baton.Agent(name, prompt="Go.") for name in names])

    path = recorded(baton_environment, tmp_path / f"desk{SUFFIX}", team("one", "two"))
    run = replay(path, team("one"))
    assert run.status.phase == "Completed"
    assert [str(difference) for difference in run.differences] == [
        "Agent/default/two asks the model default: call 2 of the recording was not made"
    ]


def test_concurrent_members_get_their_own_answers_in_any_order(
    baton_environment: EnvironmentFactory, tmp_path: Path
) -> None:
    names = [f"reader-{number}" for number in range(8)]
    members = [baton.Agent(name, prompt="You read.") for name in names]
    team = baton.Team("readers", strategy="parallel", members=members)
    path = recorded(baton_environment, tmp_path / f"readers{SUFFIX}", team)
    data = json.loads(path.read_text())
    data["calls"].reverse()
    path.write_text(json.dumps(data))
    run = replay(path, team)
    assert run.calls_unchanged
    assert {message.name: message.content for message in run.messages} == {name: f"{name}: done" for name in names}


def test_members_that_ask_the_same_get_the_answers_of_their_places(
    baton_environment: EnvironmentFactory, tmp_path: Path
) -> None:
    twin = baton.Agent("twin", prompt="You guess.")
    members: list[MemberInput] = [baton.Member(f"m{n}", speaker=twin) for n in range(4)]
    team = baton.Team("twins", strategy="parallel", members=members)
    count = iter(range(100))
    env = baton_environment(team, model=lambda _: f"guess {next(count)}")
    run = env.wait(env.start("team/twins", "How many?"))
    before = env.wait(run.result()).messages
    path = tmp_path / f"twins{SUFFIX}"
    env.wait(env.record(run, path))
    after = replay(path, team)
    assert after.calls_unchanged
    assert [(message.name, message.content) for message in after.messages] == [
        (message.name, message.content) for message in before
    ]


def test_the_same_request_is_answered_in_order_and_not_once_more() -> None:
    request: JsonObject = {"model": "m", "messages": [{"role": "user", "content": "Why?"}]}
    calls = [
        RecordedCall(kind="model", caller="Agent/default/a", purpose="call", request=request, answer={"content": text})
        for text in ("first", "second")
    ]
    answers = RecordedAnswers(calls)
    call = OutsideCall(kind="model", caller="Agent/default/a", purpose="call", run="r", request=request)
    assert [answers.take(call, "") for _ in range(3)] == [(1, {"content": "first"}), (2, {"content": "second"}), None]
    assert answers.missing(call, "").problem == "the request is recorded 2 times, and is now made once more"


def test_a_secret_of_digits_is_no_number_in_the_file_either() -> None:
    decision: JsonObject = {"approved": True, "arguments": '{"pin": 48151623}'}
    call = RecordedCall(kind="person", caller="clerk", purpose="approval", request={"tool": "pay"}, answer=decision)
    recording = Recording(
        run="r",
        question="My PIN is 48151623.",
        answer="a",
        phase="Completed",
        workflow="query",
        input={"pin": 48151623},
        calls=(call,),
    )
    redacted = redacted_recording(recording, lambda text: text.replace("48151623", "[secret]"))
    assert (redacted.question, redacted.input) == ("My PIN is [secret].", {"pin": "[secret]"})
    assert redacted.calls[0].answer == {"approved": True, "arguments": '{"pin": "[secret]"}'}


def test_secrets_are_nowhere_in_the_file(baton_environment: EnvironmentFactory, tmp_path: Path) -> None:
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "k"}, "stringData": {"key": KEY}}
    parameter = {"name": "key", "valueFrom": {"secretKeyRef": {"name": "k", "key": "key"}}}
    agent = {"prompt": "Your key is {{.key}}.", "parameters": [parameter]}
    file = tmp_path / "team.yaml"
    file.write_text(
        "\n---\n".join(
            json.dumps(document)
            for document in (
                secret,
                {"apiVersion": "ark.mckinsey.com/v1alpha1", "kind": "Agent", "metadata": {"name": "a"}, "spec": agent},
            )
        )
    )
    env = baton_environment(file, model=lambda request: f"I know {request.system}")
    run = env.wait(env.start("agent/a", f"What is {KEY}?"))
    env.wait(run.result())
    path = tmp_path / f"a{SUFFIX}"
    env.wait(env.record(run, path))
    assert KEY not in path.read_text()
    assert "Your key is [secret]." in path.read_text()
    file.write_text(file.read_text().replace(KEY, "sk-another-key-9876543210"))
    assert replay(path, file).calls_unchanged


def test_models_that_are_live_are_asked_only_for_what_is_new_and_the_file_is_updated(
    baton_environment: EnvironmentFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def team(prompt: str) -> baton.Team:
        members = [baton.Agent("writer", prompt="You write."), baton.Agent("editor", prompt=prompt)]
        return baton.Team("desk", strategy="sequential", members=members)

    path = recorded(baton_environment, tmp_path / f"desk{SUFFIX}", team("You edit."))
    model = ScriptedModel(lambda _: "live answer")
    with model.serve() as url:
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        before = path.read_text()
        run = replay(path, team("You shorten."), models="live")
        assert (run.answer, run.live_calls, len(model.requests)) == ("live answer", 1, 1)
        assert path.read_text() == before
        replay(path, team("You shorten."), models="live", update=True)
        assert len(model.requests) == 2
    assert replay(path, team("You shorten.")).unchanged
    assert KEY not in path.read_text()


def test_a_live_call_that_the_recording_does_not_have_is_a_change(
    baton_environment: EnvironmentFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def desk(*names: str) -> baton.Team:
        members = [baton.Agent(name, prompt="You write.") for name in names]
        return baton.Team("desk", strategy="sequential", members=members)

    env = baton_environment(desk("writer"), model=lambda _: "Done.")
    run = env.wait(env.start("team/desk", "Write."))
    env.wait(run.result())
    path = tmp_path / f"desk{SUFFIX}"
    env.wait(env.record(run, path))
    with ScriptedModel(lambda _: "Done.").serve() as url:
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        changed = replay(path, desk("writer", "editor"), models="live", update=True)
    assert (changed.unchanged, changed.calls_unchanged, changed.updated) == (False, False, True)
    assert changed.report.startswith("1 call was made that the recording does not have")
    assert replay(path, desk("writer", "editor")).unchanged


def test_a_recording_that_can_not_be_written_stays_as_it_was(parcel: Path) -> None:
    before = parcel.read_bytes()
    parcel.with_name(f"{parcel.name}.new").mkdir()
    with pytest.raises(UsageError, match=r"the recording .*parcel\.run\.json can't be written: Is a directory"):
        Recording.read(parcel).write(parcel)
    assert parcel.read_bytes() == before


@pytest.mark.slow
def test_a_run_that_can_not_end_is_terminated_when_its_replay_has_no_more_time(
    parcel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("baton.testing.replays.CANCEL_SECONDS", 0.5)
    parcel.write_text(parcel.read_text().replace('"workflow": "query"', '"workflow": "no-such-workflow"'))
    with pytest.raises(UsageError, match=r"the replay of clerk-\w+ can't end: its workflow tasks fail"):
        replay(parcel, clerk(), timeout=0.5)


def test_the_command_replays_with_the_functions_of_the_setting(parcel: Path, tmp_path: Path) -> None:
    env = process_env(BATON_FUNCTIONS="no_such_module")
    done = run_baton("test", "-f", SAMPLES / "support.yaml", parcel, env=env, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (1, "error: BATON_FUNCTIONS: there is no module 'no_such_module'\n")


def test_decisions_and_messages_of_people_are_replayed(baton_environment: EnvironmentFactory, tmp_path: Path) -> None:
    approving = baton.Manifest(
        "Tool",
        "weigh",
        {
            "type": "function",
            "function": {"name": "weigh"},
            "inputSchema": {"type": "object", "properties": {"parcel": {"type": "string"}}, "required": ["parcel"]},
            "description": "Weighs a parcel.",
            "approval": {},
        },
    )
    agent = baton.Agent("clerk", prompt="You weigh parcels.", tools=[approving])
    env = baton_environment(agent, model=answer, functions=[weigh])
    run = env.wait(env.start("agent/clerk", "Weigh parcel 7."))
    pending = env.wait(env.pending_decision(run))
    env.wait(run.steer("Be quick.", "bob"))
    env.wait(run.approve(pending.id, arguments={"parcel": "8"}, by="ann"))
    env.wait(run.result())
    path = tmp_path / f"a{SUFFIX}"
    env.wait(env.record(run, path))
    replayed = replay(path, agent)
    assert replayed.unchanged, replayed.report
    assert "8: 2 kg" in str(replayed.messages)
    assert "Be quick." in path.read_text()


def test_an_approval_that_nobody_has_given_ends_the_replay(parcel: Path) -> None:
    asking = baton.Manifest(
        "Tool",
        "weigh",
        {
            "type": "function",
            "function": {"name": "weigh"},
            "description": "Weighs a parcel.",
            "inputSchema": {
                "type": "object",
                "properties": {"parcel": {"type": "string"}},
                "required": ["parcel"],
            },
            "approval": {},
        },
    )
    run = replay(parcel, baton.Agent("clerk", prompt="You weigh parcels.", tools=[asking]), timeout=20)
    assert not run.calls_unchanged


def test_a_failed_run_fails_again_in_the_same_way(baton_environment: EnvironmentFactory, tmp_path: Path) -> None:
    env = baton_environment(clerk(), model={"clerk": [Reply(status=400, text="too many pictures")]})
    run = env.wait(env.start("agent/clerk", "Why?"))
    with pytest.raises(baton.RunFailed, match="too many pictures"):
        env.wait(run.result())
    path = tmp_path / f"a{SUFFIX}"
    env.wait(env.record(run, path))
    replayed = replay(path, clerk())
    assert replayed.unchanged, replayed.report
    assert "too many pictures" in (replayed.status.error or "")


@pytest.mark.parametrize("nested_run", [False, True])
def test_a_run_that_was_canceled_during_a_call_is_canceled_there_again(
    baton_environment: EnvironmentFactory, tmp_path: Path, nested_run: bool
) -> None:
    asked, hangs = threading.Event(), threading.Event()

    def hang(request: Request) -> Reply | str:
        if request.agent != "last":
            return answer(request)
        asked.set()
        hangs.wait(60)
        return "Too late."

    members = [clerk(), baton.Agent("last", prompt="You are last.")]
    team = nested() if nested_run else baton.Team("desk", strategy="sequential", members=members)
    env = baton_environment(team, model=hang)
    run = env.wait(env.start("team/desk", "Weigh parcel 7."))
    assert asked.wait(60)
    env.wait(run.cancel("not any more"))
    with pytest.raises(baton.RunFailed):
        env.wait(run.result())
    hangs.set()
    path = tmp_path / f"desk{SUFFIX}"
    env.wait(env.record(run, path))
    last = Recording.read(path).calls[-1]
    assert (last.caller, last.answer) == ("Agent/default/last", {"interrupted": True})
    replayed = replay(path, team)
    assert replayed.unchanged, replayed.report
    assert replayed.status.phase == "Canceled"


def test_a_run_that_its_timeout_has_ended_is_not_recorded(
    baton_environment: EnvironmentFactory, tmp_path: Path
) -> None:
    hangs = threading.Event()

    def hang(_: Request) -> str:
        hangs.wait(60)
        return "Too late."

    env = baton_environment(baton.Agent("slow", prompt="You think."), model=hang)
    run = env.wait(env.start("agent/slow", "Why?", timeout="0.3s"))
    with pytest.raises(baton.RunFailed):
        env.wait(run.result())
    hangs.set()
    with pytest.raises(UsageError, match=r"was ended by its timeout, which a replay never reaches"):
        env.wait(env.record(run, tmp_path / f"slow{SUFFIX}"))


def test_blocked_models_are_not_called(
    baton_environment: EnvironmentFactory, tmp_path: Path, parcel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = ScriptedModel(lambda _: "live answer")
    with model.serve() as url, block_model_requests():
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        run = replay(parcel, clerk("You measure parcels."), models="live")
        assert "requests to models are blocked" in (run.status.error or "")
        assert model.requests == []
    assert "BATON_BLOCK_MODEL_REQUESTS" not in os.environ


def test_a_replay_after_the_first_takes_less_than_a_second_of_processor_time(parcel: Path) -> None:
    replay(parcel, clerk())
    began, used = time.monotonic(), time.process_time()
    for _ in range(3):
        assert replay(parcel, clerk()).unchanged
    seconds, cpu = (time.monotonic() - began) / 3, (time.process_time() - used) / 3
    print(f"a replay takes {seconds:.2f} s, of which the processor works {cpu:.2f} s")
    assert cpu < 1


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Path]:
    """A user's project with a recording."""
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["baton.testing.pytest"]\n')
    (tmp_path / "pytest.ini").write_text("[pytest]\nbaton_manifests = team.yaml\n")
    (tmp_path / "team.yaml").write_text((SAMPLES / "support.yaml").read_text())
    (tmp_path / f"support{SUFFIX}").write_text((FOLDER / f"support{SUFFIX}").read_text())
    yield tmp_path


@pytest.mark.slow
def test_pytest_collects_recordings(project: Path) -> None:
    command = [*USERS_PYTEST, "-q"]
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "BATON_"))}

    def result() -> "subprocess.CompletedProcess[str]":
        return subprocess.run(command, cwd=project, env=variables, capture_output=True, text=True, check=False)

    passed = result()
    assert "1 passed" in passed.stdout, passed.stdout + passed.stderr
    changed = (project / "team.yaml").read_text().replace("You welcome customers", "You greet customers")
    (project / "team.yaml").write_text(changed)
    failed = result()
    assert "1 failed" in failed.stdout
    assert "it differs first in messages[0].content" in failed.stdout
    assert "Traceback" not in failed.stdout


@pytest.mark.shared_server
def test_a_run_of_the_command_line_is_recorded_and_replayed(machine: UserMachine) -> None:
    machine.model._answer = Script.read(SAMPLES / "scripts" / "support.yaml").answer
    # A conversation of its own: another test of this server may have asked the support desk, too.
    own = "--conversation", "recorded", "--id", "double-charge-recorded"
    ran = machine.run("run", "-f", SAMPLES / "support.yaml", *own)
    assert ran.returncode == 0, ran.stderr
    machine.wait_until_listed("double-charge-recorded")
    wrong = machine.run("record", "double-charge", "-o", "support.json")
    assert (wrong.returncode, "the name of a recording ends with .run.json" in wrong.stderr) == (1, True)
    done = machine.run("record", "double-charge", "-o", "support.run.json")
    assert done.returncode == 0, done.stderr
    assert re.search(r"^recorded double-charge-recorded in support\.run\.json: 3 calls$", done.stderr, re.MULTILINE)
    calls = len(machine.model.requests)
    played = machine.run("test", "-f", SAMPLES / "support.yaml", "support.run.json")
    assert (played.returncode, len(machine.model.requests)) == (0, calls), played.stdout


def test_a_run_that_continues_a_conversation_is_replayed_with_its_earlier_messages(
    baton_environment: EnvironmentFactory, tmp_path: Path
) -> None:
    agent = baton.Agent("a", prompt="You remember.")
    env = baton_environment(agent, model=lambda request: f"{len(request['messages'])} messages")
    for question in ("One?", "Two?"):
        run = env.wait(env.start("agent/a", question, conversation="talk"))
        env.wait(run.result())
    path = tmp_path / f"a{SUFFIX}"
    env.wait(env.record(run, path))
    assert [message.content for message in Recording.read(path).before] == ["One?", "2 messages"]
    replayed = replay(path, agent)
    assert replayed.unchanged, replayed.report
    assert replayed.answer == "4 messages"


def test_a_run_that_continues_a_conversation_with_an_image_is_replayed(
    baton_environment: EnvironmentFactory, tmp_path: Path
) -> None:
    agent = baton.Agent("a", prompt="You look.")
    env = baton_environment(agent, model=lambda _: "Seen.")
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGFsbG8="}}
    look = {"role": "user", "content": [{"type": "text", "text": "Look."}, image]}
    for question in ([look], "And now?"):
        run = env.wait(env.start("agent/a", question, conversation="talk"))
        env.wait(run.result())
    path = tmp_path / f"a{SUFFIX}"
    env.wait(env.record(run, path))
    replayed = replay(path, agent)
    assert replayed.unchanged, replayed.report


def test_a_run_that_a_plain_client_has_started_is_replayed(
    baton_environment: EnvironmentFactory, tmp_path: Path
) -> None:
    team = baton.Team("desk", strategy="sequential", members=[clerk()])
    env = baton_environment(team, model=answer)

    async def run() -> None:
        started = await env.client.start_workflow(
            "sequential", {"team": "desk", "input": "Weigh."}, id="plain-client", task_queue=env.task_queue
        )
        await started.result()
        await env.record(Handle(env.client, started), tmp_path / f"a{SUFFIX}")

    env.wait(run())
    replayed = replay(tmp_path / f"a{SUFFIX}", team)
    assert replayed.unchanged, replayed.report


def test_the_choices_of_a_selector_are_recorded(baton_environment: EnvironmentFactory, tmp_path: Path) -> None:
    members = [baton.Agent(name, prompt="You talk.") for name in ("one", "two")]
    team = baton.Team("desk", strategy="selector", members=members, max_turns=5, on_max_turns="complete")
    count = iter(range(100))

    def talk(request: Request) -> str:
        return ("one", "two")[next(count) % 2] if request.agent is None else "I see."

    env = baton_environment(team, model=talk)
    run = env.wait(env.start("team/desk", "Talk."))
    env.wait(run.result())
    path = tmp_path / f"a{SUFFIX}"
    env.wait(env.record(run, path))
    assert {call.purpose for call in Recording.read(path).calls} == {"call", "choice"}
    replayed = replay(path, team)
    assert replayed.unchanged, replayed.report


def test_summaries_are_recorded(baton_environment: EnvironmentFactory, tmp_path: Path) -> None:
    window = {"maxTokens": 20, "summarize": {"after": 30}}
    agents = [
        baton.Manifest("Agent", name, {"prompt": "You talk.", "contextWindow": window}) for name in ("one", "two")
    ]
    team = baton.Team("desk", strategy="round-robin", members=agents, max_turns=3, on_max_turns="complete")

    def talk(request: Request) -> str:
        return "They have talked." if request.agent is None else f"{request.agent} says: {'word ' * 12}"

    env = baton_environment(team, model=talk)
    run = env.wait(env.start("team/desk", "Talk."))
    env.wait(run.result())
    path = tmp_path / f"a{SUFFIX}"
    env.wait(env.record(run, path))
    assert "summary/0" in {call.purpose for call in Recording.read(path).calls}
    replayed = replay(path, team)
    assert replayed.unchanged, replayed.report


@activity.defn
async def charge_card(amount: int, currency: str) -> str:
    """An activity of an application, which fails for one amount."""
    if amount == 13:
        raise ApplicationError("the card was declined", non_retryable=True)
    return f"charged {amount} {currency}"


@activity.defn
async def report_charge(amount: int, currency: str) -> dict[str, int]:
    """Another one with the same arguments."""
    return {currency: amount}


ADJUSTED = {"charge": (7, 13, 7), "report": (13,), "settle": (7, 2_000)}
"""The tool calls of a run, by their tools: with their amounts, of which some fail."""


def adjust(request: Request) -> Reply | str:
    """Calls all tools at once."""
    if request.tool_results:
        return "Adjusted."
    calls = [
        ScriptedToolCall(name=name, arguments={"amount": amount})
        for name, amounts in ADJUSTED.items()
        for amount in amounts
    ]
    return Reply(calls=calls)


async def test_activities_and_workflows_of_an_application_are_replayed_without_its_workers(
    baton_server: str, tmp_path: Path
) -> None:
    client = await Client.connect(baton_server)
    queue = f"cards-{uuid.uuid4().hex}"
    ordered: Json = {"arguments": ["amount", "currency"]}
    async with (
        Worker(client, task_queue=queue, activities=[charge_card, report_charge]),
        settlements(client) as workflow_queue,
    ):
        tools = [
            activity_tool(queue, activity=ordered),
            activity_tool(queue, "report", "report_charge", activity=ordered),
            workflow_tool(workflow_queue, workflow=ordered),
        ]
        file = tmp_path / "adjuster.yaml"
        adjuster = agent("adjuster", *ADJUSTED, parallelToolCalls=True)
        file.write_text("\n---\n".join(map(json.dumps, [adjuster, *tools])))
        async with baton.testing.environment(file, model=adjust, server=baton_server) as env:
            run = await env.start("agent/adjuster", "Adjust.")
            result = await run.result()
            path = tmp_path / f"adjuster{SUFFIX}"
            await env.record(run, path)
    assert [message.content for message in result.messages if message.role == "tool"] == [
        "charged 7 EUR",
        "Error: the card was declined",
        "charged 7 EUR",
        '{"EUR":13}',
        '{"amount":7,"currency":"EUR"}',
        "Error: the limit is 1000",
    ]
    calls = [call for call in Recording.read(path).calls if call.kind == "tool"]
    assert sorted(call.purpose for call in calls) == ["charge"] * 3 + ["report"] + ["settle"] * 2
    for tools_source in ("recorded", "live"):  # the application is never called
        replayed = await asyncio.to_thread(replay, path, file, tools=tools_source)
        assert replayed.unchanged, replayed.report
    changed = tmp_path / "changed.yaml"
    changed.write_text(file.read_text().replace('"default": "EUR"', '"default": "USD"'))
    (difference,) = (await asyncio.to_thread(replay, path, changed, tools="live")).differences
    assert difference.field == "tools[charge].parameters.properties.currency.default"
    recorded = [call.key for call in Recording.read(path).calls]
    path.write_text(path.read_text().replace('"workflow": "agent"', '"workflow": "agent", "baton": "0"', 1))
    updated = await asyncio.to_thread(replay, path, file, update=True)
    assert updated.unchanged
    assert sorted(call.key for call in Recording.read(path).calls) == sorted(recorded)


def shop(finance: str = "finance", limit: str = "1h") -> list[baton.Manifest | baton.Team]:
    """A clerk with tools that approvers decide about, and with a budget; then a person, who replies."""
    schema = {"type": "object", "properties": {"parcel": {"type": "string"}}, "required": ["parcel"]}
    approvals: dict[str, JsonObject] = {
        "weigh": {"approvers": [{"groups": [finance], "required": 2, "notRequester": True}]},
        "ship": {"approvers": [{"names": ["dana"]}], **({"timeout": limit} if limit else {})},
    }
    tools = [
        baton.Manifest(
            "Tool",
            name,
            {
                "type": "function",
                "function": {"name": "weigh"},
                "inputSchema": schema,
                "description": f"To {name} a parcel.",
                "approval": approval,
            },
        )
        for name, approval in approvals.items()
    ]
    budget = {
        "modelCalls": 4,
        "onExceeded": "ask",
        "approvers": [{"names": ["dana"], "groups": []}, {"groups": [finance]}],
    }
    agent_ = baton.Manifest(
        "Agent",
        "clerk",
        {
            "prompt": "You ship.",
            "tools": [{"name": "weigh", "type": "custom"}, {"name": "ship", "type": "custom"}],
            "budget": budget,
        },
    )
    lawyer = {"name": "lawyer", "type": "human", "prompt": "Well?", "approvers": [{"groups": [finance]}]}
    team = baton.Manifest(
        "Team", "shop", {"strategy": "sequential", "members": [{"name": "clerk", "type": "agent"}, lawyer]}
    )
    return [*tools, agent_, team]


def ship(request: Request) -> Reply | str:
    """Weighs a parcel and ships three, one after the other."""
    number = sum(message["role"] == "tool" for message in request["messages"])
    if number == 4:
        return "Shipped."
    return Reply(calls=[ScriptedToolCall(name="ship" if number else "weigh", arguments={"parcel": str(number)})])


AMOUNT: Json = {"type": "object", "properties": {"amount": {"type": "integer"}}}


async def test_a_run_that_was_canceled_during_a_call_of_an_application_is_canceled_there_again(
    baton_server: str, tmp_path: Path
) -> None:
    client = await Client.connect(baton_server)
    queue = f"cards-{uuid.uuid4().hex}"
    started = asyncio.Event()

    @activity.defn(name="wait_for_bank")
    async def wait_for_bank(amount: int) -> None:
        started.set()
        await asyncio.Event().wait()

    file = tmp_path / "adjuster.yaml"
    tool = activity_tool(queue, "charge", "wait_for_bank", activity={"arguments": ["amount"]}, inputSchema=AMOUNT)
    file.write_text("\n---\n".join(map(json.dumps, [agent("adjuster", "charge"), tool])))
    call = Reply(calls=[ScriptedToolCall(name="charge", arguments={"amount": 7})])
    async with (
        Worker(client, task_queue=queue, activities=[wait_for_bank], graceful_shutdown_timeout=timedelta()),
        baton.testing.environment(file, model={"adjuster": [call]}, server=baton_server) as env,
    ):
        run = await env.start("agent/adjuster", "Adjust.")
        await started.wait()
        await run.cancel("not any more")
        with pytest.raises(baton.RunFailed):
            await run.result()
        path = tmp_path / f"adjuster{SUFFIX}"
        await env.record(run, path)
    last = Recording.read(path).calls[-1]
    assert (last.purpose, last.answer) == ("charge", {"interrupted": True})
    replayed = await asyncio.to_thread(replay, path, file)
    assert replayed.unchanged, replayed.report


@pytest.mark.slow
async def test_decisions_of_approvers_are_replayed_without_their_keys(baton_server: str, tmp_path: Path) -> None:
    keys = IdentityKeys(("k" * 32,))
    async with baton.testing.environment(
        *shop(), model=ship, functions=[weigh], server=baton_server, settings={IDENTITY_KEY: keys.keys[0]}
    ) as env:
        eve = keys.sign_act(Identity(name="eve"), env.client.namespace, "shop-run", START)
        assert eve
        handle = await env.client.start_workflow(
            "sequential",
            {"team": "shop", "input": "Ship."},
            id="shop-run",
            task_queue=env.task_queue,
            memo={REQUESTER: eve.model_dump_json()},
        )
        run = Handle[object](env.client, handle)

        async def decides(name: str, *groups: str, **given: Any) -> None:
            pending = await env.pending_decision(run)

            def sign(pending: PendingDecision, request: ApproveRequest | ReplyRequest) -> ApproveRequest | ReplyRequest:
                identity = Identity(name=name, groups=groups)
                return request.signed(keys.sign_decision(identity, pending.place(env.client.namespace, request)))

            if pending.kind == "question":
                await reply(env.client, handle, ReplyRequest(to=pending.id, **given), sign=sign)
            else:
                await decide(env.client, handle, ApproveRequest(call=pending.id, **given), sign=sign)

        with pytest.raises(NotDecided, match="eve started the run"):
            await decides("eve", "finance")
        await decides("ann", "finance")
        await decides("bob", "finance", "sales")
        await decides("dana", arguments={"parcel": "changed"})
        await decides("dana", approved=False, reason="Too heavy.")
        pending = await env.pending_decision(run)
        assert pending.until
        await env.skip_time(run, timedelta(hours=1))
        await decides("dana")
        await decides("ann", "finance")
        await decides("ann", "finance", text="Fine.")
        result = await run.result()
        path = tmp_path / f"shop{SUFFIX}"
        await env.record(run, path)
    assert [message.content for message in result.messages if message.role == "tool"][1] == "changed: 2 kg"
    answers = [call.answer for call in Recording.read(path).calls if call.kind == "person"]
    assert answers[0] == {
        "approved": True,
        "by": "bob",
        "verified": True,
        "groups": ["finance", "sales"],
        "earlier": [{"by": "ann", "verified": True, "groups": ["finance"]}],
    }
    assert "k" * 32 not in path.read_text()
    played = await asyncio.to_thread(replay, path, shop(), functions=[weigh])
    assert played.unchanged, played.report
    for message, now in zip(result.messages, played.messages, strict=True):
        assert (message.decision is None) == (now.decision is None)
        if message.decision and now.decision:
            assert message.decision.taken_at(now.decision.at) == now.decision
    refused = await asyncio.to_thread(replay, path, shop(finance="legal"), functions=[weigh])
    assert "the recorded decision is refused: ann may not decide" in refused.differences[0].problem
    endless = await asyncio.to_thread(replay, path, shop(limit=""), functions=[weigh])
    assert "nobody has decided in time, and now there is no limit" in endless.differences[0].problem


def test_an_update_keeps_the_state_from_which_a_fork_has_gone_on(
    baton_environment: EnvironmentFactory, tmp_path: Path
) -> None:
    env = baton_environment(nested(), model=answer)
    run = env.wait(env.start("team/desk", "Weigh parcel 7."))
    env.wait(run.result())
    fork = env.wait(run.fork("2/1/call-1", changes={"last.prompt": "You are the very last."}))
    env.wait(fork.result())
    path = tmp_path / f"fork{SUFFIX}"
    env.wait(env.record(fork, path))
    before = Recording.read(path)
    path.write_text(path.read_text().replace('"answer": "last: done"', '"answer": "old"', 1))
    assert replay(path, nested(), update=True).updated
    after = Recording.read(path)
    assert (after.answer, after.run, after.fork) == (before.answer, before.run, before.fork)
    replayed = replay(path, nested())
    assert replayed.unchanged, replayed.report


def test_a_run_that_fails_with_a_live_model_does_not_replace_its_recording(
    parcel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = parcel.read_text()
    with ScriptedModel(lambda _: Reply(status=401)).serve() as url:
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        run = replay(parcel, clerk("You measure parcels."), models="live", update=True)
    assert "it has failed" in run.report
    assert not run.updated
    assert parcel.read_text() == before


def test_a_retried_run_is_recorded_with_a_failed_call_whose_error_a_model_has_read(
    baton_environment: EnvironmentFactory, tmp_path: Path
) -> None:
    def broken(parcel: str) -> str:
        """Weighs a parcel."""
        raise ValueError("the scale is broken")

    broken.__name__ = "weigh"
    refusals = iter([True])

    def refused_once(request: Request) -> Reply | str:
        refused = bool(request.tool_results) and next(refusals, False)
        return Reply(status=400) if refused else answer(request)

    agent = baton.Agent("clerk", prompt="You weigh parcels.", tools=[broken])
    env = baton_environment(agent, model=refused_once)
    run = env.wait(env.start("agent/clerk", "Weigh parcel 7."))
    with pytest.raises(baton.RunFailed):
        env.wait(run.result())
    env.wait(env.wait(env.retry(run.id)).result())
    path = tmp_path / f"retried{SUFFIX}"
    env.wait(env.record(run, path))
    calls = Recording.read(path).calls
    assert [(call.kind, "error" in call.answer) for call in calls] == [
        ("model", False),
        ("tool", True),
        ("model", False),
    ]
    replayed = replay(path, agent)
    assert replayed.unchanged, replayed.report


def test_a_retried_run_is_recorded_without_the_failures_of_the_models_that_it_has_asked_again(
    baton_environment: EnvironmentFactory, tmp_path: Path
) -> None:
    model: JsonObject = {
        "type": "openai",
        "model": {"value": "m"},
        "config": {"openai": {"baseUrl": {"value": "http://m"}}},
    }
    models = [
        baton.Manifest("Model", "main", {**model, "fallback": {"name": "spare"}}),
        baton.Manifest("Model", "spare", model),
    ]
    agent = baton.Manifest("Agent", "clerk", {"prompt": "You weigh.", "modelRef": {"name": "main"}})
    refusals = iter([True, True])
    env = baton_environment(
        agent, *models, model=lambda _: Reply(status=400) if next(refusals, False) else Reply(text="7 kg")
    )
    run = env.wait(env.start("agent/clerk", "Weigh parcel 7."))
    with pytest.raises(baton.RunFailed):
        env.wait(run.result())
    env.wait(env.wait(env.retry(run.id)).result())
    path = tmp_path / f"retried{SUFFIX}"
    env.wait(env.record(run, path))
    (call,) = Recording.read(path).calls
    assert "error" not in call.answer
    replayed = replay(path, [agent, *models])
    assert replayed.unchanged, replayed.report


def selecting(**selector: Any) -> list[baton.Manifest]:
    """A team with a selector and a budget, and its members."""
    names = ("one", "two", "three")
    spec = {
        "strategy": "selector",
        "selector": selector,
        "maxTurns": 2,
        "onMaxTurns": "complete",
        "budget": {"modelCalls": 50},
        "members": [{"name": name, "type": "agent"} for name in names],
    }
    agents = [baton.Manifest("Agent", name, {"prompt": "You talk."}) for name in names]
    return [baton.Manifest("Team", "desk", spec), *agents]


async def charged(env: baton.testing.Environment) -> list[tuple[Any, ...]]:
    """What the journal of an environment has of calls and of what they have charged."""
    async with env._journal() as journal:
        tables = (schema.charges, schema.accounts, schema.calls)
        return [tuple(row) for table in tables for row in sorted(await journal.database.run(select(table)))]


@pytest.mark.parametrize(
    ("choices", "fails", "purposes"),
    [
        (["nonsense", 400, "two"], False, "choice second-choice! call choice call"),
        (["one", 400], True, "choice call choice!"),
    ],
)
def test_a_selector_that_fails_is_recorded_and_nothing_is_charged_for_that(
    baton_environment: EnvironmentFactory, tmp_path: Path, choices: list[str | int], fails: bool, purposes: str
) -> None:
    answers = iter(choices)

    def talk(request: Request) -> Reply | str:
        if request.agent is not None:
            return "I see."
        choice = next(answers)
        return choice if isinstance(choice, str) else Reply(status=choice)

    env = baton_environment(*selecting(), model=talk)
    run = env.wait(env.start("team/desk", "Talk."))
    with pytest.raises(baton.RunFailed) if fails else contextlib.nullcontext():
        env.wait(run.result())
    before = env.wait(charged(env))
    path = tmp_path / f"desk{SUFFIX}"
    env.wait(env.record(run, path))
    assert env.wait(charged(env)) == before
    calls = Recording.read(path).calls
    assert [f"{call.purpose}{'!' * ('error' in call.answer)}" for call in calls] == purposes.split()
    replayed = replay(path, selecting())
    assert replayed.unchanged, replayed.report


def test_a_call_that_fails_after_its_summaries_is_recorded_with_them(
    baton_environment: EnvironmentFactory, tmp_path: Path
) -> None:
    window = {"maxTokens": 20, "summarize": {"after": 30}}
    agents = [
        baton.Manifest("Agent", name, {"prompt": "You talk.", "contextWindow": window}) for name in ("one", "two")
    ]
    team = baton.Team("desk", strategy="round-robin", members=agents, max_turns=4, on_max_turns="complete")
    summaries: list[Request] = []

    def talk(request: Request) -> Reply | str:
        if request.agent is None:
            summaries.append(request)
            return "They have talked."
        return Reply(status=400) if summaries else f"{request.agent} says: {'word ' * 12}"

    env = baton_environment(team, model=talk)
    run = env.wait(env.start("team/desk", "Talk."))
    with pytest.raises(baton.RunFailed):
        env.wait(run.result())
    path = tmp_path / f"desk{SUFFIX}"
    env.wait(env.record(run, path))
    *_, summary, failed = Recording.read(path).calls
    assert (summary.purpose, "error" in failed.answer) == ("summary/0", True)
    replayed = replay(path, team)
    assert replayed.unchanged, replayed.report


def guess(question: str) -> str:
    """A member of a team that fails."""
    raise ValueError(f"nobody knows: {question}")


@pytest.mark.parametrize("kind", ["agent", "function"])
def test_a_member_without_a_model_that_fails_is_recorded(
    baton_environment: EnvironmentFactory, tmp_path: Path, tool_server: ToolServer, kind: str
) -> None:
    tool_server.answers(Answer(status=400))
    engine = baton.ExecutionEngine("pricing", address=tool_server.url, type="langchain")
    member: MemberInput = (
        guess if kind == "function" else baton.Agent("actuary", prompt="Price it.", execution_engine=engine)
    )
    team = baton.Team("desk", strategy="sequential", members=[clerk(), member])
    env = baton_environment(team, model=answer)
    run = env.wait(env.start("team/desk", "Weigh parcel 7."))
    with pytest.raises(baton.RunFailed):
        env.wait(run.result())
    path = tmp_path / f"desk{SUFFIX}"
    env.wait(env.record(run, path))
    last = Recording.read(path).calls[-1]
    assert (last.kind, "error" in last.answer) == (kind, True)
    replayed = replay(path, team)
    assert replayed.unchanged, replayed.report


def test_what_clients_have_sent_is_sent_during_the_live_calls_that_replace_the_recorded_ones(
    baton_environment: EnvironmentFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def desk(prompt: str, *names: str) -> baton.Team:
        members = [baton.Agent(name, prompt=prompt) for name in names]
        return baton.Team("desk", strategy="sequential", members=members)

    asked, steered = threading.Event(), threading.Event()

    def wait_for_message(request: Request) -> str:
        asked.set()
        steered.wait(60)
        return f"{request.agent}: done"

    env = baton_environment(desk("You talk.", "one", "two"), model=wait_for_message)
    run = env.wait(env.start("team/desk", "Talk."))
    assert asked.wait(60)
    env.wait(run.steer("Be quick.", "bob"))
    steered.set()
    env.wait(run.result())
    path = tmp_path / f"desk{SUFFIX}"
    env.wait(env.record(run, path))
    assert [request.during for request in Recording.read(path).requests] == [1]
    with ScriptedModel(lambda request: f"{request.agent}: live").serve() as url:
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        before = path.read_text()
        other = replay(path, desk("You listen.", "ann", "ben"), models="live", update=True)
        assert other.differences[0].call == "a client's request (steer) during call 1 of the recording"
        assert (other.updated, path.read_text()) == (False, before)
        assert replay(path, desk("You listen.", "one", "two"), models="live", update=True).updated
    assert [request.during for request in Recording.read(path).requests] == [1]
    assert "Be quick." in str(Recording.read(path).calls[1].request["messages"])
    assert replay(path, desk("You listen.", "one", "two")).unchanged


def test_a_live_call_that_is_repeated_after_a_failure_counts_once(
    baton_environment: EnvironmentFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def desk(prompt: str) -> baton.Team:
        agent = baton.Agent("one", prompt=prompt)
        return baton.Team("desk", strategy="round-robin", members=[agent], max_turns=3, on_max_turns="complete")

    asked, steered = threading.Event(), threading.Event()

    def wait_for_message(request: Request) -> str:
        if len(request["messages"]) > 2:  # the second turn
            asked.set()
            steered.wait(60)
        return "done"

    env = baton_environment(desk("You talk."), model=wait_for_message)
    run = env.wait(env.start("team/desk", "Talk."))
    assert asked.wait(60)
    env.wait(run.steer("Be quick.", "bob"))
    steered.set()
    env.wait(run.result())
    path = tmp_path / f"desk{SUFFIX}"
    env.wait(env.record(run, path))
    replies = iter([Reply(status=503, text="busy")])
    with ScriptedModel(lambda _: next(replies, Reply(text="live"))).serve() as url:
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        assert replay(path, desk("You listen."), models="live", update=True).live_calls == 3
    calls = Recording.read(path).calls
    assert ["Be quick." in str(call.request["messages"]) for call in calls] == [False, False, True]


def test_a_run_whose_personal_data_was_redacted_is_replayed_without_the_setting(
    baton_environment: EnvironmentFactory, tmp_path: Path
) -> None:
    patterns = tmp_path / "patterns.yaml"
    patterns.write_text("email: '[a-z]{1,20}@[a-z.]{1,20}'\n")
    agent = clerk(tools=False)
    env = baton_environment(agent, model=lambda _: "Ask bob@example.com.", settings={"BATON_REDACT": str(patterns)})
    run = env.wait(env.start("agent/clerk", "I am ann@example.com."))
    env.wait(run.result())
    path = tmp_path / f"clerk{SUFFIX}"
    env.wait(env.record(run, path))
    assert "example.com" not in path.read_text()
    replayed = replay(path, agent)
    assert replayed.unchanged, replayed.report


@pytest.mark.parametrize("depth", [450, 900])
def test_a_run_with_arguments_that_are_nested_too_deeply_is_not_recorded(
    baton_environment: EnvironmentFactory, tmp_path: Path, depth: int
) -> None:
    deep: Any = 7
    for _ in range(depth):
        deep = [deep]
    call = Reply(calls=[ScriptedToolCall(name="weigh", arguments={"parcel": deep})])

    def weigh(parcel: object) -> str:
        """Weighs a parcel."""
        return "2 kg"

    env = baton_environment(
        baton.Agent("clerk", prompt="You weigh.", tools=[weigh]),
        model=lambda request: "Done." if request.tool_results else call,
    )
    run = env.wait(env.start("agent/clerk", "Weigh."))
    env.wait(run.result())
    with pytest.raises(UsageError, match=r"is nested too deeply"):
        env.wait(env.record(run, tmp_path / f"clerk{SUFFIX}"))
    assert not [*tmp_path.iterdir()]


def test_a_file_with_wrong_values_is_no_recording(tmp_path: Path) -> None:
    decision: JsonObject = {"approved": True, "arguments": '{"parcel": 8}'}
    call = RecordedCall(kind="person", caller="clerk", purpose="approval", request={"tool": "weigh"}, answer=decision)
    path = tmp_path / f"clerk{SUFFIX}"
    recording = Recording(
        run="r", question="q", answer="a", phase="Completed", workflow="query", input={}, calls=(call,)
    )
    recording.write(path)
    written = path.read_text()
    assert Recording.read(path).calls == (call,)
    for arguments in ("{parcel: 8}", "[8]", ""):
        path.write_text(written.replace(json.dumps('{"parcel": 8}'), json.dumps(arguments)))
        with pytest.raises(UsageError, match=r"is not a recording of a run: calls.0: .*the changed arguments"):
            Recording.read(path)
    for depth in (400, 100_000):
        path.write_text(written.replace('"weigh"', "[" * depth + "]" * depth))
        with pytest.raises(UsageError, match=r"is not a recording of a run: it is nested too deeply$"):
            Recording.read(path)


def test_the_nearest_of_many_calls_is_found_in_less_time_than_the_recording_is_read() -> None:
    messages: list[JsonValue] = [{"role": "user", "content": f"{number} {'word ' * 200}"} for number in range(200)]
    calls = [
        RecordedCall(
            kind="model",
            caller="Agent/default/a",
            purpose="call",
            request={"model": "m", "messages": messages[:number]},
            answer={},
        )
        for number in range(1, 201)
    ]
    changed: list[JsonValue] = [{"role": "user", "content": "Why?"}, *messages[1:150]]
    request: JsonObject = {"model": "m", "messages": changed}
    call = OutsideCall(kind="model", caller="Agent/default/a", purpose="call", run="r", request=request)
    began = time.thread_time()  # other threads of the process may be busy
    answers = RecordedAnswers(calls)
    indexed = time.thread_time()
    difference = answers.missing(call, "")
    found = time.thread_time()
    assert (difference.nearest, difference.field) == (150, "messages[0].content")
    assert found - indexed < indexed - began
