"""Encryption: nothing can be read without a key, and nothing is lost if a key is missing."""

import asyncio
import contextlib
import dataclasses
import io
import json
import signal
import subprocess
import uuid
from collections.abc import AsyncIterator, Mapping
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
import pytest_asyncio
from google.protobuf import json_format
from rich.console import Console
from sqlalchemy import make_url, select
from temporalio.api.common.v1 import Payload, Payloads, WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.query.v1 import WorkflowQuery
from temporalio.api.workflowservice.v1 import (
    DeleteWorkflowExecutionRequest,
    QueryWorkflowRequest,
    StartWorkflowExecutionRequest,
)
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError
from temporalio.converter import DataConverter
from temporalio.service import RPCError

from baton import worker
from baton.contracts.errors import JournalLost, JournalUnavailable
from baton.contracts.identity import Actor
from baton.contracts.message import Head, Message
from baton.contracts.settings import SettingsError
from baton.journal import schema
from baton.journal.journal import Journal
from baton.journal.manifest_store import ManifestStore
from baton.journal.prune import delete_runs
from baton.journal.reencrypt import reencrypt
from baton.journal.rows import catalog_id
from baton.resources.documents import Document
from baton.resources.loader import Loaded, load_documents
from baton.resources.run_catalog import RunCatalog
from baton.resources.stored import UNUSED
from baton.starter.console.watch import Watch
from baton.starter.history.stream import stream_events
from baton.starter.operations.audit import verify_audit
from baton.starter.operations.conversations import list_conversations
from baton.starter.operations.journals import reencrypt_journal
from baton.starter.operations.lost_rows import runs_without_rows
from baton.starter.operations.manifests import open_store
from baton.starter.operations.prune import prune_journal
from baton.starter.runs.runs import NotServedError, live_status
from baton.starter.scripted_model import serve_in_thread
from baton.starter.server.codec_server import codec_app
from baton.starter.server.embedded import EmbeddedServer
from baton.temporal.client import connect
from baton.temporal.encryption import KEYS, KEYS_FILE, EncryptionCodec, Key, Keys, UnknownKeyError, WrongKeyError
from baton.testing import Reply, Request
from tests.harness.environment import Environment, Handle, agent, line, manifest, team
from tests.harness.postgres import execute
from tests.harness.processes import BATON, doctor
from tests.harness.user_machine import UserMachine

OLD, NEW = Key("old", b"old".ljust(32)), Key("new", b"new".ljust(32))
MARK = "zqzq-"
"""The beginning of every secret word. It can't occur by chance: base64 has no hyphen."""

MANY = 700
"""Messages that need several transactions."""

PLAIN = Payload(metadata={"encoding": b"json/plain"}, data=b'"zqzq-hello"')


def setting(*keys: Key) -> dict[str, str]:
    """The environment variable with these keys."""
    return {KEYS: " ".join(map(str, keys))}


@pytest_asyncio.fixture(loop_scope="session")
async def encrypted_env(server: EmbeddedServer, tmp_path: Path) -> AsyncIterator[Environment]:
    """An environment whose worker and client have a key."""
    client = await connect(server.address, setting(OLD))
    async with Environment.running(client, tmp_path, encryption_keys=str(OLD)) as env:
        yield env
    # Other tests look for runs by the names of their queries, which nobody can read here without the key.
    async for run in client.list_workflows(f"TaskQueue = '{env.task_queue}' AND ParentWorkflowId IS NULL"):
        execution = WorkflowExecution(workflow_id=run.id, run_id=run.run_id)
        request = DeleteWorkflowExecutionRequest(namespace=client.namespace, workflow_execution=execution)
        with contextlib.suppress(RPCError):  # a run that is just being deleted is still listed
            await client.workflow_service.delete_workflow_execution(request)


async def test_payloads_are_decrypted_and_encrypted_differently_each_time() -> None:
    codec = EncryptionCodec(Keys(OLD))
    one, two = await codec.encode([PLAIN, PLAIN])
    assert one.data != two.data
    assert one.metadata == {"encoding": b"binary/encrypted", "encryption-key-id": b"old"}
    assert MARK.encode() not in one.SerializeToString()
    assert await codec.decode([one, two, PLAIN]) == [PLAIN] * 3


