"""Runs with the manifests of the store: known to workers without files, the worker's own, and pinned as any others."""

import asyncio
import dataclasses
import logging
import threading
import uuid
from pathlib import Path

import pytest

from baton.activities.context.lookup import OwnManifests
from baton.contracts.identity import Actor
from baton.journal.journal import Journal
from baton.journal.manifest_store import Changes, ManifestStore
from baton.resources.catalog import Catalog
from baton.resources.stored import UNUSED, Revision
from baton.starter.operations.manifests import open_store
from baton.starter.server.embedded import EmbeddedServer
from baton.testing import Reply, Request
from tests.activities.test_inline_manifests import OF_KEY, failure_of, http_tool, loaded, secret, working
from tests.activities.test_manifest_store import COMMAND, KEYS
from tests.harness.environment import Environment, Json, agent, call, line, manifest, team
from tests.harness.postgres import execute
from tests.harness.processes import WorkerProcess, process_env
from tests.harness.tool_server import ToolServer

ASKED = {"name": "q"}
QUERY = manifest("Query", "q", {"input": "Why?", "targets": [{"type": "agent", "name": "one"}]})


async def apply(env: Environment, *manifests: Json) -> None:
    async with open_store(env.worker_env) as store:
        await store.apply(loaded(*manifests), force=True)


async def answer(env: Environment, given: Json) -> str | None:
    """The answer to a query, which is started by a name or with a specification."""
    status = await env.status(await env.start("query", given))
    return status.message or status.error


def by_prompt(request: Request) -> Reply:
    """The system prompt."""
    return Reply(text=str(request["messages"][0]["content"]))


@pytest.mark.full
async def test_what_is_applied_is_known_to_the_next_run_without_files_or_a_restart(env: Environment) -> None:
    env.answer = by_prompt
    assert "Query default/q is neither in the run's manifests nor in its worker's" in str(await answer(env, ASKED))
    await apply(env, QUERY, agent("one", prompt="First."))
    assert await answer(env, ASKED) == "First."
    await apply(env, agent("one", prompt="Second."))
    assert await answer(env, ASKED) == "Second."
    spec = {"input": "Why?", "targets": [{"type": "agent", "name": "one"}]}
    assert await answer(env, {"spec": spec}) == "Second."
    async with open_store(env.worker_env) as store:
        await store.delete([("Query", "default", "q")])
    assert "Query default/q is neither in the run's" in str(await answer(env, ASKED))


async def test_a_run_that_has_begun_goes_on_with_the_manifests_of_its_beginning(env: Environment) -> None:
    released = threading.Event()

    def wait_first(request: Request) -> Reply:
        if len(env.model.requests) == 1:
            released.wait(60)
        return by_prompt(request)

    env.answer = wait_first
    duo = team("duo", "one", "two", strategy="sequential")
    asked = manifest("Query", "q", {"input": "Why?", "targets": [{"type": "team", "name": "duo"}]})
    await apply(env, asked, duo, agent("one", prompt="Old one."), agent("two", prompt="Old two."))
    running = await env.start("query", ASKED)
    await env.wait_for_calls(1)
    await apply(env, agent("two", prompt="New two."))
    released.set()
    assert (await env.status(running)).message == "Old two."
    assert await answer(env, ASKED) == "New two."


async def test_a_manifest_of_the_folder_wins_over_that_of_the_store_and_the_log_says_so_once(
    env: Environment, caplog: pytest.LogCaptureFixture
) -> None:
    env.answer = by_prompt
    await apply(env, QUERY, agent("one", prompt="Of the store."))
    with caplog.at_level(logging.WARNING, "baton"):
        async with working(env, agent("one", prompt="Of the folder.")) as here:
            here.answer = by_prompt
            assert await answer(here, ASKED) == "Of the folder."
            await apply(env, agent("one", prompt="Of the store, too."))
            assert await answer(here, ASKED) == "Of the folder."
    told = [each for each in caplog.messages if "and in this worker's files" in each]
    assert told == [
        "Agent/default/one is in the store and in this worker's files: the worker uses the one in its files"
    ]


async def test_a_stored_manifest_is_the_workers_own_and_may_use_its_secrets(
    env: Environment, tool_server: ToolServer
) -> None:
    headers = [{"name": "X-Key", "value": OF_KEY}]
    look = http_tool(f"{tool_server.url}/a", headers=headers)
    await apply(env, look, agent("one", "look"), QUERY)
    async with working(env, secret()) as here:
        here.script(line("one", call("look"), "Done."))
        assert await answer(here, ASKED) == "Done."
        assert tool_server.seen[0].headers["x-key"] == "worker-key-0123456789"
        changed = {**look, "spec": {**look["spec"], "description": "changed"}}
        here.script(line("one", call("look"), "Refused."))
        assert await answer(here, {**ASKED, "resources": [changed]}) == "Refused."
        assert len(tool_server.seen) == 1


