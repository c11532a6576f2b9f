"""Fixtures: real Temporal servers, a real HTTP model server that is scripted, and real databases."""

import asyncio
import atexit
import contextlib
import gc
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import hypothesis
import pytest
import pytest_asyncio
import pytest_timeout  # type: ignore[import-untyped]
from temporalio.client import Client

from baton.journal.leases import without_lease
from baton.observability.runtime import set_worker_runtime
from baton.starter.server.embedded import TUNING, EmbeddedServer
from baton.starter.server.state_dir import StateDir
from baton.temporal.bounded_process import close_idle
from baton.temporal.client import connect
from tests.harness.environment import KEY, Environment
from tests.harness.hangs import HangReporter
from tests.harness.manifests import Writer
from tests.harness.ports import own_ports
from tests.harness.postgres import PostgresServer
from tests.harness.process_state import process_state
from tests.harness.processes import process_env
from tests.harness.tool_server import ToolServer
from tests.harness.user_machine import UserMachine
from tests.replay.scenarios import SHORT_HISTORIES

# Tests change variables while threads of the SDK start, which read them: in glibc before 2.41 that crashes the process.
# So variables change for Python code alone. What a test starts as a process gets its variables as an argument.
os.putenv = os.unsetenv = lambda *_: None  # type: ignore[assignment]

# The same examples in each run: a suite that finds something new by chance fails for whoever has changed nothing. New
# ones are tried by `make bench-fuzz`, which names another profile. On a busy machine each of them may take seconds.
hypothesis.settings.register_profile(
    "repeatable", derandomize=True, deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("repeatable")

os.environ["TEMPORAL_DEBUG"] = "1"  # a machine that stalls for 2 s is not a workflow that blocks
set_worker_runtime()  # before any client is made
atexit.register(time.sleep, 0.05)  # the SDK's threads let go of the interpreter before it ends
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell lets what it starts in the background ignore it


ROOT = Path(__file__).parent
FULL_FOLDERS = (ROOT / "durability", ROOT / "chaos", ROOT / "starter" / "web_console")
"""Folders whose tests kill processes, drive a cluster's tools or a browser, or run many random examples."""

GATEWAY = ROOT / "starter" / "gateway"
"""The tests of the gateway's protocols, with clients of other projects and languages."""

QUICK_OF_GATEWAY = ("__init__.py", "conftest.py", "test_protocols.py", "test_api.py", "test_access.py")
"""The files of that folder that are no part of ``--full``."""

QUICK_ON_POSTGRES = ("test_journal.py", "test_migrations.py")
"""The files whose tests with ``journal_url`` also run on PostgreSQL without ``--full``."""

QUICK = pytest.StashKey[bool]()
"""Whether tests are left out that only ``--full`` or ``--slow`` runs."""

HANGS = pytest.StashKey[HangReporter]()
"""What reports a test that reaches its timeout."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds ``--full``, as in ``make test-all``, and ``--slow``, as in ``make bench-proofs``: together, they run all."""
    parser.addoption(
        "--full",
        action="store_true",
        help="also run the tests of tests/durability and tests/chaos, those marked 'full', and the first combination "
        "of a test with parameters that is marked 'slow'",
    )
    parser.addoption("--slow", action="store_true", help="run the tests marked 'slow' that --full leaves out")


def pytest_configure(config: pytest.Config) -> None:
    """Leaves out what ``--full`` and ``--slow`` run, unless the command names files or folders: those run whole."""
    names_files = config.args_source is pytest.Config.ArgsSource.ARGS
    config.stash[QUICK] = not (config.option.full or config.option.slow or names_files)
    config.stash[HANGS] = HangReporter()
    Environment.replays = not config.stash[QUICK]


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: pytest_timeout.Settings) -> bool:
    """Counts the seconds of a test in place of pytest-timeout, whose report is lost in a process of pytest-xdist."""
    item.cancel_timeout = item.config.stash[HANGS].watch(item.nodeid, settings.timeout)  # type: ignore[attr-defined]
    return True


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leaves out the folders and files of ``--full``."""
    is_of_gateway = collection_path.parent == GATEWAY and collection_path.name not in QUICK_OF_GATEWAY
    is_full = collection_path in FULL_FOLDERS or is_of_gateway
    return True if config.stash[QUICK] and is_full else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out the tests that are marked ``full`` or ``slow``, and most of those on PostgreSQL."""
    if config.stash[QUICK]:
        left_out = {item for item in items if is_marked(item, "full", "slow") or is_on_postgres_alone(item)}
    elif config.option.slow:
        left_out = {*items} - slow_tests(items)
    elif config.option.full:
        left_out = slow_tests(items)
    else:
        left_out = set()
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = [item for item in items if item not in left_out]


def is_marked(item: pytest.Item, *names: str) -> bool:
    """Whether a test has one of the marks."""
    return any(item.get_closest_marker(name) for name in names)


def slow_tests(items: list[pytest.Item]) -> set[pytest.Item]:
    """The tests that are marked ``slow``; of one with parameters, all combinations but the first."""
    first: dict[str, pytest.Item] = {}
    for item in items:
        if hasattr(item, "callspec"):
            first.setdefault(item.nodeid.partition("[")[0], item)
    return {item for item in items if is_marked(item, "slow") and item not in first.values()}