async def test_a_payload_too_short_to_be_encrypted_is_left_to_the_converter_which_rejects_it() -> None:
    [sealed] = await EncryptionCodec(Keys(OLD)).encode([PLAIN])
    empty = Payload(metadata=sealed.metadata, data=b"")
    assert await EncryptionCodec(Keys(OLD)).decode([empty]) == [empty]
    with pytest.raises(KeyError, match="binary/encrypted"):
        DataConverter.default.payload_converter.from_payload(empty)


async def test_after_a_rotation_the_new_key_encrypts_and_the_old_one_still_decrypts() -> None:
    [before] = await EncryptionCodec(Keys(OLD)).encode([PLAIN])
    rotated = EncryptionCodec(Keys(NEW, OLD))
    [after] = await rotated.encode([PLAIN])
    assert after.metadata["encryption-key-id"] == b"new"
    assert await rotated.decode([before, after]) == [PLAIN, PLAIN]
    with pytest.raises(UnknownKeyError, match="with the key 'old', but BATON_ENCRYPTION_KEYS has only new"):
        await EncryptionCodec(Keys(NEW)).decode([before])


async def test_a_changed_payload_and_another_key_of_the_same_id_are_errors() -> None:
    [sealed] = await EncryptionCodec(Keys(OLD)).encode([PLAIN])
    changed_end = sealed.data[:-1] + bytes([sealed.data[-1] ^ 1])
    for changed in (changed_end, sealed.data[1:]):
        broken = Payload(metadata=sealed.metadata, data=changed)
        with pytest.raises(WrongKeyError):
            await EncryptionCodec(Keys(OLD)).decode([broken])
    with pytest.raises(WrongKeyError, match="a different key with that id"):
        await EncryptionCodec(Keys(Key.generate("old"))).decode([sealed])
    same_secret = Key("new", OLD.secret)
    renamed = Payload(metadata={**sealed.metadata, "encryption-key-id": b"new"}, data=sealed.data)
    with pytest.raises(WrongKeyError):
        await EncryptionCodec(Keys(same_secret)).decode([renamed])


SECRET = str(OLD).partition(":")[2]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (SECRET, "entry 1 of BATON_ENCRYPTION_KEYS is not of the form ID:KEY"),
        (f"{NEW} a/b:{SECRET}", "entry 2 of BATON_ENCRYPTION_KEYS is not of the form ID:KEY"),
        (f"k:{SECRET[:-4]}", "entry 1 of BATON_ENCRYPTION_KEYS, with the id 'k', is not 32 bytes in base64"),
        (f"k:{SECRET}!", "entry 1 of BATON_ENCRYPTION_KEYS, with the id 'k', is not 32 bytes in base64"),
        (f"k:{SECRET},k:{SECRET}", "BATON_ENCRYPTION_KEYS has several keys with the same id"),
        (" , ", "BATON_ENCRYPTION_KEYS has no key"),
    ],
)
def test_invalid_keys_are_refused_and_not_shown_in_the_error(given: str, said: str) -> None:
    with pytest.raises(SettingsError) as refused:
        Keys.from_environment({KEYS: given})
    assert said in str(refused.value)
    assert SECRET[:8] not in str(refused.value)


def test_keys_can_stand_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"# the keys\n{NEW}\n\n{OLD}\n")
    assert Keys.from_environment({KEYS_FILE: str(file)}).ids == ("new", "old")
    assert Keys.from_environment({}).ids == ()
    for wrong in (
        {KEYS_FILE: str(tmp_path / "none")},
        {KEYS_FILE: str(file), **setting(OLD)},
        {KEYS_FILE: "/dev/null"},
    ):
        with pytest.raises(SettingsError, match=KEYS_FILE):
            Keys.from_environment(wrong)
    assert SECRET not in repr(OLD)
    with pytest.raises(SettingsError, match="'a:b' is not a valid key id"):
        Key.generate("a:b")


def answer(request: Request) -> Reply:
    """The model's replies in the runs whose stored data are searched."""
    system, last = request["messages"][0]["content"], request["messages"][-1]
    if "slow" in system:
        return Reply(text=f"{MARK}slow " * 40, held=True)
    if "broken" in system:
        return Reply(status=400, text=f"{MARK}failure")
    if last["role"] == "tool":
        return Reply(text=f"{MARK}answer")
    calls = [{"name": "calculator", "arguments": {"expression": f"{MARK}argument"}}]
    return Reply.model_validate({"text": f"{MARK}thought", "calls": calls})


