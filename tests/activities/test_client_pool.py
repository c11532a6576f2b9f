"""Tests of the clients of models' servers: how many stay open, and that none is closed while it is used."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from baton.activities.context.metering import ChainedModel
from baton.activities.context.value_resolver import ValueResolver
from baton.activities.model.openai import OpenAIProvider
from baton.activities.model.provider import MAX_IDLE, ClientPool, ModelRequest
from baton.activities.runtime.secrets import SecretStore
from baton.contracts.message import Message
from baton.resources.model import Model
from baton.resources.secret import Secrets
from baton.testing import Reply, ScriptedModel
from tests.harness.environment import manifest
from tests.harness.manifests import own_catalog

pytestmark = pytest.mark.usefixtures("without_lease_of_a_call")

ASKED = ModelRequest([Message(role="user", content="Why?")])
OTHERS = 20
"""Files that the process may open for other reasons meanwhile."""


@pytest.fixture
def url() -> Iterator[str]:
    """The address of a model's server."""
    with ScriptedModel(lambda _: Reply(text="Because.")).serve() as address:
        yield address


def open_files() -> int:
    """Files and connections of this process, which is the server, too: a connection counts twice."""
    return len([*Path("/dev/fd").iterdir()])


async def ask(provider: OpenAIProvider, url: str, key: str, header: str = "") -> None:
    """Asks a Model with this key and header."""
    headers = [{"name": "X-Tenant", "value": {"value": header}}] if header else []
    config = {"openai": {"baseUrl": {"value": url}, "apiKey": {"value": key}, "headers": headers}}
    spec = {"type": "completions", "provider": "openai", "model": {"value": "gpt"}, "config": config}
    model = Model.model_validate(manifest("Model", "gpt", spec))
    values = ValueResolver(own_catalog(model), SecretStore(Secrets(), {}))
    await provider.ask(ChainedModel(model, "gpt"), values, ASKED, lambda _: None)


@pytest.mark.slow
async def test_a_thousand_sets_of_headers_share_the_connections_of_their_server(url: str) -> None:
    provider, before = OpenAIProvider(), open_files()
    for number in range(1_000):
        await ask(provider, url, "the key", str(number))
    assert open_files() - before <= 2 + OTHERS
    await provider.close()


@pytest.mark.full
async def test_of_many_keys_only_those_that_were_used_last_keep_connections(url: str) -> None:
    provider, before = OpenAIProvider(), open_files()
    for number in range(3 * MAX_IDLE):
        await ask(provider, url, f"the key {number}")
    assert open_files() - before <= 2 * MAX_IDLE + OTHERS
    await provider.close()


class Clients:
    """Clients of servers 0, 1, 2 and so on; ``open`` are those that are."""

    def __init__(self) -> None:
        self.open, self.made = set[int](), list[int]()

    @asynccontextmanager
    async def connect(self, server: int) -> AsyncIterator[int]:
        """A client that takes a moment to be made."""
        await asyncio.sleep(0)
        self.made.append(server)
        self.open.add(server)
        yield server
        self.open.remove(server)


async def test_a_client_is_not_closed_while_it_is_used() -> None:
    clients = Clients()
    pool = ClientPool(clients.connect, max_idle=2)
    async with pool.client(0):
        for server in range(1, 10):
            async with pool.client(server):
                assert {0, server} <= clients.open
        assert clients.open == {0, 8, 9}
    assert clients.open == {8, 9}, "the first was used before the others"
    async with pool.client(8):
        pass
    assert clients.made == [*range(10)]
    await pool.close()
    assert clients.open == set()


async def test_calls_at_once_share_one_client() -> None:
    clients = Clients()
    pool = ClientPool(clients.connect)

    async def call() -> None:
        async with pool.client(1):
            await asyncio.sleep(0)

    await asyncio.gather(*(call() for _ in range(10)))
    assert clients.made == [1]
    await pool.close()


async def test_renewed_clients_are_closed_after_their_calls() -> None:
    clients = Clients()
    pool = ClientPool(clients.connect)
    async with pool.client(1), pool.client(2):
        await pool.renew(lambda server: server == 1)
        assert clients.open == {1, 2}
    assert clients.open == {2}
    async with pool.client(1), pool.client(2):
        assert clients.made == [1, 2, 1]
    await pool.close()
    assert clients.open == set()
