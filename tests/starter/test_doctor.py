"""``baton doctor``: its checks are fast, cost nothing, show no secret, and give hints."""

import asyncio
import json
import time
import uuid
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from sqlalchemy import make_url
from temporalio.client import Client

from baton.activities.model.providers import Providers
from baton.activities.runtime.secrets import environment_secrets
from baton.activities.runtime.settings import Settings
from baton.resources.loader import Loaded
from baton.starter.operations import doctor
from baton.starter.operations.prune import prune_journal
from baton.starter.runs.runs import why_not_served
from baton.starter.server.embedded import EmbeddedServer
from baton.temporal import search_attributes
from baton.testing import Reply
from tests.harness import processes
from tests.harness.agent_server import AgentServer
from tests.harness.anthropic_server import AnthropicServer
from tests.harness.bedrock_server import BedrockServer
from tests.harness.environment import KEY, Environment, agent, line, manifest
from tests.harness.postgres import PASSWORD, PostgresServer
from tests.harness.processes import baton, process_env
from tests.harness.remote_agents import a2a_server, engine
from tests.harness.tcp_proxy import TcpProxy
from tests.harness.tool_server import Answer, ToolServer
from tests.harness.user_machine import UserMachine


async def run_doctor(*arguments: str | Path, **env: str) -> tuple[int, dict[str, dict[str, Any]], float]:
    """The exit code, the results by what was checked, and the seconds it took."""
    begun = time.monotonic()
    done = await processes.doctor("-o", "json", *arguments, **env)
    assert KEY not in done.stdout + done.stderr
    assert PASSWORD not in done.stdout + done.stderr
    return done.returncode, {each["what"]: each for each in json.loads(done.stdout)}, time.monotonic() - begun


def model(url: str, key: str) -> dict[str, Any]:
    config = {"openai": {"baseUrl": {"value": url}, "apiKey": {"value": key}}}
    return manifest(
        "Model", "gpt", {"type": "completions", "provider": "openai", "model": {"value": "gpt"}, "config": config}
    )


