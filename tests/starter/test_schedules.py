"""Schedules: Temporal starts the runs of a query by itself, as the manifest and the people who look after it say."""

import asyncio
import json
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from temporalio.client import Client, Schedule, ScheduleActionStartWorkflow, ScheduleSpec, WorkflowExecutionStatus

import baton
from baton.resources.schedule import Schedule as ScheduleManifest
from baton.starter.runs.runs import final_status
from baton.starter.runs.schedules import (
    Applied,
    ListedSchedule,
    ScheduleError,
    apply_schedule,
    describe_schedule,
    find_schedule,
    list_schedules,
    schedule_handle,
    trigger_schedule,
)
from baton.starter.runs.start import start_query
from baton.temporal.client import connect
from baton.testing import Reply, Request
from tests.conftest import serving
from tests.harness.environment import Environment, Json, agent, line, manifest
from tests.harness.manifests import Writer
from tests.harness.tool_server import ToolServer
from tests.harness.user_machine import UserMachine

EACH_SECOND, NEVER_TODAY = "@every 1s", "0 0 1 1 * 2099"


class Scheduler:
    """Applies schedules of one query to an agent, on the task queue of an environment."""

    def __init__(self, client: Client, task_queue: str, folder: Path) -> None:
        self.client, self.task_queue, self._writer = client, task_queue, Writer(folder)
        self.name = f"s-{task_queue[:12]}"

    async def apply(self, prompt: str = "You are one.", **spec: object) -> Applied:
        template = {"spec": {"input": "Why?", "targets": [{"type": "agent", "name": "one"}]}}
        given = {"schedule": NEVER_TODAY, "queryTemplate": template, **spec}
        one = agent("one") | {"spec": {"prompt": prompt}}
        loaded = self._writer.load(manifest("Schedule", self.name, given), one)
        [found] = [each for each in loaded.catalog.manifests if isinstance(each, ScheduleManifest)]
        query, catalog = loaded.scheduled_query(found, elsewhere=False)
        return await apply_schedule(self.client, found, query, catalog, self.task_queue)

    async def wait(self, holds: Callable[[ListedSchedule], bool]) -> ListedSchedule:
        """The schedule, once that holds for it."""
        while not holds(found := await find_schedule(self.client, "default", self.name)):
            await asyncio.sleep(0.05)
        return found

    async def trigger(self) -> str | None:
        return await trigger_schedule(self.client, "default", self.name)

    async def runs(self) -> list[str]:
        """The ids of its runs, in the order of their times."""
        found = self.client.list_workflows(f"WorkflowId STARTS_WITH '{self.name}-' AND ParentWorkflowId IS NULL")
        return sorted([run.id async for run in found])

    async def delete(self) -> None:
        await schedule_handle(self.client, "default", self.name).delete()


@pytest.fixture
def scheduler(env: Environment, tmp_path: Path) -> Scheduler:
    env.script(line("one", "Since it is."))
    return Scheduler(env.client, env.task_queue, tmp_path)


@pytest.mark.full
async def test_a_schedule_starts_runs_by_itself_with_ids_that_tell_their_time(
    env: Environment, scheduler: Scheduler
) -> None:
    before = datetime.now(UTC) - timedelta(seconds=1)
    assert await scheduler.apply(schedule=EACH_SECOND, overlapPolicy="AllowAll") == "created"
    await scheduler.wait(lambda each: each.description.info.num_actions >= 3)
    await scheduler.delete()
    ids = await env.find_runs("WorkflowType = 'query'", 3)
    times = [datetime.fromisoformat(each.removeprefix(f"{scheduler.name}-")) for each in sorted(ids)]
    assert all(before < time <= datetime.now(UTC) for time in times)
    assert len({*times}) == len(times)
    for each in ids:
        assert (await env.status(env.client.get_workflow_handle(each))).message == "Since it is."


