"""What people ask of a run is seen with who and when: in events, on the console, in lists and in its status."""

import asyncio
import io

from rich.console import Console
from temporalio.client import Client

from baton.starter.console.status import print_status
from baton.starter.console.watch import Watch
from baton.starter.history.ark_events import EventRecorder
from baton.starter.history.follow import follow
from baton.starter.history.run_events import RunEvent
from baton.starter.runs.listing import recent_runs
from baton.starter.runs.runs import live_status
from tests.harness.environment import Environment, Handle, Json, agent, line, team

REQUESTS = (
    "PauseRequested",
    "MessageReceived",
    "SessionChanged",
    "ResumeRequested",
    "TerminationRequested",
    "CancellationRequested",
)


async def seen(client: Client, handle: Handle) -> tuple[list[Json], str]:
    """The events of requests, and what the console prints of the run until now."""
    recorder, found, console = EventRecorder(), list[Json](), Console(file=io.StringIO(), width=200)
    watch = Watch(client, console)

    def on_event(event: RunEvent) -> None:
        found.extend(each.value for each in recorder.record(event))

    await follow(client, handle, on_event, wait=False)
    await watch.follow(handle, wait=False)
    assert isinstance(console.file, io.StringIO)
    return [each for each in found if each["event"] in REQUESTS], console.file.getvalue()


async def test_each_request_is_an_event_and_a_line_once_though_a_nested_team_gets_it_too(env: Environment) -> None:
    env.script(line("one", {"text": "a", "held": True}, "b"))
    inner, outer = team("inner", "one", strategy="sequential"), team("outer", "inner", "one", strategy="sequential")
    handle = await env.start_team([agent("one"), inner, outer], name="outer")
    await env.wait_for_calls(1)
    await handle.signal("pause", {"name": "ann"})
    await handle.execute_update("steer", {"text": "Think of the tides.", "name": "bob"})
    await handle.execute_update("session", {"depth": 3})
    await handle.signal("resume", "cleo")
    await handle.signal("nonsense", {"name": "dan"})
    await handle.signal("steer", {"nothing": "readable"})
    await handle.signal("terminate_team", {"reason": "enough", "name": "eve"})
    env.model.release()
    await env.turn_result(handle)
    events, printed = await seen(env.client, handle)
    assert [each["event"] for each in events] == [*REQUESTS[:5]]
    assert [each["by"] for each in events] == ["ann", "bob", env.client.identity, "cleo", "eve"]
    assert [each.get("text") for each in events][1] == "Think of the tides."
    assert (events[2]["changes"], events[4]["reason"]) == ({"depth": 3}, "enough")
    for words in ("ann paused the run", "cleo resumed the run", 'changed the session: {"depth": 3}'):
        assert printed.count(words) == 1
    assert printed.count("Think of the tides.") == 1
    assert "eve requested termination: enough" in printed


async def listed_states(env: Environment) -> list[str]:
    """The states of the runs of an environment, as far as Temporal lists them already."""
    return [run.state for run in await recent_runs(env.client, None, 20, env.task_queue)]


async def test_a_paused_run_says_so_in_lists_on_the_console_and_in_its_status(env: Environment) -> None:
    env.script(line("one", {"text": "a", "held": True}, "b"))
    handle = await env.start_team([agent("one"), team("team", "one", maxTurns=2, onMaxTurns="complete")])
    await env.wait_for_calls(1)
    await handle.signal("pause", {"name": "ann"})
    await handle.execute_update("session", {"depth": 3})
    await handle.execute_update("steer", {"text": "Think of the tides.", "name": "bob"})
    status = await handle.query("status")
    assert (status["paused"]["by"], status["session"]) == ("ann", {"depth": 3})
    assert [(each["name"], each["content"]) for each in status["waiting"]] == [("bob", "Think of the tides.")]
    env.model.release()
    while await listed_states(env) != ["Paused"]:
        await asyncio.sleep(0.1)
    watch = Watch(env.client, Console(file=io.StringIO()))
    await watch.follow(handle, wait=False)
    paused = watch.state.runs[handle.id].status.paused
    assert paused
    assert paused.by == "ann"
    await handle.signal("resume")
    await env.turn_result(handle)
    assert not {"paused", "session", "waiting"} & {*await handle.query("status")}
    while await listed_states(env) != ["Completed"]:
        await asyncio.sleep(0.1)


async def test_the_name_of_who_has_paused_a_run_is_printed_as_it_is_and_has_no_effect(env: Environment) -> None:
    env.script(line("one", {"text": "a", "held": True}, "b"))
    handle = await env.start_team([agent("one"), team("team", "one", maxTurns=2, onMaxTurns="complete")])
    await env.wait_for_calls(1)
    await handle.signal("pause", {"name": "[/oops] \x1b[2J"})
    env.model.release()
    while not (status := await live_status(env.client, handle)).paused:
        await asyncio.sleep(0.02)
    printed = io.StringIO()
    print_status(Console(file=printed, width=200), handle.id, status)
    assert "(paused by [/oops] ␛[2J since 2" in printed.getvalue()
    assert "\x1b" not in printed.getvalue()
    await handle.signal("resume")
    await env.turn_result(handle)


async def test_a_cancellation_says_which_client_has_asked_for_it(env: Environment) -> None:
    env.script(line("one", {"text": "a", "hang": True}))
    handle = await env.start_team([agent("one"), team("team", "one", strategy="sequential")])
    await env.wait_for_calls(1)
    other = await Client.connect(env.client.service_client.config.target_host, identity="ops@desk")
    await other.get_workflow_handle(handle.id).cancel()
    await asyncio.wait([asyncio.create_task(handle.result())])
    events, printed = await seen(env.client, handle)
    assert [(each["event"], each["by"]) for each in events] == [("CancellationRequested", "ops@desk")]
    assert "ops@desk canceled the run" in printed
