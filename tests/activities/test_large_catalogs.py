"""Catalogs of thousands of manifests, and folders of thousands of Secrets, do not hold up a worker's event loop."""

import asyncio
import gc
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from baton.activities.context.value_resolver import ValueResolver
from baton.activities.runtime.secrets import SecretStore
from baton.contracts.message import Head, Message
from baton.journal.journal import Journal
from baton.journal.rows import catalog_id
from baton.resources.catalog import Catalog
from baton.resources.documents import Document
from baton.resources.loader import load_documents
from baton.resources.model import Model
from baton.resources.provenance import Provenance
from baton.resources.run_catalog import RunCatalog
from baton.resources.secret import Secrets
from tests.harness.environment import KEY, agent, manifest
from tests.harness.event_loop import watched_loop


@pytest.fixture(autouse=True)
def without_garbage_collection() -> Iterator[None]:
    """A collection of all objects of the tests would take longer than what is measured."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    """A catalog whose reading and writing take seconds."""
    key = {"valueFrom": {"secretKeyRef": {"name": "s", "key": "token"}}}
    model = manifest(
        "Model", "m", {"model": "m", "type": "openai", "config": {"openai": {"baseUrl": "http://m/v1", "apiKey": key}}}
    )
    parameters = [{"name": f"p{number}", "value": "v"} for number in range(10)]
    agents = [agent(f"a{number}", parameters=parameters) for number in range(8_000)]
    return load_documents(Document("m.yaml", each, {}) for each in [model, *agents]).catalog


@pytest.mark.slow
async def test_a_large_catalog_is_written_and_read_beside_the_event_loop(catalog: Catalog, tmp_path: Path) -> None:
    journal = await Journal.open(f"sqlite:///{tmp_path / 'journal.db'}", "default")
    async with watched_loop() as waits:
        pinned = await asyncio.to_thread(RunCatalog.of_files(catalog).prepared)
        await journal.begin(pinned, "run", Head(), Message(role="user", content="?"))
    await journal.close()
    assert waits.share < 1 / 3
    journal = await Journal.open(f"sqlite:///{tmp_path / 'journal.db'}", "default")
    async with watched_loop() as waits:
        found = await asyncio.gather(*(journal.catalog(catalog_id(pinned)) for _ in range(20)))
        await ValueResolver.of_catalog(journal, found[0], SecretStore(Secrets(), {}))
    await journal.close()
    assert all(each is found[0] for each in found), "it is read once"
    assert waits.share < 1 / 3


@pytest.mark.full
async def test_a_large_folder_of_secrets_is_read_beside_the_event_loop(catalog: Catalog, tmp_path: Path) -> None:
    model = catalog.get("Model", "default", "m")
    assert isinstance(model, Model)
    assert model.spec.config.openai
    own = RunCatalog.of(Catalog(manifests=(model,)), lambda _: Provenance.TRUSTED, registered_as="f" * 64)
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"token": KEY}}
    for number in range(2_000):
        (tmp_path / f"{number}.yaml").write_text(yaml.safe_dump(agent(f"a{number}")))
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(secret))
    (tmp_path / ".sources").mkdir()
    (tmp_path / ".sources" / f"{own.registered_as}.json").write_text(json.dumps([str(tmp_path)]))
    journal = await Journal.open(f"sqlite:///{tmp_path / 'journal.db'}", "default")
    secrets = SecretStore(Secrets(), {}, tmp_path / ".sources")
    async with watched_loop() as waits:
        values = await ValueResolver.of_catalog(journal, own, secrets)
        assert values.resolve(model.spec.config.openai.api_key, model) == KEY
    await journal.close()
    assert waits.share < 1 / 3