async def test_a_scheduled_run_has_the_input_memo_and_summary_of_one_that_is_started_by_hand(
    env: Environment, scheduler: Scheduler, write: Writer
) -> None:
    await scheduler.apply()
    run = await scheduler.trigger()
    assert run
    loaded = write.load(
        manifest("Schedule", scheduler.name, {"schedule": NEVER_TODAY, "query": scheduler.name}),
        manifest("Query", scheduler.name, {"input": "Why?", "targets": [{"type": "agent", "name": "one"}]}),
        agent("one"),
    )
    query, catalog = loaded.scheduled_query(
        next(each for each in loaded.catalog.manifests if isinstance(each, ScheduleManifest)), elsewhere=False
    )
    by_hand = await start_query(env.client, query, catalog, task_queue=env.task_queue)
    started = []
    for handle in (env.client.get_workflow_handle(run), by_hand):
        await env.status(handle)
        begin = (await handle.fetch_history()).events[0].workflow_execution_started_event_attributes
        memo = {key: each.data for key, each in begin.memo.fields.items() if key in ("query", "namespace")}
        timeouts = begin.workflow_task_timeout, begin.workflow_run_timeout.seconds, begin.HasField("retry_policy")
        described = await handle.describe()
        started.append((json.loads(begin.input.payloads[0].data), memo, timeouts, await described.static_summary()))
    assert started[0] == started[1]


async def test_a_schedule_that_is_applied_twice_is_one_and_keeps_its_runs(
    env: Environment, scheduler: Scheduler
) -> None:
    assert [await scheduler.apply(), await scheduler.apply()] == ["created", "unchanged"]
    run = await scheduler.trigger()
    assert await scheduler.apply(prompt="You are one and brief.") == "configured"
    assert await scheduler.apply(prompt="You are one and brief.") == "unchanged"
    found = await find_schedule(env.client, "default", scheduler.name)
    assert found.last
    assert found.last[0] == run
    while not (names := [each.name for each in await list_schedules(env.client) if each.name == scheduler.name]):
        await asyncio.sleep(0.05)  # Temporal lists a schedule a moment later
    assert len(names) == 1


async def test_a_change_of_any_field_or_of_a_manifest_that_the_query_needs_is_applied(scheduler: Scheduler) -> None:
    await scheduler.apply()
    fields: list[Json] = [
        {"schedule": "0 9 * * 1"},
        {"timeZone": "Europe/Berlin"},
        {"overlapPolicy": "BufferAll"},
        {"catchupWindow": "1h"},
        {"jitter": "5s"},
        {"pauseOnFailure": True},
        {"note": "for the desk"},
        {"paused": True},
    ]
    given: Json = {}
    for each in fields:
        given |= each
        assert (await scheduler.apply(**given), await scheduler.apply(**given)) == ("configured", "unchanged")
    value = (await find_schedule(scheduler.client, "default", scheduler.name)).value
    shown = {"schedule", "timeZone", "overlapPolicy", "pauseOnFailure", "note", "paused"}
    assert {key: value[key] for key in shown} == {key: given[key] for key in shown}
    assert value["catchupWindowSeconds"] == 3600


async def test_what_a_person_has_paused_stays_paused_unless_the_manifest_says_otherwise(scheduler: Scheduler) -> None:
    await scheduler.apply(note="for the desk")
    handle = schedule_handle(scheduler.client, "default", scheduler.name)
    await handle.pause(note="the model is too dear")
    assert await scheduler.apply(note="for the desk", prompt="You are one, cheaply.") == "configured"
    state = (await handle.describe()).schedule.state
    assert (state.paused, state.note) == (True, "the model is too dear")
    assert await scheduler.apply(note="for the desk", prompt="You are one, cheaply.", paused=False) == "configured"
    state = (await handle.describe()).schedule.state
    assert (state.paused, state.note) == (False, "for the desk")


@pytest.mark.full
async def test_a_pause_that_comes_while_a_manifest_is_applied_is_not_lost(scheduler: Scheduler) -> None:
    await scheduler.apply()
    handle = schedule_handle(scheduler.client, "default", scheduler.name)

    async def pause_after(milliseconds: int) -> None:
        await asyncio.sleep(milliseconds / 1000)
        await handle.pause()

    for moment in range(30):  # one of these moments is between the reading of the schedule and its update
        await handle.unpause()
        await asyncio.gather(scheduler.apply(prompt=f"You are one ({moment})."), pause_after(moment))
        assert (await handle.describe()).schedule.state.paused, moment