async def stored_data(client: Client, handle: Handle) -> bytes:
    """Everything that Temporal stores of a run and its child runs, and answers to a client without a key."""
    handle = client.get_workflow_handle(handle.id)
    found = (await handle.describe()).raw_description.SerializeToString()
    for event in (await handle.fetch_history()).events:
        found += event.SerializeToString()
        if event.event_type == EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_STARTED:
            inner = event.child_workflow_execution_started_event_attributes.workflow_execution.workflow_id
            found += await stored_data(client, client.get_workflow_handle(inner))
    for query in ("status", "__temporal_workflow_metadata", "__stack_trace"):
        asked = QueryWorkflowRequest(
            namespace=client.namespace,
            execution=WorkflowExecution(workflow_id=handle.id),
            query=WorkflowQuery(query_type=query),
        )
        found += (await client.workflow_service.query_workflow(asked, retry=True)).SerializeToString()
    return found


async def started(env: Environment, *members: str) -> Handle:
    """Starts a query to a team in a team, full of secret words."""
    tools = {"one": ["calculator"]}
    agents = [agent(name, *tools.get(name, []), prompt=f"{MARK}{name}") for name in members]
    teams = [team("inner", *members, strategy="sequential"), team("outer", "inner", strategy="sequential")]
    spec = {"input": f"{MARK}question", "targets": [{"type": "team", "name": "outer"}]}
    given = {"name": "q", "spec": spec, "resources": [*agents, *teams]}
    return await env.start("query", given, static_summary=f"{MARK}summary", memo={"query": f"{MARK}memo"})


@pytest.mark.full
async def test_no_message_can_be_read_in_temporal_or_in_the_journal_without_the_key(
    encrypted_env: Environment, client: Client
) -> None:
    env = encrypted_env
    env.answer = answer
    handle = await started(env, "one", "broken")
    status = await env.status(handle)
    assert f"{MARK}failure" in (status.error or "")
    printed = io.StringIO()
    await Watch(env.client, Console(file=printed)).follow(handle)
    assert [word in printed.getvalue() for word in (f"{MARK}answer", f"{MARK}argument", f"{MARK}failure")] == [True] * 3
    found = await stored_data(client, handle)
    assert b"outer" in found
    assert MARK.encode() not in found
    kept = b"".join(file.read_bytes() for file in env.folder.rglob("*") if file.is_file())
    assert b"/reply" in kept
    assert MARK.encode() not in kept


@pytest.mark.full
async def test_heartbeats_and_the_reason_of_a_termination_are_encrypted(
    encrypted_env: Environment, client: Client
) -> None:
    env = encrypted_env
    env.answer = answer
    handle = await started(env, "slow")
    await env.wait_for_calls(1)
    async with contextlib.aclosing(stream_events(env.client, handle, environment={})) as events:
        async for event in events:
            if event.type == "text.delta" and MARK in event.text:
                break
    found = await stored_data(client, handle)
    await handle.signal("terminate_team", {"reason": f"{MARK}reason", "now": True})
    assert (await env.status(handle)).note == f"{MARK}reason"
    found += await stored_data(client, handle)
    assert MARK.encode() not in found


async def test_a_client_without_a_key_starts_runs_and_the_error_names_the_missing_key(
    encrypted_env: Environment, client: Client, server: EmbeddedServer
) -> None:
    env = encrypted_env
    env.script(line("one", "hello"))
    bare = await connect(server.address, {})
    given = {"agent": "one", "input": "Why?", "resources": [agent("one")]}
    handle = await bare.start_workflow("agent", given, id=f"bare-{uuid.uuid4()}", task_queue=env.task_queue)
    with pytest.raises(UnknownKeyError, match="with the key 'old', but BATON_ENCRYPTION_KEYS is not set"):
        await handle.result()
    theirs = env.client.get_workflow_handle(handle.id)
    assert (await env.turn_result(theirs)).message == "hello"


