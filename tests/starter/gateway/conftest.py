"""A gateway in the process of the tests, before a real worker and a real server.

A module's ``MANIFESTS`` are what the worker has; without them, it has the team ``duo`` with the agents ``one`` and
``two``.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from temporalio.client import Client

from baton.resources.documents import Document
from baton.resources.loader import load_documents
from baton.starter.operations.manifests import manifests_of_workers
from tests.harness.environment import Environment, agent, team
from tests.harness.gateway import GatewayServer

TEAM = team("duo", "one", "two", maxTurns=1, onMaxTurns="complete")
MANIFESTS = [agent("one"), agent("two"), TEAM]


@pytest_asyncio.fixture(loop_scope="session")
async def served_env(request: pytest.FixtureRequest, client: Client, tmp_path: Path) -> AsyncIterator[Environment]:
    """An environment whose worker has the manifests, and has told so."""
    manifests = getattr(request.module, "MANIFESTS", MANIFESTS)
    loaded = load_documents([Document("manifests.yaml", each, {}) for each in manifests])
    async with Environment.running(client, tmp_path, loaded) as env:
        while not (await manifests_of_workers(client, env.worker_env)).catalog.manifests:
            await asyncio.sleep(0.02)
        yield env


@pytest_asyncio.fixture(loop_scope="session")
async def gateway(served_env: Environment) -> AsyncIterator[GatewayServer]:
    """A gateway without keys, which serves all of them."""
    async with GatewayServer.running(served_env) as gateway:
        yield gateway
