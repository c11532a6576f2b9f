"""Tests of external storage: long values go to an S3 bucket if one is set, and those in the journal are still read."""

import asyncio
import json
import re
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from sqlalchemy import select, update
from temporalio.api.common.v1 import Payload
from temporalio.client import Client
from temporalio.common import RawValue

from baton.activities.runs import delete_long_values
from baton.contracts.errors import JournalLost
from baton.contracts.message import Head
from baton.contracts.settings import SettingsError
from baton.contracts.turn import TurnResult
from baton.journal import schema
from baton.journal.database import Database
from baton.journal.external_storage import JournalStorageDriver, storage_drivers, workflow_family
from baton.journal.quotas import database_time
from baton.journal.rows import move_conversation, upsert_hold
from baton.starter.scripted_model import serve_in_thread
from baton.starter.server.embedded import EmbeddedServer
from baton.temporal.client import EXTERNAL_STORAGE_URL, with_external_storage
from baton.testing import Reply, ScriptedModel
from tests.harness.environment import agent
from tests.harness.manifests import Writer, query
from tests.harness.processes import ROOT, WorkerProcess, baton, process_env
from tests.harness.s3_server import S3Server

LENGTH = 3_000_000
KEY = "s3-secret-0123456789abcdef"
ASKS = {"AWS_ACCESS_KEY_ID": "baton", "AWS_SECRET_ACCESS_KEY": KEY, "AWS_DEFAULT_REGION": "eu-central-1"}

MADE_UP: list[dict[str, str]] = [
    {"bucket": "long", "key": "x"},
    {"bucket": "long"},
    {"bucket": "long", "key": ""},
    {"bucket": "no name", "key": "x"},
    {"bucket": "closed", "key": "x"},
]


@pytest.mark.slow
async def test_a_long_question_goes_to_the_bucket_and_is_read_there_while_another_stands_in_the_journal(
    server: EmbeddedServer, client: Client, tmp_path: Path, write: Writer
) -> None:
    bucket, model = S3Server(), ScriptedModel(lambda request: Reply(text=str(len(str(request["messages"][-1])))))
    queue = f"s3-{tmp_path.name}"
    in_journal = with_external_storage(
        client, JournalStorageDriver(lambda: Database.open(f"sqlite:///{tmp_path / 'journal.db'}", "default"))
    )
    given = {"agent": "one", "input": "x" * LENGTH, "resources": [agent("one")]}
    before = await in_journal.start_workflow("agent", given, id=queue, task_queue=queue)
    for claim in MADE_UP:
        await client.get_workflow_handle(queue).signal("nonsense", made_up_reference("aws.s3driver", **claim))
    file = write.file(agent("one"), query(input="x" * LENGTH, targets=[{"type": "agent", "name": "one"}]))
    with serve_in_thread(bucket.app) as s3, model.serve() as url:
        at = {"TEMPORAL_ADDRESS": server.address, "BATON_TASK_QUEUE": queue, "BATON_HOME": str(tmp_path)}
        env = process_env(**at, **ASKS, AWS_ENDPOINT_URL_S3=s3, OPENAI_BASE_URL=url, OPENAI_API_KEY=KEY)
        env[EXTERNAL_STORAGE_URL] = "s3://long"
        worker = WorkerProcess(env, tmp_path / "worker.log")
        worker.start()
        try:
            done = await asyncio.to_thread(baton, "run", "-f", file, env=env)
            assert done.returncode == 0, done.stderr + worker.log.read_text()
            assert int(done.stdout) > LENGTH
            assert int(TurnResult.model_validate_json(json.dumps(await before.result())).message) > LENGTH
            assert {path.split("/")[0] for path in bucket.objects} == {"long"}
            assert max(map(len, bucket.objects.values())) > LENGTH
            [run] = {each for each in re.findall(r"/wi/([\w-]+)", " ".join(bucket.objects)) if each != queue}
            erased = await asyncio.to_thread(baton, "delete", run, queue, env=env)
            assert (erased.returncode, bucket.objects) == (0, {}), erased.stderr
        finally:
            assert await worker.stop() == 0
    assert KEY not in worker.log.read_text() + done.stderr