@pytest.mark.slow
async def test_a_key_that_the_journal_needs_and_the_command_lacks_is_reported(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    files = {name: tmp_path / name for name in ("old", "new")}
    for name, path in files.items():
        await asyncio.to_thread(baton, "encryption-key", name, "-o", path, env=process_env())
    given = {"TEMPORAL_ADDRESS": server.address, "BATON_JOURNAL_URL": f"sqlite:///{tmp_path / 'journal.db'}"}
    (manifests := tmp_path / "one.json").write_text(json.dumps(agent("one")))
    keys = {**given, "BATON_ENCRYPTION_KEYS_FILE": str(files["new"])}
    for command in (["migrate"], ["apply", "-f", manifests]):
        await asyncio.to_thread(baton, *command, env=process_env(**keys))
    _, known, _ = await run_doctor(**keys)
    assert "keys" not in known
    for variables in ({}, {"BATON_ENCRYPTION_KEYS_FILE": str(files["old"])}):
        code, found, _ = await run_doctor(**given, **variables)
        assert code == 1
        assert "'new'" in found["keys"]["text"]
        assert "BATON_ENCRYPTION_KEYS" in found["keys"]["hint"]


@pytest.mark.full
async def test_all_checks_are_ok_if_server_workers_journal_and_models_answer(
    env: Environment, server: EmbeddedServer, postgres: PostgresServer, tmp_path: Path
) -> None:
    (file := tmp_path / "model.json").write_text(json.dumps(model(env.model_url, KEY)))
    given = {"TEMPORAL_ADDRESS": server.address, "BATON_TASK_QUEUE": env.task_queue}
    journal = await postgres.database()
    code, found, seconds = await run_doctor("-f", file, **given, BATON_JOURNAL_URL=journal)
    assert (code, [each for each in found.values() if not each["ok"]]) == (0, [])
    assert {"versions", "server", "retention", "attributes", "workers", "runs", "journal", "model"} <= found.keys()
    assert not env.model.requests, "no model call costs money"
    print(f"it took {seconds:.1f} s")


@pytest.mark.slow
async def test_passwords_among_the_parameters_of_the_journals_address_are_not_shown(
    server: EmbeddedServer, postgres: PostgresServer
) -> None:
    url = make_url(await postgres.database())._replace(password=None)
    parameters = {"password": PASSWORD, "sslpassword": "tls-0123456789", "sslmode": "prefer"}
    journal = url.update_query_dict(parameters).render_as_string(hide_password=False)
    given = {"TEMPORAL_ADDRESS": server.address, "BATON_JOURNAL_URL": journal}
    shown = url.update_query_dict({"sslmode": "prefer"}).render_as_string()
    prepared = [
        await asyncio.to_thread(baton, *command, env=process_env(**given))
        for command in (["migrate"], ["replace-journal", "lost"])
    ]
    for done in (*prepared, await processes.doctor(**given)):
        assert shown in done.stdout + done.stderr
        assert "0123456789" not in done.stdout + done.stderr
    assert {PASSWORD, "tls-0123456789"} <= {*environment_secrets(given)}, "so that they are redacted, too"


@pytest.mark.full
async def test_models_of_each_provider_are_checked(server: EmbeddedServer, tmp_path: Path) -> None:
    claude, aws = AnthropicServer(), BedrockServer()
    with claude.serving(), aws.serving():
        right = {"region": "us-east-1", "accessKeyId": "AKIA0123", "secretAccessKey": KEY}
        anthropic = {"baseUrl": claude.url, "apiKey": KEY}
        models = [
            ("claude", "anthropic", anthropic),
            ("refused", "anthropic", {**anthropic, "apiKey": "wrong-key"}),
            ("nova", "bedrock", {"baseUrl": aws.url, **right}),
        ]
        specs = [(name, {"model": "m", "provider": of, "config": {of: given}}) for name, of, given in models]
        file = tmp_path / "models.yaml"
        file.write_text(yaml.safe_dump_all(manifest("Model", name, spec) for name, spec in specs))
        done = await processes.doctor("-o", "json", "-f", file, TEMPORAL_ADDRESS=server.address)
    found = [(each["ok"], each["text"]) for each in json.loads(done.stdout) if each["what"] == "model"]
    assert found == [
        (True, f"Model/default/claude: {claude.url} answers"),
        (True, "Model/default/nova: m at Bedrock in us-east-1 answers"),
        (False, f"m at {urlsplit(claude.url).netloc} rejected the API key (HTTP 401)"),
    ]
    assert not claude.requests + aws.requests, "no model call costs money"
    assert KEY not in done.stdout + done.stderr


@pytest.mark.full
async def test_each_failed_check_has_a_hint(server: EmbeddedServer, tmp_path: Path) -> None:
    (file := tmp_path / "model.json").write_text(json.dumps(model("http://127.0.0.1:9/v1", KEY)))
    given = {"TEMPORAL_ADDRESS": server.address, "BATON_TASK_QUEUE": "nobody-polls"}
    journal = f"postgresql://baton:{KEY}@127.0.0.1:9/baton"
    code, found, _ = await run_doctor("-f", file, **given, BATON_JOURNAL_URL=journal)
    assert code == 1
    wrong = {what: each["hint"] for what, each in found.items() if not each["ok"]}
    assert wrong.keys() == {"workers", "journal", "model"}
    assert all(wrong.values())


@pytest.mark.slow
async def test_the_other_checks_run_without_a_server(tmp_path: Path) -> None:
    code, found, _ = await run_doctor(BATON_HOME=str(tmp_path / "none"))
    assert (code, found["server"]["ok"], found["journal"]["ok"]) == (1, False, True)
    assert "baton dev" in found["server"]["hint"]
    code, found, _ = await run_doctor(BATON_JOURNAL_URL="postgres//nonsense")
    assert "is not the address of a database" in found["journal"]["text"]
    code, found, _ = await run_doctor(BATON_MAX_CONCURRENT_ACTIVITIES="many")
    assert (code, found["settings"]["text"][:31]) == (1, "BATON_MAX_CONCURRENT_ACTIVITIES")


@pytest.mark.slow
async def test_a_run_whose_model_keeps_failing_is_reported_with_the_reason(
    env: Environment, server: EmbeddedServer
) -> None:
    env.answer = lambda _: Reply(status=503, text=f"overloaded, {KEY}")
    handle = await env.start("agent", {"agent": "one", "input": "?", "resources": [agent("one")]})
    await env.wait_for_calls(4)
    found: dict[str, dict[str, Any]] = {}
    while "run" not in found:  # between two calls, no call is stuck
        code, found, _ = await run_doctor(TEMPORAL_ADDRESS=server.address, BATON_TASK_QUEUE=env.task_queue)
    await handle.cancel()
    assert (code, found["run"]["ok"]) == (1, False)
    assert handle.id in found["run"]["text"]
    assert "HTTP 503: overloaded" in found["run"]["text"]
    assert handle.id in found["run"]["hint"]


async def test_runs_that_can_not_be_listed_are_not_said_to_be_all_right(server: EmbeddedServer) -> None:
    client = await Client.connect(server.address, namespace="of-nobody")
    (result,) = await doctor.collect("runs", doctor.runs(client, Settings.of({})), "look there")
    assert (result.what, result.ok, result.hint) == ("runs", False, "look there")
    assert "of-nobody" in result.text


@pytest.mark.full
async def test_doctor_says_that_it_has_looked_at_the_newest_runs_alone(client: Client) -> None:
    queue = f"doctor-{uuid.uuid4().hex}"
    settings = Settings.of({"BATON_TASK_QUEUE": queue})
    assert [each.text async for each in doctor.runs(client, settings)] == ["no run is stuck"]
    begun = [client.start_workflow("agent", id=f"{queue}-{each}", task_queue=queue) for each in range(doctor.MAX_RUNS)]
    handles = await asyncio.gather(*begun)
    while (await client.count_workflows(f"TaskQueue = '{queue}'")).count < len(handles):
        await asyncio.sleep(0.1)
    shown = [each.text async for each in doctor.runs(client, settings)]
    await asyncio.gather(*(handle.terminate() for handle in handles))
    assert shown == ["none of the newest 100 open runs is stuck"]


async def test_an_empty_variable_names_no_server_of_models() -> None:
    assert await doctor.models(Loaded(), {"OPENAI_API_KEY": "", "OPENAI_BASE_URL": ""}, Providers(())) == []


async def test_another_service_at_the_port_of_health_checks_has_no_circuit_breakers(tool_server: ToolServer) -> None:
    settings = Settings.of({"BATON_HEALTH_PORT": tool_server.host.rpartition(":")[2]})
    breaker = Answer('{"Model/default/gpt": "half open"}')
    others = [Answer('{"detail": "Not Found"}', status=404), Answer('["a"]'), Answer('{"a": {"b": 1}}')]
    tool_server.answers(breaker, *others)
    (shown,) = [each async for each in doctor.open_circuits(settings)]
    assert shown.text == "the circuit breaker of Model/default/gpt is half open"
    for _ in others:
        assert [each async for each in doctor.open_circuits(settings)] == []
    assert [seen.path for seen in tool_server.seen] == ["/circuits"] * 4


async def test_a_short_loss_of_the_connection_fails_no_check(
    env: Environment, server: EmbeddedServer, tmp_path: Path
) -> None:
    while await why_not_served(env.client, env.task_queue):  # the worker has not polled yet
        await asyncio.sleep(0.02)
    async with TcpProxy(server.port) as proxy:
        client = await Client.connect(proxy.address)

        async def server_is_ok() -> bool:
            return all([each.ok async for each in doctor.server(client)])

        async def nothing_is_pruned() -> bool:
            url = f"sqlite:///{tmp_path / 'journal.db'}"
            return not (await prune_journal(client, url, None, dry=True)).conversations

        async def runs_are_served() -> bool:
            return await why_not_served(client, env.task_queue) is None

        for look in (
            server_is_ok,
            nothing_is_pruned,
            runs_are_served,
            lambda: search_attributes.registered(client),
        ):
            cutting = asyncio.create_task(proxy.cut(0.2))
            await asyncio.sleep(0)
            assert await look(), look
            await cutting


@pytest.mark.slow
def test_the_variables_of_the_running_worker_are_compared_without_their_values(machine: UserMachine) -> None:
    machine.script(line("one", "hello"))
    machine.run("run", "-f", machine.write(agent("one")), "agent/one", "Why?")
    same = machine.run("doctor").stdout
    assert "ok     variables   the local worker has OPENAI_API_KEY and OPENAI_BASE_URL\n" in same
    other = machine.run("doctor", OPENAI_API_KEY="sk-another-key-of-mine")
    assert other.returncode == 1
    assert "WRONG  variables" in other.stdout
    assert "; OPENAI_API_KEY differs from the environment of this command" in other.stdout
    assert "another-key" not in other.stdout


@pytest.mark.slow
async def test_agents_that_are_executed_elsewhere_are_checked_without_an_execution(
    server: EmbeddedServer, tool_server: ToolServer, tmp_path: Path
) -> None:
    agents = AgentServer()
    with agents.serving():
        (file := tmp_path / "far.json").write_text(json.dumps(a2a_server(agents)))
        _, found, _ = await run_doctor("-f", file, TEMPORAL_ADDRESS=server.address, BATON_HOME=str(tmp_path))
    text = "A2AServer/default/far: Oracle, by A2A 1.0 and JSONRPC; skills: Knowing"
    assert (found["agents"]["ok"], found["agents"]["text"]) == (True, text)
    assert agents.turns == []
    (file := tmp_path / "engine.json").write_text(json.dumps(engine(tool_server)))
    _, found, _ = await run_doctor("-f", file, TEMPORAL_ADDRESS=server.address, BATON_HOME=str(tmp_path))
    assert (found["agents"]["ok"], [seen.method for seen in tool_server.seen]) == (True, ["GET"])
