"""A2A: the clients of the protocol's SDK, in both versions and bindings, before one or two gateways."""

import asyncio
import contextlib
import json
import shutil
import threading
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import httpx
import pytest
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.client import Client as A2AClient
from a2a.client.errors import A2AClientError
from a2a.types import (
    AgentCard,
    AuthenticationInfo,
    CancelTaskRequest,
    DeleteTaskPushNotificationConfigRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTasksRequest,
    Message,
    Part,
    Role,
    SendMessageConfiguration,
    SendMessageRequest,
    StreamResponse,
    SubscribeToTaskRequest,
    Task,
    TaskPushNotificationConfig,
    TaskState,
)
from a2a.utils.errors import (
    A2AError,
    InvalidParamsError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from a2a.utils.task import ListTasksCursor, encode_list_tasks_cursor
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.struct_pb2 import Struct, Value
from google.protobuf.timestamp_pb2 import Timestamp
from starlette.applications import Starlette
from starlette.requests import Request as StarletteRequest
from starlette.responses import Response
from starlette.routing import Route
from temporalio.client import WorkflowFailureError
from temporalio.testing import ActivityEnvironment

from baton.activities.runs import RunActivities
from baton.contracts.decisions import PendingDecision
from baton.contracts.requests import ExpireRequest
from baton.journal.journal import Journal
from baton.starter.gateway import a2a_push
from baton.starter.gateway.a2a_tasks import TaskView
from baton.starter.gateway.access import LOCAL
from baton.starter.gateway.app import Gateway
from baton.starter.gateway.errors import UnavailableError
from baton.starter.gateway.run import Run
from baton.starter.gateway.server import listen, serving
from baton.starter.gateway.settings import GatewaySettings
from baton.starter.history.events import MessageEvent, SteeredEvent
from baton.starter.operations.erase import erase_runs
from baton.temporal.activity import set_own_client
from baton.testing import Reply
from tests.harness.environment import Environment, Json, agent, call, line, manifest, team
from tests.harness.event_loop import watched_loop
from tests.harness.gateway import GatewayServer, key_file
from tests.harness.killable_gateways import GatewayProcess
from tests.harness.manifests import prealpha
from tests.harness.mcp_process import McpServerProcess
from tests.harness.ports import own_port
from tests.harness.processes import process_env
from tests.harness.resets import reset, reset_points
from tests.starter.test_typescript import npm

SHOP = manifest("Tool", "order", {"type": "agent", "agent": {"name": "shop"}, "approval": {}})
INTERVIEW = manifest(
    "Team",
    "interview",
    {
        "strategy": "sequential",
        "members": [
            {"name": "ann", "type": "human", "prompt": "Who?"},
            {"name": "bob", "type": "human", "prompt": "And you?"},
            {"name": "one", "type": "agent"},
        ],
    },
)
MANIFESTS = [
    agent("one"),
    agent("two"),
    team("duo", "one", "two", maxTurns=1, onMaxTurns="complete"),
    agent("buyer", "order"),
    agent("shop"),
    SHOP,
    team("desk", "buyer", strategy="sequential"),
    INTERVIEW,
    team("long", "one", "two", maxTurns=3, onMaxTurns="complete"),
]
INTERFACES = [("JSONRPC", "1.0"), ("HTTP+JSON", "1.0"), ("JSONRPC", "0.3"), ("HTTP+JSON", "0.3")]

Events = list[StreamResponse]


async def card_of(gateway: GatewayServer, target: str, key: str = "") -> AgentCard:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    resolver = A2ACardResolver(gateway.http, f"{gateway.url}/a2a/{target}")
    return await resolver.get_agent_card(http_kwargs={"headers": headers})


@contextlib.asynccontextmanager
async def a2a_client(
    gateway: GatewayServer,
    target: str,
    binding: str = "JSONRPC",
    version: str = "1.0",
    *,
    streaming: bool = True,
    key: str = "",
) -> AsyncIterator[A2AClient]:
    """A client for an interface in the card of a target."""
    card = await card_of(gateway, target, key)
    chosen = [
        each
        for each in card.supported_interfaces
        if (each.protocol_binding, each.protocol_version) == (binding, version)
    ]
    del card.supported_interfaces[:]
    card.supported_interfaces.extend(chosen)
    headers = {"authorization": f"Bearer {key}"} if key else {}
    async with httpx.AsyncClient(timeout=60, headers=headers) as http:
        config = ClientConfig(httpx_client=http, supported_protocol_bindings=[binding], streaming=streaming)
        yield ClientFactory(config).create(card)


def message(text: str, task: Task | None = None, **more: Any) -> Message:
    given = {"message_id": uuid.uuid4().hex, "task_id": task.id if task else "", **more}
    return Message(role=Role.ROLE_USER, parts=[Part(text=text)], **given)


def data(value: Json, task: Task) -> Message:
    made = message("", task)
    del made.parts[:]
    made.parts.append(Part(data=ParseDict(value, Value())))
    return made


async def send(client: A2AClient, sent: Message, *, waits: bool = True) -> Events:
    configuration = SendMessageConfiguration(return_immediately=not waits)
    return [event async for event in client.send_message(SendMessageRequest(message=sent, configuration=configuration))]


async def started(client: A2AClient, sent: Message) -> Task:
    """The task of a message, while it works; the client does not listen any longer."""
    stream = client.send_message(SendMessageRequest(message=sent))
    async with contextlib.aclosing(stream):  # type: ignore[type-var]  # it is a generator
        return (await anext(stream)).task


def refused(error: type[A2AError], binding: str, version: str) -> AbstractContextManager[object]:
    """Expects an error; of those of HTTP+JSON 0.3, the SDK's client tells nothing but the status."""
    return pytest.raises(A2AClientError if (binding, version) == ("HTTP+JSON", "0.3") else error)


async def until_listed(client: A2AClient, count: int, **filters: Any) -> list[Task]:
    """The tasks that fit the filters, once there are so many: Temporal lists a run, and its end, a moment later."""
    while len(tasks := (await client.list_tasks(ListTasksRequest(**filters))).tasks) < count:
        await asyncio.sleep(0.02)
    return [*tasks]


def task_of(events: Events) -> Task:
    return next(event.task for event in reversed(events) if event.HasField("task"))


def said(events: Events) -> list[str]:
    """What was said after the question: in the task as it was, and since then."""
    messages = [*events[0].task.history][1:]
    messages += [event.status_update.status.message for event in events if event.HasField("status_update")]
    return [part.text for each in messages for part in each.parts if part.text]


def states(events: Events) -> list[str]:
    return [TaskState.Name(event.status_update.status.state) for event in events if event.HasField("status_update")]


def answer(task: Task) -> str:
    return "".join(part.text for artifact in task.artifacts for part in artifact.parts)


@pytest.mark.parametrize(("binding", "version"), INTERFACES)
async def test_a_team_answers_in_every_binding_and_version(gateway: GatewayServer, binding: str, version: str) -> None:
    gateway.env.script(line("one", "a"), line("two", "b"))
    async with a2a_client(gateway, "team/duo", binding, version) as client:
        events = await send(client, message("Why?"))
        assert events[0].HasField("task")
        assert said(events) == ["a", "b"]
        assert states(events)[-1] == "TASK_STATE_COMPLETED"
        task = await client.get_task(GetTaskRequest(id=task_of(events).id))
        assert task.status.state == TaskState.TASK_STATE_COMPLETED
        assert [each.parts[0].text for each in task.history] == ["Why?", "a", "b"]
        assert answer(task) == "b"
        last = await client.get_task(GetTaskRequest(id=task.id, history_length=1))
        assert [each.parts[0].text for each in last.history] == ["b"]


@pytest.mark.parametrize(("binding", "version"), INTERFACES)
async def test_a_message_without_a_stream_waits_for_the_answer_or_does_not(
    gateway: GatewayServer, binding: str, version: str
) -> None:
    gateway.env.script(line("one", "a"))
    async with a2a_client(gateway, "agent/one", binding, version, streaming=False) as client:
        task = task_of(await send(client, message("Why?")))
        assert (task.status.state, answer(task)) == (TaskState.TASK_STATE_COMPLETED, "a")
        gateway.env.answer = lambda _: Reply(text="b", held=True)
        task = task_of(await send(client, message("Why?"), waits=False))
        assert task.status.state in (TaskState.TASK_STATE_SUBMITTED, TaskState.TASK_STATE_WORKING)
        gateway.env.model.release()
        await gateway.finished(task.id)


async def test_a_repeated_message_joins_its_task(gateway: GatewayServer) -> None:
    gateway.env.script(line("one", "a", "b"))
    async with a2a_client(gateway, "agent/one", streaming=False) as client:
        first = message("Why?")
        tasks = [task_of(events) for events in await asyncio.gather(*(send(client, first) for _ in range(3)))]
        tasks.append(task_of(await send(client, first)))
        assert len({task.id for task in tasks}) == 1
        assert len(gateway.env.model.requests) == 1
        with pytest.raises(InvalidParamsError):
            await send(client, message("Other?", message_id=first.message_id))


async def test_a_context_continues_the_conversation_of_its_caller_only(served_env: Environment, tmp_path: Path) -> None:
    path, keys = key_file(tmp_path, {"ann": {}, "bob": {}})
    served_env.script(line("one", "a", "b", "c"))
    async with (
        GatewayServer.running(served_env, BATON_GATEWAY_KEYS=str(path)) as gateway,
        a2a_client(gateway, "agent/one", streaming=False, key=keys["ann"]) as ann,
        a2a_client(gateway, "agent/one", key=keys["bob"]) as bob,
    ):
        first = task_of(await send(ann, message("My name is Ann.")))
        second = task_of(await send(ann, message("And?", context_id=first.context_id)))
        assert (second.context_id, second.id != first.id) == (first.context_id, True)
        third = (await send(bob, message("And me?", context_id=first.context_id)))[0].task
        assert third.context_id == first.context_id
        listed = await until_listed(bob, 1, context_id=first.context_id)
        assert [task.id for task in listed] == [third.id]
        for refused in (
            bob.get_task(GetTaskRequest(id=first.id)),
            bob.cancel_task(CancelTaskRequest(id=first.id)),
            send(bob, message("Me too.", first)),
        ):
            with pytest.raises(TaskNotFoundError):
                await refused
        with pytest.raises(TaskNotFoundError):
            [_ async for _ in bob.subscribe(SubscribeToTaskRequest(id=first.id))]
    asked = [str(request) for request in served_env.model.requests]
    assert ["My name is Ann." in text for text in asked] == [True, True, False]


async def test_whole_numbers_of_the_session_in_the_metadata_stay_whole(gateway: GatewayServer) -> None:
    gateway.env.script(line("one", {"text": "Hello.", "held": True}))
    session = {"floor": 3, "share": 0.5, "rooms": [1, 2]}
    async with a2a_client(gateway, "agent/one", streaming=False) as client:
        metadata = ParseDict({"baton": {"session": session}}, Struct())
        task = task_of(await send(client, message("Where?", metadata=metadata), waits=False))
        run = await run_of(gateway, task, Run)
        shown = (await run.status()).session
        assert json.dumps(shown, sort_keys=True) == json.dumps(session, sort_keys=True)
        gateway.env.model.release()


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999"])
async def test_a_number_that_json_does_not_have_is_refused_in_every_part_of_a_message(
    gateway: GatewayServer, number: str
) -> None:
    headers = {"a2a-version": "1.0", "content-type": "application/json"}
    for fields in (
        '"parts": [{"text": "Where?"}], "metadata": {"baton": {"session": {"rate": [NUMBER]}}}',
        '"parts": [{"data": {"rate": NUMBER}}]',
    ):
        said = '{"message": {"messageId": "m", "role": "ROLE_USER", FIELDS}}'.replace("FIELDS", fields)
        call = '{"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": PARAMS}'.replace("PARAMS", said)
        for path, body in (("", call), ("/message:send", said)):
            url = f"{gateway.url}/a2a/agent/one{path}"
            answer = await gateway.http.post(url, content=body.replace("NUMBER", number), headers=headers)
            assert answer.status_code == (400 if path else 200), answer.text
            error = answer.json()["error"]
            assert "too large" in error["message"] or "is not JSON" in error["message"]
    assert not gateway.env.model.requests


async def test_a_task_belongs_to_the_address_at_which_it_was_started(gateway: GatewayServer) -> None:
    gateway.env.script(line("one", "a"))
    async with a2a_client(gateway, "agent/one", streaming=False) as client:
        task = task_of(await send(client, message("Why?")))
    started = await gateway.post("/runs", {"target": "agent/two", "input": "Why?"}, 201)
    async with a2a_client(gateway, "agent/two") as other:
        for run in (task.id, started["id"], "nothing"):
            with pytest.raises(TaskNotFoundError):
                await other.get_task(GetTaskRequest(id=run))
        assert not (await other.list_tasks(ListTasksRequest())).tasks


async def follow(client: A2AClient, task: str, seen: Events, subscribed: threading.Semaphore) -> None:
    """Receives the events of a task to its end, and tells of the first; none if the task has ended already."""
    with contextlib.suppress(UnsupportedOperationError):
        async for event in client.subscribe(SubscribeToTaskRequest(id=task)):
            if not seen:
                subscribed.release()
            seen.append(event)


async def test_subscribers_of_two_gateways_lose_and_double_nothing(gateway: GatewayServer) -> None:
    """The task as it is, then what follows: whenever a client subscribes, together they are the whole discussion.

    Each subscribes while a member speaks, and only the one that comes last may not have been heard yet.
    """
    subscribed = threading.Semaphore(1)

    def answer_next(_: Json) -> Reply:
        assert subscribed.acquire(timeout=120)
        return Reply(text=f"word {len(gateway.env.model.requests)}", delay=0.15)

    gateway.env.answer = answer_next
    seen: list[Events] = []
    async with GatewayServer.running(gateway.env) as second, contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(a2a_client(each, "team/long")) for each in (gateway, second)]
        async with asyncio.TaskGroup() as following:
            sent: Events = []
            asked = SendMessageRequest(message=message("Why?"))
            async for event in clients[0].send_message(asked):
                sent.append(event)
                task = sent[0].task.id
                seen.append([])
                following.create_task(follow(clients[len(seen) % 2], task, seen[-1], subscribed))
        final = await clients[1].get_task(GetTaskRequest(id=task))
    assert len(final.history) == 7
    received = [events for events in [sent, *seen] if events]
    assert len(received) >= 6
    for events in received:
        heard = [each.message_id for each in events[0].task.history]
        heard += [
            event.status_update.status.message.message_id
            for event in events[1:]
            if event.HasField("status_update") and event.status_update.status.HasField("message")
        ]
        assert heard == [each.message_id for each in final.history]
        assert states(events)[-1] == "TASK_STATE_COMPLETED"
        assert collected(events) == answer(final)