@pytest.mark.full
async def test_a_run_waits_until_a_worker_has_the_key(env: Environment, client: Client, server: EmbeddedServer) -> None:
    env.script(line("one", "hello"))
    queue, keyed = uuid.uuid4().hex, await connect(server.address, setting(NEW))
    given = {"agent": "one", "input": "Why?", "resources": [agent("one")]}
    handle = await keyed.start_workflow(
        "agent", given, id=f"waits-{queue}", task_queue=queue, task_timeout=timedelta(seconds=2)
    )
    failed = EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED
    on = {**env.worker_env, "BATON_TASK_QUEUE": queue}
    async with worker.run_worker(await connect(server.address, {}), Loaded(), on):
        while failed not in [event.event_type for event in (await handle.fetch_history()).events]:
            await asyncio.sleep(0.1)
    assert (await handle.describe()).status == WorkflowExecutionStatus.RUNNING
    async with worker.run_worker(keyed, Loaded(), {**on, **setting(NEW)}):
        assert (await env.turn_result(handle)).message == "hello"


@pytest.mark.slow
async def test_doctor_and_status_name_the_key_for_which_a_run_waits(env: Environment, server: EmbeddedServer) -> None:
    keyed = await connect(server.address, setting(NEW))
    given = {"agent": "one", "input": "Why?", "resources": [agent("one")]}
    handle = await keyed.start_workflow("agent", given, id=f"waits-{uuid.uuid4()}", task_queue=env.task_queue)
    waits: list[Mapping[str, str]] = []
    while not waits:
        done = await doctor("-o", "json", TEMPORAL_ADDRESS=server.address, BATON_TASK_QUEUE=env.task_queue)
        waits = [each for each in json.loads(done.stdout) if each["what"] == "run"]
    assert f"{handle.id}: attempt" in waits[0]["text"]
    assert "this is encrypted with the key 'new', but BATON_ENCRYPTION_KEYS is not set" in waits[0]["text"]
    assert "BATON_ENCRYPTION_KEYS_FILE of all workers; the run then continues" in waits[0]["hint"]
    with pytest.raises(NotServedError, match=r"can't answer: this is encrypted with the key 'new', but"):
        await live_status(keyed, handle)
    await handle.terminate()


async def test_what_no_worker_can_have_encrypted_fails_a_run_at_once(encrypted_env: Environment) -> None:
    """It is not told from JSON that is no input: a run waits for a key, and not for what no key can read."""
    env = encrypted_env
    metadata = {"encoding": b"binary/encrypted", "encryption-key-id": b"old"}
    no_payload = OLD.encrypt(b"\xff\xff", b"baton payload\nbinary/encrypted\nold")
    for data in (b"x", no_payload):
        request = StartWorkflowExecutionRequest(namespace=env.client.namespace, request_id=(run := f"{uuid.uuid4()}"))
        request.workflow_id, request.workflow_type.name, request.task_queue.name = run, "agent", env.task_queue
        request.input.payloads.add(metadata=metadata, data=data)
        await env.client.workflow_service.start_workflow_execution(request)
        with pytest.raises(WorkflowFailureError) as failed:
            await asyncio.wait_for(env.client.get_workflow_handle(run).result(), 60)
        assert "a payload has the encoding 'binary/encrypted'" in str(failed.value.cause)


async def opened(url: str, *keys: Key) -> Journal:
    return await Journal.open(url, "default", Keys(*keys))


def says(*texts: str) -> list[Message]:
    return [Message(role="assistant", content=text) for text in texts]


CATALOG = RunCatalog.of_files(load_documents([Document("file", agent("one", prompt=f"{MARK}prompt"), {})]).catalog)


async def test_a_journal_is_readable_after_the_first_key_and_after_a_rotation(journal_url: str) -> None:
    head, pinned = Head(), set[str]()
    for number, keys in enumerate([(), (OLD,), (OLD, NEW), (NEW, OLD)]):
        journal = await opened(journal_url, *keys)
        pinned.add(journal.catalog_name(CATALOG))
        head = await journal.append(head, says(f"{MARK}{number}"), f"call-{number}")
        await journal.begin(CATALOG, f"run-{number}", Head(), *says("?"))
        await journal.close()
    fresh = await opened(journal_url, NEW, OLD)
    assert [row.message.content for row in await fresh.read(head)] == [f"{MARK}{number}" for number in range(4)]
    assert [await fresh.catalog(name) for name in pinned] == [CATALOG] * 3
    assert await fresh.key_ids() == ["new", "old"]
    await fresh.close()
    rows = await execute(journal_url, "select message from baton_messages where depth > 1")
    names = await execute(journal_url, "select sha, catalog from baton_catalogs where catalog like 'sealed:%'")
    assert {str(row[0]).partition(":")[0] for row in rows} == {"sealed"}
    assert len(names) == 2
    assert MARK not in repr([*rows, *names]) and catalog_id(CATALOG) not in repr(names)


