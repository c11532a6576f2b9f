"""How does a program reach Temporal, and start runs there? The work behind ``baton.py``."""

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Self, TypedDict, Unpack
from weakref import WeakKeyDictionary

from temporalio.client import Client

from ...conversation.messages.panel import Contribution
from ...conversation.temporal import temporal_client
from ...resources.base import JsonObject
from ...resources.functions import Function
from ...resources.loader import Loaded
from ...resources.query import Query as AskedQuery
from ..journal.contributions import read_contributions
from ..runs.runs import Handle as Run
from ..runs.runs import find_run, has_worker, start_query
from ..server.connection import ServerLocation, use_server
from ..server.in_process_worker import InProcessWorker, worker_environment
from .handle import Handle, Result
from .manifest import Manifest, distinct, load
from .resources import Query, Value

_log = logging.getLogger("baton")


class RunOptions(TypedDict, total=False):
    """What a run may be told besides.

    ``id`` is its own: a run of that id that is open already is joined. ``parameters`` are values for templates,
    ``session`` those that a session begins with, ``timeout`` is such as ``"5m"``, ``functions`` and ``resources`` are
    brought along beside those that stand in the target.
    """

    id: str
    parameters: Mapping[str, Value]
    session: JsonObject
    timeout: str
    functions: Sequence[Function]
    resources: Sequence[Manifest]


class Connection:
    """A connection to Temporal, for ``async with``: the server at ``address``, or that of TEMPORAL_ADDRESS and the
    like, or this machine's own, which is started with a worker if it doesn't run, and ends when nobody needs it.

    Runs wait on ``task_queue`` for workers. One that names functions, or a key that is spelled out, is worked on in
    this process instead, in a thread with an event loop of its own, until it is over or the connection is closed.
    """

    def __init__(self, address: str | None = None, *, task_queue: str | None = None) -> None:
        self._address, self._task_queue = address, task_queue or temporal_client.task_queue()
        self._held, self._server = contextlib.ExitStack(), ServerLocation(address)
        self._opening = asyncio.Lock()
        self._client: Client | None = None
        self._workers: list[InProcessWorker] = []

    async def __aenter__(self) -> Self:
        await self.client()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._workers:
            await worker.stop()
        self._held.close()

    async def client(self) -> Client:
        """Temporal's own client. Raises UnreachableError or ConnectionFailed without a server, and SettingsError."""
        async with self._opening:
            if self._client is None:
                if not self._address:
                    here = use_server(_log.warning, start=True)
                    self._server = await asyncio.to_thread(self._held.enter_context, here)
                self._client = await self._server.connect()
        return self._client

    async def run(self, target: Manifest, input: str | None = None, **options: Unpack[RunOptions]) -> Result:  # noqa: A002
        """Starts a run as ``start`` does, and waits for its result. Raises RunFailed.

        Whoever gives up the waiting leaves the run alone.
        """
        return await (await self.start(target, input, **options)).result()

    async def start(self, target: Manifest, input: str | None = None, **options: Unpack[RunOptions]) -> Handle:  # noqa: A002
        """Puts ``input`` to a team, an agent, a model or a tool, or starts a ``Query``, which has its own.

        Raises ManifestError where the run would miss anything, before it is started.
        """
        query = asked(target, input, options)
        loaded = load([query, *options.get("resources", ())])
        functions = distinct([*query.functions(), *options.get("functions", ())])
        client, own_id = await self.client(), options.get("id")
        found = loaded.catalog.get("Query", query.namespace, query.name)
        assert isinstance(found, AskedQuery)
        here = bool(functions or loaded.secrets)
        catalog = loaded.needed_by(found, elsewhere=not here and self._server.state_dir is None)
        queue = f"{self._task_queue}-{own_id or uuid.uuid4().hex}" if here else self._task_queue
        session = options.get("session")
        begin = partial(start_query, client, found, catalog, own_id, task_queue=queue, session=session)
        run = await (self._serve(queue, loaded, functions, begin) if here else begin())
        if not here and self._server.state_dir is None and not await has_worker(client, queue):
            _log.warning("%s waits: no worker runs; start one with: python worker.py", run.id)
        return Handle(client, run, query.answers)

    async def attach(self, name: str, *, namespace: str = "default", functions: Sequence[Function] = ()) -> Handle:
        """The run of that id, or the newest of the Query of that name, also one that another process has started.

        With ``functions`` it is worked on here. Raises NoSuchRunError.
        """
        client = await self.client()
        find = partial(find_run, client, name, namespace)
        run = await find()
        if functions:
            await self._serve((await run.describe()).task_queue, Loaded(), functions, find)
        return Handle(client, client.get_workflow_handle(run.id))

    async def contributions(self, session: str, key: str = "contributions") -> tuple[Contribution, ...]:
        """What was contributed to the panel that shares its transcript under this key of a session; empty if none has.

        It stands in the journal, which this process must be able to open, and can be read while the panel goes on.
        """
        await self.client()
        return await read_contributions(session, key, worker_environment(self._server))

    async def _serve(
        self, task_queue: str, own: Loaded, functions: Sequence[Function], begin: Callable[[], Awaitable[Run]]
    ) -> Run:
        worker = InProcessWorker(self._server, task_queue, own, functions)
        run = await worker.execute(begin)
        self._workers.append(worker)
        return run


def asked(target: Manifest, text: str | None, options: RunOptions) -> Manifest:
    """The query that puts an input to a target. Raises TypeError where there is none, or one too many."""
    if unknown := sorted(options.keys() - RunOptions.__annotations__.keys()):
        raise TypeError(f"there is no option '{unknown[0]}'; known: {', '.join(sorted(RunOptions.__annotations__))}")
    if (target.kind == "Query") == (text is not None):
        raise TypeError("a Query has its own input" if text is not None else f"{target.name} needs an input")
    if text is None:
        return target
    given, limit = options.get("parameters"), options.get("timeout")
    return Query(target.name, text, targets=[target], parameters=given, timeout=limit, namespace=target.namespace)


_connections: WeakKeyDictionary[asyncio.AbstractEventLoop, Connection] = WeakKeyDictionary()


def connect(address: str | None = None, *, task_queue: str | None = None) -> Connection:
    """A connection of one's own."""
    return Connection(address, task_queue=task_queue)


def default() -> Connection:
    """The connection of the program's event loop, which stays open until that ends."""
    return _connections.setdefault(asyncio.get_running_loop(), Connection())


async def run(target: Manifest, input: str | None = None, **options: Unpack[RunOptions]) -> Result:  # noqa: A002
    """Runs a team, an agent or a query to its end, as ``Connection.run`` does."""
    return await default().run(target, input, **options)


async def start(target: Manifest, input: str | None = None, **options: Unpack[RunOptions]) -> Handle:  # noqa: A002
    """Starts a run, as ``Connection.start`` does."""
    return await default().start(target, input, **options)


async def attach(name: str, *, namespace: str = "default", functions: Sequence[Function] = ()) -> Handle:
    """A handle on a run that exists, as ``Connection.attach`` gives it."""
    return await default().attach(name, namespace=namespace, functions=functions)


async def contributions(session: str, key: str = "contributions") -> tuple[Contribution, ...]:
    """A shared transcript, as ``Connection.contributions`` reads it."""
    return await default().contributions(session, key)