async def test_a_streamed_answer_is_whole_however_long_it_is(gateway: GatewayServer) -> None:
    """A history has only the beginning of one of more than 64,000 bytes."""
    text = "".join(f"word{number} " for number in range(9_000))
    gateway.env.script(line("one", {"text": text, "pause": 0.001}))
    async with a2a_client(gateway, "agent/one") as client:
        assert collected(await send(client, message("Why?"))) == text


def collected(events: Events) -> str:
    """The text of the artifact, as its chunks say."""
    text = ""
    for event in events:
        if event.HasField("artifact_update"):
            chunk = "".join(part.text for part in event.artifact_update.artifact.parts)
            text = text + chunk if event.artifact_update.append else chunk
    return text


@pytest.mark.parametrize(("binding", "version"), INTERFACES)
async def test_the_answer_of_an_agent_arrives_while_it_is_written(
    gateway: GatewayServer, binding: str, version: str
) -> None:
    text = " ".join(f"word{number}" for number in range(30))
    gateway.env.answer = lambda _: Reply(text=text, held=True)
    async with a2a_client(gateway, "agent/one", binding, version) as client:
        events: Events = []
        async for event in client.send_message(SendMessageRequest(message=message("Why?"))):
            events.append(event)
            if event.HasField("artifact_update"):
                gateway.env.model.release()
        assert collected(events) == text
        assert events[-2].artifact_update.last_chunk
        assert states(events)[-1] == "TASK_STATE_COMPLETED"


