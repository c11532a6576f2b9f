"""Tests of a worker's settings: wrong variables are named; task queues, rates and the health check work."""

import asyncio
import contextlib
import json
import os
import sqlite3
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path

import httpx
import psutil  # type: ignore[import-untyped]
import pytest
from pydantic import BaseModel
from temporalio.client import Client

from baton import worker
from baton.activities.runtime.health import LONGEST_CONNECTION, serve_health
from baton.activities.runtime.secrets import SecretStore
from baton.activities.runtime.settings import Settings
from baton.contracts.settings import SettingsError, check_private_names
from baton.contracts.turn import TurnResult
from baton.resources.loader import Loaded
from baton.resources.secret import Secrets
from baton.starter.gateway.settings import GatewaySettings
from baton.temporal.client import WORKFLOW_TASK_TIMEOUT, connect
from baton.testing import Reply
from tests.harness.environment import Environment, agent, call, line, manifest, team
from tests.harness.ports import own_port

WRONG = {
    "BATON_ROLES=models": "BATON_ROLES: this worker polls the task queue of workflows without that role",
    "BATON_ROLES=models,cooks": "BATON_ROLES: 1: Input should be 'workflows', 'models' or 'tools'",
    "BATON_MAX_CONCURRENT_ACTIVITIES=many": "BATON_MAX_CONCURRENT_ACTIVITIES: Input should be a valid integer",
    "BATON_MAX_CONCURRENT_ACTIVITIES=0": "BATON_MAX_CONCURRENT_ACTIVITIES: Input should be greater than 0",
    "BATON_MODEL_RATES=gpt-4": "BATON_MODEL_RATES: write NAME=NUMBER",
    "BATON_MODEL_RATES=gpt-4=1,gpt-4=2": "BATON_MODEL_RATES: write NAME=NUMBER",
    "BATON_MODEL_RATES=gpt-4=0": "BATON_MODEL_RATES: gpt-4: Input should be greater than 0",
    "BATON_GRACEFUL_SHUTDOWN=1e30": "BATON_GRACEFUL_SHUTDOWN: Input should be less than or equal to 86400",
    "BATON_QUERY_TTL=30d": "BATON_QUERY_TTL: is not a duration: write '300s', '5m' or '1h30m'",
    "BATON_RETENTION=support": "BATON_RETENTION: write NAMESPACE=AGE",
    "BATON_RETENTION=support=long": "BATON_RETENTION: write NAMESPACE=AGE",
    "BATON_METRICS_ADDRESS=9464": "BATON_METRICS_ADDRESS: write HOST:PORT, such as 127.0.0.1:9464",
    "BATON_METRICS_ADDRESS=127.0.0.1:70000": "BATON_METRICS_ADDRESS: write HOST:PORT",
    "BATON_HEALTH_PORT=70000": "BATON_HEALTH_PORT: Input should be less than or equal to 65535",
    "BATON_BUILD_ID=v1": "BATON_DEPLOYMENT and BATON_BUILD_ID: set both or neither",
}


@pytest.mark.parametrize("setting", WRONG)
def test_a_wrong_setting_is_refused_with_the_name_of_its_variable(setting: str) -> None:
    name, _, value = setting.partition("=")
    with pytest.raises(SettingsError) as refused:
        Settings.of({name: value})
    assert str(refused.value).startswith(WRONG[setting])


def test_the_retention_has_an_age_for_each_namespace() -> None:
    retention = Settings.of({"BATON_RETENTION": "support=7d,*=36h"}).retention
    assert retention == {"support": timedelta(days=7), "*": timedelta(hours=36)}


def test_empty_variables_and_those_of_others_are_ignored() -> None:
    assert Settings.of(
        {"BATON_MAX_CONCURRENT_ACTIVITIES": "", "BATON_OF_TOMORROW": "x", "PATH": "/bin"}
    ) == Settings.of({})


def test_by_default_there_is_one_task_queue_and_no_other_is_named_in_histories() -> None:
    settings = Settings.of({})
    [queue] = settings.worker_queues()
    assert (queue.name, sorted(queue.roles)) == ("baton", ["models", "tools", "workflows"])
    assert not settings.activity_queues


@asynccontextmanager
async def workers(env: Environment, queue: str, *roles: str, **settings: str) -> AsyncIterator[None]:
    """Another worker on task queues of its own, with some roles."""
    names = {"TASK_QUEUE": queue, "MODEL_TASK_QUEUE": f"{queue}-models", "TOOL_TASK_QUEUE": f"{queue}-tools"}
    given = {f"BATON_{name}": value for name, value in {**names, "ROLES": ",".join(roles), **settings}.items()}
    client = await connect(env.client.service_client.config.target_host)  # one client takes one worker for a task queue
    async with worker.run_worker(client, Loaded(), {**env.worker_env, **given}):
        yield


