"""An environment for tests: a worker in this process, a scripted model and a temporary journal."""

import asyncio
import atexit
import contextlib
import os
import tempfile
import threading
import time
import uuid
from base64 import b64decode
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack, overload

from temporalio.client import Client, WorkflowExecutionStatus, WorkflowHandle
from temporalio.service import RPCError, RPCStatusCode
from temporalio.testing import TimeSkipper

from ..activities.context.outside import Outside
from ..activities.runtime.settings import Settings
from ..contracts.decisions import PendingDecision
from ..contracts.message import Head, Message
from ..contracts.settings import SCRIPTED_MODEL_URL
from ..journal.journal import Journal
from ..journal.rows import Row
from ..resources.functions import Function
from ..resources.loader import Loaded, OfWorkers
from ..starter.api.client import Connection, RunOptions, Target, Value
from ..starter.api.content import RunInput
from ..starter.api.definitions import Source, load_sources, unique_functions, with_options_in_signature
from ..starter.api.handle import Handle, Result
from ..starter.operations.record import record_run
from ..starter.operations.recording import RecordedFork, Recording
from ..starter.scripted_model import Answer, Reply, Request, Script, ScriptedModel, ScriptLine, unexpected
from ..starter.server.embedded import TUNING, EmbeddedServer, free_ports
from ..starter.server.state_dir import StateDir
from ..temporal.client import connect, for_baton
from ..temporal.encryption import Keys
from ..worker import run_worker

atexit.register(time.sleep, 0.05)  # the SDK's threads must release the interpreter before a test process ends

T = TypeVar("T")

ModelSource = Script | Answer | str | Path | Mapping[str, Sequence[str | Reply] | Answer]
"""What answers in place of all models: a script, the path of a script's file, a function, or for each agent by its name
its replies in order, the last of which is repeated, or a function."""


def environment(
    *manifests: Source,
    model: ModelSource | None = None,
    functions: Sequence[Function] = (),
    settings: Mapping[str, str] | None = None,
    server: str | Client | None = None,
    recursive: bool = False,
) -> "Environment":
    """An environment, for ``async with`` or ``with``.

    ``manifests`` are the files, folders and definitions that runs may name. ``model`` answers in place of all models,
    whatever their provider; a request that it doesn't expect fails the run. ``functions`` are what manifests may name
    as tools, members and conditions. ``settings`` are those of a worker, such as ``{"BATON_DIALECT": "ark"}``; settings
    and keys in the environment variables of the process have no effect. ``server`` is the address of a Temporal server,
    such as one of ``baton.testing.server()``, or a client of one; by default, a server is started, which takes about a
    second. ``recursive``: also read subfolders.

    Raises ManifestError and SettingsError, and OSError if a file can't be read.
    """
    own, of_definitions = load_sources(manifests, recursive=recursive)
    return Environment(
        own=own,
        functions=unique_functions([*of_definitions, *functions]),
        answer=_answer_of(model),
        settings=settings or {},
        server=server,
    )


