"""Encryption: nothing that is said can be read without a key, and nothing is lost for want of one."""

import asyncio
import io
import uuid
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import pytest
import pytest_asyncio
from rich.console import Console
from temporalio.api.common.v1 import Payload, WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.query.v1 import WorkflowQuery
from temporalio.api.workflowservice.v1 import QueryWorkflowRequest
from temporalio.client import Client

from conversation.encryption import KEYS, KEYS_FILE, Codec, Key, Keys, UnknownKeyError, WrongKeyError
from conversation.settings import SettingsError
from conversation.wire import connect
from starter.board import look
from starter.embedded import EmbeddedServer
from starter.follow import follow
from starter.live import Watch
from starter.script import Reply, Request
from tests.stage import Handle, Stage, agent, manifest, team

OLD, NEW = Key.fresh("old"), Key.fresh("new")
MARK = "zqzq-"
"""Begins every word that nobody may read. Chance doesn't write it: base64 has no hyphen."""

PLAIN = Payload(metadata={"encoding": b"json/plain"}, data=b'"zqzq-hello"')


def holding(*keys: Key) -> dict[str, str]:
    """The setting that holds some keys."""
    return {KEYS: " ".join(map(str, keys))}


@pytest_asyncio.fixture(loop_scope="session")
async def secret_stage(server: EmbeddedServer, tmp_path: Path) -> AsyncIterator[Stage]:
    """A stage whose worker and client have a key."""
    client = await connect(server.address, holding(OLD))
    async with Stage.set(client, tmp_path, **holding(OLD)) as stage:
        yield stage


async def test_what_is_encrypted_is_decrypted_and_differs_each_time() -> None:
    codec = Codec(Keys(OLD))
    one, two = await codec.encode([PLAIN, PLAIN])
    assert one.data != two.data
    assert one.metadata == {"encoding": b"binary/encrypted", "encryption-key-id": b"old"}
    assert MARK.encode() not in one.SerializeToString()
    assert await codec.decode([one, two, PLAIN]) == [PLAIN] * 3


async def test_after_a_rotation_the_new_key_encrypts_and_the_old_one_still_decrypts() -> None:
    [before] = await Codec(Keys(OLD)).encode([PLAIN])
    rotated = Codec(Keys(NEW, OLD))
    [after] = await rotated.encode([PLAIN])
    assert after.metadata["encryption-key-id"] == b"new"
    assert await rotated.decode([before, after]) == [PLAIN, PLAIN]
    with pytest.raises(UnknownKeyError, match="by the key 'old', and BATON_ENCRYPTION_KEYS holds only new"):
        await Codec(Keys(NEW)).decode([before])


async def test_what_was_changed_or_is_of_another_key_of_that_id_is_not_read() -> None:
    [sealed] = await Codec(Keys(OLD)).encode([PLAIN])
    for changed in (sealed.data[:-1] + b"\0", sealed.data[1:], b""):
        broken = Payload(metadata=sealed.metadata, data=changed)
        with pytest.raises(WrongKeyError):
            await Codec(Keys(OLD)).decode([broken])
    with pytest.raises(WrongKeyError, match="another key of that id"):
        await Codec(Keys(Key.fresh("old"))).decode([sealed])
    same_secret = Key("new", OLD.secret)
    renamed = Payload(metadata={**sealed.metadata, "encryption-key-id": b"new"}, data=sealed.data)
    with pytest.raises(WrongKeyError):
        await Codec(Keys(same_secret)).decode([renamed])


SECRET = str(OLD).partition(":")[2]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (SECRET, "entry 1 of BATON_ENCRYPTION_KEYS is not of the form ID:KEY"),
        (f"{NEW} a/b:{SECRET}", "entry 2 of BATON_ENCRYPTION_KEYS is not of the form ID:KEY"),
        (f"k:{SECRET[:-4]}", "entry 1 of BATON_ENCRYPTION_KEYS, of the id 'k', is not 32 bytes in base64"),
        (f"k:{SECRET}!", "entry 1 of BATON_ENCRYPTION_KEYS, of the id 'k', is not 32 bytes in base64"),
        (f"k:{SECRET},k:{SECRET}", "BATON_ENCRYPTION_KEYS holds several keys of the same id"),
        (" , ", "BATON_ENCRYPTION_KEYS holds no key"),
    ],
)
def test_keys_that_make_no_sense_are_refused_and_not_repeated(given: str, said: str) -> None:
    with pytest.raises(SettingsError) as refused:
        Keys.of({KEYS: given})
    assert said in str(refused.value)
    assert SECRET[:8] not in str(refused.value)