async def test_keys_whose_ids_differ_only_in_case_are_different_keys(journal_url: str) -> None:
    lower, upper = Key("k_1", b"old".ljust(32)), Key("K_1", b"new".ljust(32))
    journal = await opened(journal_url, lower)
    await journal.append(Head(), says("a"), "call")
    await journal.close()
    journal = await opened(journal_url, upper, lower)
    done = await reencrypt(journal, "K_1")
    await journal.close()
    assert (done.counts["messages"], done.unneeded) == (1, ["k_1"])
    assert await execute(journal_url, "select substr(message, 1, 11) from baton_messages") == [("sealed:K_1:",)]


def files_of(journal_url: str) -> list[Path]:
    """The files of a journal on SQLite; none of one on PostgreSQL, which overwrites old rows at the next VACUUM."""
    file = make_url(journal_url).database
    return [*Path(file).parent.glob(f"{Path(file).name}*")] if journal_url.startswith("sqlite") and file else []


@pytest.mark.full
async def test_after_the_journal_is_encrypted_again_only_the_new_key_is_needed(journal_url: str) -> None:
    """Also what was written without a key, while a worker with both keys writes, and after an interruption."""
    rows = [(("Agent", "default", name), json.dumps(agent(name, prompt=f"{MARK}prompt"))) for name in "abc"]
    head, pinned = Head(), list[str]()
    for number, keys in enumerate([(), (OLD,), (OLD,)]):
        journal = await opened(journal_url, *keys)
        head = await journal.append(head, says(*(f"{MARK}{number}.{each}" for each in range(MANY))), f"call-{number}")
        await journal.begin(CATALOG, f"run-{number}", Head(), *says("?"))
        pinned.append(journal.catalog_name(CATALOG))
        store = ManifestStore(journal)
        await store.write(rows, await store.revision(), Actor("ann", "journal"))
        await journal.close()
    journal = await opened(journal_url, NEW, OLD)
    interrupted = asyncio.create_task(reencrypt(journal, "new"))
    encrypted = select(schema.messages.c.id).where(schema.messages.c.message.like("sealed:new:%")).limit(1)
    while not await journal.database.run(encrypted):  # in turn with the batches: a new connection may come too late
        pass
    assert interrupted.cancel()
    await asyncio.wait([interrupted])
    left = await execute(journal_url, "select count(*) from baton_messages where message not like 'sealed:new:%'")
    assert left[0][0] != 0
    done, head = await asyncio.gather(reencrypt(journal, "new"), journal.append(head, says(f"{MARK}new"), "call-3"))
    again = await reencrypt(journal, "new")
    for file in files_of(journal_url):  # while the journal is open
        assert b"sealed:old" not in file.read_bytes()
    await journal.close()
    assert (done.unneeded, done.unreadable, {*again.counts.values()}) == (["old"], [], {0})
    tables = ("messages", "catalogs", "manifests", "keys")
    stored = [row for table in tables for row in await execute(journal_url, f"select * from baton_{table}")]
    assert MARK not in repr(stored) and "sealed:old" not in repr(stored)
    for file in files_of(journal_url):
        assert MARK.encode() not in file.read_bytes() and b"sealed:old" not in file.read_bytes()
    fresh = await opened(journal_url, NEW)
    texts = [row.message.content for row in await fresh.read(head)]
    assert texts == [f"{MARK}{number}.{each}" for number in range(3) for each in range(MANY)] + [f"{MARK}new"]
    assert [await fresh.catalog(name) for name in pinned] == [CATALOG] * 3
    store = ManifestStore(fresh)
    assert len(await store.versions(rows[0][0])) == 3
    assert not any(stored.problem for stored in (await store.changed_since(UNUSED)).manifests)
    await fresh.close()


