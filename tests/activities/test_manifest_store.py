"""The store of manifests on each database: versions, changes at once, the journal's keys, and what is refused."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from baton.contracts.identity import Actor
from baton.contracts.settings import SettingsError
from baton.journal import manifest_store
from baton.journal.journal import Journal
from baton.journal.manifest_store import Changes
from baton.resources.catalog import Resource
from baton.resources.documents import Document
from baton.resources.loader import Loaded, load_documents
from baton.resources.problems import ManifestError
from baton.resources.stored import UNUSED, Revision
from baton.starter.operations import manifests as manifests_
from baton.starter.operations.manifests import Applied, Store, StoreError, open_store
from tests.harness.environment import Json, agent, manifest, team
from tests.harness.postgres import execute

KEYS = {"BATON_ENCRYPTION_KEYS": "k1:" + "A" * 43 + "="}
ONE = ("Agent", "default", "one")


def loaded(*manifests: Json) -> Loaded:
    return load_documents([Document("m.yaml", each, {}) for each in manifests])


async def apply(store: Store, *manifests: Json, force: bool = False) -> list[Applied]:
    return [applied for _, applied in await store.apply(loaded(*manifests), force=force)]


async def refusal(store: Store, *manifests: Json) -> str:
    with pytest.raises((ManifestError, StoreError)) as refused:
        await apply(store, *manifests)
    return str(refused.value)


async def names(store: Store) -> list[str]:
    return [each.name for each in (await store.contents()).existing]


async def prompts(store: Store) -> dict[str, object]:
    found: list[Resource] = [*(await store.contents()).catalog().manifests]
    return {each.name: getattr(each.spec, "prompt", None) for each in found if hasattr(each, "spec")}


@contextlib.asynccontextmanager
async def opened(url: str, **environ: str) -> AsyncIterator[Store]:
    async with open_store({"BATON_JOURNAL_URL": url, **environ}) as store:
        yield store


@pytest_asyncio.fixture(loop_scope="session")
async def store(journal_url: str) -> AsyncIterator[Store]:
    async with opened(journal_url) as store:
        yield store


async def test_each_change_is_a_new_version_of_its_resource_and_a_revision_of_the_store(store: Store) -> None:
    assert await apply(store, agent("one"), agent("two")) == ["created", "created"]
    assert await apply(store, agent("one"), agent("two")) == ["unchanged", "unchanged"]
    first = await store.revision()
    assert await apply(store, agent("one", description="new"), agent("two")) == ["configured", "unchanged"]
    assert (await store.revision()).number == 2
    versions = await store.versions(ONE)
    assert [(each.version, "new" in each.manifest) for each in versions] == [(2, True), (1, False)]
    changes = await store.changed_since(first)
    assert (changes.since, changes.revision) == (first, await store.revision())
    assert [each.key for each in changes.manifests] == [ONE]


async def test_a_deleted_resource_keeps_its_versions_and_counts_on_when_it_is_made_again(store: Store) -> None:
    await apply(store, agent("one"))
    await store.delete([ONE])
    assert await names(store) == []
    with pytest.raises(StoreError, match="there is no Agent 'one' in the store in the namespace 'default'"):
        await store.delete([ONE])
    assert await apply(store, agent("one")) == ["created"]
    assert [(each.version, each.is_deleted) for each in await store.versions(ONE)] == [
        (3, False),
        (2, True),
        (1, False),
    ]


async def test_only_the_last_versions_of_a_resource_are_kept(store: Store) -> None:
    for number in range(manifest_store.MAX_VERSIONS + 3):
        await apply(store, agent("one", description=f"{number}"), *[agent("two")] * (not number))
    versions = [each.version for each in await store.versions(ONE)]
    assert versions == [*range(manifest_store.MAX_VERSIONS + 3, 3, -1)]
    assert await names(store) == ["one", "two"]


async def test_a_change_is_checked_while_the_event_loop_goes_on(store: Store) -> None:
    loop = asyncio.get_running_loop()

    def goes_on(_: object) -> None:
        turned = threading.Event()
        loop.call_soon_threadsafe(turned.set)
        assert turned.wait(5)

    await store.apply(loaded(agent("one")), check=goes_on)
    await store.apply(loaded(agent("one")), check=goes_on, dry=True)
    await store.delete([ONE], check=goes_on, dry=True)
    await store.delete([ONE], check=goes_on)


@pytest.mark.full
async def test_changes_at_once_from_several_processes_all_land(journal_url: str) -> None:
    async with contextlib.AsyncExitStack() as stack:
        stores = [await stack.enter_async_context(opened(journal_url)) for _ in range(6)]
        given = [agent(f"a{number}") for number in range(6)]
        shared = [agent("shared", description=f"{number}") for number in range(6)]
        await asyncio.gather(*(apply(*each) for each in zip(stores, given, shared, strict=True)))
        assert await names(stores[0]) == [*(f"a{number}" for number in range(6)), "shared"]
        versions = await stores[0].versions(("Agent", "default", "shared"))
        assert [each.version for each in versions] == [6, 5, 4, 3, 2, 1]
        assert len({each.manifest for each in versions}) == 6
        assert (await stores[0].revision()).number == 6


async def test_what_is_refused_writes_nothing_of_all_that_was_given(store: Store) -> None:
    text = await refusal(store, agent("one"), team("duo", "one", "nobody", maxTurns=2))
    where = "m.yaml: Team/default/duo: spec.members[1].name: Agent or Team default/nobody"
    assert f"{where} is neither in the files nor in the store" in text
    assert await store.revision() == UNUSED


async def test_a_manifest_may_need_what_the_store_has_and_is_checked_with_it(store: Store) -> None:
    await apply(store, agent("one"))
    assert await apply(store, team("duo", "one", maxTurns=2)) == ["created"]
    text = await refusal(store, {**team("outer", "duo", maxTurns=2)}, team("duo", "outer", maxTurns=2))
    assert "contains itself" in text
    await apply(store, team("outer", "duo", maxTurns=2))
    assert "the team contains itself" in await refusal(store, team("duo", "outer", maxTurns=2))


async def test_with_force_a_manifest_may_need_what_only_a_workers_files_have(store: Store) -> None:
    given = agent("one", "files-read")
    assert "Tool default/files-read is neither in the files nor in the store" in await refusal(store, given)
    assert await apply(store, given, force=True) == ["created"]
    assert await apply(store, agent("two")) == ["created"]


MODEL = manifest(
    "Model",
    "m",
    {"type": "openai", "model": {"value": "gpt"}, "config": {"openai": {"apiKey": {"value": "sk-12345678"}}}},
)
COMMAND = manifest("MCPServer", "files", {"command": "serve-files"})
TEMPLATE = {"spec": {"input": "Why?", "targets": [{"type": "agent", "name": "one"}]}}
SCHEDULE = manifest("Schedule", "daily", {"schedule": "0 8 * * *", "queryTemplate": TEMPLATE})
REFUSED = {
    "a literal secret": (MODEL, "Model/default/m: spec.config.openai.apiKey: is a literal secret"),
    "a command": (COMMAND, "MCPServer/default/files: spec.command: a command may only be in a worker's own files"),
    "a Schedule": (
        SCHEDULE,
        "Schedule/default/daily: kind: schedules are stored in Temporal: apply it with baton schedules",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
async def test_what_is_never_stored_is_refused_with_its_field(store: Store, what: str) -> None:
    given, expected = REFUSED[what]
    text = await refusal(store, agent("one"), given)
    assert f"m.yaml: {expected}" in text
    assert "sk-12345678" not in text
    assert await store.revision() == UNUSED


async def test_a_manifest_is_not_deleted_while_another_needs_it_unless_by_force(store: Store) -> None:
    await apply(store, agent("one"), team("duo", "one", maxTurns=2))
    needs = r"Team/default/duo: spec.members\[0\].name: needs Agent or Team default/one"
    with pytest.raises(StoreError, match=needs):
        await store.delete([ONE])
    assert await names(store) == ["one", "duo"]
    await store.delete([ONE], force=True)
    assert await names(store) == ["duo"]
    await apply(store, agent("one"))
    await store.delete([ONE, ("Team", "default", "duo")])
    assert await names(store) == []


async def test_the_last_target_of_a_selector_is_not_deleted_under_it(store: Store) -> None:
    one = agent("one") | {"metadata": {"name": "one", "labels": {"part": "front"}}}
    query = manifest("Query", "q", {"input": "Why?", "selector": {"matchLabels": {"part": "front"}}})
    await apply(store, one, query)
    with pytest.raises(StoreError, match=r"Query/default/q: spec\.selector: needs"):
        await store.delete([ONE])


@pytest.mark.full
async def test_what_is_too_large_is_refused(store: Store) -> None:
    large = agent("one", prompt="x" * manifest_store.MAX_MANIFEST_BYTES)
    assert "Agent/default/one has 2,000" in await refusal(store, large)
    several = [agent(f"a{number}", prompt="x" * 1_900_000) for number in range(27)]
    assert "the store is limited to 10,000 manifests and 50,000,000 bytes in total" in await refusal(store, *several)


async def test_a_journals_keys_encrypt_the_manifests_and_bind_them_to_their_version(journal_url: str) -> None:
    async with opened(journal_url, **KEYS) as store:
        await apply(store, agent("one", prompt="Keep it hidden."))
        await apply(store, agent("one", prompt="Keep it more hidden."))
        stored = [str(row[0]) for row in await execute(journal_url, "select manifest from baton_manifests")]
        assert [each.split(":")[0] for each in stored] == ["sealed", "sealed"]
        assert not [each for each in stored if "hidden" in each]
        assert await prompts(store) == {"one": "Keep it more hidden."}
        await execute(
            journal_url,
            "update baton_manifests set manifest = "
            "(select manifest from baton_manifests where version = 1) where version = 2",
        )
        assert (await store.contents()).existing[0].problem
        with pytest.raises(StoreError, match="the stored manifest Agent/default/one version 2 can't be read"):
            await prompts(store)
        assert "can't be read" in await refusal(store, agent("two"))
        assert await apply(store, agent("one", prompt="New.")) == ["configured"]
    with pytest.raises(SettingsError):
        async with opened(journal_url):
            raise AssertionError("opened without the key")


async def test_a_row_that_is_longer_than_a_manifest_may_be_is_not_read(store: Store, journal_url: str) -> None:
    await apply(store, agent("one"), agent("two"))
    repeat = "replace(hex(zeroblob(4000000)), '00', 'x')" if "sqlite" in journal_url else "repeat('x', 4000000)"
    await execute(journal_url, f"update baton_manifests set manifest = {repeat} where name = 'two'")
    found = {each.name: each.problem for each in (await store.contents()).existing}
    assert found == {"one": "", "two": "exceeds the maximum length of a manifest"}


class Overtaken(Store):
    """A store that somebody else changes each time after it was read."""

    other: Store
    reads = 0

    async def changed_since(self, known: Revision) -> Changes:
        found = await super().changed_since(known)
        self.reads += 1
        await apply(self.other, agent("other", description=f"{self.reads}"))
        return found


async def test_a_change_that_others_prevent_all_the_time_gives_up_without_a_trace(journal_url: str) -> None:
    journal = await Journal.open(journal_url, "default")
    async with opened(journal_url) as other:
        store = Overtaken(journal)
        store.other = other
        with pytest.raises(StoreError, match="the store was changed concurrently too often: nothing was written"):
            await apply(store, agent("one"))
        assert store.reads == manifests_.ATTEMPTS
        assert await names(other) == ["other"]
    await journal.close()


def secret(value: str, **more: str) -> Json:
    kubectl = {"kubectl.kubernetes.io/last-applied-configuration": value, "baton/allow-inline": "api.example.com"}
    metadata = {"name": "keys", "annotations": kubectl}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": {"k": value, **more}}


SECRET = ("Secret", "default", "keys")


async def test_a_secret_is_not_stored_without_a_key_nor_is_anything_beside_it(store: Store) -> None:
    text = await refusal(store, agent("one"), secret("zqzq-first"))
    assert "Secret/default/keys: kind: Secrets are only stored encrypted: set BATON_ENCRYPTION_KEYS" in text
    assert "zqzq" not in text
    assert await store.revision() == UNUSED
    with pytest.raises(SettingsError, match="set BATON_ENCRYPTION_KEYS"):
        await store.write([(SECRET, "{}")], UNUSED, Actor("ann", "journal"))


async def test_a_secret_is_stored_encrypted_alone_and_only_its_newest_version_is_kept(journal_url: str) -> None:
    async with opened(journal_url, **KEYS) as store:
        assert await apply(store, agent("one"), secret("zqzq-first")) == ["created", "created"]
        assert await apply(store, agent("one"), secret("zqzq-first")) == ["unchanged", "unchanged"]
        assert await apply(store, secret("zqzq-other", more="zqzq-more")) == ["configured"]
        (stored,) = await store.secrets()
        assert stored.secret and [stored.secret.value(key) for key in ("k", "more")] == ["zqzq-other", "zqzq-more"]
        assert [each.version for each in await store.versions(SECRET)] == [2]
        assert "zqzq" not in repr((stored, await store.contents()))
        assert (await store.contents()).catalog().summary == "1 Agent"
        rows = await execute(journal_url, "select manifest from baton_manifests where kind = 'Secret'")
        assert [str(row[0])[:10] for row in rows] == ["sealed:k1:"]
        await store.delete([SECRET])
        assert [each.is_deleted for each in await store.versions(SECRET)] == [True]
        assert await execute(journal_url, "select manifest from baton_manifests where kind = 'Secret'") == [("",)]


async def test_a_secret_that_a_stored_manifest_needs_is_deleted_by_force_alone(journal_url: str) -> None:
    header = {"name": "X", "value": {"valueFrom": {"secretKeyRef": {"name": "keys", "key": "k"}}}}
    look = manifest("Tool", "look", {"type": "http", "http": {"url": "http://127.0.0.1:9", "headers": [header]}})
    async with opened(journal_url, **KEYS) as store:
        await apply(store, look, secret("zqzq-first"))
        with pytest.raises(StoreError, match=r"Tool/default/look: .*needs Secret default/keys"):
            await store.delete([SECRET])
        await store.delete([SECRET], force=True)
        assert await names(store) == ["look"]


async def test_a_secret_that_is_not_encrypted_or_under_another_key_is_not_read(journal_url: str) -> None:
    async with opened(journal_url) as without_key, opened(journal_url, **KEYS) as store:
        await apply(store, secret("zqzq-first"))
        (stored,) = await without_key.secrets()
        assert (stored.secret, stored.lacks_key) == (None, True)
        assert "with the key 'k1', but BATON_ENCRYPTION_KEYS is not set" in stored.problem
        await execute(journal_url, """update baton_manifests set manifest = '{"kind": "Secret"}'""")
        (stored,) = await store.secrets()
        assert (stored.secret, stored.problem) == (None, "it is a Secret that is not encrypted")
        assert await apply(store, secret("zqzq-first")) == ["configured"]
        assert [each.secret is not None for each in await store.secrets()] == [True]


async def test_what_is_shown_of_a_secret_can_not_be_applied(store: Store) -> None:
    with pytest.raises(ManifestError, match=r"stringData.k: '\*\*\*' stands for a value that is never shown"):
        loaded(secret("***"))
