"""Two gateways behind a dumb proxy, with a worker, a Temporal server and a PostgreSQL server: all can be killed."""

import asyncio
import contextlib
import itertools
import json
import random
import signal
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from baton.starter.server.embedded import EmbeddedServer
from baton.starter.server.state_dir import StateDir
from baton.testing import Reply, Request, ScriptedModel
from tests.harness.environment import KEY, Json
from tests.harness.ports import own_port, own_ports
from tests.harness.postgres import PostgresServer, execute
from tests.harness.processes import BATON, WorkerProcess, kill_server, process_env


class GatewayProcess:
    """A gateway in a process of its own, at a fixed port."""

    def __init__(self, env: dict[str, str], port: int, log: Path) -> None:
        self._env = env
        self.port = port
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process
        return self._process.pid

    def start(self) -> None:
        """Starts it, and does not wait until it serves."""
        with self._log.open("ab") as log:
            command = [str(BATON), "serve", "--port", str(self.port), "-n", "*"]
            self._process = subprocess.Popen(command, env=self._env, stdout=log, stderr=log)

    def kill(self) -> None:
        """Kills it as ``kill -9`` does."""
        assert self._process
        self._process.kill()
        self._process.wait()

    async def ready(self) -> None:
        """Waits until it serves."""
        async with httpx.AsyncClient() as http:
            while True:
                with contextlib.suppress(httpx.TransportError):
                    if (await http.get(f"{self.url}/healthz")).is_success:
                        return
                await asyncio.sleep(0.05)


class RoundRobinProxy:
    """A port whose connections go to one port after the other, whether or not anything listens there."""

    def __init__(self, ports: Sequence[int]) -> None:
        self._ports = itertools.cycle(ports)
        self.url = ""

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator["RoundRobinProxy"]:
        """Serves while the block runs."""
        async with await asyncio.start_server(self._forward, "127.0.0.1", 0, backlog=2_048) as server:
            self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            yield self
            server.close()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection("127.0.0.1", next(self._ports))
        except OSError:
            writer.transport.abort()
            return
        # As soon as one side is cut off, so is the other one.
        passing = [asyncio.create_task(_pass(reader, back)), asyncio.create_task(_pass(there, writer))]
        try:
            await asyncio.wait(passing, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in passing:
                task.cancel()
            for each in (writer, back):
                each.close()


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()


@dataclass
class KillableGateways:
    """Two gateways behind a proxy, and all that they need, each a process of its own that can be killed.

    ``kills`` counts the kills of each process. ``stored`` has, for each kill of the worker, the number of requests of
    the model until then, and the texts in the journal: no later request may be for one of them.
    """

    folder: Path
    server: EmbeddedServer
    postgres: PostgresServer
    journal_url: str
    worker: WorkerProcess
    gateways: Sequence[GatewayProcess]
    proxy: RoundRobinProxy
    model: ScriptedModel
    kills: Counter[str] = field(default_factory=Counter)
    stored: list[tuple[int, frozenset[str]]] = field(default_factory=list)

    @classmethod
    @contextlib.asynccontextmanager
    async def running(
        cls, folder: Path, manifests: Sequence[Json], answer: Callable[[Request], Reply], **variables: str
    ) -> AsyncIterator["KillableGateways"]:
        """Runs all of them while the block runs; ``variables`` are more settings of the worker and the gateways."""
        model = ScriptedModel(answer)
        with (
            StateDir(folder / "server").lock("dev") as lock,
            PostgresServer.running() as postgres,
            model.serve() as model_url,
        ):
            assert lock
            server = EmbeddedServer(folder / "server", lock, *own_ports())
            await server.start()
            journal_url = await postgres.database()
            env = process_env(
                TEMPORAL_ADDRESS=server.address,
                OPENAI_BASE_URL=model_url,
                OPENAI_API_KEY=KEY,
                BATON_HOME=str(folder),
                BATON_JOURNAL_URL=journal_url,
                BATON_ALLOW_PRIVATE_HOSTS="1",  # tools are on this machine
                BATON_GATEWAY_RATE="1000000",
                **variables,
            )
            file = folder / "manifests.json"
            file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [*manifests]}))
            worker = WorkerProcess(env, folder / "worker.log", file)
            gateways = [GatewayProcess(env, port, folder / f"gateway-{port}.log") for port in (own_port(), own_port())]
            proxy = RoundRobinProxy([gateway.port for gateway in gateways])
            async with proxy.serving():
                killable = cls(folder, server, postgres, journal_url, worker, gateways, proxy, model)
                try:
                    worker.start()
                    for gateway in gateways:
                        gateway.start()
                    for gateway in gateways:
                        await killable._ready(gateway)
                    yield killable
                finally:
                    for gateway in gateways:
                        gateway.kill()
                    await worker.stop()
                    await server.stop()

    async def _ready(self, gateway: GatewayProcess) -> None:
        """Waits until a gateway serves what the worker has."""
        await gateway.ready()
        async with httpx.AsyncClient(timeout=60) as http:
            while not (await http.get(f"{gateway.url}/targets")).json().get("targets"):
                await asyncio.sleep(0.1)

    async def kill_at_random(self, seconds: float, seed: int, between: tuple[float, float] = (0.5, 3.0)) -> None:
        """Kills one process after the other for so long; each is started again at once.

        Another one is killed after a pause of random length, once the one before is back.
        """
        random_ = random.Random(seed)
        actions: dict[str, Callable[[], Awaitable[None]]] = {
            "gateway": self._kill_gateway,
            "worker": self._kill_worker,
            "Temporal": self._kill_server,
            "PostgreSQL": self._kill_postgres,
            "Temporal and worker": self._kill_server_and_worker,
        }
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        turns: list[str] = []
        while loop.time() < end or len(self.kills) < 2:  # a busy machine takes a while to start one again
            await asyncio.sleep(random_.uniform(*between))
            if not turns:  # each as often as any other, gateways more often
                turns = ["gateway", "gateway", *actions]
                random_.shuffle(turns)
            name = turns.pop()
            await actions[name]()
            self.kills[name] += 1

    async def _kill_gateway(self) -> None:
        gateway = self.gateways[self.kills["gateway"] % len(self.gateways)]
        gateway.kill()
        gateway.start()
        await gateway.ready()

    async def _kill_worker(self) -> None:
        await self._note_stored()
        self.worker.kill()
        self.worker.start()

    async def _kill_server(self) -> None:
        assert self.server._process
        kill_server(self.server._process.pid)
        await self.server._process.wait()
        await self.server.start()

    async def _kill_server_and_worker(self) -> None:
        await self._note_stored()
        self.worker.kill()
        await self._kill_server()
        self.worker.start()  # it ends if it finds no server

    async def _kill_postgres(self) -> None:
        # The processes of a killed server let go of its memory a moment later; SIGQUIT is a crash of all of them.
        self.postgres.signal(signal.SIGQUIT)
        await asyncio.to_thread(self.postgres.stop)
        await asyncio.to_thread(self.postgres.start)

    async def _note_stored(self) -> None:
        rows = await execute(self.journal_url, "select message from baton_messages")
        texts = frozenset(str(json.loads(str(message)).get("content")) for (message,) in rows)
        self.stored.append((len(self.model.requests), texts))

    def logs(self) -> str:
        """What the processes have logged about exceptions."""
        texts = [file.read_text(errors="replace") for file in sorted(self.folder.glob("*.log"))]
        return "\n".join(text for text in texts if "Traceback" in text)[-20_000:]