@pytest.mark.full
async def test_a_stored_secret_is_used_by_the_workers_manifests_alone_and_as_it_is_now(
    env: Environment, tool_server: ToolServer
) -> None:
    look = http_tool(f"{tool_server.url}/a", headers=[{"name": "X-Key", "value": OF_KEY}])
    sealed = {**env.worker_env, **KEYS}

    def stored(value: str, hosts: str | None = None) -> Json:
        return {**secret(hosts), "stringData": {"k": value}}

    async with open_store(sealed) as store, working(env, **KEYS) as here:
        await store.apply(loaded(look, agent("one", "look"), QUERY, stored("stored-key-1")))
        here.script(line("one", call("look"), "Done: stored-key-1."))
        handle = await here.start("query", ASKED)
        assert (await here.status(handle)).message == "Done: [secret]."
        await store.apply(loaded(stored("stored-key-2")))
        here.script(line("one", call("look"), "Done."))
        assert await answer(here, ASKED) == "Done."
        assert [each.headers["x-key"] for each in tool_server.seen] == ["stored-key-1", "stored-key-2"]
        brought = {**look, "spec": {**look["spec"], "description": "changed"}}
        here.script(line("one", call("look"), "Refused."))
        assert await answer(here, {**ASKED, "resources": [brought]}) == "Refused."
        assert len(tool_server.seen) == 2
        await store.apply(loaded(stored("stored-key-3", "127.0.0.1")))
        here.script(line("one", call("look"), "Allowed."))
        assert await answer(here, {**ASKED, "resources": [brought]}) == "Allowed."
        assert "is in the worker's own network" in str(here.model.requests[-1])
        await store.delete([("Secret", "default", "keys")], force=True)
        here.script(line("one", call("look"), "Gone."))
        assert await answer(here, ASKED) == "Gone."
        assert "stored-key" not in str([event async for event in handle.fetch_history_events()])
        assert "stored-key" not in repr(await execute(env.journal_address, "select * from baton_messages"))
    assert "the worker has no Secret 'default/keys' with the key 'k'" in str(here.model.requests[-1])


async def test_the_workers_own_secret_hides_the_stored_one(env: Environment, tool_server: ToolServer) -> None:
    look = http_tool(f"{tool_server.url}/a", headers=[{"name": "X-Key", "value": OF_KEY}])
    async with open_store({**env.worker_env, **KEYS}) as store, working(env, secret(), **KEYS) as here:
        await store.apply(loaded(look, agent("one", "look"), QUERY, {**secret(), "stringData": {"k": "stored-key-1"}}))
        here.script(line("one", call("look"), "Done."))
        assert await answer(here, ASKED) == "Done."
    assert [each.headers["x-key"] for each in tool_server.seen] == ["worker-key-0123456789"]


async def test_a_command_that_somebody_writes_into_the_database_is_not_executed(env: Environment) -> None:
    journal = await Journal.open(env.journal_address, "default")
    given = loaded(COMMAND, agent("one", "files"))
    rows = [
        ((each.kind, each.namespace, each.name), each.model_dump_json(exclude_unset=True))
        for each in given.catalog.manifests
    ]
    assert await ManifestStore(journal).write(rows, UNUSED, Actor("ann", "journal"))
    await journal.close()
    _, text = await failure_of(env, "agent", {"agent": "one", "input": "Why?"})
    assert "MCPServer/default/files: spec.command: an inline manifest can't set the command" in text


async def test_a_stored_manifest_that_cant_be_read_fails_only_runs_that_need_it(
    env: Environment, caplog: pytest.LogCaptureFixture
) -> None:
    env.answer = by_prompt
    journal = await Journal.open(env.journal_address, "default")
    rows = [(("Agent", "default", "odd"), '{"kind": "Agent"}'), (("Riddle", "default", "odd"), '{"kind": "Riddle"}')]
    await apply(env, agent("one", prompt="Read."), QUERY)
    store = ManifestStore(journal)
    assert await store.write(rows, await store.revision(), Actor("ann", "journal"))
    await journal.close()
    async with open_store(env.worker_env) as store:
        await store.delete([rows[0][0]], force=True)
    with caplog.at_level(logging.WARNING, "baton"):
        assert await answer(env, ASKED) == "Read."
    assert "runs that need the stored manifest Riddle/default/odd version 1 can't start" in caplog.text


