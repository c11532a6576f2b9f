"""What a run gives a Python program: a typed value, messages, cost; targets from files and by name."""

import inspect
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml
from pydantic import BaseModel, ValidationError

import baton
from baton.resources.loader import load_files
from baton.starter.server.embedded import EmbeddedServer
from tests.harness.agent_server import AgentServer, Turn
from tests.harness.environment import Environment, Json, agent, call, line, manifest, team
from tests.harness.mcp_process import command
from tests.harness.remote_agents import said
from tests.harness.tool_server import ToolServer


class Verdict(BaseModel):
    """What a judge answers."""

    approved: bool


YES = '{"approved": true}'
WRITER = baton.Agent("writer", prompt="You are writer.")
JUDGE = baton.Agent("judge", prompt="You are judge.", output_schema=Verdict)


@pytest_asyncio.fixture(loop_scope="session")
async def temporal(
    env: Environment, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[baton.Connection]:
    """A connection of a program to the session's server."""
    for name, value in env.worker_env.items():
        monkeypatch.setenv(name, value)
    async with baton.connect(server.address, task_queue=env.task_queue) as connection:
        yield connection


async def test_the_value_of_an_agent_with_a_model_as_its_schema_is_an_instance(
    env: Environment, temporal: baton.Connection
) -> None:
    env.script(line("judge", YES))
    result = await temporal.run(JUDGE, "Fine?")
    assert result.value.approved
    assert (result.message, [message.name for message in result.messages]) == (YES, ["judge"])
    assert result.cost is None
    assert repr(result).startswith(f"Result(id='{result.id}', message='{{\"approved\": true}}', tokens=")


@pytest.mark.parametrize("kind", ["last", "named", "nested", "aggregator"])
async def test_the_value_of_a_team_is_that_of_the_agent_with_which_it_ends(
    env: Environment, temporal: baton.Connection, kind: str
) -> None:
    env.script(line("writer", "A draft."), line("judge", YES))
    last = baton.Team("inner", strategy="sequential", members=[JUDGE]) if kind == "nested" else JUDGE
    members = [WRITER, {"name": "final", "speaker": last} if kind == "named" else last]
    review: baton.Team[Verdict] = baton.Team("review", strategy="sequential", members=members)
    if kind == "aggregator":
        review = baton.Team("review", strategy="parallel", members=[WRITER], aggregator=JUDGE)
    assert (await temporal.run(review, "Fine?")).value == Verdict(approved=True)


async def test_an_attached_run_has_a_value_of_the_given_type(env: Environment, temporal: baton.Connection) -> None:
    env.script(line("writer", YES))
    handle = await temporal.start(WRITER, "Fine?")
    assert (await handle.result()).value == YES
    assert repr(handle) == f"Handle(id='{handle.id}')"
    attached = await temporal.attach(handle.id, output_type=Verdict)
    assert (await attached.result()).value.approved
    wrong = await temporal.attach(handle.id, output_type=list[int])
    with pytest.raises(ValidationError):
        await wrong.result()


async def test_a_run_that_a_condition_ends_before_the_typed_answer_has_no_value(
    env: Environment, temporal: baton.Connection
) -> None:
    env.script(line("writer", "A draft."), line("judge", YES))
    review: baton.Team[Verdict] = baton.Team(
        "review", strategy="sequential", members=[WRITER, JUDGE], terminate_when="turn == 1"
    )
    result = await temporal.run(review, "Fine?")
    assert result.message == "A draft."
    with pytest.raises(baton.NoValueError, match=r"ended early \(condition\), without an answer of the type Verdict"):
        _ = result.value


@pytest.mark.parametrize("kind", ["model", "schema"])
async def test_an_answer_that_is_too_long_for_the_status_has_a_result_whose_value_says_so(
    env: Environment, temporal: baton.Connection, kind: str
) -> None:
    env.script(line("judge", f'{{"approved": true, "why": "{"x" * 70_000}"}}'))
    judge: baton.Agent[Any] = {
        "model": JUDGE,
        "schema": baton.Agent("judge", prompt="You are judge.", output_schema={"type": "object"}),
    }[kind]
    result = await temporal.run(judge, "Fine?")
    assert "xxx… [truncated: 70," in result.message
    assert result.usage.model_calls == 1
    with pytest.raises(baton.NoValueError, match=r"the answer has 70,\d+ characters, of which the status has"):
        _ = result.value


async def test_run_sync_is_refused_where_an_event_loop_runs() -> None:
    with pytest.raises(RuntimeError, match=r"use `await baton.run\(…\)` instead"):
        baton.run_sync(WRITER, "Why?")


def written(folder: Path, *manifests: Json) -> Path:
    file = folder / "team.yaml"
    file.write_text(yaml.safe_dump_all(manifests))
    return file


REVIEW = team("review", "writer", "editor", strategy="sequential")


@pytest.mark.full
async def test_targets_and_members_come_from_files(
    env: Environment, temporal: baton.Connection, tmp_path: Path
) -> None:
    files = baton.load(written(tmp_path, agent("writer"), agent("editor"), REVIEW))
    assert [*files] == ["agent/editor", "agent/writer", "team/review"] == sorted(files)
    env.script(line("writer", "A draft."), line("editor", "Shorter."), line("judge", YES))
    assert (await temporal.run(files["team/review"], "Why?")).value == "Shorter."
    panel: baton.Team[Verdict] = baton.Team("all", strategy="sequential", members=[files["team/review"], JUDGE])
    result = await temporal.run(panel, "Why?")
    assert result.value.approved
    assert [message.name for message in result.messages] == ["writer", "editor", "judge"]
    with pytest.raises(KeyError, match="the files have no 'team/nosuch'; they have: "):
        files["team/nosuch"]


async def test_a_secret_of_a_file_is_used_by_the_program(
    env: Environment, temporal: baton.Connection, tmp_path: Path
) -> None:
    key = {"valueFrom": {"secretKeyRef": {"name": "keys", "key": "token"}}}
    model = manifest("Model", "own", {"model": {"value": "gpt"}, "config": {"openai": {"apiKey": key}}})
    model["spec"]["type"] = "openai"
    model["spec"]["config"]["openai"]["baseUrl"] = {"value": env.model_url}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys"}, "stringData": {"token": "sk-file"}}
    files = baton.load(written(tmp_path, secret, model, agent("writer", modelRef={"name": "own"})))
    env.script(line("writer", "A draft."))
    assert (await temporal.run(files["agent/writer"], "Why?")).message == "A draft."  # no worker has the Secret


def test_mistakes_in_a_file_are_reported_with_their_lines(tmp_path: Path) -> None:
    with pytest.raises(baton.ManifestError, match=r"team.yaml:\d+: Team/default/review: spec.strategy: 'nosuch'"):
        baton.load(written(tmp_path, team("review", "writer", strategy="nosuch")))
    with pytest.raises(baton.ManifestError, match="No such file"):
        baton.load(tmp_path / "nosuch.yaml")


@pytest.mark.full
async def test_members_that_only_workers_know_are_named_with_their_kinds(
    env: Environment, temporal: baton.Connection, tmp_path: Path
) -> None:
    both: baton.Team[Verdict] = baton.Team("both", strategy="sequential", members=["team/review", JUDGE])
    assert both.manifest["spec"]["members"][0] == {"name": "review", "type": "team"}  # type: ignore[index,call-overload]  # JSON
    loaded = load_files([written(tmp_path, agent("writer"), agent("editor"), REVIEW)])
    async with (
        Environment.running(env.client, tmp_path, loaded) as other,
        baton.connect(client=env.client, task_queue=other.task_queue) as connection,
    ):
        other.script(line("writer", "A draft."), line("editor", "Shorter."), line("judge", YES))
        assert (await connection.run(both, "Why?")).value.approved
        assert (await connection.run("team/review", "Why?")).message == "Shorter."
    with pytest.raises(baton.ManifestError, match="Agent or Team default/writter is not in the files"):
        await temporal.run(baton.Team("typo", strategy="sequential", members=["writter"]), "Why?")


def test_only_names_with_a_kind_are_those_of_workers() -> None:
    prompt = "Choose agent/a, or model/b."
    chosen: baton.Team[str] = baton.Team(
        "chosen",
        strategy="selector",
        members=["agent/a", "b"],
        max_turns=2,
        selector={"agent": "agent/chief", "selector_prompt": prompt, "enable_terminate_tool": True},
    )
    assert "'selectorPrompt': 'Choose agent/a, or model/b.'" in str(chosen.manifest)
    assert "{'agent': 'chief'," in str(chosen.manifest)
    with pytest.raises(baton.ManifestError, match=r"spec\.model\.name: is not a name"):
        baton.Team("p", strategy="round-robin", members=[baton.Member("a", role="x")], model="vendor/model")


def test_signatures_show_every_option() -> None:
    for constructor, option in (
        (baton.Agent, "temperature"),
        (baton.Team, "max_turns"),
        (baton.round_robin, "referee"),
        (baton.Schedule, "time_zone"),
        (baton.Model, "temperature"),
        (baton.run, "budget"),
        (baton.run_sync, "budget"),
        (baton.Connection.start, "conversation"),
    ):
        parameters = inspect.signature(constructor).parameters
        assert option in parameters
        assert not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()), constructor
    assert repr([JUDGE, baton.load]) != ""
    assert repr(JUDGE) == "Agent('judge')"