async def test_all_that_the_keys_of_a_journal_encrypt_is_encrypted_again(encrypted_env: Environment) -> None:
    """A column that is missing in ENCRYPTED would need the old key for ever."""
    env = encrypted_env
    env.script(line("one", "hello"))
    async with open_store(env.worker_env) as store:
        safe = {**manifest("Secret", "safe", {}), "apiVersion": "v1", "stringData": {"k": "hidden-123"}}
        del safe["spec"]
        await store.apply(load_documents([Document("file", agent("one"), {}), Document("file", safe, {})]))
    await env.status(await env.start_query([], "agent/one"))

    async def with_old_key() -> set[str]:
        return {
            table
            for table in schema.metadata.tables
            if "sealed:old:" in repr(await execute(env.journal_address, f"select * from {table}"))
        }

    assert await with_old_key() == {
        "baton_messages",
        "baton_catalogs",
        "baton_manifests",
        "baton_worker_manifests",
        "baton_keys",
    }
    journal = await opened(env.journal_address, NEW, OLD)
    await reencrypt(journal, "new")
    await journal.close()
    assert await with_old_key() == set()
    async with open_store({**env.worker_env, **setting(NEW)}) as store:
        assert [one.secret and one.secret.value("k") for one in await store.secrets()] == ["hidden-123"]


async def test_a_text_that_was_modified_is_named_and_stays_as_it_is(journal_url: str) -> None:
    journal = await opened(journal_url, OLD)
    await journal.append(Head(), says("one", "two"), "call")
    await journal.close()
    await execute(journal_url, "update baton_messages set depth = 5 where id = 'call/0'")
    journal = await opened(journal_url, NEW, OLD)
    done = await reencrypt(journal, "new")
    await journal.close()
    assert (done.counts["messages"], done.unneeded) == (1, [])
    assert [text.split(" can't")[0] for text in done.unreadable] == ["the journal's row call/0 at 5 after "]


async def test_a_run_that_needs_a_manifest_under_a_missing_key_waits_and_others_go_on(
    env: Environment, client: Client
) -> None:
    env.script(line("one", "hello"), line("two", "hello"))
    queue = uuid.uuid4().hex
    on = {**env.worker_env, "BATON_TASK_QUEUE": queue}
    own = dataclasses.replace(env, task_queue=queue)
    async with worker.run_worker(client, Loaded(), on):
        for name, keys in (("two", {}), ("one", setting(NEW))):
            async with open_store({**env.worker_env, **keys}) as store:
                await store.apply(load_documents([Document("file", agent(name), {})]))
        waiting = await own.start_query([], "agent/one")
        assert (await own.status(await own.start_query([], "agent/two"))).message == "hello"
        failure = ""
        while not failure:
            activities = (await waiting.describe()).raw_description.pending_activities
            failure = activities[0].last_failure.message if activities else ""
            await asyncio.sleep(0.02)
    assert "Agent/default/one version 1 can't be read" in failure and "with the key 'new'" in failure
    async with worker.run_worker(client, Loaded(), {**on, **setting(NEW)}):
        assert (await own.status(waiting)).message == "hello"


async def test_an_encrypted_catalog_is_deleted_with_the_last_run_that_uses_it(journal_url: str) -> None:
    journal, runs, left = await opened(journal_url, NEW), [str(uuid.uuid4()), str(uuid.uuid4())], list[int]()
    for run in runs:
        await journal.begin(CATALOG, run, Head(), *says("?"))
    assert catalog_id(CATALOG) not in repr(await execute(journal_url, "select * from baton_uses"))
    for run in runs:
        await delete_runs(journal.database.engine, [run])
        left.append(len(await execute(journal_url, "select sha from baton_catalogs")))
    await journal.close()
    assert left == [1, 0]


async def test_a_worker_without_a_key_of_its_journal_is_refused(journal_url: str) -> None:
    await (await opened(journal_url, OLD)).close()
    for keys, said in (
        ((), "with the key 'old', but BATON_ENCRYPTION_KEYS is not set"),
        ((NEW,), "with the key 'old', but BATON_ENCRYPTION_KEYS has only new"),
        ((Key.generate("old"),), "a different key with that id"),
    ):
        with pytest.raises(SettingsError, match=f"the journal can't be read: .*{said}"):
            await opened(journal_url, *keys)
    journal = await opened(journal_url, OLD)
    assert await journal.key_ids() == ["old"]
    await journal.close()