async def test_of_manifests_that_are_applied_at_the_same_time_one_counts_as_a_whole(scheduler: Scheduler) -> None:
    zones = ["Europe/Berlin", "Asia/Tokyo", "America/Lima", "UTC"]
    applied = await asyncio.gather(*(scheduler.apply(timeZone=each, prompt=f"One in {each}.") for each in zones))
    assert sorted({*applied}) == ["configured", "created"]
    run = await scheduler.trigger()
    assert run
    history = await scheduler.client.get_workflow_handle(run).fetch_history()
    given = str(history.events[0].workflow_execution_started_event_attributes.input)
    zone = (await find_schedule(scheduler.client, "default", scheduler.name)).value["timeZone"]
    assert [each for each in zones if f"One in {each}." in given] == [zone]


@pytest.mark.full
async def test_a_paused_schedule_starts_nothing_by_itself_and_goes_on_where_it_is_unpaused(
    env: Environment, scheduler: Scheduler
) -> None:
    await scheduler.apply(schedule=EACH_SECOND, overlapPolicy="AllowAll")
    handle = schedule_handle(env.client, "default", scheduler.name)
    await scheduler.wait(lambda each: each.description.info.num_actions >= 1)
    await handle.pause()
    paused = (await describe_schedule(env.client, "default", scheduler.name)).info.num_actions
    other = Scheduler(env.client, f"x{env.task_queue}", env.folder)
    await other.apply(schedule=EACH_SECOND, overlapPolicy="AllowAll")
    await other.wait(lambda each: each.description.info.num_actions >= 3)
    await other.delete()
    assert (await describe_schedule(env.client, "default", scheduler.name)).info.num_actions == paused
    await handle.unpause()
    await scheduler.wait(lambda each: each.description.info.num_actions > paused)
    await scheduler.delete()
    assert all([(await env.status(env.client.get_workflow_handle(each))).phase for each in await scheduler.runs()])


async def until_another_second(client: Client, run: str) -> None:
    """Waits until another run of the schedule has another id: the ids of two runs differ by their second."""
    start = (await client.get_workflow_handle(run).describe()).start_time
    while (datetime.now(UTC) - start).total_seconds() < 1.1:
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("policy", ["Skip", "BufferOne", "CancelOther", "AllowAll"])
async def test_the_overlap_policy_says_what_becomes_of_a_run_that_comes_while_one_is_open(
    env: Environment, scheduler: Scheduler, policy: str
) -> None:
    released = asyncio.Event()
    loop = asyncio.get_running_loop()

    def answer(_: Request) -> Reply:
        asyncio.run_coroutine_threadsafe(released.wait(), loop).result()
        return Reply(text="At last.")

    env.answer = answer
    await scheduler.apply(overlapPolicy=policy)
    first = await scheduler.trigger()
    assert first
    await until_another_second(env.client, first)
    await schedule_handle(env.client, "default", scheduler.name).trigger()
    match policy:
        case "Skip":
            await scheduler.wait(lambda each: each.description.info.num_actions_skipped_overlap == 1)
        case "BufferOne":
            await scheduler.wait(lambda each: each.description.raw_description.info.buffer_size == 1)
        case _:
            await scheduler.wait(lambda each: each.description.info.num_actions == 2)
    released.set()
    count = 1 if policy == "Skip" else 2
    await scheduler.wait(lambda each: each.description.info.num_actions == count)
    runs = await env.find_runs("WorkflowType = 'query'", count)
    assert len(runs) == count
    phases = [(await final_status(env.client, env.client.get_workflow_handle(each))).phase for each in sorted(runs)]
    assert phases == (["Canceled"] if policy == "CancelOther" else ["Completed"]) + ["Completed"] * (count - 1)


