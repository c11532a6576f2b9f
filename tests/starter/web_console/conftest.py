"""A browser, and a gateway before a real worker and a real server."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio
from playwright.async_api import Browser
from temporalio.client import Client

from baton.resources.documents import Document
from baton.resources.loader import load_documents
from tests.harness.browser import running_browser
from tests.harness.environment import Environment, agent, team
from tests.harness.gateway import GatewayServer


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    """A browser."""
    async with running_browser() as browser:
        yield browser


MANIFESTS = [agent("one"), agent("two"), team("duo", "one", "two", maxTurns=2, onMaxTurns="complete")]


@pytest_asyncio.fixture(loop_scope="session")
async def served_env(client: Client, tmp_path: Path) -> AsyncIterator[Environment]:
    """An environment whose worker has the team ``duo`` with the agents ``one`` and ``two``."""
    loaded = load_documents([Document("manifests.yaml", manifest, {}) for manifest in MANIFESTS])
    async with Environment.running(client, tmp_path, loaded) as env:
        yield env


@pytest_asyncio.fixture(loop_scope="session")
async def gateway(served_env: Environment) -> AsyncIterator[GatewayServer]:
    """A gateway without keys, which serves all of them."""
    async with GatewayServer.running(served_env) as gateway:
        yield gateway