async def test_a_changed_or_moved_message_in_the_journal_is_an_error(journal_url: str) -> None:
    journal = await opened(journal_url, OLD)
    head = await journal.append(Head(), says("yes", "no"), "call")
    await journal.close()
    other = "(select message from baton_messages where id = 'call/1')"
    await execute(journal_url, f"update baton_messages set message = {other} where id = 'call/0'")
    journal = await opened(journal_url, OLD)
    with pytest.raises(JournalLost, match="row call/0 at 1"):
        await journal.read(head)
    await journal.close()


async def asked(url: str, path: str, body: object, **headers: str) -> httpx.Response:
    async with httpx.AsyncClient() as client:
        return await client.post(f"{url}/{path}", json=body, headers=headers)


async def test_the_codec_server_decrypts_for_temporals_ui_and_refuses_other_pages() -> None:
    ui, elsewhere = "http://localhost:8233", "http://evil.example"
    [sealed] = await EncryptionCodec(Keys(OLD)).encode([PLAIN])
    both = json_format.MessageToDict(Payloads(payloads=[sealed, PLAIN]))
    plain = json_format.MessageToDict(Payloads(payloads=[PLAIN, PLAIN]))
    with serve_in_thread(codec_app(EncryptionCodec(Keys(NEW, OLD)), [ui])) as url:
        shown = await asked(url, "decode", both, origin=ui)
        assert (shown.status_code, shown.json()) == (200, plain)
        assert shown.headers["access-control-allow-origin"] == ui
        assert (await asked(url, "decode", both)).json() == plain  # the temporal command
        again = await asked(url, "decode", (await asked(url, "encode", plain, origin=ui)).json())
        assert again.json() == plain
        assert (await asked(url, "decode", both, origin=elsewhere)).status_code == 403
        assert (await asked(url, "decode", {"payloads": 1})).status_code == 400
        ask = {
            "access-control-request-method": "POST",
            "access-control-request-headers": "content-type,x-namespace",
        }
        async with httpx.AsyncClient() as client:
            allowed = [await client.options(f"{url}/decode", headers={"origin": o, **ask}) for o in (ui, elsewhere)]
        assert [each.status_code for each in allowed] == [200, 400]
    with serve_in_thread(codec_app(EncryptionCodec(Keys(NEW)), [ui])) as url:
        refused = await asked(url, "decode", both, origin=ui)
    assert refused.status_code == 400
    assert "with the key 'old'" in refused.json()["message"]


@pytest.mark.slow
def test_every_command_decrypts_and_without_the_key_reports_the_missing_key(machine: UserMachine) -> None:
    machine.script(line("one", f"{MARK}answer"))
    machine.env |= setting(OLD)
    spec = {"input": f"{MARK}question", "targets": [{"type": "agent", "name": "one"}]}
    done = machine.run("run", "-f", machine.write(agent("one"), manifest("Query", "talk", spec)))
    assert done.stdout == f"{MARK}answer\n", done.stderr
    shown = [machine.run(command, "talk") for command in ("transcript", "events")]
    assert all(f"{MARK}answer" in each.stdout for each in shown)
    refused = [machine.run(command, "talk", **{KEYS: ""}) for command in ("status", "watch")]
    said = "error: this is encrypted with the key 'old', but BATON_ENCRYPTION_KEYS is not set\n"
    assert [(each.returncode, each.stdout, each.stderr) for each in refused] == [(1, "", said)] * 2
    [[named], [bare]] = [json.loads(machine.run("list", "-o", "json", **{KEYS: key}).stdout) for key in (str(OLD), "")]
    assert (named["name"], "name" in bare) == ("talk", False)
    dev = machine.dev()
    endpoint = httpx.get(f"{dev.ui}/api/v1/settings").json()["Codec"]["Endpoint"]
    assert httpx.post(f"{endpoint}/decode", json={"payloads": []}, headers={"origin": dev.ui}).json() == {}
    result = ("workflow", "result", "--workflow-id", bare["id"], "--address", dev.address, "--codec-endpoint", endpoint)
    printed = subprocess.run([BATON.parent / "temporal", *result], env=machine.env, capture_output=True, text=True)
    assert f"{MARK}answer" in printed.stdout, printed.stderr
    kept = [file for file in machine.state_dir.folder.rglob("*") if file.is_file()]
    assert {"temporal.db", "journal.db", "dev.log"} <= {file.name for file in kept}
    assert not [
        file.name for file in kept if MARK.encode() in file.read_bytes() or SECRET.encode() in file.read_bytes()
    ]