def is_on_postgres_alone(item: pytest.Item) -> bool:
    """Whether a test repeats on PostgreSQL what it shows on SQLite, outside of the files that are quick on both."""
    parametrized = getattr(item, "callspec", None)
    is_on_postgres = parametrized is not None and parametrized.params.get("journal_url") == "postgresql"
    return is_on_postgres and item.path.name not in QUICK_ON_POSTGRES


def pytest_collection_finish() -> None:
    """Leaves what stays for the whole run out of every later garbage collection."""
    gc.freeze()


@pytest_asyncio.fixture(scope="session", loop_scope="session", autouse=True)
async def _event_loop(pytestconfig: pytest.Config) -> AsyncIterator[None]:
    """Names the event loop of all tests to who reports what hangs; ends idle processes before it is closed."""
    pytestconfig.stash[HANGS].loop = asyncio.get_running_loop()
    yield
    await close_idle()


@pytest.fixture(autouse=True)
def _same_process() -> Iterator[None]:
    """Fails a test that leaves its process changed: the tests after it would depend on the order of all."""
    before = process_state()
    yield
    after = process_state()
    changed = {name: (was, after[name]) for name, was in before.items() if name in after and after[name] != was}
    assert not changed, "the test has changed its process: what was, and what is now"


@pytest.fixture
def write(tmp_path: Path) -> Writer:
    """Writes manifests into a temporary folder."""
    return Writer(tmp_path)


QUICK_DELETES = ("history.transferProcessorUpdateAckInterval", '"200ms"')
"""Temporal deletes a run once its queue has noted that the run is closed, by default every 30 s."""


@contextlib.asynccontextmanager
async def serving(folder: Path, *tuning: tuple[str, str]) -> AsyncIterator[EmbeddedServer]:
    """Runs the embedded server, as users have it, on free ports."""
    with StateDir(folder).lock("dev") as lock:
        assert lock is not None
        embedded = EmbeddedServer(folder, lock, *own_ports(), tuning=(*TUNING, QUICK_DELETES, *tuning))
        await embedded.start()
        yield embedded
        await embedded.stop()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmbeddedServer]:
    """The Temporal server of most tests."""
    async with serving(tmp_path_factory.mktemp("server")) as embedded:
        yield embedded


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def server_with_short_histories(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmbeddedServer]:
    """A Temporal server on which runs continue as new after 50 events."""
    async with serving(tmp_path_factory.mktemp("short-histories"), SHORT_HISTORIES) as embedded:
        yield embedded


@pytest_asyncio.fixture(loop_scope="session")
async def env_with_short_histories(
    server_with_short_histories: EmbeddedServer, tmp_path: Path
) -> AsyncIterator[Environment]:
    """A test environment on that server."""
    async with Environment.running(await connect(server_with_short_histories.address), tmp_path) as env:
        yield env


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def client(server: EmbeddedServer) -> Client:
    """A client of the server of most tests."""
    return await connect(server.address)


@pytest_asyncio.fixture(loop_scope="session")
async def env(client: Client, tmp_path: Path) -> AsyncIterator[Environment]:
    """A test environment: worker, journal and scripted model. With ``--full``, replays every run at the end."""
    async with Environment.running(client, tmp_path) as env:
        yield env


@pytest.fixture
def tool_server() -> Iterator[ToolServer]:
    """An HTTP server for the tools of a test."""
    with ToolServer().serving() as tool_server:
        yield tool_server


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL server; a test that stops it starts it again."""
    with PostgresServer.running() as server:
        yield server


@pytest_asyncio.fixture(params=["sqlite", "postgresql"], loop_scope="session")
async def journal_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database, once for each kind of database that a journal supports."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'journal.db'}"
    postgres: PostgresServer = request.getfixturevalue("postgres")
    return await postgres.database()


@pytest.fixture(scope="session")
def shared_machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UserMachine]:
    """The machine of all tests that are marked ``shared_server``; its server and worker stay between them."""
    for machine in running_machine(tmp_path_factory.mktemp("shared-machine")):
        with machine.state_dir.lock("clients", shared=True):
            yield machine


@pytest.fixture
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[UserMachine]:
    """A user's machine. What still runs on it at the end is stopped, unless the test shares its server and worker."""
    if request.node.get_closest_marker("shared_server") is None:
        yield from running_machine(tmp_path)
        return
    machine: UserMachine = request.getfixturevalue("shared_machine")
    machine.env["BATON_HOME"] = str(machine.state_dir.folder)
    machine.begin(tmp_path)
    yield machine
    machine.released.set()
    machine.model.release()


def running_machine(folder: Path) -> Iterator[UserMachine]:
    """A machine with its model's server; stops what it has started."""
    machine = UserMachine(folder)
    with machine.model.serve() as url:
        machine.env = process_env(OPENAI_BASE_URL=url, OPENAI_API_KEY=KEY)
        yield machine
        machine.shut_down()


@pytest.fixture
def without_lease_of_a_call() -> Iterator[None]:
    """For tests that make the calls of clients without a worker, which would hold their leases."""
    with without_lease():
        yield