@pytest.mark.parametrize(("binding", "version"), INTERFACES)
async def test_a_task_is_canceled_once(gateway: GatewayServer, binding: str, version: str) -> None:
    gateway.env.answer = lambda _: Reply(hang=True)
    async with a2a_client(gateway, "team/duo", binding, version) as client:
        task = await started(client, message("Why?"))
        await gateway.env.wait_for_calls(1)
        canceled = await client.cancel_task(CancelTaskRequest(id=task.id))
        assert canceled.status.state == TaskState.TASK_STATE_CANCELED
        with refused(TaskNotCancelableError, binding, version):
            await client.cancel_task(CancelTaskRequest(id=task.id))
        with refused(UnsupportedOperationError, binding, version):
            await send(client, message("Go on.", task))
        with refused(UnsupportedOperationError, binding, version):
            [_ async for _ in client.subscribe(SubscribeToTaskRequest(id=task.id))]


async def waiting_order(client: A2AClient, env: Environment, *tail: str | Json) -> Task:
    """A task that waits for the approval of an order."""
    order = call("order", input="12 desks")
    env.script(line("buyer", order, *(tail or ("Ordered.",))), line("shop", "Confirmed.", "Confirmed."))
    return task_of(await send(client, message("Buy desks.")))


def pending(task: Task) -> Json:
    """What a task waits for, as the data of its message says."""
    (waiting,) = MessageToDict(task.status.message.parts[1].data)["pending"]
    found: Json = waiting
    return found


@pytest.mark.parametrize(("binding", "version"), INTERFACES)
async def test_a_task_that_waits_for_approval_goes_on_once_it_is_approved(
    gateway: GatewayServer, binding: str, version: str
) -> None:
    async with a2a_client(gateway, "team/desk", binding, version, streaming=False) as client:
        task = await waiting_order(client, gateway.env)
        assert task.status.state == TaskState.TASK_STATE_INPUT_REQUIRED
        waits = pending(task)
        assert (waits["kind"], waits["tool"], waits["arguments"]) == ("approval", "order", '{"input": "12 desks"}')
        for unclear in (message("Yes.", task), message("approve", task), message("approve other", task)):
            with refused(InvalidParamsError, binding, version):
                await send(client, unclear)
        approval = data({"approve": waits["id"], "arguments": {"input": "3 desks"}}, task)
        done = task_of(await send(client, approval))
        assert (done.status.state, answer(done)) == (TaskState.TASK_STATE_COMPLETED, "Ordered.")
        again = task_of(await send(client, approval))
        assert again.status.state == TaskState.TASK_STATE_COMPLETED
    assert "3 desks" in str(gateway.env.model.requests)


RunType = TypeVar("RunType", bound=Run)


async def run_of(gateway: GatewayServer, task: Task, kind: type[RunType]) -> RunType:
    """The run of a task, as a gateway reads it."""
    handle = gateway.env.client.get_workflow_handle(task.id)
    memo = await (await handle.describe()).memo()
    return kind(gateway.env.client, handle, memo, LOCAL, gateway.env.worker_env)


class LateRun(Run):
    """A run whose child run has told its events that it waits, but not yet the run itself."""

    is_told = False

    async def pending(self) -> list[PendingDecision]:
        known = await super().pending() if self.is_told else []
        self.is_told = True
        return known


async def test_a_task_waits_as_soon_as_its_events_say_so(gateway: GatewayServer) -> None:
    async with a2a_client(gateway, "team/desk", streaming=False) as client:
        task = await waiting_order(client, gateway.env)
        run = await run_of(gateway, task, LateRun)
        assert (await TaskView.read(run)).task.status == task.status
        await client.cancel_task(CancelTaskRequest(id=task.id))


async def test_an_answer_counts_as_soon_as_the_events_say_that_it_is_waited_for(gateway: GatewayServer) -> None:
    async with a2a_client(gateway, "team/desk", streaming=False) as client:
        task = await waiting_order(client, gateway.env)
        waits = pending(task)["id"]
        run = await run_of(gateway, task, LateRun)
        assert [each.id for each in await run.undecided_with([waits])] == [waits]
        assert [each.id for each in await run.undecided_with([waits, "another"])] == [waits]
        await client.cancel_task(CancelTaskRequest(id=task.id))


async def test_a_task_waits_for_more_budget_and_goes_on_once_it_is_approved(env: Environment) -> None:
    thrifty = team("thrifty", "one", "two", strategy="sequential", budget={"modelCalls": 1, "onExceeded": "ask"})
    async with (
        env.with_manifests([agent("one"), agent("two"), thrifty]) as served,
        GatewayServer.running(served) as gateway,
        a2a_client(gateway, "team/thrifty", streaming=False) as client,
    ):
        served.script(line("one", "a"), line("two", "b"))
        task = task_of(await send(client, message("Why?")))
        assert task.status.state == TaskState.TASK_STATE_INPUT_REQUIRED
        waits = pending(task)
        assert waits["kind"] == "budget"
        assert (await client.get_task(GetTaskRequest(id=task.id))).status == task.status
        done = task_of(await send(client, message(f"approve {waits['id']}", task)))
        assert (done.status.state, answer(done)) == (TaskState.TASK_STATE_COMPLETED, "b")


class CountedRun(Run):
    """A run that counts how often it is asked what waits."""

    asked = 0

    async def pending(self) -> list[PendingDecision]:
        self.asked += 1
        return await super().pending()


async def test_a_task_whose_decision_has_no_effect_yet_is_read_at_once(gateway: GatewayServer) -> None:
    async with a2a_client(gateway, "team/desk", streaming=False) as client:
        task = await waiting_order(client, gateway.env)
        run = await run_of(gateway, task, CountedRun)
        await run.pause()
        await run.decide(pending(task)["id"], approved=False)
        run.asked = 0
        assert (await TaskView.read(run)).state == TaskState.TASK_STATE_WORKING
        assert run.asked == 1
        await client.cancel_task(CancelTaskRequest(id=task.id))