async def run(
    env: Environment, queue: str, workflow: str, given: object
) -> tuple[TurnResult, dict[str, dict[str, list[float]]]]:
    """Runs a turn on a task queue: its result, and its activities with those of its child runs.

    For each activity type the task queues, and for each of these the times in seconds when tasks were dispatched.
    """
    handle = await env.client.start_workflow(
        workflow, given, id=f"settings-{uuid.uuid4().hex[:8]}", task_queue=queue, task_timeout=WORKFLOW_TASK_TIMEOUT
    )
    turn = TurnResult.model_validate_json(json.dumps(await handle.result()))
    queues: dict[str, dict[str, list[float]]] = {}
    histories = [await handle.fetch_history()]
    for event in histories[0].events:
        if event.HasField("child_workflow_execution_started_event_attributes"):
            child = event.child_workflow_execution_started_event_attributes.workflow_execution.workflow_id
            histories.append(await env.client.get_workflow_handle(child).fetch_history())
    for history in histories:
        events = {event.event_id: event for event in history.events}
        for event in history.events:
            if event.HasField("activity_task_started_event_attributes"):
                begun = event.activity_task_started_event_attributes
                scheduled = events[begun.scheduled_event_id].activity_task_scheduled_event_attributes
                times = queues.setdefault(scheduled.activity_type.name, {}).setdefault(scheduled.task_queue.name, [])
                times.append(event.event_time.ToNanoseconds() / 1e9)
    return turn, queues


async def test_three_workers_run_workflows_models_and_tools_each_on_its_own_task_queue(env: Environment) -> None:
    queue = uuid.uuid4().hex
    env.script(line("one", call("calculator", expression="6*7"), "It is 42."))
    given = {"agent": "one", "input": "?", "resources": [agent("one", "calculator")]}
    async with workers(env, queue, "workflows"), workers(env, queue, "models"), workers(env, queue, "tools"):
        turn, queues = await run(env, queue, "agent", given)
    assert turn.message == "It is 42."
    assert {name: [*of] for name, of in queues.items()} == {
        "ask_model": [f"{queue}-models"],
        "use_tool": [f"{queue}-tools"],
    }


@pytest.mark.full
async def test_a_models_rate_limits_all_workers_together_and_no_other_model(env: Environment) -> None:
    queue, rate = uuid.uuid4().hex, 4
    env.answer = lambda _: Reply(text="Yes.")
    server = {"openai": {"baseUrl": {"value": env.model_url}}}
    models = [
        manifest("Model", name, {"type": "openai", "model": {"value": name}, "config": server})
        for name in ("slow", "fast")
    ]
    agents = [agent(f"{model}-{n}", modelRef={"name": model}) for model in ("slow", "fast") for n in range(14)]
    members = [each["metadata"]["name"] for each in agents]
    given = {"team": "t", "input": "?", "resources": [*models, *agents, team("t", *members, strategy="parallel")]}
    everything = "workflows", "models", "tools"
    rates = {"MODEL_RATES": f"slow={rate}"}
    async with workers(env, queue, *everything, **rates), workers(env, queue, *everything, **rates):
        _, queues = await run(env, queue, "parallel", given)
    assert queues["ask_model"].keys() == {f"{queue}-models", f"{queue}-models-slow"}
    times = sorted(queues["ask_model"][f"{queue}-models-slow"])
    # The first second's calls may all begin at once, and a loaded machine may be late with any but the last ones.
    assert times[-1] - times[0] > (len(times) - 2 * rate) / rate - 0.2
    assert len(env.model.requests) == 2 * len(times)


async def state(url: str) -> int:
    """The status of the health check."""
    async with httpx.AsyncClient() as http:
        return (await http.get(url)).status_code


@pytest.mark.full
async def test_a_worker_is_ready_while_it_polls_and_reaches_temporal_and_its_journal(
    client: Client, tmp_path: Path
) -> None:
    port = own_port()
    url = f"http://127.0.0.1:{port}/readyz"
    given = {"BATON_HOME": str(tmp_path), "BATON_TASK_QUEUE": uuid.uuid4().hex, "BATON_HEALTH_PORT": str(port)}
    async with worker.run_worker(client, Loaded(), given):
        while await state(url) != 200:
            await asyncio.sleep(0.02)
        async with httpx.AsyncClient() as http:
            while (answer := await http.get(url)).json() != {"worker": "ok", "temporal": "ok", "journal": "ok"}:
                await asyncio.sleep(0.05)  # each check may take 2 s
            assert answer.status_code == 200
            with contextlib.closing(sqlite3.connect(tmp_path / "journal.db")) as database:  # as on a full disk
                database.execute(
                    "create trigger full before insert on baton_workers begin select raise(abort, 'disk is full'); end"
                )
            while (answer := await http.get(url)).json()["journal"] == "ok":
                await asyncio.sleep(0.05)
            assert (answer.status_code, answer.json()["journal"]) == (503, "JournalUnavailable")
    with pytest.raises(httpx.ConnectError):
        await state(url)


