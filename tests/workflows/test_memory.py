"""Conversations at the address of a Memory: read before any model is asked, and written once, whatever happens."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
import yaml
from starlette.responses import Response
from temporalio.client import Client

from baton.contracts.status import Status
from baton.resources.loader import load_files
from baton.starter.history.fork import ForkChanges, fork_run
from baton.starter.runs.start import retry_run
from baton.testing import ScriptLine
from tests.harness.environment import Environment, Handle, Json, agent, call, line, manifest, team
from tests.harness.memory_server import MemoryServer
from tests.harness.processes import PATIENCE
from tests.harness.tcp_proxy import TcpProxy
from tests.starter.test_ark_events import events

TOKEN = "token-0123456789-abcdef"
HELD = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "safe"}, "stringData": {"token": TOKEN}}
BEARER = {"Authorization": {"valueFrom": {"secretKeyRef": {"name": "safe", "key": "token"}}}}


@pytest.fixture(params=["older", "messages", "items"])
def service(request: pytest.FixtureRequest) -> Iterator[MemoryServer]:
    with MemoryServer(request.param).serving() as service:
        yield service


@pytest.fixture
def newest() -> Iterator[MemoryServer]:
    with MemoryServer("items").serving() as service:
        yield service


@pytest_asyncio.fixture(loop_scope="session")
async def env(client: Client, tmp_path: Path) -> AsyncIterator[Environment]:
    """A worker with a Secret."""
    (tmp_path / "secret.yaml").write_text(yaml.safe_dump(HELD))
    async with Environment.running(client, tmp_path, load_files([tmp_path / "secret.yaml"])) as env:
        yield env


async def ask(
    env: Environment, service: MemoryServer, question: str, *, query: Json | None = None, **spec: object
) -> Status:
    """The status of a query in the conversation ``c`` of the Memory ``m``."""
    memory = manifest("Memory", "m", {"address": service.url, **spec})
    asked = {"memory": "m", "conversationId": "c", "input": question, **(query or {})}
    return await env.status(await env.start_query([agent("one"), memory], "agent/one", **asked))


def said_to(env: Environment) -> list[str]:
    messages = env.model.requests[-1].body["messages"]
    return [str(each.get("content")) for each in messages if each["role"] != "system"]


async def test_a_query_goes_on_from_what_the_service_has(env: Environment, service: MemoryServer) -> None:
    env.script(line("one", "I am one.", "As I said."))
    await ask(env, service, "Who are you?", headers=BEARER)
    assert service.texts() == ["Who are you?", "I am one."]
    status = await ask(env, service, "Again?", headers=BEARER)
    assert said_to(env) == ["Who are you?", "I am one.", "Again?"]
    assert service.texts() == ["Who are you?", "I am one.", "Again?", "As I said."]
    assert (status.phase, status.conversation_id, status.notices) == ("Completed", "c", None)
    assert all(each["authorization"] == TOKEN for each in service.headers)


async def test_all_pages_of_a_long_conversation_are_read(env: Environment, service: MemoryServer) -> None:
    service.records["c"] = [{"role": "user", "content": f"message {number}"} for number in range(250)]
    env.script(line("one", "yes"))
    await ask(env, service, "And?")
    assert said_to(env) == [*(f"message {number}" for number in range(250)), "And?"]


async def test_tool_calls_come_back_with_their_results_and_lone_ones_are_mended(
    env: Environment, newest: MemoryServer
) -> None:
    def called(key: str) -> Json:
        function = {"name": "sum", "arguments": "{}"}
        return {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": key, "type": "function", "function": function}],
        }

    newest.records["c"] = [
        {"role": "tool", "content": "lost", "tool_call_id": "0"},
        {"role": "user", "content": [{"type": "text", "text": "in "}, {"type": "text", "text": "parts"}]},
        called("1"),
        {"role": "tool", "content": "3", "tool_call_id": "1"},
        called("2"),
        {"role": "narrator", "content": "somebody"},
    ]
    env.script(line("one", "yes"))
    await ask(env, newest, "And?")
    sent = [(each["role"], each.get("content")) for each in env.model.requests[-1].body["messages"][1:]]
    assert [text for _, text in sent] == ["in parts", "", "3", "", "No result was stored.", "somebody", "And?"]
    assert [role for role, _ in sent] == ["user", "assistant", "tool", "assistant", "tool", "user", "user"]


async def test_a_store_that_cant_be_read_fails_the_query_before_any_model_is_asked(
    env: Environment, newest: MemoryServer
) -> None:
    newest.refuse = lambda _: Response("in repair", 400)
    status = await ask(env, newest, "Why?")
    assert status.failure
    assert (status.phase, status.failure.family, status.failure.type) == ("Failed", "MemoryError", "MemoryRejected")
    assert status.error == "Memory/default/m answered HTTP 400 Bad Request: in repair"
    assert env.model.requests == []


async def test_a_store_that_is_busy_is_asked_again(env: Environment, newest: MemoryServer) -> None:
    newest.refuse = lambda _: Response(status_code=503) if len(newest.seen) <= 2 else None
    env.script(line("one", "yes"))
    assert (await ask(env, newest, "Why?")).phase == "Completed"


async def test_with_on_error_continue_the_query_goes_on_and_says_so(env: Environment, newest: MemoryServer) -> None:
    newest.refuse = lambda request: (
        Response("in repair", 400) if request.method == "GET" and len(newest.seen) == 1 else None
    )
    env.script(line("one", "yes"))
    status = await ask(env, newest, "Why?", onError="continue")
    assert (status.phase, status.message) == ("Completed", "yes")
    assert status.notices == (
        "the conversation could not be read: Memory/default/m answered HTTP 400 Bad Request: in repair",
    )
    assert newest.texts() == ["Why?", "yes"]


async def test_what_cant_be_written_is_told_without_losing_the_answer(env: Environment, newest: MemoryServer) -> None:
    newest.refuse = lambda request: Response("full", 400) if request.method == "POST" else None
    env.script(line("one", "yes"))
    status = await ask(env, newest, "Why?")
    assert (status.phase, status.message) == ("Completed", "yes")
    said = "the conversation could not be saved: Memory/default/m answered HTTP 400 Bad Request: full"
    assert status.notices == (said,)


async def query_that_is_being_answered(env: Environment, proxy: TcpProxy) -> Handle:
    """A query in the conversation ``c`` of a Memory behind a proxy, whose model answers once it is released."""
    env.script(line("one", {"text": "yes", "held": True}))
    memory = manifest("Memory", "m", {"address": f"http://{proxy.address}"})
    asked: Json = {"memory": "m", "conversationId": "c", "input": "Why?"}
    handle = await env.start_query([agent("one"), memory], "agent/one", **asked)
    await env.wait_for_calls(1)
    return handle


@pytest.mark.full
async def test_a_store_that_is_away_when_a_query_ends_gets_the_conversation_once_it_is_back(
    env: Environment, newest: MemoryServer
) -> None:
    async with TcpProxy(int(newest.url.rpartition(":")[2])) as proxy:
        handle = await query_that_is_being_answered(env, proxy)
        cut = asyncio.create_task(proxy.cut(3))
        await asyncio.sleep(0)  # the connections are broken
        env.model.release()
        await cut
        status = await env.status(handle)
    assert (status.phase, status.message, status.notices) == ("Completed", "yes", None)
    assert newest.texts() == ["Why?", "yes"]


@pytest.mark.slow
async def test_a_conversation_that_a_store_has_not_got_in_six_attempts_is_told_and_in_the_journal(
    env: Environment, newest: MemoryServer
) -> None:
    async with TcpProxy(int(newest.url.rpartition(":")[2])) as proxy:
        handle = await query_that_is_being_answered(env, proxy)
        cut = asyncio.create_task(proxy.cut(PATIENCE))
        await asyncio.sleep(0)  # the connections are broken
        env.model.release()
        status = await env.status(handle)
        cut.cancel()
    assert (status.phase, status.message) == ("Completed", "yes")
    (notice,) = status.notices or ()
    assert notice.startswith("the conversation could not be saved: Memory/default/m can't be reached: ")
    assert newest.texts() == []
    assert {"Why?", "yes"} <= {row["content"] for row in env.rows()}


async def test_a_conversation_is_read_and_saved_after_any_absence_of_the_workers(
    env: Environment, newest: MemoryServer
) -> None:
    env.script(line("one", "yes"))
    memory = manifest("Memory", "m", {"address": newest.url, "onError": "continue"})
    handle = await env.start_query([agent("one"), memory], "agent/one", memory="m", input="Why?")
    assert (await env.status(handle)).phase == "Completed"
    scheduled = [each.activity_task_scheduled_event_attributes for each in (await handle.fetch_history()).events]
    days = {each.activity_type.name: each.schedule_to_close_timeout.ToTimedelta().days for each in scheduled}
    assert (days["recall"], days["remember"]) == (1, 1)


async def test_what_was_written_is_not_written_again_if_the_answer_is_lost(
    env: Environment, service: MemoryServer
) -> None:
    def fail_once() -> None:
        service.after_write = lambda: None
        raise RuntimeError("the answer gets lost")

    service.after_write = fail_once
    env.script(line("one", "yes"))
    status = await ask(env, service, "Why?")
    assert (status.phase, status.notices) == ("Completed", None)
    assert service.texts() == ["Why?", "yes"]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("[" * 200_000, "sent more than 100,000 objects"),
        (b" " * 9_000_000, "sent more than 8,000,000 bytes"),
        ("no json", "returned no list of messages"),
        ('{"messages": 5}', "returned no list of messages: messages"),
        ("{}", "returned no list of messages: neither 'messages' nor 'items'"),
    ],
    ids=["nested", "long", "no JSON", "number", "nothing"],
)
async def test_odd_answers_fail_the_query(env: Environment, newest: MemoryServer, body: str, says: str) -> None:
    newest.refuse = lambda _: Response(body, 200, media_type="application/json")
    status = await ask(env, newest, "Why?")
    assert says in (status.error or "")


async def test_an_address_that_a_run_brings_must_not_lead_into_the_workers_network(
    env: Environment, newest: MemoryServer
) -> None:
    given = {"parameters": [{"name": "where", "value": newest.url}]}
    address = {"valueFrom": {"queryParameterRef": {"name": "where"}}}
    status = await ask(env, newest, "Why?", query=given, address=address)
    assert "is in the worker's own network" in (status.error or "")
    assert newest.seen == []


async def test_a_memory_called_default_serves_queries_that_name_none(env: Environment, newest: MemoryServer) -> None:
    env.script(line("one", "yes"))
    memory = manifest("Memory", "default", {"address": newest.url})
    handle = await env.start_query([agent("one"), memory], "agent/one")
    assert (await env.status(handle)).conversation_id == handle.id
    assert newest.texts(handle.id) == ["Why?", "yes"]


@pytest.mark.full
async def test_the_context_is_loaded_once_the_memory_was_read(env: Environment, service: MemoryServer) -> None:
    """With the number of all its messages; a failed load says so, and an agent that was never called has not begun."""
    env.script(line("one", "I am one.", "As I said."))
    for question in ("Who?", "Again?"):
        await ask(env, service, question)
    gone = manifest("Memory", "m", {"address": "http://127.0.0.1:9", "timeout": "1s"})
    asked = {"memory": "m", "conversationId": "c", "timeout": "2s"}
    handle = await env.start_query([agent("one"), gone], "agent/one", **asked)
    assert (await env.status(handle)).phase == "Failed"
    names = [each.name for each in await events(env.client, handle)]
    assert "ContextLoadFailed" in names
    assert not {"ContextLoaded", "AgentExecutionStarted", "AgentExecutionFailed"} & {*names}
    loaded = await env.start_query(
        [agent("one"), manifest("Memory", "m", {"address": service.url})],
        "agent/one",
        memory="m",
        conversationId="c",
        input="And?",
    )
    await env.status(loaded)
    found = await events(env.client, loaded)
    names = [each.name for each in found]
    places = [names.index(name) for name in ("MemoryGetMessagesCompleted", "ContextLoaded", "AgentExecutionStarted")]
    assert places == sorted(places)
    assert next(each.data["messages"] for each in found if each.name == "ContextLoaded") == 5


async def grown(env: Environment, service: MemoryServer, question: str = "Go on?") -> int:
    """Asks, and returns the number of rows that the journal has more than before."""
    before = len(env.rows())
    await ask(env, service, question)
    return len(env.rows()) - before


@pytest.mark.full
async def test_a_query_copies_only_the_messages_that_are_new(env: Environment, newest: MemoryServer) -> None:
    env.script(line("one", *[f"answer {number}" for number in range(20)]))
    growth = [await grown(env, newest, f"question {number}") for number in range(20)]
    assert len(set(growth[1:])) == 1
    assert said_to(env) == [f"{kind} {number}" for number in range(20) for kind in ("question", "answer")][:-1]


@pytest.mark.full
async def test_what_others_have_changed_or_deleted_is_read_as_it_is_now(
    env: Environment, service: MemoryServer
) -> None:
    env.script(line("one", *["yes"] * 9))
    for question in ("a?", "b?", "c?"):
        await ask(env, service, question)
    usual = await grown(env, service, "d?")
    stored = service.records["c"]
    stored[4]["content"] = "changed"
    assert await grown(env, service, "e?") == usual + 4, "those from the changed one on are copied"
    assert said_to(env) == ["a?", "yes", "b?", "yes", "changed", "yes", "d?", "yes", "e?"]
    del stored[3:]
    assert await grown(env, service, "f?") == usual
    assert said_to(env) == ["a?", "yes", "b?", "f?"]
    stored.insert(0, {"role": "user", "content": "first"})
    await ask(env, service, "g?")
    assert said_to(env) == ["first", "a?", "yes", "b?", "f?", "yes", "g?"]
    stored.clear()
    await ask(env, service, "h?")
    assert said_to(env) == ["h?"]
    await ask(env, service, "i?")
    assert said_to(env) == ["h?", "yes", "i?"]


async def test_a_team_whose_conversation_a_store_has_goes_on_with_the_member_to_whom_it_was_transferred(
    env: Environment, service: MemoryServer
) -> None:
    desk = [agent("one"), agent("two"), team("desk", "one", "two", strategy="handoff")]
    given = [*desk, manifest("Memory", "m", {"address": service.url})]
    env.script(
        line("one", call("transfer_to_two", "I ask two."), "one again"),
        line("two", "two 1", "two 2", "two 3"),
    )
    spoken: list[list[str | None]] = []
    for _ in range(3):
        handle = await env.start_query(given, "team/desk", memory="m", conversationId="c")
        (response,) = (await env.status(handle)).responses
        spoken.append([message.name for message in response.messages if message.role == "assistant"])
    assert spoken == [["one", "two"], ["two"], ["two"]]
    assert service.texts()[:4] == ["Why?", "I ask two.", "Transferred to two.", "two 1"]
    service.records["c"][2]["content"] = "changed"
    handle = await env.start_query(given, "team/desk", memory="m", conversationId="c")
    assert (await env.status(handle)).message == "one again", "what others have changed is no transfer"


async def test_a_retry_adds_to_a_store_only_what_is_new(env: Environment, service: MemoryServer) -> None:
    env.script(line("one", "Hello.", {"status": 400, "text": "broken"}))
    await ask(env, service, "Hi.")
    memory = manifest("Memory", "m", {"address": service.url})
    handle = await env.start_query([agent("one"), memory], "agent/one", memory="m", conversationId="c")
    assert (await env.status(handle)).phase == "Failed"
    env.script(line("one", "yes"))
    assert (await env.status(await retry_run(env.client, handle))).phase == "Completed"
    error = f"Error: gpt-4.1-mini at {env.model_host} answered HTTP 400: broken"
    assert service.texts() == ["Hi.", "Hello.", "Why?", error, "yes"]


@pytest.mark.full
async def test_a_fork_reads_no_memory_again_and_adds_its_whole_exchange_to_it_once(
    env: Environment, service: MemoryServer
) -> None:
    env.script(line("one", "I am one.", "As I said."), line("two", "I am two.", "And I am two."))
    memory = manifest("Memory", "m", {"address": service.url})
    pair = [agent("one"), agent("two"), team("team", "one", "two", strategy="sequential"), memory]
    service.records["c"] = [{"role": "user", "content": "Hello."}]
    first = await env.start_query(pair, "team/team", memory="m", conversationId="c")
    assert (await env.status(first)).phase == "Completed"
    assert service.texts() == ["Hello.", "Why?", "I am one.", "I am two."]
    seen = len(service.seen)
    service.records["c"].append({"role": "user", "content": "Meanwhile."})
    forked = await fork_run(env.client, first, "1", ForkChanges(fields={"two.prompt": "You are 2."}))
    env.script(ScriptLine.model_validate({"system": "You are 2.", "agent": "two", "say": ["I am 2."]}))
    status = await env.status(forked)
    assert (status.phase, status.conversation_id) == ("Completed", "c")
    assert said_to(env) == ["Hello.", "I am one.", "Why?"], "what was read stands"
    assert sum(not request.startswith("GET") for request in service.seen[seen:]) == 1, "written once"
    assert service.texts()[:5] == ["Hello.", "Why?", "I am one.", "I am two.", "Meanwhile."]
    assert service.texts()[5:] == ["Why?", "I am one.", "I am 2."]