async def test_a_call_is_rejected_by_a_text_that_names_it(gateway: GatewayServer) -> None:
    async with a2a_client(gateway, "team/desk", streaming=False) as client:
        task = await waiting_order(client, gateway.env, "Not ordered.")
        done = task_of(await send(client, message(f"reject {pending(task)['id']} too many", task)))
        assert answer(done) == "Not ordered."
    assert "too many" in str(gateway.env.model.requests[-1])


async def test_a_text_of_spaces_does_not_hold_up_the_gateway(gateway: GatewayServer) -> None:
    async with a2a_client(gateway, "team/desk", streaming=False) as client:
        task = await waiting_order(client, gateway.env)
        async with watched_loop() as waits:
            with pytest.raises(InvalidParamsError):
                await send(client, message(f"approve other{' ' * 100_000}", task))
        assert waits.held < 10
        await send(client, message(f" approve {pending(task)['id']} \n", task))


async def test_a_repeated_decision_does_not_decide_the_next_call(gateway: GatewayServer) -> None:
    """The answer to the first approval is lost: sent again, it must not approve what waits by now."""
    async with a2a_client(gateway, "team/desk", streaming=False) as client:
        task = await waiting_order(client, gateway.env, call("order", input="9 lamps"), "Ordered.")
        approval = message(f"approve {pending(task)['id']}", task)
        waiting = task_of(await send(client, approval))
        assert pending(waiting)["arguments"] == '{"input": "9 lamps"}'
        again = task_of(await send(client, approval))
        assert again.status.state == TaskState.TASK_STATE_INPUT_REQUIRED
        assert pending(again)["id"] == pending(waiting)["id"] != pending(task)["id"]


@pytest.mark.slow
async def test_a_late_decision_as_text_is_no_message_and_no_reply_to_another_question(gateway: GatewayServer) -> None:
    async with a2a_client(gateway, "team/desk", streaming=False) as client:
        task = await waiting_order(client, gateway.env)
        decided = pending(task)["id"]
        run = await run_of(gateway, task, Run)
        await run.pause()
        await run.decide(decided, approved=False)
        with pytest.raises(InvalidParamsError, match="not waiting for a decision"):
            await send(client, message(f"approve {decided}", task))
        assert not (await run.status()).waiting
        await client.cancel_task(CancelTaskRequest(id=task.id))
    async with a2a_client(gateway, "team/interview", streaming=False) as client:
        task = task_of(await send(client, message("Meet.")))
        asked = pending(task)["id"]
        waiting = task_of(await send(client, message("I am Ann.", task)))
        for text in (f"approve {asked}", f"reject {asked} No.", f"approve {decided}"):
            with pytest.raises(InvalidParamsError):
                await send(client, message(text, task))
        assert pending(await client.get_task(GetTaskRequest(id=task.id))) == pending(waiting)
        await client.cancel_task(CancelTaskRequest(id=task.id))


async def test_a_message_answers_the_only_question_and_a_repeated_one_not_the_next(gateway: GatewayServer) -> None:
    gateway.env.script(line("one", "Hello."))
    async with a2a_client(gateway, "team/interview") as client:
        events = await send(client, message("Meet."))
        assert states(events)[-1] == "TASK_STATE_INPUT_REQUIRED"
        task = await client.get_task(GetTaskRequest(id=task_of(events).id))
        first = message("I am Ann.", task)
        waiting = await send(client, first)
        assert states(waiting)[-1] == "TASK_STATE_INPUT_REQUIRED"
        again = task_of(await send(client, first))
        assert again.status.state == TaskState.TASK_STATE_INPUT_REQUIRED
        done = await send(client, message("I am Bob.", task))
        assert states(done)[-1] == "TASK_STATE_COMPLETED"
        final = await client.get_task(GetTaskRequest(id=task.id))
    assert [each.parts[0].text for each in final.history][1:] == ["I am Ann.", "I am Bob.", "Hello."]


@pytest.mark.parametrize("is_early", [False, True])
async def test_a_message_that_a_member_has_read_is_in_the_history_once_in_any_order_of_the_events(
    *, is_early: bool
) -> None:
    """The histories of a run and of the run of its team are read side by side."""
    about: Any = {"at": datetime.now(UTC), "team": None}
    steered = SteeredEvent(**about, id="above/7.0", run="r", by="ann", text="Be kind.")
    read = MessageEvent(
        **about, id="below/9.0", run="r/target-1/duo", name="ann", text="Be kind.", number=2, from_person=True
    )
    again = SteeredEvent(**about, id="above/9.0", run="r", by="ann", text="Be kind.")
    run: Any = SimpleNamespace(id="r", memo={})
    view = TaskView(run, message("Why?"))
    for event in (read, steered) if is_early else (steered, read):
        await view.apply(event)
    assert [each.parts[0].text for each in view.task.history] == ["Why?", "Be kind."]
    await view.apply(again)
    assert [each.parts[0].text for each in view.task.history] == ["Why?", "Be kind.", "Be kind."]


async def test_a_task_whose_server_wants_a_person_to_authorize_something_says_so(
    env: Environment, tmp_path: Path
) -> None:
    buyer = agent("buyer", tools=[{"name": "test-pay", "type": "mcp"}])
    with McpServerProcess("2026", tmp_path).running() as server:
        async with (
            env.with_manifests([buyer, server.manifest(questions={})]) as served,
            GatewayServer.running(served) as gateway,
            a2a_client(gateway, "agent/buyer") as client,
        ):
            served.script(line("buyer", call("test-pay"), "Paid."))
            events = await send(client, message("Pay."))
            assert states(events)[-1] == "TASK_STATE_AUTH_REQUIRED"
            task = await client.get_task(GetTaskRequest(id=task_of(events).id))
            assert task.status.state == TaskState.TASK_STATE_AUTH_REQUIRED
            assert "https://pay.example/7" in task.status.message.parts[0].text
            await served.find_runs(f"WorkflowId = '{task.id}' AND BatonPhase = 'InputRequired'", 1)
            for status, ids in (
                (TaskState.TASK_STATE_AUTH_REQUIRED, [task.id]),
                (TaskState.TASK_STATE_INPUT_REQUIRED, []),
            ):
                listed = await client.list_tasks(ListTasksRequest(status=status))
                assert [each.id for each in listed.tasks] == ids
            (tmp_path / "paid").touch()
            done = await send(client, message("It is paid.", task))
            assert states(done)[-1] == "TASK_STATE_COMPLETED"
    assert server.calls == ["paid"]


async def test_a_message_to_a_working_task_joins_its_discussion_and_its_history_once(gateway: GatewayServer) -> None:
    replies = iter([Reply(text="a", held=True), Reply(text="b")])
    gateway.env.answer = lambda _: next(replies)
    async with a2a_client(gateway, "team/duo", streaming=False) as client:
        task = task_of(await send(client, message("Why?"), waits=False))
        await gateway.env.wait_for_calls(1)
        steering = message("Be brief.", task)
        await send(client, steering, waits=False)
        gateway.env.model.release()
        done = task_of(await send(client, steering))
        assert done.status.state == TaskState.TASK_STATE_COMPLETED
    assert str(gateway.env.model.requests[-1]).count("Be brief.") == 1
    said = [(said.role, said.parts[0].text) for said in done.history]
    assert [role for role, text in said if text == "Be brief."] == [Role.ROLE_USER], said