async def test_a_schedule_that_is_deleted_is_gone_and_its_open_run_goes_on(
    env: Environment, scheduler: Scheduler
) -> None:
    released = asyncio.Event()
    loop = asyncio.get_running_loop()

    def answer(_: Request) -> Reply:
        asyncio.run_coroutine_threadsafe(released.wait(), loop).result()
        return Reply(text="At last.")

    env.answer = answer
    await scheduler.apply()
    run = await scheduler.trigger()
    await scheduler.delete()
    with pytest.raises(ScheduleError, match=f"there is no schedule '{scheduler.name}'"):
        await scheduler.trigger()
    released.set()
    assert run
    assert (await env.status(env.client.get_workflow_handle(run))).message == "At last."


@pytest.mark.slow
async def test_times_that_an_outage_has_taken_are_caught_up_with_within_the_window(tmp_path: Path) -> None:
    folder = tmp_path / "server"
    folder.mkdir()
    window = timedelta(seconds=10)
    async with serving(folder) as server:
        client = await connect(server.address)
        late, prompt = (Scheduler(client, name, tmp_path) for name in ("late", "prompt"))
        await late.apply(schedule=EACH_SECOND, overlapPolicy="AllowAll", catchupWindow="1h")
        await prompt.apply(schedule=EACH_SECOND, overlapPolicy="AllowAll", catchupWindow="10s")
        for each in (late, prompt):
            await each.wait(lambda found: found.description.info.num_actions >= 1)
    stopped = datetime.now(UTC)
    while datetime.now(UTC) < stopped + window + timedelta(seconds=3):
        await asyncio.sleep(0.2)
    async with serving(folder) as server:
        client = await connect(server.address)
        late.client = prompt.client = client
        missed = [stopped + timedelta(seconds=second) for second in (1, 2)]
        ids = {f"{time:%Y-%m-%dT%H:%M:%SZ}" for time in missed}
        while not ids <= {each.removeprefix(f"{late.name}-") for each in await late.runs()}:
            await asyncio.sleep(0.1)
        await prompt.wait(lambda found: found.description.info.num_actions_missed_catchup_window > 0)
        ran = {each.removeprefix(f"{prompt.name}-") for each in await prompt.runs()}
        assert ids & ran == set()
        for each in (late, prompt):
            await each.delete()


async def test_a_schedule_pauses_after_a_run_that_has_failed_if_it_is_to(
    env: Environment, scheduler: Scheduler
) -> None:
    env.answer = lambda _: Reply(status=401, text="no such key")
    await scheduler.apply(pauseOnFailure=True)
    run = await scheduler.trigger()
    assert run
    assert (await env.status(env.client.get_workflow_handle(run))).phase == "Failed"
    found = await scheduler.wait(lambda each: bool(each.value["paused"]))
    assert "paused due to workflow failure" in str(found.value["note"])


@pytest.mark.full
async def test_each_run_of_a_schedule_calls_the_webhooks_of_its_query(env: Environment, scheduler: Scheduler) -> None:
    with ToolServer().serving() as hook:
        query = {"input": "Why?", "targets": [{"type": "agent", "name": "one"}], "notify": [{"url": hook.url}]}
        await scheduler.apply(queryTemplate={"spec": query})
        for count in (1, 2):
            run = await scheduler.trigger()
            assert run
            await env.status(env.client.get_workflow_handle(run))  # a run that is still open would have no other
            await until_another_second(env.client, run)
            while len(hook.seen) < count or len(await scheduler.runs()) < count:
                await asyncio.sleep(0.02)
        events = [json.loads(request.body) for request in hook.seen]
        assert {event["type"] for event in events} == {"baton.run.ended"}
        assert [event["subject"] for event in events] == await scheduler.runs()
        assert {event["data"]["message"] for event in events} == {"Since it is."}
        await scheduler.delete()


async def test_a_schedule_of_somebody_else_is_left_alone(env: Environment, scheduler: Scheduler) -> None:
    action = ScheduleActionStartWorkflow("other", id="other", task_queue="other")
    spec = ScheduleSpec(cron_expressions=[NEVER_TODAY])
    handle = await env.client.create_schedule(scheduler.name, Schedule(action=action, spec=spec))
    with pytest.raises(ScheduleError, match="was not created from a manifest"):
        await scheduler.apply()
    assert scheduler.name not in [each.name for each in await list_schedules(env.client)]
    await handle.delete()