def test_a_key_is_written_to_a_new_file_that_only_its_owner_can_read(machine: UserMachine) -> None:
    file = machine.folder / "keys"
    assert machine.run("encryption-key", "-o", file).stdout == ""
    assert file.stat().st_mode & 0o777 == 0o600
    key = file.read_text()
    assert Keys.from_environment({KEYS: key}).ids
    again = machine.run("encryption-key", "-o", file)
    assert (again.returncode, file.read_text()) == (1, key)
    assert "keys already exists: a key is never overwritten" in again.stderr


@pytest.mark.full
def test_a_key_is_printed_and_the_codec_server_requires_one(machine: UserMachine) -> None:
    key = machine.run("encryption-key").stdout
    assert Keys.from_environment({KEYS: key}).ids[0].startswith("20")
    refused = machine.run("codec-server", "--port", "0")
    assert (refused.returncode, "BATON_ENCRYPTION_KEYS is not set" in refused.stderr) == (1, True)
    machine.env |= {KEYS: key}
    with machine.start("codec-server", "--port", "0") as server:
        assert server.stderr
        line = server.stderr.readline()
        assert "Codec endpoint for the Temporal UI at http://localhost:8233 or " in line
        assert ": http://127.0.0.1:" in line
        server.send_signal(signal.SIGINT)
    assert server.returncode == 130


@pytest.mark.slow
async def test_doctor_decrypts_the_failure_of_a_stuck_run_and_without_the_key_names_it(
    encrypted_env: Environment, server: EmbeddedServer
) -> None:
    env = encrypted_env
    env.answer = lambda _: Reply(status=503, text=f"overloaded {MARK}")
    handle = await env.start("agent", {"agent": "one", "input": "?", "resources": [agent("one")]})
    await env.wait_for_calls(4)

    async def found(**keys: str) -> str:
        at = {"TEMPORAL_ADDRESS": server.address, "BATON_TASK_QUEUE": env.task_queue, **keys}
        while True:  # between two calls, no call is stuck
            results = json.loads((await doctor("-o", "json", **at)).stdout)
            if texts := [each["text"] for each in results if each["what"] == "run"]:
                (text,) = texts
                return str(text)

    assert f"HTTP 503: overloaded {MARK}" in await found(**setting(OLD))
    assert "is encrypted with the key 'old', but BATON_ENCRYPTION_KEYS has only new" in await found(**setting(NEW))
    assert "is encrypted with the key 'old', but BATON_ENCRYPTION_KEYS is not set" in await found()
    await handle.cancel()


@pytest.mark.parametrize("is_empty", [False, True])
async def test_commands_that_read_or_change_a_journal_create_none(
    client: Client, tmp_path: Path, is_empty: bool
) -> None:
    file = tmp_path / "mistyped.db"
    if is_empty:
        file.touch()
    url = f"sqlite:///{file}"
    environ = {"BATON_JOURNAL_URL": url, "BATON_ENCRYPTION_KEYS": str(Key.generate("new"))}
    for work in (
        reencrypt_journal(environ),
        prune_journal(client, url, timedelta(days=90), dry=False),
        runs_without_rows(client, environ),
        list_conversations(client.namespace, 10, environ),
        verify_audit(None, environ),
    ):
        with pytest.raises(JournalUnavailable, match=f"there is no journal at {url}"):
            await work
    assert file.exists() == is_empty


async def test_reencryption_says_which_journal_it_has_encrypted(journal_url: str) -> None:
    key = Key.generate("new")
    await (await opened(journal_url, key)).close()
    place, done = await reencrypt_journal({"BATON_JOURNAL_URL": journal_url, "BATON_ENCRYPTION_KEYS": str(key)})
    assert make_url(place).database == make_url(journal_url).database
    assert done.key == "new"