async def test_tasks_are_listed_in_pages_and_by_state(gateway: GatewayServer) -> None:
    gateway.env.answer = lambda _: Reply(text="abcde"[len(gateway.env.model.requests) - 1])
    async with a2a_client(gateway, "agent/one", streaming=False) as client:
        started = [task_of(await send(client, message(f"Why {number}?"))).id for number in range(5)]
        await until_listed(client, 5, status=TaskState.TASK_STATE_COMPLETED)
        listed: list[Task] = []
        request = ListTasksRequest(page_size=2, include_artifacts=True)
        while True:
            page = await client.list_tasks(request)
            listed += page.tasks
            if len(listed) < page.total_size and not page.next_page_token:
                break
            request.page_token = page.next_page_token
            if not page.next_page_token:
                break
        assert [task.id for task in listed] == started[::-1]
        assert [answer(task) for task in listed] == [*"edcba"]
        assert page.total_size == 5
        working = await client.list_tasks(ListTasksRequest(status=TaskState.TASK_STATE_WORKING))
        assert working.total_size == 0
        short = await client.list_tasks(ListTasksRequest(history_length=0))
        assert not any(task.history or task.artifacts for task in short.tasks)
        for token in ("nonsense", *(token_at(time) for time in (None, -1, 2**63, 10**40))):
            with pytest.raises(InvalidParamsError):
                await client.list_tasks(ListTasksRequest(page_token=token))
        for time in (0, 2**63 - 1):
            await client.list_tasks(ListTasksRequest(page_token=token_at(time)))


def token_at(nanoseconds: int | None) -> str:
    return encode_list_tasks_cursor(ListTasksCursor(timestamp_ns=nanoseconds, task_id="x"))


async def pages(client: A2AClient, **filters: Any) -> list[list[str]]:
    """The ids of the tasks of all pages of a list."""
    found: list[list[str]] = []
    request = ListTasksRequest(**filters)
    while not found or request.page_token:
        page = await client.list_tasks(request)
        found.append([task.id for task in page.tasks])
        request.page_token = page.next_page_token
    return found


async def test_the_task_whose_state_has_changed_last_is_listed_first(gateway: GatewayServer) -> None:
    gateway.env.answer = lambda request: Reply(text="a", held="slowly" in str(request))
    async with a2a_client(gateway, "agent/one", streaming=False) as client:
        slow = task_of(await send(client, message("Answer slowly."), waits=False)).id
        await gateway.env.wait_for_calls(1)
        quick = [task_of(await send(client, message("Why?"))).id for _ in range(2)]
        await until_listed(client, 2, status=TaskState.TASK_STATE_COMPLETED)
        assert await pages(client, page_size=2) == [quick[::-1], [slow]]
        gateway.env.model.release()
        await gateway.finished(slow)
        await until_listed(client, 3, status=TaskState.TASK_STATE_COMPLETED)
        assert await pages(client, page_size=2) == [[slow, quick[1]], [quick[0]]]