async def test_a_schedule_with_more_manifests_than_it_can_keep_is_refused(scheduler: Scheduler) -> None:
    with pytest.raises(ScheduleError, match=r"needs have 1,\d+,\d+ bytes, and a schedule stores at most 1,000,000"):
        await scheduler.apply(prompt="x" * 1_000_001)
    with pytest.raises(ScheduleError, match="there is no schedule"):
        await scheduler.trigger()


async def test_what_a_schedule_keeps_is_encrypted_and_the_same_manifest_changes_nothing(
    client: Client, tmp_path: Path
) -> None:
    key = "k:MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="
    keyed = await connect(client.service_client.config.target_host, {"BATON_ENCRYPTION_KEYS": key})
    async with Environment.running(keyed, tmp_path, encryption_keys=key) as env:
        env.script(line("one", "Since it is."))
        scheduler = Scheduler(keyed, env.task_queue, tmp_path)
        assert [await scheduler.apply(prompt="You are one. zqzq"), await scheduler.apply(prompt="You are one. zqzq")]
        kept = await describe_schedule(keyed, "default", scheduler.name)
        assert b"zqzq" not in kept.raw_description.SerializeToString()
        assert await scheduler.apply(prompt="You are one. zqzq") == "unchanged"
        run = await scheduler.trigger()
        assert run
        assert (await env.status(keyed.get_workflow_handle(run))).message == "Since it is."
        await scheduler.delete()


