"""The workers on one task queue: who lives, and that all of them know the manifests that runs name."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import pytest_asyncio
from temporalio.client import Client, WorkflowFailureError
from temporalio.runtime import Runtime, TelemetryConfig
from temporalio.worker import Worker

from baton import worker
from baton.activities.runtime.settings import Settings
from baton.activities.runtime.start_checks import check_manifests, manifests_digest, worker_identity
from baton.contracts.settings import SettingsError
from baton.plugin import BatonPlugin
from baton.resources.loader import Loaded, load_files
from baton.starter.runs.runs import why_not_served
from baton.temporal.search_attributes import OVERDUE_AFTER, LiveWorker, live_workers, pollers_of
from baton.testing import Reply
from tests.harness.environment import KEY, Environment, agent
from tests.harness.manifests import Writer
from tests.harness.processes import BATON, ROOT, baton, doctor, process_env

pytestmark = pytest.mark.full  # each test starts processes of its own

SAMPLE = ROOT / "samples" / "brainstorming.yaml"


class Fleetmates:
    """Worker processes on a task queue of their own."""

    def __init__(self, env: dict[str, str]) -> None:
        self.env, self.running = env, list[asyncio.subprocess.Process]()

    async def start(self, *arguments: str | Path) -> asyncio.subprocess.Process:
        """Starts ``baton worker``."""
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(BATON, "worker", *arguments, env=self.env, stderr=pipe)
        self.running.append(process)
        return process

    async def printed(self, process: asyncio.subprocess.Process, text: str) -> str:
        """What it has printed up to a text."""
        assert process.stderr
        seen = ""
        while text not in seen:
            line = await process.stderr.readline()
            assert line, seen
            seen += line.decode()
        return seen


@pytest_asyncio.fixture(loop_scope="session")
async def fleet(env: Environment) -> AsyncIterator[Fleetmates]:
    """No worker yet, on a task queue that is named after the one of the environment."""
    address = env.client.service_client.config.target_host
    given = {"TEMPORAL_ADDRESS": address, "BATON_TASK_QUEUE": f"fleet-{env.task_queue}", "BATON_HOME": str(env.folder)}
    mates = Fleetmates(process_env(**given))
    yield mates
    for process in mates.running:
        if process.returncode is None:
            process.kill()
            await process.communicate()


async def alive(client: Client, fleet: Fleetmates, count: int) -> float:
    """Waits until so many workers live and have said so; the seconds it took."""
    begun = time.monotonic()
    while True:
        workers = await live_workers(client, fleet.env["BATON_TASK_QUEUE"])
        if len(workers) == count and all(each.since for each in workers):
            break
        await asyncio.sleep(0.1)
    return time.monotonic() - begun


async def test_a_worker_is_listed_once_all_the_time_before_and_after_its_first_heartbeat(env: Environment) -> None:
    async def watch(queue: str) -> set[int]:
        """The numbers of workers that are listed from the first one on until it has sent a heartbeat."""
        counts = set[int]()
        while True:
            workers = await live_workers(env.client, queue)
            if workers or counts:
                counts.add(len(workers))
            if any(each.since for each in workers):
                return counts

    queue = f"heartbeat-{env.task_queue}"
    async with worker.run_worker(env.client, Loaded(), {**env.worker_env, "BATON_TASK_QUEUE": queue}):
        assert await asyncio.gather(*(watch(queue) for _ in range(30))) == [{1}] * 30


@pytest.mark.slow
@pytest.mark.parametrize("interval", [timedelta(seconds=60), None])
async def test_a_worker_of_a_program_with_rare_or_no_heartbeats_is_live_between_them(
    env: Environment, tmp_path: Path, interval: timedelta | None
) -> None:
    address = env.client.service_client.config.target_host
    runtime = Runtime(telemetry=TelemetryConfig(), worker_heartbeat_interval=interval)
    client = await Client.connect(address, runtime=runtime)
    plugin = BatonPlugin(Writer(tmp_path).file(agent("one")).parent, settings=env.worker_env)
    queue = f"rare-{env.task_queue}"
    async with Worker(client, task_queue=queue, plugins=[plugin]):
        polls = [datetime.max.replace(tzinfo=UTC)]
        while datetime.now(UTC) - max(polls) < OVERDUE_AFTER:
            await asyncio.sleep(0.5)
            polls = [*(await pollers_of(client, queue)).values()] or polls
        assert len(await live_workers(client, queue)) == 1
        assert await why_not_served(client, queue) is None
    if interval:
        assert await live_workers(client, queue) == []


async def test_workers_of_one_client_are_listed_with_their_own_manifests(env: Environment) -> None:
    async with env.with_manifests([agent("one")]) as other:  # its client has a worker without manifests
        while not await pollers_of(env.client, other.task_queue):  # a heartbeat alone names the client's first worker
            await asyncio.sleep(0.1)
        listed = [LiveWorker(key="", identity="")]
        while not any(each.since for each in listed):
            await asyncio.sleep(0.1)
            listed = await live_workers(env.client, other.task_queue)
        assert [manifests_digest(each.identity) for each in listed] == [other.catalog.catalog.sha[:8]]


@pytest.mark.slow
async def test_a_worker_without_manifests_does_not_share_a_task_queue_with_one_that_has_some(
    client: Client, fleet: Fleetmates
) -> None:
    first = await fleet.start()
    assert "no manifests loaded" in await fleet.printed(first, "Worker started")
    await alive(client, fleet, 1)
    refused = await asyncio.to_thread(baton, "worker", "-f", SAMPLE, env=fleet.env)
    assert refused.returncode == 1
    assert "/- on the task queue fleet-" in refused.stderr
    assert "baton worker -f PATH" in refused.stderr
    first.terminate()
    await first.communicate()
    second = await fleet.start(SAMPLE)
    assert "3 Agents, 1 Query, 1 Team loaded" in await fleet.printed(second, "Worker started")
    await alive(client, fleet, 1)
    refused = await asyncio.to_thread(baton, "worker", env=fleet.env)
    assert (refused.returncode, "has different manifests" in refused.stderr) == (1, True)


@pytest.mark.slow
async def test_of_two_workers_that_start_at_the_same_moment_one_is_refused(client: Client, fleet: Fleetmates) -> None:
    both = [await fleet.start(), await fleet.start("-f", SAMPLE)]
    ended = [asyncio.create_task(each.wait()) for each in both]
    done, _ = await asyncio.wait(ended, return_when=asyncio.FIRST_COMPLETED)
    assert [task.result() for task in done] == [1]
    await alive(client, fleet, 1)
    await asyncio.sleep(0.5)
    assert sum(each.returncode is None for each in both) == 1


async def test_a_worker_waits_for_its_own_heartbeat_before_it_compares_its_age_with_that_of_others(
    env: Environment, tmp_path: Path
) -> None:
    address = env.client.service_client.config.target_host
    runtime = Runtime(telemetry=TelemetryConfig(), worker_heartbeat_interval=timedelta(seconds=5))
    late = await Client.connect(address, runtime=runtime, identity="late")
    async with env.with_manifests([agent("one")]) as other:
        plugin = BatonPlugin(settings={**other.worker_env, "BATON_HOME": str(tmp_path)})
        with pytest.raises(SettingsError, match="has different manifests"):
            await Worker(late, task_queue=other.task_queue, plugins=[plugin]).run()


@pytest.mark.slow
async def test_a_worker_with_changed_manifests_warns_and_works(
    client: Client, fleet: Fleetmates, write: Writer
) -> None:
    await fleet.printed(await fleet.start(SAMPLE), "Worker started")
    await alive(client, fleet, 1)
    changed = await fleet.start(write.file(agent("other")))
    assert "has different manifests" in await fleet.printed(changed, "Worker started")
    await alive(client, fleet, 2)


@pytest.mark.slow
async def test_workers_of_two_versions_may_know_other_manifests(client: Client, fleet: Fleetmates) -> None:
    fleet.env |= {"BATON_DEPLOYMENT": "fleet", "BATON_BUILD_ID": "v1"}
    await fleet.printed(await fleet.start(), "Worker started")
    await alive(client, fleet, 1)
    own = worker_identity(client, load_files([SAMPLE]).catalog)
    await check_manifests(client, Settings.of({**fleet.env, "BATON_BUILD_ID": "v2"}), own)
    with pytest.raises(SettingsError, match="has no manifests"):
        await check_manifests(client, Settings.of(fleet.env), own)


@pytest.mark.slow
async def test_why_no_run_starts_is_said_by_run_status_and_doctor(client: Client, fleet: Fleetmates) -> None:
    queue = fleet.env["BATON_TASK_QUEUE"]
    fleet.env |= {"BATON_DEPLOYMENT": queue, "BATON_BUILD_ID": "v1"}
    worker = await fleet.start("-f", SAMPLE)
    await fleet.printed(worker, "Worker started")
    await alive(client, fleet, 1)
    hint = f"temporal worker deployment set-current-version --deployment-name {queue} --build-id v1"
    reason = f"the worker deployment {queue} has no current version, so no run starts"
    run = f"unserved-{queue}"
    started = await asyncio.to_thread(baton, "run", "-f", SAMPLE, "--id", run, "--detach", env=fleet.env)
    assert f"note: {reason}; set it with: {hint}" in " ".join(started.stderr.split())
    status = await asyncio.to_thread(baton, "status", run, env=fleet.env)
    assert status.returncode == 3
    assert f"error: {run} can't answer: {reason}" in " ".join(status.stderr.split())
    checked = await doctor(**fleet.env)
    assert f"WRONG  workers     {reason}\n" in checked.stdout
    assert hint in checked.stdout
    worker.terminate()
    await worker.communicate()
    await alive(client, fleet, 0)
    status = await asyncio.to_thread(baton, "status", run, env=fleet.env)
    text = f"{run} can't answer: no worker is running on the task queue {queue}; start one with: baton worker"
    assert text in " ".join(status.stderr.split())
    await client.get_workflow_handle(run).terminate()


@pytest.mark.slow
async def test_doctor_counts_the_workers_that_live_and_each_once(client: Client, fleet: Fleetmates) -> None:
    for process in [await fleet.start(SAMPLE), await fleet.start(SAMPLE), await fleet.start(SAMPLE)]:
        await fleet.printed(process, "Worker started")
    await alive(client, fleet, 3)
    fleet.running[0].terminate()
    await fleet.running[0].communicate()
    fleet.running[1].kill()
    await fleet.running[1].communicate()
    await alive(client, fleet, 1)
    done = await doctor(**fleet.env)
    assert f"1 worker on the task queue {fleet.env['BATON_TASK_QUEUE']}, 0 runs and 0 calls waiting" in done.stdout


@pytest.mark.slow
async def test_the_log_of_a_worker_is_json_with_the_run_and_the_attempt_and_has_no_secret_and_no_colour(
    env: Environment, fleet: Fleetmates
) -> None:
    env.answer = lambda _: Reply(status=401, text=f"bad key {KEY}")
    fleet.env |= {"BATON_LOG_FORMAT": "json", "OPENAI_BASE_URL": env.model_url, "OPENAI_API_KEY": KEY}
    fleet.env["PYTHONWARNINGS"] = "always"
    missing = await fleet.start("-f", env.folder / "nowhere.yaml")
    _, printed_by_missing = await missing.communicate()
    (error,) = [json.loads(line) for line in printed_by_missing.splitlines()]
    assert (missing.returncode, error["level"], "nowhere.yaml" in error["message"]) == (1, "ERROR", True)
    process = await fleet.start("-f", SAMPLE)
    await fleet.printed(process, "Worker started")
    team = {"team": "brainstorming-team", "input": "Why?"}
    run = f"json-{env.task_queue}"
    with pytest.raises(WorkflowFailureError):
        await env.client.execute_workflow("round-robin", team, id=run, task_queue=fleet.env["BATON_TASK_QUEUE"])
    printed = await fleet.printed(process, "ask_model")
    process.terminate()
    _, rest = await process.communicate()
    lines = [json.loads(line) for line in (printed + rest.decode()).splitlines()]
    (failed,) = [each for each in lines if "temporal_activity" in each]
    assert {"timestamp", "level", "logger", "message"} <= failed.keys()
    known = failed["temporal_activity"]
    assert (known["workflow_id"], known["activity_type"], known["attempt"]) == (run, "ask_model", 1)
    assert KEY not in printed + rest.decode()
    assert "\x1b" not in printed + rest.decode()


@pytest.mark.slow
async def test_a_failed_attempt_has_the_run_and_the_member_in_the_text_log(env: Environment, fleet: Fleetmates) -> None:
    env.answer = lambda _: Reply(status=401, text="bad key")
    fleet.env |= {"OPENAI_BASE_URL": env.model_url, "OPENAI_API_KEY": KEY}
    process = await fleet.start("-f", SAMPLE)
    await fleet.printed(process, "Worker started")
    run = f"text-{env.task_queue}"
    given = {"team": "brainstorming-team", "input": "Why?"}
    queue = fleet.env["BATON_TASK_QUEUE"]
    handle = await env.client.start_workflow("round-robin", given, id=run, task_queue=queue)
    printed = await fleet.printed(process, "KeyRefused")
    (line,) = [line for line in printed.splitlines() if "KeyRefused" in line]
    assert line.endswith(f" (run={run} run_id={handle.first_execution_run_id} member=brainstormer-agent turn=1)")


@pytest.mark.slow
async def test_get_shows_what_each_worker_has_in_its_files_while_they_differ(
    client: Client, fleet: Fleetmates, write: Writer
) -> None:
    both, changed = agent("both"), agent("changed", prompt="Old.")
    await fleet.printed(await fleet.start(write.file(both, changed, name="old.yaml")), "Worker started")
    await fleet.printed(
        await fleet.start(write.file(both, agent("changed", prompt="New."), name="new.yaml")), "Worker started"
    )
    await alive(client, fleet, 2)
    shown = await asyncio.to_thread(baton, "get", "agents", env=fleet.env)
    rows = [" ".join(row.split()) for row in shown.stdout.splitlines()[1:]]
    assert rows == ["both default - - files"] + ["changed default - - files of 1 of 2 workers"] * 2
    texts = await asyncio.to_thread(baton, "get", "agent", "changed", "-A", "-o", "yaml", env=fleet.env)
    assert "Old." in texts.stdout and "New." in texts.stdout
    refused = await asyncio.to_thread(baton, "run", "agent/chnged", "Why?", env=fleet.env)
    assert (refused.returncode, "did you mean 'changed'?" in refused.stderr) == (1, True)