async def test_a_request_that_is_too_large_for_a_health_check_is_refused_and_its_connection_closed() -> None:
    port = own_port()
    async with serve_health({("127.0.0.1", port): "BATON_METRICS_ADDRESS"}, {}):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nX-Large: " + b"x" * 70_000)
        assert (await asyncio.wait_for(reader.read(), 30)).startswith(b"HTTP/1.1 4")
        writer.close()
        assert await state(f"http://127.0.0.1:{port}/healthz") == 200


REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n"


@pytest.mark.full
@pytest.mark.parametrize(
    "sent",
    [
        REQUEST + b"X-Large: " + b"x" * 70_000,
        REQUEST + b"X-Large: " + b"x" * 70_000 + b"\r\n\r\n",
        REQUEST + b"\r\n",
        b"nonsense\r\n\r\n",
        REQUEST,
        b"",
    ],
)
async def test_no_connection_to_a_health_check_stays_open(sent: bytes) -> None:
    port = own_port()
    async with serve_health({("127.0.0.1", port): "BATON_METRICS_ADDRESS"}, {}):
        clients = [await asyncio.open_connection("127.0.0.1", port) for _ in range(10)]
        for _, writer in clients:
            writer.write(sent)
        assert connections(port)
        async with asyncio.timeout(LONGEST_CONNECTION + 30):
            while connections(port):  # the clients keep their side open
                await asyncio.sleep(0.05)
        for _, writer in clients:
            writer.close()


def connections(port: int) -> list[str]:
    """The states of this process' connections at a port that it listens on."""
    found = psutil.Process().net_connections("tcp")
    return [each.status for each in found if each.laddr[1] == port and each.status in ("ESTABLISHED", "CLOSE_WAIT")]


async def test_two_workers_with_one_health_port_are_refused_before_they_work() -> None:
    port = own_port()
    async with serve_health({("127.0.0.1", port): "BATON_METRICS_ADDRESS"}, {}):
        with pytest.raises(SettingsError, match=f"^BATON_METRICS_ADDRESS: 127.0.0.1:{port} can't be served: Address"):
            async with serve_health({("127.0.0.1", port): "BATON_METRICS_ADDRESS"}, {}):
                pass


async def test_a_host_that_is_not_of_this_machine_is_refused_with_its_settings() -> None:
    settings = Settings.of({"BATON_HEALTH_HOST": "nohost.invalid", "BATON_HEALTH_PORT": "0"})
    with pytest.raises(SettingsError, match=r"^BATON_HEALTH_HOST, BATON_HEALTH_PORT: "):
        async with serve_health(settings.http_addresses, {}):
            pass


@pytest.mark.parametrize("text", ["1", "true", "True", "on", "y"])
def test_private_hosts_are_allowed_in_the_words_of_other_settings(text: str) -> None:
    given = {"BATON_ALLOW_PRIVATE_HOSTS": text, "BATON_AUDIT": text}
    assert Settings.of(given).audit
    assert Settings.of(given).allow_private_hosts
    assert GatewaySettings.of(given).allow_private_hosts
    assert SecretStore(Secrets(), given).allows_private_hosts


@pytest.mark.parametrize("settings", [Settings, GatewaySettings])
def test_a_word_that_neither_allows_nor_forbids_private_hosts_is_refused(
    settings: type[Settings] | type[GatewaySettings],
) -> None:
    with pytest.raises(SettingsError, match="BATON_ALLOW_PRIVATE_HOSTS: Input should be a valid boolean"):
        settings.of({"BATON_ALLOW_PRIVATE_HOSTS": "maybe"})


def test_a_file_of_patterns_that_is_not_there_is_named_with_its_setting(tmp_path: Path) -> None:
    code = (
        "import asyncio, os; from baton.temporal.personal_data import personal_data_of; "
        "asyncio.run(personal_data_of(os.environ).check())"
    )
    given = {**os.environ, "BATON_REDACT": str(tmp_path / "nope.yaml")}
    done = subprocess.run([sys.executable, "-c", code], env=given, capture_output=True, text=True, check=False)
    last = done.stderr.strip().splitlines()[-1]
    assert "SettingsError: BATON_REDACT: " in last
    assert "No such file or directory" in last


def test_a_library_without_a_private_name_that_baton_needs_is_refused_with_its_version() -> None:
    check_private_names("pydantic", BaseModel, ["_calculate_keys"])
    with pytest.raises(SettingsError) as refused:
        check_private_names("pydantic", BaseModel, ["_calculate_keys", "_no_such_name"])
    assert str(refused.value) == (
        f"Baton can't be used with pydantic {version('pydantic')}, which has no _no_such_name: "
        "install the version of pydantic that Baton's requirements.lock names"
    )