async def test_a_page_of_tasks_searches_a_bounded_number_of_runs(
    gateway: GatewayServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway.env.answer = lambda _: Reply(text="a")
    async with a2a_client(gateway, "agent/one", streaming=False) as one:
        first = task_of(await send(one, message("Why?"))).id
        async with a2a_client(gateway, "agent/two", streaming=False) as two:
            for _ in range(4):
                await send(two, message("Why?"))
            await until_listed(two, 4, status=TaskState.TASK_STATE_COMPLETED)
        last = task_of(await send(one, message("Why?"))).id
        await until_listed(one, 2, status=TaskState.TASK_STATE_COMPLETED)
        assert await pages(one) == [[last, first]]
        monkeypatch.setattr("baton.starter.runs.listing.MAX_SEARCHED", 2)
        assert await pages(one) == [[last], [], [first]]


async def test_tasks_are_listed_while_no_worker_can_tell_what_is_decided(served_env: Environment) -> None:
    async with contextlib.AsyncExitStack() as stack:
        async with served_env.with_manifests([agent("buyer", "order"), agent("shop"), SHOP]) as own:
            gateway = await stack.enter_async_context(GatewayServer.running(own))
            own.script(line("buyer", call("order", input="desks")))
            client = await stack.enter_async_context(a2a_client(gateway, "agent/buyer", streaming=False))
            task = task_of(await send(client, message("Buy desks.")))
            await own.find_runs(f"WorkflowId = '{task.id}' AND BatonPhase = 'InputRequired'", 1)  # its worker sets that
        (listed,) = await until_listed(client, 1, status=TaskState.TASK_STATE_INPUT_REQUIRED)
        assert (listed.id, listed.status) == (task.id, task.status)
        await own.client.get_workflow_handle(task.id).terminate()
        while (ended := (await client.list_tasks(ListTasksRequest())).tasks[0]).status.state != (
            TaskState.TASK_STATE_FAILED
        ):
            await asyncio.sleep(0.02)
        assert ended.id == task.id


async def test_a_task_that_was_reset_is_listed_once_and_in_its_present_state(gateway: GatewayServer) -> None:
    env = gateway.env
    env.answer = lambda _: Reply(text="a", held=len(env.model.requests) > 1)
    async with a2a_client(gateway, "agent/one", streaming=False) as client:
        task = task_of(await send(client, message("Why?")))
        handle = env.client.get_workflow_handle(task.id)
        await reset(env, handle, (await reset_points(handle))[0])
        await env.wait_for_calls(2)
        working = {"status": TaskState.TASK_STATE_WORKING}
        while [task.id] not in await pages(client, **working):
            await asyncio.sleep(0.02)
        assert [each for page in await pages(client, page_size=1) for each in page] == [task.id]
        assert await pages(client, status=TaskState.TASK_STATE_COMPLETED) == [[]]
        env.model.release()
        await gateway.finished(task.id)


@pytest.mark.full
async def test_tasks_since_a_time_are_listed_in_any_time_zone(served_env: Environment, tmp_path: Path) -> None:
    served_env.script(line("one", "Because."))
    settings = {"BATON_GATEWAY_NAMESPACES": "*", "TZ": "EAST-14"}
    env = process_env(
        **served_env.worker_env, **settings, TEMPORAL_ADDRESS=served_env.client.service_client.config.target_host
    )
    process = GatewayProcess(env, own_port(), tmp_path / "gateway.log")
    process.start()
    try:
        await process.ready()
        async with httpx.AsyncClient(base_url=process.url) as http:
            gateway = GatewayServer(served_env, process.url, http)
            async with a2a_client(gateway, "agent/one", streaming=False) as client:
                await send(client, message("Why?"))
                while not (await client.list_tasks(ListTasksRequest(status=TaskState.TASK_STATE_COMPLETED))).tasks:
                    await asyncio.sleep(0.05)
                later = Timestamp()
                later.FromDatetime(datetime.now(UTC) + timedelta(hours=1))
                assert not (await client.list_tasks(ListTasksRequest(status_timestamp_after=later))).tasks
    finally:
        process.kill()


async def test_images_and_files_of_a_message_reach_the_model(gateway: GatewayServer) -> None:
    gateway.env.script(line("one", "Seen."))
    asked = message("What is it?")
    asked.parts.append(Part(raw=b"\x89PNG", media_type="image/png", filename="chart.png"))
    asked.parts.append(Part(url="https://example.com/a.png", media_type="image/png"))
    asked.parts.append(Part(data=ParseDict({"size": 3}, Value())))
    async with a2a_client(gateway, "agent/one", streaming=False) as client:
        task = task_of(await send(client, asked))
        assert answer(task) == "Seen."
        assert (task.history[0].parts[1].raw, task.history[0].parts[2].url) == (
            b"\x89PNG",
            "https://example.com/a.png",
        )
    request = str(gateway.env.model.requests[-1])
    assert "iVBORw==" in request.replace("\\/", "/")
    assert "https://example.com/a.png" in request
    assert '{"size": 3}' in request.replace('\\"', '"')


async def test_a_card_names_its_target_its_interfaces_and_the_key(served_env: Environment, tmp_path: Path) -> None:
    path, keys = key_file(tmp_path, {"ann": {}})
    async with GatewayServer.running(
        served_env, BATON_GATEWAY_KEYS=str(path), BATON_GATEWAY_URL="https://teams.example.com"
    ) as gateway:
        assert (await gateway.http.get("/a2a/team/duo/.well-known/agent-card.json")).status_code == 401
        bearer = {"authorization": f"Bearer {keys['ann']}"}
        old = (await gateway.http.get("/a2a/team/duo/.well-known/agent.json", headers=bearer)).json()
        assert old["url"] == "https://teams.example.com/a2a/team/duo"
        assert old["protocolVersion"].startswith("0.3")
        card = await card_of(gateway, "team/duo", keys["ann"])
        assert {each.url for each in card.supported_interfaces} == {old["url"]}
        assert card.security_schemes["key"].http_auth_security_scheme.scheme == "bearer"
        assert (await gateway.http.get("/a2a/team/none/.well-known/agent.json", headers=bearer)).status_code == 404
        several = await gateway.http.get("/.well-known/agent-card.json", headers=bearer)
        assert several.status_code == 404
        assert "/a2a/team/duo/.well-known/agent-card.json" in several.text
    async with GatewayServer.running(served_env, BATON_GATEWAY_A2A_AGENT="team/duo") as gateway:
        root = await A2ACardResolver(gateway.http, gateway.url).get_agent_card()
        assert root.name == "duo"


async def test_an_unreadable_call_is_answered_in_the_form_of_the_protocol(gateway: GatewayServer) -> None:
    wrong = await gateway.post("/a2a/team/duo", {"jsonrpc": "2.0", "id": 1, "method": "Nothing"})
    assert wrong["error"]["code"] == -32601
    missing = await gateway.post(
        "/a2a/team/duo", {"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": {"id": "x"}}, a2a_version="1.0"
    )
    assert missing["error"]["code"] == -32001
    rest = await gateway.get("/a2a/team/duo/tasks/x", 404, a2a_version="1.0")
    assert rest["error"]["details"][0]["reason"] == "TASK_NOT_FOUND"
    unknown = await gateway.post("/a2a/team/none", {}, 404)
    assert unknown["error"]["status"] == "NOT_FOUND"


async def test_a_team_asks_a_team_of_another_baton(gateway: GatewayServer) -> None:
    """An agent of an A2AServer: the two Batons share nothing but HTTP, though here one worker executes both."""
    gateway.env.script(line("one", "a"), line("two", "b"), line("near", "c"))
    far = agent("far", executionEngine={"name": "a2a"})
    far["metadata"]["annotations"] = {"a2a.server/name": "far"}
    del far["spec"]["prompt"]
    server = prealpha("A2AServer", "far", {"address": f"{gateway.url}/a2a/team/duo"})
    manifests = [far, server, agent("near"), team("mixed", "far", "near", strategy="sequential")]
    run = await gateway.env.start_query(manifests, "team/mixed")
    status = await gateway.env.status(run)
    assert (status.phase, [each.content for each in status.responses[0].messages[-2:]]) == ("Completed", ["b", "c"])


@pytest.fixture(scope="module")
def npm_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the JavaScript SDK in the version of each protocol, and the program that uses it."""
    folder = tmp_path_factory.mktemp("a2a")
    program = Path(__file__).with_name("a2a_client.mjs")
    (folder / program.name).write_text(program.read_text())
    packages = ("a2a@npm:@a2a-js/sdk@1.3.0", "a2a-old@npm:@a2a-js/sdk@0.3.13")
    npm(folder, "install", "--no-audit", "--no-fund", *packages)
    return folder


@pytest.mark.full  # it installs from the index of npm
@pytest.mark.skipif(not (shutil.which("node") and shutil.which("npm")), reason="there is no Node.js with npm here")
@pytest.mark.parametrize("version", ["1.0", "0.3"])
async def test_the_javascript_sdk_asks_a_team_and_approves_a_call(
    gateway: GatewayServer, npm_folder: Path, version: str
) -> None:
    order = call("order", input="12 desks")
    gateway.env.script(line("one", "a"), line("two", "b"), line("buyer", order, "Ordered."), line("shop", "Confirmed."))
    process = await asyncio.create_subprocess_exec(
        *("node", "a2a_client.mjs", gateway.url, version),
        cwd=npm_folder,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    printed, _ = await process.communicate()
    assert printed.decode().endswith("passed\n"), printed.decode()


class Receiver:
    """A receiver of push notifications: what it was sent, how many it refuses at first, and how slowly it responds."""

    def __init__(self, refuses: int = 0, seconds: float = 0) -> None:
        self.received: list[tuple[Json, Mapping[str, str]]] = []
        self.refuses = refuses
        self.seconds = seconds
        self.has_ended = asyncio.Event()

    async def receive(self, request: StarletteRequest) -> Response:
        if self.refuses:
            self.refuses -= 1
            return Response(status_code=503)
        body = await request.json()
        self.received.append((body, request.headers))
        if "TASK_STATE_COMPLETED" in str(body) or body.get("status", {}).get("state") == "completed":
            self.has_ended.set()
        await asyncio.sleep(self.seconds)
        return Response(status_code=204)

    def heard(self) -> list[str]:
        """The ids of the messages of members, each once."""
        by_number = {headers["x-a2a-notification-id"]: body for body, headers in self.received}
        return [
            body["statusUpdate"]["status"]["message"]["messageId"]
            for body in by_number.values()
            if "message" in body.get("statusUpdate", {}).get("status", {})
        ]

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        listener = listen("127.0.0.1", 0)
        app = Starlette(routes=[Route("/hook", self.receive, methods=["POST"])])
        async with serving(app, listener, GatewaySettings.of({})):
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/hook"


async def test_push_notifications_survive_the_gateway_and_are_tried_again(served_env: Environment) -> None:
    served_env.answer = lambda _: Reply(text="word", delay=0.3, held=True)
    private = {"BATON_ALLOW_PRIVATE_HOSTS": "1"}
    receiver = Receiver(refuses=1)
    async with receiver.serving() as url:
        config = TaskPushNotificationConfig(
            url=url, token="t-1", authentication=AuthenticationInfo(scheme="Bearer", credentials="c-1")
        )
        async with (
            GatewayServer.running(served_env, **private) as gateway,
            a2a_client(gateway, "team/long", streaming=False) as client,
        ):
            configuration = SendMessageConfiguration(return_immediately=True, task_push_notification_config=config)
            asked = SendMessageRequest(message=message("Why?"), configuration=configuration)
            task = task_of([event async for event in client.send_message(asked)])
            served_env.model.release()  # nothing was said yet: what comes before a configuration is not posted
        async with (
            GatewayServer.running(served_env, **private) as gateway,
            a2a_client(gateway, "team/long", streaming=False) as client,
        ):
            async with asyncio.timeout(60):
                await receiver.has_ended.wait()
            final = await client.get_task(GetTaskRequest(id=task.id))
            listed = await client.list_task_push_notification_configs(
                ListTaskPushNotificationConfigsRequest(task_id=task.id)
            )
    (kept,) = listed.configs
    assert (kept.url, kept.token, kept.authentication.credentials) == (url, "", "")
    assert receiver.heard() == [each.message_id for each in final.history[1:]]
    assert all(
        (headers["x-a2a-notification-token"], headers["authorization"]) == ("t-1", "Bearer c-1")
        for _, headers in receiver.received
    )


@pytest.mark.parametrize("is_to_task", [False, True])
async def test_a_message_sent_again_leaves_what_is_not_posted_yet_to_be_posted(
    served_env: Environment, *, is_to_task: bool
) -> None:
    served_env.answer = lambda _: Reply(text="word", held=True)
    receiver = Receiver(refuses=1_000)
    async with (
        receiver.serving() as url,
        GatewayServer.running(served_env, BATON_ALLOW_PRIVATE_HOSTS="1") as gateway,
        a2a_client(gateway, "team/long", streaming=False) as client,
    ):
        task = task_of(await send(client, message("Why?"), waits=False)) if is_to_task else None
        config = TaskPushNotificationConfig(url=url)
        configuration = SendMessageConfiguration(return_immediately=True, task_push_notification_config=config)
        asked = SendMessageRequest(message=message("And how?", task), configuration=configuration)
        task = task_of([event async for event in client.send_message(asked)])
        served_env.model.release()
        await gateway.finished(task.id)
        again = task_of([event async for event in client.send_message(asked)])
        assert again.id == task.id
        assert again.status.state == TaskState.TASK_STATE_COMPLETED
        receiver.refuses = 0
        async with asyncio.timeout(60):
            await receiver.has_ended.wait()
    assert receiver.heard() == [each.message_id for each in again.history if each.role == Role.ROLE_AGENT]


@pytest.mark.full
@pytest.mark.parametrize("token", ["t-1", "t-2"])
async def test_another_message_with_a_configuration_leaves_what_is_not_posted_yet_to_be_posted(
    served_env: Environment, token: str
) -> None:
    held: Json = {"text": "word", "held": True}
    served_env.script(line("one", "word", held), line("two", held))
    receiver = Receiver(refuses=1_000)

    def configuration(url: str, token: str) -> SendMessageConfiguration:
        config = TaskPushNotificationConfig(id="mine", url=url, token=token)
        return SendMessageConfiguration(return_immediately=True, task_push_notification_config=config)

    async with (
        receiver.serving() as url,
        GatewayServer.running(served_env, BATON_ALLOW_PRIVATE_HOSTS="1") as gateway,
        a2a_client(gateway, "team/long", streaming=False) as client,
    ):
        asked = SendMessageRequest(message=message("Why?"), configuration=configuration(url, "t-1"))
        task = task_of([event async for event in client.send_message(asked)])
        while len(task.history) < 2:
            task = await client.get_task(GetTaskRequest(id=task.id))
        more = SendMessageRequest(message=message("And how?", task), configuration=configuration(url, token))
        _ = [event async for event in client.send_message(more)]
        receiver.refuses = 0
        served_env.model.release()
        async with asyncio.timeout(60):
            await receiver.has_ended.wait()
        final = await client.get_task(GetTaskRequest(id=task.id))
    assert receiver.heard() == [each.message_id for each in final.history if each.role == Role.ROLE_AGENT]
    assert receiver.received[-1][1]["x-a2a-notification-token"] == token


async def test_a_task_in_which_nothing_happens_does_not_hold_up_the_notifications_of_others(
    served_env: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(a2a_push, "MAX_DELIVERIES", 1)
    monkeypatch.setattr(a2a_push, "QUIET_SECONDS", 0.2)
    served_env.answer = lambda request: Reply(text="a", held="slowly" in str(request))
    receiver = Receiver(seconds=0.4)  # while a notification is on its way, it is not quiet
    async with (
        receiver.serving() as url,
        GatewayServer.running(served_env, BATON_ALLOW_PRIVATE_HOSTS="1") as gateway,
        a2a_client(gateway, "agent/one", streaming=False) as client,
    ):

        async def asked(text: str) -> Task:
            config = TaskPushNotificationConfig(url=url)
            configuration = SendMessageConfiguration(return_immediately=True, task_push_notification_config=config)
            request = SendMessageRequest(message=message(text), configuration=configuration)
            return task_of([event async for event in client.send_message(request)])

        async def told(task: Task) -> None:
            async with asyncio.timeout(60):
                while not any(task.id in str(body) and "COMPLETED" in str(body) for body, _ in receiver.received):
                    await asyncio.sleep(0.02)

        slow = await asked("Answer slowly.")
        await served_env.wait_for_calls(1)
        for _ in range(2):
            await told(await asked("Why?"))
        served_env.model.release()
        await told(slow)
        numbers = [(str(body), headers["x-a2a-notification-id"]) for body, headers in receiver.received]
        assert len(set(numbers)) == len(numbers), "nothing is posted twice"


async def test_a_push_notification_of_version_0_3_is_the_task(served_env: Environment) -> None:
    served_env.script(line("one", {"text": "a", "held": True}))
    receiver = Receiver()
    async with (
        receiver.serving() as url,
        GatewayServer.running(served_env, BATON_ALLOW_PRIVATE_HOSTS="1") as gateway,
        a2a_client(gateway, "agent/one", version="0.3", streaming=False) as client,
    ):
        config = TaskPushNotificationConfig(url=url, id="mine")
        configuration = SendMessageConfiguration(return_immediately=True, task_push_notification_config=config)
        asked = SendMessageRequest(message=message("Why?"), configuration=configuration)
        task = task_of([event async for event in client.send_message(asked)])
        served_env.model.release()
        async with asyncio.timeout(60):
            await receiver.has_ended.wait()
    body, _ = receiver.received[-1]
    assert (body["kind"], body["id"], body["artifacts"][0]["parts"][0]["text"]) == ("task", task.id, "a")


async def test_push_notifications_go_only_to_public_addresses_by_https(gateway: GatewayServer) -> None:
    gateway.env.answer = lambda _: Reply(hang=True)
    async with a2a_client(gateway, "agent/one") as client:
        task = await started(client, message("Why?"))
        for url in ("http://example.com/hook", "https://127.0.0.1/hook", "https://169.254.169.254/", "file:///x", "x"):
            with pytest.raises(InvalidParamsError):
                await client.create_task_push_notification_config(
                    TaskPushNotificationConfig(task_id=task.id, id="mine", url=url)
                )
        with pytest.raises(TaskNotFoundError):
            await client.get_task_push_notification_config(
                GetTaskPushNotificationConfigRequest(task_id=task.id, id="mine")
            )
        await client.cancel_task(CancelTaskRequest(id=task.id))


async def test_a_caller_has_a_limited_number_of_push_notification_configurations(
    served_env: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(a2a_push, "MAX_CONFIGS_OF_CALLER", 2)
    served_env.answer = lambda _: Reply(hang=True)
    path, keys = key_file(tmp_path, {"ann": {}, "bob": {}})
    more = {"BATON_ALLOW_PRIVATE_HOSTS": "1", "BATON_GATEWAY_KEYS": str(path)}
    async with (
        GatewayServer.running(served_env, **more) as gateway,
        a2a_client(gateway, "agent/one", key=keys["ann"]) as ann,
        a2a_client(gateway, "agent/one", key=keys["bob"]) as bob,
    ):
        asked = message("Why?")
        tasks = {client: await started(client, asked) for client in (ann, bob)}

        def config(client: A2AClient, name: str, path: str = "hook") -> TaskPushNotificationConfig:
            return TaskPushNotificationConfig(task_id=tasks[client].id, id=name, url=f"http://127.0.0.1:1/{path}")

        for name in ("first", "second"):
            await ann.create_task_push_notification_config(config(ann, name))
        text = "at most 2 push notification configurations of tasks that have not ended"
        async with asyncio.timeout(60):
            its = ListTaskPushNotificationConfigsRequest(task_id=tasks[ann].id)
            while len((await ann.list_task_push_notification_configs(its)).configs) < 2:
                await asyncio.sleep(0.05)
            while True:  # until Temporal counts them as well
                try:
                    await ann.create_task_push_notification_config(config(ann, "third"))
                except InvalidParamsError as error:
                    assert text in str(error)
                    break
                gone = DeleteTaskPushNotificationConfigRequest(task_id=tasks[ann].id, id="third")
                await ann.delete_task_push_notification_config(gone)
        await ann.create_task_push_notification_config(config(ann, "second", "other"))
        for status in ("Terminated", "Running"):  # the one before, and the one that has replaced it
            second = f"WorkflowId = '{tasks[ann].id}/push/second' AND ExecutionStatus = '{status}'"
            while not [each async for each in served_env.client.list_workflows(second)]:
                await asyncio.sleep(0.05)
        await bob.create_task_push_notification_config(config(bob, "first"))
        before = len(served_env.model.requests)
        configuration = SendMessageConfiguration(task_push_notification_config=config(ann, "fourth"))
        with pytest.raises(InvalidParamsError):
            async for _ in ann.send_message(SendMessageRequest(message=message("And?"), configuration=configuration)):
                pass
        assert len(served_env.model.requests) == before, "no task was started"
        again = SendMessageConfiguration(task_push_notification_config=config(ann, "second"))
        async with contextlib.aclosing(
            ann.send_message(SendMessageRequest(message=asked, configuration=again))  # type: ignore[type-var]
        ) as repeated:
            assert (await anext(repeated)).task.id == tasks[ann].id
        for client, task in tasks.items():
            await client.cancel_task(CancelTaskRequest(id=task.id))


async def delete_run(env: Environment, run: str, how: str) -> None:
    """Deletes a run once it has ended, in one of the ways that there are."""
    handle = env.client.get_workflow_handle(run)
    with contextlib.suppress(WorkflowFailureError):
        await handle.result()
    if how == "deleted":
        await (await Gateway.of(env.client, env.worker_env).runs.find(LOCAL, run)).delete()
    elif how == "erased":
        await erase_runs(env.client, [run], dry=False, environ=env.worker_env)
    else:
        journal = await Journal.open(f"sqlite:///{env.folder / 'journal.db'}", env.client.namespace)
        request = ExpireRequest(workflow_id=run, run_id=(await handle.describe()).run_id)

        async def expire() -> None:
            set_own_client(env.client)
            await RunActivities(journal).expire(request)

        await ActivityEnvironment(client=env.client).run(expire)
        await journal.close()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["deleted", "erased", "expired"])
async def test_a_push_notification_configuration_is_deleted_with_its_task(served_env: Environment, how: str) -> None:
    """Its history has the address, the token and the credentials."""
    served_env.answer = lambda _: Reply(hang=True)
    async with (
        GatewayServer.running(served_env, BATON_ALLOW_PRIVATE_HOSTS="1") as gateway,
        a2a_client(gateway, "agent/one") as client,
    ):
        task = await started(client, message("Why?"))
        config = TaskPushNotificationConfig(task_id=task.id, id="mine", url="http://127.0.0.1:1/hook")
        await client.create_task_push_notification_config(config)
        asked = f"WorkflowId = '{task.id}/push/mine'"
        while not [each async for each in served_env.client.list_workflows(asked)]:
            await asyncio.sleep(0.1)
        await client.cancel_task(CancelTaskRequest(id=task.id))
        async with asyncio.timeout(60):
            await delete_run(served_env, task.id, how)
            while [each async for each in served_env.client.list_workflows(asked)]:
                await asyncio.sleep(0.1)


async def test_a_configuration_whose_notifications_have_ended_is_replaced_and_deleted(served_env: Environment) -> None:
    served_env.script(line("one", "a"))
    receiver = Receiver()
    async with (
        receiver.serving() as url,
        GatewayServer.running(served_env, BATON_ALLOW_PRIVATE_HOSTS="1") as gateway,
        a2a_client(gateway, "agent/one", streaming=False) as client,
    ):
        task = task_of(await send(client, message("Why?")))
        delivery = served_env.client.get_workflow_handle(f"{task.id}/push/mine")
        asked = ListTaskPushNotificationConfigsRequest(task_id=task.id)

        async def until_configured(*urls: str) -> None:
            async with asyncio.timeout(60):
                while [each.url for each in (await client.list_task_push_notification_configs(asked)).configs] != [
                    *urls
                ]:
                    await asyncio.sleep(0.05)

        for address in (url, f"{url}?again"):
            config = TaskPushNotificationConfig(task_id=task.id, id="mine", url=address)
            await client.create_task_push_notification_config(config)
            await delivery.result()
            await until_configured(address)
        await client.delete_task_push_notification_config(
            DeleteTaskPushNotificationConfigRequest(task_id=task.id, id="mine")
        )
        await until_configured()
        gone = GetTaskPushNotificationConfigRequest(task_id=task.id, id="mine")
        async with asyncio.timeout(60):
            with pytest.raises(TaskNotFoundError):
                while True:  # Temporal deletes what it lists no longer a moment later
                    await client.get_task_push_notification_config(gone)


async def test_a_delivery_is_tried_again_while_it_is_not_known_whether_its_caller_may_see_the_task(
    gateway: GatewayServer,
) -> None:
    gateway.env.script(line("one", "a"))
    async with a2a_client(gateway, "agent/one", streaming=False) as client:
        task = task_of(await send(client, message("Why?")))
    no_workers = {**gateway.env.worker_env, "BATON_TASK_QUEUE": f"none-{uuid.uuid4().hex}"}
    core = Gateway.of(gateway.env.client, {**no_workers, "BATON_GATEWAY_NAMESPACES": "*"})
    pushes = a2a_push.PushNotifications(core.client, core.runs, core.environ, private=False)
    push = a2a_push.Push(
        run=task.id,
        url="https://example.com/hook",
        version="1.0",
        caller="ann",
        namespace="default",
        service_account="viewer",
    )
    with pytest.raises(UnavailableError):
        await ActivityEnvironment().run(pushes.notify, push)


async def test_a_deleted_push_notification_configuration_is_gone(served_env: Environment) -> None:
    served_env.answer = lambda _: Reply(hang=True)
    async with (
        GatewayServer.running(served_env, BATON_ALLOW_PRIVATE_HOSTS="1") as gateway,
        a2a_client(gateway, "agent/one") as client,
    ):
        task = await started(client, message("Why?"))
        config = TaskPushNotificationConfig(task_id=task.id, id="mine", url="http://127.0.0.1:1/hook")
        await client.create_task_push_notification_config(config)
        asked = GetTaskPushNotificationConfigRequest(task_id=task.id, id="mine")
        assert (await client.get_task_push_notification_config(asked)).url == config.url
        gone = DeleteTaskPushNotificationConfigRequest(task_id=task.id, id="mine")
        await client.delete_task_push_notification_config(gone)
        with pytest.raises(TaskNotFoundError):
            await client.get_task_push_notification_config(asked)
        await client.cancel_task(CancelTaskRequest(id=task.id))