async def test_a_program_applies_pauses_triggers_and_deletes_a_schedule(
    env: Environment, scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in env.worker_env.items():
        monkeypatch.setenv(name, value)
    one = baton.Agent("one", prompt="You are one.")
    query = baton.Query(scheduler.name, "Why?", targets=[one])
    definition = baton.Schedule(
        scheduler.name, query, schedule=NEVER_TODAY, time_zone="Asia/Tokyo", note="for the desk"
    )
    address = env.client.service_client.config.target_host
    async with baton.connect(address, task_queue=env.task_queue) as connection:
        handle = await connection.apply_schedule(definition)
        await handle.pause("not today")
        status = await handle.status()
        assert (status["paused"], status["note"], status["timeZone"]) == (True, "not today", "Asia/Tokyo")
        run = await (await connection.find_schedule(scheduler.name)).trigger()
        assert run
        assert (await run.result()).message == "Since it is."
        await handle.unpause()
        assert not (await handle.status())["paused"]
        await handle.delete()
        with pytest.raises(baton.ScheduleError, match="there is no schedule"):
            await connection.find_schedule(scheduler.name)


async def test_a_program_can_not_schedule_what_only_it_can_execute(env: Environment, scheduler: Scheduler) -> None:
    def double(number: int) -> int:
        return 2 * number

    keyed = baton.Model("m", model="gpt", api_key="sk-literal")
    for agent_of_program, what in (
        (baton.Agent("one", prompt="One.", tools=[double]), "functions"),
        (baton.Agent("one", prompt="One.", model=keyed), "a secret of this process"),
    ):
        query = baton.Query("q", "Why?", targets=[agent_of_program])
        async with baton.connect(env.client.service_client.config.target_host) as connection:
            with pytest.raises(ValueError, match=f"a scheduled query can't use {what}"):
                await connection.apply_schedule(baton.Schedule("s", query, schedule="@daily"))
    with pytest.raises(baton.ManifestError, match=r"spec.schedule: '@sometimes' is unknown"):
        baton.Schedule("s", query, schedule="@sometimes")
    with pytest.raises(TypeError, match="unexpected keyword argument 'cron'; write schedule"):
        baton.Schedule("s", query, schedule="@daily", cron="@daily")  # type: ignore[call-arg]


def wait_until_listed(machine: UserMachine, schedule: str) -> None:
    """Waits until a command lists a schedule: Temporal lists one a moment later."""
    while schedule not in machine.run("schedules", "list").stdout:
        time.sleep(0.05)


@pytest.mark.slow
def test_a_machines_own_server_stays_as_long_as_a_schedule_may_start_a_run(machine: UserMachine) -> None:
    machine.script(line("one", "Since it is."))
    template = {"spec": {"input": "Why?", "targets": [{"type": "agent", "name": "one"}]}}
    spec = {"schedule": "@every 4s", "queryTemplate": template}
    file = machine.write(manifest("Schedule", "tick", spec), agent("one"))
    with machine.state_dir.lock("clients", shared=True):  # until Temporal lists the schedule, nothing else needs it
        dev = machine.start("dev", "--linger", "1")
        while not machine.state_dir.read_dev_server():
            time.sleep(0.05)
        applied = machine.run("schedules", "apply", "-f", file)
        wait_until_listed(machine, "tick")
    assert applied.stdout == "schedule/tick created\n"
    assert "next run: " in applied.stderr
    address = machine.dev().address

    async def ran(count: int) -> bool:
        client = await connect(address)
        while (await find_schedule(client, "default", "tick")).description.info.num_actions < count:
            assert dev.poll() is None, "the server has ended"
            await asyncio.sleep(0.1)
        return [run.status async for run in client.list_workflows("WorkflowType = 'query'")].count(
            WorkflowExecutionStatus.FAILED
        ) == 0

    assert asyncio.run(ran(3))
    assert machine.run("schedules", "delete", "tick").stdout == "schedule/tick deleted\n"
    dev.communicate()
    assert dev.returncode == 0


@pytest.mark.slow
def test_schedules_are_applied_listed_paused_triggered_and_deleted_by_commands(machine: UserMachine) -> None:
    machine.script(line("one", "Since it is."))
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "key"}, "stringData": {"key": "sk-of-file"}}
    source = {"valueFrom": {"secretKeyRef": {"name": "key", "key": "key"}}}
    openai = {"baseUrl": {"value": machine.env["OPENAI_BASE_URL"]}, "apiKey": source}
    model = manifest("Model", "m", {"type": "openai", "model": {"value": "gpt"}, "config": {"openai": openai}})
    one = agent("one", modelRef={"name": "m"})
    asked = manifest("Query", "q", {"input": "Why?", "targets": [{"type": "agent", "name": "one"}]})
    schedule = manifest("Schedule", "yearly", {"schedule": "@yearly", "query": "q", "note": "happy new year"})
    broken = machine.write(schedule, asked, name="broken.yaml")
    refused = machine.run("schedules", "apply", "-f", broken)
    assert refused.returncode == 1
    assert "broken.yaml:17: Query/default/q: spec.targets[0].name: Agent default/one is neither in" in refused.stderr
    assert "1 problem" in refused.stderr
    assert not machine.state_dir.was_used
    file = machine.write(schedule, asked, one, model, secret)
    assert [machine.run("schedules", "apply", "-f", file).stdout for _ in range(2)] == [
        "schedule/yearly created\n",
        "schedule/yearly unchanged\n",
    ]
    assert machine.run("schedules", "pause", "yearly", "--note", "not this year").stdout == "schedule/yearly paused\n"
    wait_until_listed(machine, "yearly")
    [listed] = json.loads(machine.run("schedules", "list", "-o", "json").stdout)
    assert (listed["paused"], listed["note"], listed["schedule"]) == (True, "not this year", "@yearly")
    table = machine.run("schedules", "list").stdout
    assert "yearly  default" in table
    assert "Paused" in table
    run = machine.run("schedules", "trigger", "yearly").stdout.strip()
    assert machine.run("watch", run).returncode == 0
    machine.wait_until_listed(run)
    assert machine.run("status", "q", "-o", "json").stdout.count("Since it is.") > 0
    assert machine.run("schedules", "unpause", "yearly").stdout == "schedule/yearly unpaused\n"
    assert machine.run("schedules", "delete", "yearly").stdout == "schedule/yearly deleted\n"
    gone = machine.run("schedules", "pause", "yearly")
    assert "there is no schedule 'yearly' in namespace 'default'" in gone.stderr
    assert gone.returncode == 1