def test_keys_stand_in_a_file_as_well(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"# the keys\n{NEW}\n\n{OLD}\n")
    assert Keys.of({KEYS_FILE: str(file)}).ids == ("new", "old")
    assert Keys.of({}).ids == ()
    for wrong in (
        {KEYS_FILE: str(tmp_path / "none")},
        {KEYS_FILE: str(file), **holding(OLD)},
        {KEYS_FILE: "/dev/null"},
    ):
        with pytest.raises(SettingsError, match=KEYS_FILE):
            Keys.of(wrong)
    assert SECRET not in repr(OLD)


def answer(request: Request) -> Reply:
    """What the model says in the runs whose traces are searched."""
    system, last = request["messages"][0]["content"], request["messages"][-1]
    if "slow" in system:
        return Reply(text=f"{MARK}slow " * 40, pause=1.5)
    if "broken" in system:
        return Reply(status=400, text=f"{MARK}failure")
    if last["role"] == "tool":
        return Reply(text=f"{MARK}answer")
    calls = [{"name": "calculator", "arguments": {"expression": f"{MARK}argument"}}]
    return Reply.model_validate({"text": f"{MARK}thought", "calls": calls})


async def traces(client: Client, handle: Handle) -> bytes:
    """All that Temporal keeps of a run and its child runs, and what it tells of them to a client without a key."""
    handle = client.get_workflow_handle(handle.id)
    found = (await handle.describe()).raw_description.SerializeToString()
    for event in (await handle.fetch_history()).events:
        found += event.SerializeToString()
        if event.event_type == EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_STARTED:
            inner = event.child_workflow_execution_started_event_attributes.workflow_execution.workflow_id
            found += await traces(client, client.get_workflow_handle(inner))
    for query in ("status", "__temporal_workflow_metadata", "__stack_trace"):
        asked = QueryWorkflowRequest(
            namespace=client.namespace,
            execution=WorkflowExecution(workflow_id=handle.id),
            query=WorkflowQuery(query_type=query),
        )
        found += (await client.workflow_service.query_workflow(asked)).SerializeToString()
    return found


async def started(stage: Stage, *members: str) -> Handle:
    """A query to a team in a team, full of what nobody may read."""
    tools = {"one": ["calculator"]}
    agents = [agent(name, *tools.get(name, []), prompt=f"{MARK}{name}") for name in members]
    teams = [team("inner", *members, strategy="sequential"), team("outer", "inner", strategy="sequential")]
    spec = {"input": f"{MARK}question", "targets": [{"type": "team", "name": "outer"}]}
    given = {"name": "q", "spec": spec, "resources": [*agents, *teams]}
    return await stage.start("query", given, static_summary=f"{MARK}summary", memo={"query": f"{MARK}memo"})


async def test_nothing_that_is_said_can_be_read_in_temporal_or_in_the_journal(
    secret_stage: Stage, client: Client
) -> None:
    stage = secret_stage
    stage.answer = answer
    handle = await started(stage, "one", "broken")
    status = await stage.status(handle)
    assert f"{MARK}failure" in (status.error or "")
    told = io.StringIO()
    await follow(stage.client, handle, Watch(stage.client, Console(file=told)).tell)
    assert [word in told.getvalue() for word in (f"{MARK}answer", f"{MARK}argument", f"{MARK}failure")] == [True] * 3
    found = await traces(client, handle)
    assert b"outer" in found
    assert MARK.encode() not in found
    kept = b"".join(file.read_bytes() for file in stage.folder.rglob("*") if file.is_file())
    assert b"/reply" in kept
    assert MARK.encode() not in kept


async def test_what_is_being_said_and_why_a_run_was_ended_cant_be_read_either(
    secret_stage: Stage, client: Client
) -> None:
    stage = secret_stage
    stage.answer = answer
    handle = await started(stage, "slow")
    watch = Watch(stage.client, Console(file=io.StringIO()))
    await stage.asked(1)
    await follow(stage.client, handle, watch.tell, wait=False)
    [call] = watch.board.open.values()
    while MARK not in call.live.text:
        await look(stage.client, [call])
        await asyncio.sleep(0.1)
    found = await traces(client, handle)
    await handle.signal("terminate_team", {"reason": f"{MARK}reason", "now": True})
    assert (await stage.status(handle)).note == f"{MARK}reason"
    found += await traces(client, handle)
    assert MARK.encode() not in found