async def test_a_run_that_needs_an_unreadable_manifest_fails_and_says_why_it_can_not_be_read(env: Environment) -> None:
    env.answer = by_prompt
    await apply(env, agent("one", prompt="Read."), QUERY)
    journal = await Journal.open(env.journal_address, "default")
    store = ManifestStore(journal)
    assert await store.write(
        [(("Agent", "default", "one"), '{"kind": "Agent"}')], await store.revision(), Actor("ann", "journal")
    )
    assert "the stored manifest Agent/default/one version 2 can't be read" in str(await answer(env, ASKED))
    assert await store.write(
        [(("Role", "default", "odd"), '{"kind": "Role"}')], await store.revision(), Actor("ann", "journal")
    )
    await journal.close()
    own = {
        **ASKED,
        "resources": [agent("mine", prompt="Mine.")],
        "spec": {"input": "Why?", "target": {"type": "agent", "name": "mine"}},
    }
    assert "the stored manifest Role/default/odd version 1 can't be read" in str(await answer(env, own))


class Counting(ManifestStore):
    """A store that counts what is read from it."""

    asked = 0
    read = 0

    async def revision(self) -> Revision:
        self.asked += 1
        return await super().revision()

    async def changed_since(self, known: Revision) -> Changes:
        self.read += 1
        return await super().changed_since(known)


async def test_the_beginning_of_a_run_reads_the_store_only_when_it_has_changed(env: Environment) -> None:
    journal = await Journal.open(env.journal_address, "default")
    store, told, folder = Counting(journal), list[Catalog](), loaded(agent("own")).catalog
    own = OwnManifests(folder, store, told.append)
    assert [await own.catalog() for _ in range(3)] == [folder] * 3
    assert (store.asked, store.read) == (3, 0)
    await apply(env, agent("one"))
    found = await asyncio.gather(*(own.catalog() for _ in range(5)))
    assert {tuple(each.name for each in catalog.manifests) for catalog in found} == {("one", "own")}
    assert (store.asked, store.read, told) == (8, 1, [found[0]])
    await apply(env, agent("two"))
    assert [each.name for each in (await own.catalog()).manifests] == ["one", "two", "own"]
    assert (store.asked, store.read) == (9, 2)
    await journal.close()


@pytest.mark.full
async def test_a_worker_notices_that_the_store_was_restored_from_a_backup(env: Environment) -> None:
    """Also if later changes have brought the restored store to the revision that the worker knew."""
    env.answer = by_prompt
    await apply(env, QUERY, agent("one", prompt="First."))
    await apply(env, agent("one", prompt="Second."), agent("two"))
    assert await answer(env, ASKED) == "Second."
    await execute(env.journal_address, "delete from baton_manifests where revision > 1")
    assert await answer(env, ASKED) == "First."
    of_two = {"name": "two", "spec": {"input": "Why?", "targets": [{"type": "agent", "name": "two"}]}}
    assert "needs Agent default/two" in str(await answer(env, of_two))
    await apply(env, agent("one", prompt="Third."))
    assert await answer(env, ASKED) == "Third."
    await execute(env.journal_address, "delete from baton_manifests where revision > 1")
    await apply(env, agent("one", prompt="Fourth."))
    assert await answer(env, ASKED) == "Fourth."
    await execute(env.journal_address, "delete from baton_manifests")
    assert "Query default/q is neither in the run's" in str(await answer(env, ASKED))


@pytest.mark.full
async def test_a_run_whose_worker_is_killed_goes_on_with_its_manifests_and_the_next_has_the_new_ones(
    env: Environment, server: EmbeddedServer, tmp_path: Path
) -> None:
    given = process_env(**env.worker_env, TEMPORAL_ADDRESS=server.address)
    process = WorkerProcess(given | {"BATON_TASK_QUEUE": uuid.uuid4().hex}, tmp_path / "worker.log")
    there = dataclasses.replace(env, task_queue=process.task_queue)
    released = threading.Event()

    def wait_once(request: Request) -> Reply:
        if len(env.model.requests) == 1:
            released.wait(60)
        return by_prompt(request)

    env.answer = wait_once
    await apply(env, QUERY, agent("one", prompt="Old."))
    process.start()
    running = await there.start("query", ASKED)
    await env.wait_for_calls(1)
    process.kill()
    released.set()
    await apply(env, agent("one", prompt="New."))
    process.start()
    assert (await there.status(running)).message == "Old."
    assert await answer(there, ASKED) == "New."
    assert await process.stop() == 0
