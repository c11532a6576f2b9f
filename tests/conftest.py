"""What do the tests run on? A real Temporal server, a real HTTP model server that is scripted, and real databases."""

import atexit
import contextlib
import signal
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from temporalio.client import Client

from baton.conversation.temporal.temporal_client import connect
from baton.starter.server.embedded import TUNING, EmbeddedServer, free_ports
from baton.starter.server.state_dir import Home
from tests.harness.machine import Machine
from tests.harness.manifests import Writer
from tests.harness.postgres import PostgresServer
from tests.harness.processes import environment
from tests.harness.stage import KEY, Stage
from tests.harness.tool_server import ToolServer
from tests.replay.scenarios import IMPATIENT

atexit.register(time.sleep, 0.05)  # the SDK's threads let go of the interpreter before it ends
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell lets what it starts in the background ignore it


@pytest.fixture
def write(tmp_path: Path) -> Writer:
    """Writes manifests into a folder of the test's own."""
    return Writer(tmp_path)


@contextlib.asynccontextmanager
async def serving(folder: Path, *tuning: tuple[str, str]) -> AsyncIterator[EmbeddedServer]:
    """The embedded server that users have, on ports of its own."""
    with Home(folder).lock("dev") as lock:
        assert lock is not None
        embedded = EmbeddedServer(folder, lock, *free_ports((0, 0)), tuning=(*TUNING, *tuning))
        await embedded.start()
        yield embedded
        await embedded.stop()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmbeddedServer]:
    """The server of most tests."""
    async with serving(tmp_path_factory.mktemp("server")) as embedded:
        yield embedded


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def impatient(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmbeddedServer]:
    """A server on which a run is long after fifty events, and is to go on in a new one."""
    async with serving(tmp_path_factory.mktemp("impatient"), IMPATIENT) as embedded:
        yield embedded


@pytest_asyncio.fixture(loop_scope="session")
async def relay(impatient: EmbeddedServer, tmp_path: Path) -> AsyncIterator[Stage]:
    """A stage on that server."""
    async with Stage.set(await connect(impatient.address), tmp_path) as stage:
        yield stage


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def client(server: EmbeddedServer) -> Client:
    """A client of the session's server."""
    return await connect(server.address)


@pytest_asyncio.fixture(loop_scope="session")
async def stage(client: Client, tmp_path: Path) -> AsyncIterator[Stage]:
    """A worker on a task queue of its own, with a journal and a scripted model; replays every run at the end."""
    async with Stage.set(client, tmp_path) as stage:
        yield stage


@pytest.fixture
def site() -> Iterator[ToolServer]:
    """A server for the tools of a test."""
    with ToolServer().serving() as site:
        yield site


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL server; a test that stops it starts it again."""
    with PostgresServer.running() as server:
        yield server


@pytest_asyncio.fixture(params=["sqlite", "postgresql"], loop_scope="session")
async def journal_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty database, of each kind that a journal stands on."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'journal.db'}"
    postgres: PostgresServer = request.getfixturevalue("postgres")
    return await postgres.database()


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """A machine of one's own; what still runs on it at the end is ended."""
    machine = Machine(tmp_path)
    with machine.model.serving() as url:
        machine.env = environment(OPENAI_BASE_URL=url, OPENAI_API_KEY=KEY)
        yield machine
        machine.shut_down()