class Environment:
    """A worker in this process, on a task queue of its own. Create it with ``baton.testing.environment``.

    The worker has a thread with an event loop of its own, so an environment can be used by any event loop, or without
    one: ``env.wait(env.run(…))``. Runs that are still open at the end stay on the server, without a worker.
    """

    def __init__(
        self,
        own: Loaded,
        functions: Sequence[Function],
        answer: Answer,
        settings: Mapping[str, str],
        server: str | Client | None,
        outside: Outside | None = None,
    ) -> None:
        """``outside`` answers the calls of runs instead of the scripted model, or lets them be made."""
        self._outside = outside
        self.model = ScriptedModel(answer)
        """The scripted model. ``model.requests`` are the requests that it has received, in order."""
        self.task_queue = f"test-{uuid.uuid4().hex}"
        """The task queue of the worker, for Temporal clients of one's own."""
        self._own = own
        self._functions = functions
        self._settings = settings
        self._server = server
        self._exit = contextlib.ExitStack()
        self._loop: asyncio.AbstractEventLoop
        self._client: Client
        self._environment: Mapping[str, str]
        self._connection: Connection

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="baton-", ignore_cleanup_errors=True))
            own = {"BATON_HOME": folder}
            if self._outside is None:
                own[SCRIPTED_MODEL_URL] = stack.enter_context(self.model.serve())
            at = self._server or stack.enter_context(server())
            quick = {"BATON_GRACEFUL_SHUTDOWN": "0.5"}  # a model may hang when the test ends
            makes_calls = self._outside is not None and not self._outside.hides_secrets
            variables = {**_variables(with_keys=makes_calls), **quick, **self._settings, **own}
            stack.enter_context(_in_thread("baton environment", lambda opened: self._serve(at, variables, opened)))
            self._exit = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._exit.close()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.__enter__)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self._exit.close)

    async def _serve(self, server: str | Client, variables: Mapping[str, str], opened: Callable[[], None]) -> None:
        """Runs the worker until it is canceled."""
        client = for_baton(server, variables) if isinstance(server, Client) else await connect(server, variables)
        environment = {**variables, "BATON_TASK_QUEUE": self.task_queue}
        connection = Connection(
            client=client,
            task_queue=self.task_queue,
            environment=environment,
            of_workers=OfWorkers(self._own.catalog, is_complete=True),
        )
        self._environment = environment
        worker = run_worker(client, self._own, environment, self._functions, outside=self._outside)
        async with worker, connection:
            self._loop = asyncio.get_running_loop()
            self._client = await connection.client()
            self._connection = connection
            opened()
            await asyncio.Event().wait()

    @property
    def client(self) -> Client:
        """A Temporal client of the server."""
        return self._client

    @overload
    async def run(
        self,
        target: Target[Any],
        input: RunInput | None = None,
        *,
        output_type: type[Value],
        **options: Unpack[RunOptions],
    ) -> Result[Value]: ...

    @overload
    async def run(
        self,
        target: Target[Value],
        input: RunInput | None = None,
        *,
        output_type: None = None,
        **options: Unpack[RunOptions],
    ) -> Result[Value]: ...

    @with_options_in_signature
    async def run(
        self,
        target: Target[Any],
        input: RunInput | None = None,  # noqa: A002
        *,
        output_type: type[Any] | None = None,
        **options: Unpack[RunOptions],
    ) -> Result[Any]:
        """Runs ``"team/NAME"``, ``"agent/NAME"`` or a definition to its end, like ``baton.run``; raises RunFailed."""
        return await (await self.start(target, input, output_type=output_type, **options)).result()

    @overload
    async def start(
        self,
        target: Target[Any],
        input: RunInput | None = None,
        *,
        output_type: type[Value],
        **options: Unpack[RunOptions],
    ) -> Handle[Value]: ...

    @overload
    async def start(
        self,
        target: Target[Value],
        input: RunInput | None = None,
        *,
        output_type: None = None,
        **options: Unpack[RunOptions],
    ) -> Handle[Value]: ...

    @with_options_in_signature
    async def start(
        self,
        target: Target[Any],
        input: RunInput | None = None,  # noqa: A002
        *,
        output_type: type[Any] | None = None,
        **options: Unpack[RunOptions],
    ) -> Handle[Any]:
        """Starts a run, as ``baton.start`` does."""
        return await self._in_loop(self._connection.start(target, input, output_type=output_type, **options))

    async def retry(self, name: str) -> Handle:
        """Resumes a failed run from the failed call, as ``baton.retry`` does."""
        return await self._in_loop(self._connection.retry(name))

    async def record(self, run: Handle[Any], path: str | Path) -> None:
        """Records a run that has ended in a file, ``NAME.run.json``, which ``baton.testing.replay`` plays.

        Raises UsageError for a run that can't be replayed.
        """
        (await self._in_loop(self.recording_of(run))).write(Path(path))

    async def recording_of(self, run: Handle[Any]) -> Recording:
        """The recording of a run that has ended, in the worker's event loop."""
        handle = self._client.get_workflow_handle(run.id)
        return await record_run(self._client, handle, self._environment, self._own, self._functions)

    async def append_to_journal(self, messages: Sequence[Message], attachments: Mapping[str, str]) -> Head:
        """Stores a conversation that a run is to continue, and returns the place after it.

        ``attachments`` are those of its messages (Base64) by their ids.
        """
        async with self._journal() as journal:
            await journal.restore((), _decoded(attachments))
            return await journal.append(Head(), messages, "before")

    async def restore_in_journal(self, fork: RecordedFork) -> None:
        """Stores the conversations of a recorded fork."""
        rows = [Row(id=row.id, parent=row.parent, depth=row.depth, message=row.message) for row in fork.rows]
        async with self._journal() as journal:
            await journal.restore(rows, _decoded(fork.attachments))

    @contextlib.asynccontextmanager
    async def _journal(self) -> AsyncIterator[Journal]:
        settings = Settings.of(self._environment)
        keys = Keys.from_environment(self._environment)
        journal = await Journal.open(settings.journal, self._client.namespace, keys)
        try:
            yield journal
        finally:
            await journal.close()

    async def skip_time(self, run: Handle, by: timedelta) -> None:
        """Advances the clock of a run, or of its child runs that have no child runs, once they only wait.

        They wait for people, messages and timers: those that are due by then fire, such as the timeout of an approval.
        All other clocks stay. Needs a server with time skipping, such as that of ``baton.testing.server()``: with
        others, it raises RPCError.
        """
        skipper = TimeSkipper(self._client)

        async def skip(leaf: WorkflowHandle[Any, Any]) -> None:
            try:
                await skipper.fast_forward(leaf, by)
            except RPCError as error:
                if error.status != RPCStatusCode.NOT_FOUND:  # otherwise it has just ended
                    raise

        await asyncio.gather(*[skip(leaf) async for leaf in self._leaves(run.id)])

    async def _leaves(self, run: str) -> AsyncIterator[WorkflowHandle[Any, Any]]:
        """The open runs without child runs below a run, or itself: the server does not skip time for the others."""
        handle = self._client.get_workflow_handle(run)
        described = await handle.describe()
        for child in described.raw_description.pending_children:
            async for leaf in self._leaves(child.workflow_id):
                yield leaf
        if not described.raw_description.pending_children and described.status == WorkflowExecutionStatus.RUNNING:
            yield handle

    async def pending_decision(self, run: Handle) -> PendingDecision:
        """Waits until a run or one of its child runs waits for a person, and returns the approval or the question.

        Raises RuntimeError if the run ends before that.
        """
        while True:
            for decision in (*await run.approvals(), *await run.inbox()):
                return decision
            described = await self._client.get_workflow_handle(run.id).describe()
            if described.status != WorkflowExecutionStatus.RUNNING:
                raise RuntimeError(f"the run {run.id} has ended, and waits for nobody")
            await asyncio.sleep(0.02)

    def wait(self, awaitable: Coroutine[Any, Any, T]) -> T:
        """Waits for the result of ``env.run(…)``, ``handle.approve(…)`` etc., in a test that is not async."""
        return asyncio.run_coroutine_threadsafe(awaitable, self._loop).result()

    async def _in_loop(self, awaitable: Coroutine[Any, Any, T]) -> T:
        """Awaits in the worker's event loop, which outlives that of the caller."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(awaitable, self._loop))


@contextlib.contextmanager
def server() -> Iterator[str]:
    """A context manager that runs a Temporal server, empty and with time skipping; yields its address.

    Raises ServerError if there is none for this system.
    """
    with (
        tempfile.TemporaryDirectory(prefix="baton-", ignore_cleanup_errors=True) as name,
        StateDir(Path(name)).lock("dev") as lock,
    ):
        assert lock, "nobody else has the folder"
        embedded = EmbeddedServer(Path(name), lock, *free_ports(), tuning=(*TUNING, TIME_SKIPPING))

        async def serve(opened: Callable[[], None]) -> None:
            try:
                await embedded.start()
                opened()
                await asyncio.Event().wait()
            finally:
                await embedded.stop()

        with _in_thread("baton test server", serve):
            yield embedded.address


TIME_SKIPPING = ("frontend.WorkflowTimeSkippingEnabled", "true")


@contextlib.contextmanager
def _in_thread(name: str, main: Callable[[Callable[[], None]], Coroutine[Any, Any, None]]) -> Iterator[None]:
    """A context manager that runs ``main`` in a thread with its own event loop, and cancels it at the end.

    ``main`` calls its argument when it is ready. Its errors are raised here.
    """
    opened: Future[None] = Future()
    running: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[None]]] = Future()

    async def run() -> None:
        task = asyncio.ensure_future(main(lambda: opened.set_result(None)))
        running.set_result((asyncio.get_running_loop(), task))
        with contextlib.suppress(asyncio.CancelledError):
            await task

    def run_in_thread() -> None:
        try:
            asyncio.run(run())
        except BaseException as error:
            failed.append(error)
            if not opened.done():
                opened.set_exception(error)

    failed: list[BaseException] = []
    thread = threading.Thread(target=run_in_thread, name=name, daemon=True)
    thread.start()
    loop, task = running.result()
    try:
        opened.result()
        yield
    finally:
        if thread.is_alive():
            with contextlib.suppress(RuntimeError):  # the loop has just been closed
                loop.call_soon_threadsafe(task.cancel)
        thread.join()
    if failed:
        raise failed[0]


def _decoded(attachments: Mapping[str, str]) -> dict[str, bytes]:
    return {id_: b64decode(content) for id_, content in attachments.items()}


def _variables(*, with_keys: bool = False) -> dict[str, str]:
    """The environment variables of the process, without Baton's settings and, unless ``with_keys``, OpenAI's key."""
    own = ("BATON_", *(() if with_keys else ("OPENAI_",)), "OTEL_", "TRACEPARENT", "TRACESTATE")
    return {name: value for name, value in os.environ.items() if not name.startswith(own)}


def _answer_of(model: ModelSource | None) -> Answer:
    """The function that answers each request."""
    match model:
        case None:
            return lambda request: unexpected(request, "the environment has no model")
        case Script():
            return model.answer
        case str() | Path():
            return Script.read(Path(model)).answer
        case Mapping():
            return _by_agent(model)
        case _ if callable(model):
            return model
        case _:
            raise TypeError(f"model: {model!r} is not a script, path, function, or mapping of agents to replies")


def _by_agent(model: Mapping[str, Sequence[str | Reply] | Answer]) -> Answer:
    """A function that answers for each agent by its name."""
    answers: dict[str, Answer] = {}
    for agent, replies in model.items():
        if callable(replies):
            answers[agent] = replies
        elif isinstance(replies, str) or not replies:
            raise TypeError(f"model: the replies of '{agent}' are a list of at least one reply, or a function")
        else:
            say = [Reply(text=reply) if isinstance(reply, str) else reply for reply in replies]
            answers[agent] = Script(lines=[ScriptLine(agent=agent, say=say)]).answer

    def answer(request: Request) -> Reply | str:
        if request.agent not in answers:
            return unexpected(request, f"there are replies of {', '.join(sorted(answers))}")
        return answers[request.agent](request)

    return answer