@pytest.mark.full
async def test_a_program_starts_its_own_mcp_server(
    env: Environment, temporal: baton.Connection, tmp_path: Path
) -> None:
    program, *arguments = command("stdio", tmp_path)
    server = baton.MCPServer("files", command=program, args=arguments)
    clerk = baton.Agent("clerk", prompt="You are clerk.", tools=[server.tool("echo"), server.tool("add_*")])
    env.script(line("clerk", call("files-echo", message="Hi."), call("files-add-up", a=40, b=2), "Done."))
    result = await temporal.run(clerk, "Why?")
    assert [message.content for message in result.messages if message.role == "tool"] == ["Hi.", '{\n  "sum": 42\n}']


async def test_agents_of_servers_are_defined_in_python(
    env: Environment, temporal: baton.Connection, tool_server: ToolServer
) -> None:
    async def answer(turn: Turn) -> None:
        await turn.reply("Booked.")

    agents = AgentServer()
    agents.behaviour = answer
    tool_server.answers(said("A premium of 7."))
    with agents.serving():
        far = baton.A2AServer("far", address=agents.url, headers={"X-Tenant": "acme"}, annotations={"owner": "travel"})
        booking = baton.Agent("booking", a2a_server=far, description="Books trips.")
        engine = baton.ExecutionEngine("engine", address=f"{tool_server.url}/v1", type="langchain", idempotent=True)
        actuary = baton.Agent("actuary", prompt="You price risks.", execution_engine=engine)
        trip: baton.Team[str] = baton.Team("trip", strategy="sequential", members=[booking, actuary])
        result = await temporal.run(trip, "To Oslo?")
    assert [message.content for message in result.messages] == ["Booked.", "A premium of 7."]
    assert far.manifest["metadata"] == {"name": "far", "namespace": "default", "annotations": {"owner": "travel"}}
