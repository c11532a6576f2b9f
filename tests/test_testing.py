"""``baton.testing``: what it offers to those who test teams of their own."""

import asyncio
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator
from temporalio.client import Client
from temporalio.service import RPCError

import baton
import baton.testing
from baton.starter.server.embedded import EmbeddedServer
from baton.testing import Environment, Reply, Request, Script, ScriptedToolCall, ScriptedUsage, ScriptLine
from baton.testing.pytest import EnvironmentFactory, baton_environment, baton_server
from tests.harness.processes import ROOT, USERS_PYTEST

__all__ = ["baton_environment", "baton_server"]

WRITER = baton.Agent("writer", prompt="You write.")
EDITOR = baton.Agent("editor", prompt="You edit.")
TEAM = baton.Team("review", strategy="sequential", members=[WRITER, EDITOR])


def modelled(name: str, spec: Mapping[str, object]) -> list[baton.Manifest]:
    """An agent and its Model."""
    agent = {"prompt": f"You are {name}.", "modelRef": {"name": "remote"}}
    return [baton.Manifest("Agent", name, agent), baton.Manifest("Model", "remote", spec)]


def pytest_in(folder: Path) -> str:
    """Runs pytest in a folder outside of the repository, as a user does, and returns what it prints."""
    command = [*USERS_PYTEST, "-W", "error"]
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "BATON_"))}
    done = subprocess.run(
        [*command, str(folder)], cwd=folder, env=variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def write_snippets(page: Path, folder: Path) -> None:
    """Writes the snippets of a page that begin with the name of a file."""
    for snippet in re.findall(r"```(?:python|yaml)\n(.*?)```", page.read_text(), re.DOTALL):
        name = snippet.partition("\n")[0].removeprefix("# ")
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(snippet)


@pytest.mark.slow
def test_the_snippets_of_the_page_are_a_users_tests_which_pass(tmp_path: Path) -> None:
    write_snippets(ROOT / "docs" / "testing.md", tmp_path)
    assert " 7 passed" in pytest_in(tmp_path)


@pytest.mark.slow
def test_the_program_of_the_page_prints_the_answer(tmp_path: Path) -> None:
    write_snippets(ROOT / "docs" / "testing.md", tmp_path)
    done = subprocess.run(
        [sys.executable, "-P", "program.py"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout == "A draft. 2\n"


@pytest.mark.slow
def test_the_tests_of_the_sample_pass_in_another_folder(tmp_path: Path) -> None:
    folder = tmp_path / "refunds"
    shutil.copytree(ROOT / "samples" / "testing", folder, ignore=shutil.ignore_patterns("__pycache__"))
    assert " 5 passed" in pytest_in(folder)


def test_snippets_and_samples_import_public_names_alone() -> None:
    texts = [(ROOT / "docs" / "testing.md").read_text(), (ROOT / "samples" / "testing" / "test_refund.py").read_text()]
    for text in texts:
        imported = re.findall(r"^(?:from|import) (baton[\w.]*)", text, re.MULTILINE)
        assert {*imported} <= {"baton", "baton.testing", "baton.testing.pytest"}


async def test_a_team_in_python_runs_to_its_end(baton_environment: EnvironmentFactory) -> None:
    env = baton_environment(TEAM, model={"writer": ["A long draft."], "editor": ["A draft."]})
    assert (await env.run("team/review", "Why?")).message == "A draft."


async def test_a_definition_that_the_environment_does_not_have_runs(baton_environment: EnvironmentFactory) -> None:
    env = baton_environment(model={"writer": ["A long draft."], "editor": ["A draft."]})
    assert (await env.run(TEAM, "Why?")).message == "A draft."


async def test_a_definition_with_functions_runs_with_the_scripted_model(baton_environment: EnvironmentFactory) -> None:
    def weigh(parcel: str) -> str:
        """Weighs a parcel."""
        return f"{parcel} weighs 2 kg"

    def answer(request: Request) -> Reply | str:
        if request.tool_results:
            return request.tool_results[0]
        return Reply(calls=[ScriptedToolCall(name=request.tools[0], arguments={"parcel": request.text})])

    env = baton_environment(model=answer)
    clerk = baton.Agent("clerk", prompt="You weigh.", tools=[weigh])
    assert "P7 weighs 2 kg" in (await env.run(clerk, "P7")).message


@pytest.mark.full
async def test_an_environment_starts_a_server_if_it_has_none() -> None:
    async with baton.testing.environment(TEAM, model=lambda request: request.agent or "") as env:
        assert (await env.run("team/review", "Why?")).message == "editor"


async def test_an_environment_uses_the_client_of_an_application(client: Client) -> None:
    own = await Client.connect(client.service_client.config.target_host)
    async with baton.testing.environment(WRITER, model={"writer": ["Because."]}, server=own) as env:
        assert (await env.run("agent/writer", "Why?")).message == "Because."


@pytest.fixture
def foreign_settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Variables of a developer's machine, which would make a run call another model, or fail."""
    for name in ("OPENAI_BASE_URL", "BATON_JOURNAL_URL", "BATON_SCRIPTED_MODEL_URL"):
        monkeypatch.setenv(name, "http://127.0.0.1:9/v1")
    monkeypatch.setenv("BATON_ROLES", "tools")
    yield


@pytest.mark.usefixtures("foreign_settings")
async def test_settings_and_keys_of_the_process_have_no_effect(baton_environment: EnvironmentFactory) -> None:
    env = baton_environment(WRITER, model={"writer": ["Because."]})
    assert (await env.run("agent/writer", "Why?")).message == "Because."


@pytest.mark.parametrize("provider", ["openai", "azure", "gemini", "anthropic", "bedrock"])
async def test_models_of_all_providers_are_replaced_and_need_no_key(
    baton_environment: EnvironmentFactory, provider: str
) -> None:
    key = {"valueFrom": {"secretKeyRef": {"name": "absent", "key": "key"}}}
    connection = {"region": "eu-west-1"} if provider == "bedrock" else {"apiKey": key, "baseUrl": "http://127.0.0.1:9"}
    spec = {"type": "completions", "provider": provider, "model": {"value": "m-1"}, "config": {provider: connection}}
    env = baton_environment(*modelled("writer", spec), model={"writer": ["Because."]})
    result = await env.run("agent/writer", "Why?")
    assert result.message == "Because."
    assert env.model.requests[0].body.model == "m-1"


async def failure_of(env: Environment) -> str:
    with pytest.raises(baton.RunFailed) as failed:
        await env.run("agent/writer", "Why?", timeout="60s")
    return str(failed.value)


async def test_a_request_that_nobody_expected_fails_the_run_and_says_who_has_asked_what(
    baton_environment: EnvironmentFactory,
) -> None:
    env = baton_environment(WRITER, EDITOR, model={"editor": ["A draft."]})
    told = await failure_of(env)
    assert "unexpected request of agent 'writer' to default (there are replies of editor): 'Why?'" in told


async def test_an_environment_without_a_model_fails_each_run_that_asks_one(
    baton_environment: EnvironmentFactory,
) -> None:
    assert "the environment has no model" in await failure_of(baton_environment(WRITER))


async def test_a_mistake_in_a_function_that_answers_fails_the_run(baton_environment: EnvironmentFactory) -> None:
    def broken(request: Request) -> str:
        raise LookupError(f"no answer for {request.agent}")

    told = await failure_of(baton_environment(WRITER, model=broken))
    assert "LookupError('no answer for writer')" in told


async def test_a_wrong_reply_of_a_function_fails_the_run(baton_environment: EnvironmentFactory) -> None:
    told = await failure_of(baton_environment(WRITER, model=lambda _: 7))  # type: ignore[arg-type]
    assert "returned 7, which is not a reply" in told


async def test_a_target_that_the_environment_does_not_have_is_refused(baton_environment: EnvironmentFactory) -> None:
    env = baton_environment(WRITER)
    with pytest.raises(baton.ManifestError, match="Agent default/editor is neither in the files nor on the workers"):
        await env.run("agent/editor", "Why?")
    with pytest.raises(TypeError, match="target is 'writer', must be a name such as 'team/NAME'"):
        await env.run("writer", "Why?")


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (Reply(status=400, text="too many pictures"), "too many pictures"),
        (Reply(status=429, code="insufficient_quota", text="nothing left"), "nothing left"),
        (Reply(text="I", stop="content_filter"), "filter"),
        (Reply(text="I", stop="content_filter: RECITATION"), "filter"),
        (Reply(text="I", stop="function_call_filter: MALFORMED_FUNCTION_CALL"), "incomplete"),
        (Reply(hang=True), "time"),
    ],
    ids=["status", "code", "filtered", "filtered-with-a-detail", "malformed", "hang"],
)
async def test_faults_fail_a_run(baton_environment: EnvironmentFactory, fault: Reply, told: str) -> None:
    spec = {"type": "completions", "provider": "openai", "model": {"value": "m"}, "timeout": "1s"}
    once = {"retryPolicy": {"maximumAttempts": 1}, "config": {"openai": {"baseUrl": "http://h"}}}
    env = baton_environment(*modelled("writer", {**spec, **once}), model={"writer": [fault]})
    with pytest.raises(baton.RunFailed, match=told):
        await env.run("agent/writer", "Why?", timeout="3s" if fault.hang else "60s")


@pytest.mark.parametrize(
    "fault",
    [
        Reply(status=503),
        Reply(status=429, headers={"retry-after": "0"}),
        Reply(text="The sea", cut=3),
        Reply(text="The sea", cut=3, code="server_error"),
        Reply(raw="{"),
    ],
    ids=["503", "429", "cut", "cut-with-error", "raw"],
)
async def test_a_call_is_repeated_after_a_fault(baton_environment: EnvironmentFactory, fault: Reply) -> None:
    env = baton_environment(WRITER, model={"writer": [Reply(text="Salt.", before=[fault])]})
    assert (await env.run("agent/writer", "Why?")).message == "Salt."
    assert len(env.model.requests) == 2


async def test_an_answer_can_have_its_token_usage(baton_environment: EnvironmentFactory) -> None:
    usage = ScriptedUsage(prompt=1_000, completion=20, cached=900)
    env = baton_environment(WRITER, model={"writer": [Reply(text="Salt.", usage=usage)]})
    used = (await env.run("agent/writer", "Why?")).usage
    assert (used.prompt_tokens, used.completion_tokens, used.cached_tokens) == (1_000, 20, 900)


async def test_a_script_tells_agents_with_the_same_prompt_apart(baton_environment: EnvironmentFactory) -> None:
    twins = [baton.Agent(name, prompt="You answer.") for name in ("left", "right")]
    script = Script(lines=[ScriptLine(agent="right", say=["right"]), ScriptLine(agent="left", say=["left"])])
    env = baton_environment(*twins, model=script)
    assert [(await env.run(f"agent/{name}", "Who?")).message for name in ("left", "right")] == ["left", "right"]


TIMED = baton.Manifest(
    "Tool",
    "order",
    {
        "type": "function",
        "function": {"name": "order"},
        "inputSchema": {"type": "object", "properties": {"desks": {"type": "integer"}}},
        "approval": {"timeout": "24h"},
    },
)
BUYER = baton.Agent("buyer", prompt="You buy.", tools=[TIMED])
DESK = baton.Team("desk", strategy="sequential", members=[BUYER])
ORDERS: dict[str, list[str | Reply]] = {
    "buyer": [Reply(calls=[ScriptedToolCall(name="order", arguments={"desks": 2})]), "Done."]
}


def order(desks: int) -> str:
    """Orders desks."""
    return f"{desks} desks"


async def test_an_approval_can_be_given_after_half_of_its_time(baton_environment: EnvironmentFactory) -> None:
    env = baton_environment(DESK, model=ORDERS, functions=[order])
    run = await env.start("team/desk", "Buy.")
    await env.pending_decision(run)
    await env.skip_time(run, timedelta(hours=12))
    await run.approve((await env.pending_decision(run)).id)
    await run.result()
    assert "2 desks" in json.dumps(env.model.requests[-1].body)


async def test_an_approval_expires_after_its_time(baton_environment: EnvironmentFactory) -> None:
    env = baton_environment(DESK, model=ORDERS, functions=[order])
    run = await env.start("team/desk", "Buy.")
    await env.pending_decision(run)
    for _ in range(2):
        await env.skip_time(run, timedelta(hours=12))
    await run.result()
    assert "not approved in time" in json.dumps(env.model.requests[-1].body)


async def test_a_server_without_time_skipping_says_so(server: EmbeddedServer) -> None:
    async with baton.testing.environment(DESK, model=ORDERS, functions=[order], server=server.address) as env:
        run = await env.start("team/desk", "Buy.")
        await env.pending_decision(run)
        with pytest.raises(RPCError, match=r"(?i)time.?skipping"):
            await env.skip_time(run, timedelta(hours=24))
        await run.cancel()


async def test_whoever_waits_for_a_decision_learns_that_the_run_has_ended(
    baton_environment: EnvironmentFactory,
) -> None:
    env = baton_environment(WRITER, model={"writer": ["Salt."]})
    run = await env.start("agent/writer", "Why?")
    with pytest.raises(RuntimeError, match="has ended, and waits for nobody"):
        await asyncio.wait_for(env.pending_decision(run), 60)


async def test_an_environment_ends_at_once_while_a_model_hangs(baton_server: str) -> None:
    async with baton.testing.environment(WRITER, model={"writer": [Reply(hang=True)]}, server=baton_server) as env:
        await env.start("agent/writer", "Why?")
        while not env.model.requests:
            await asyncio.sleep(0.02)
        before = time.monotonic()
    assert time.monotonic() - before < 8, "the grace period of a worker in production is 10 s"


def test_the_schema_of_scripts_is_current_and_accepts_all_scripts_of_the_samples() -> None:
    schema = json.loads((ROOT / "script.schema.json").read_text())
    assert schema == Script.model_json_schema(), "write it anew with: make schema"
    for file in (ROOT / "samples" / "scripts").glob("*.yaml"):
        Draft202012Validator(schema).validate(yaml.safe_load(file.read_text()))
    assert not Draft202012Validator(schema).is_valid({"lines": [{"agent": "writer", "says": ["x"]}]})


async def test_a_held_reply_is_sent_once_the_test_releases_it(baton_server: str) -> None:
    model = {"writer": [Reply(text="The sea is salty.", held=True)]}
    async with baton.testing.environment(WRITER, model=model, server=baton_server) as env:
        run = await env.start("agent/writer", "Why?", timeout="1m")
        while not env.model.requests:
            await asyncio.sleep(0.02)
        await run.steer("Be brief.")
        assert not env.model.requests[0].answered
        env.model.release()
        assert (await run.result()).message == "The sea is salty."


def test_a_scripted_model_logs_nothing_when_a_client_is_killed_while_it_sends_a_request(
    capfd: pytest.CaptureFixture[str],
) -> None:
    model = baton.testing.ScriptedModel(lambda _: "hello")
    with model.serve() as url:
        host, port = url.removeprefix("http://").removesuffix("/v1").split(":")
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(1_000):
                continue
    assert (model.requests, capfd.readouterr().err) == ([], "")