def made_up_reference(driver: str, **claim: str) -> RawValue:
    """A reference to a value that nobody has stored."""
    data = {
        "driver_name": driver,
        "driver_claim": {"claim_data": {**claim, "hash_value": "a", "hash_algorithm": "sha256"}},
    }
    return RawValue(Payload(metadata={"encoding": b"json/external-storage-reference"}, data=json.dumps(data).encode()))


@pytest.mark.full
def test_a_client_loads_no_database_and_no_aws_library_before_it_needs_one() -> None:
    modules = "baton.journal.external_storage"
    heavy = ("sqlalchemy", "alembic", "aioboto3", "botocore", "cryptography")
    code = f"import sys, {modules}; print([name for name in {heavy} if name in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], cwd="/", text=True) == "[]\n"


@pytest.mark.full
def test_a_bucket_without_the_packages_for_it_is_refused() -> None:
    blocked = "import sys; sys.modules['aioboto3'] = None; from baton.journal import external_storage; "
    code = blocked + "external_storage.storage_drivers({'BATON_EXTERNAL_STORAGE_URL': 's3://long'})"
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    needs = "MissingExtraError: BATON_EXTERNAL_STORAGE_URL needs packages that are not installed"
    assert ended.stderr.endswith(f'{needs}: pip install "baton-teams[s3]"\n')


@pytest.mark.parametrize("url", ["s3:long", "s3://long/prefix", "s3://key@long", "https://long", "s3://long?x=1", "["])
def test_an_address_that_is_no_bucket_is_refused(url: str) -> None:
    with pytest.raises(SettingsError, match=r"BATON_EXTERNAL_STORAGE_URL: must be s3://BUCKET"):
        storage_drivers({EXTERNAL_STORAGE_URL: url})


async def test_the_times_that_other_machines_compare_are_those_of_the_database(journal_url: str) -> None:
    """The clock of the machine that writes is not asked: a statement has the time at which it is executed."""
    database = await Database.connect(journal_url, "default", upgrade=True)
    dialect, name = database.engine.dialect, f"{uuid.uuid4()}"
    key = {"temporal_namespace": "default", "namespace": name, "memory": "", "id": "c"}
    begins = move_conversation(dialect, schema.conversations, key, Head(), Head(id="a", depth=1))
    goes_on = move_conversation(dialect, schema.conversations, key, Head(id="a", depth=1), Head(id="b", depth=2))
    holds = upsert_hold(dialect, "default", name, "sha")
    await asyncio.sleep(2)
    now = int(await database.engine.run(database_time))
    for statement in (begins, goes_on, holds, holds):
        await database.run(statement)
    table = schema.conversations.c
    [times] = await database.run(select(table.created, table.changed).where(table.namespace == name))
    [[stored]] = await database.run(select(schema.holds.c.at).where(schema.holds.c.family == name))
    assert all(now <= each <= now + 60 for each in (*times, stored))
    await database.close()


async def test_a_long_value_that_is_stored_right_before_its_run_is_deleted_is_deleted_too(
    journal_url: str, client: Client
) -> None:
    database = await Database.connect(journal_url, client.namespace, upgrade=True)
    for _ in range(5):
        run = f"{uuid.uuid4()}"
        sha = await database.put_blob(run.encode(), workflow_family(run))
        assert await delete_long_values(database.engine, client, [run], ()) == []
        with pytest.raises(JournalLost):
            await database.get_blob(sha)
    await database.close()


async def test_a_long_value_that_is_stored_while_those_of_its_run_are_deleted_is_reported(
    journal_url: str, client: Client
) -> None:
    database = await Database.connect(journal_url, client.namespace, upgrade=True)
    run, other = f"{uuid.uuid4()}", f"{uuid.uuid4()}"
    for each in (run, other):
        await database.put_blob(each.encode(), workflow_family(each))
    later = update(schema.holds).where(schema.holds.c.family == workflow_family(run))
    await database.run(later.values(at=schema.holds.c.at + 60))
    assert await delete_long_values(database.engine, client, [run, other], ()) == [run]
    await database.close()
