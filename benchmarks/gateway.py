"""Measures the gateway beside a plain proxy of the same words, and with idle streams: ``python -m benchmarks.gateway``.

Both serve OpenAI's chat completions to so many clients at once. The proxy passes on what the model sends; behind the
gateway each request is a durable run, which a worker in a process of its own executes. ``--pause`` is the time between
two words of the model, in milliseconds.
"""

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil  # type: ignore[import-untyped]

from benchmarks.environment import KEY, BenchmarkEnvironment
from benchmarks.live_words import serving_times
from tests.chaos.report import Report, arguments, percentiles
from tests.harness.environment import agent
from tests.harness.ports import own_ports
from tests.harness.processes import BATON, WorkerProcess, process_env

MB = 1_000_000


@dataclass
class Server:
    """A measured process with its address."""

    url: str
    process: asyncio.subprocess.Process

    @property
    def usage(self) -> tuple[float, float]:
        """Its CPU seconds so far, and its memory in megabytes."""
        process = psutil.Process(self.process.pid)
        times = process.cpu_times()
        return times.user + times.system, process.memory_info().rss / MB


@contextlib.asynccontextmanager
async def serving(command: list[str], port: int, env: dict[str, str], log: Path) -> AsyncIterator[Server]:
    """Runs a server while the block runs, from when it answers."""
    with log.open("ab") as output:
        process = await asyncio.create_subprocess_exec(*command, env=env, stdout=output, stderr=output)
    try:
        async with httpx.AsyncClient() as http:
            while True:
                with contextlib.suppress(httpx.TransportError):
                    await http.get(f"http://127.0.0.1:{port}/healthz")
                    break
                await asyncio.sleep(0.05)
        yield Server(f"http://127.0.0.1:{port}", process)
    finally:
        process.kill()
        await process.wait()


async def stream(http: httpx.AsyncClient, url: str) -> tuple[float, int]:
    """Asks once: the seconds to the first word, and the number of words."""
    body = {"model": "agent/one", "stream": True, "messages": [{"role": "user", "content": "What time is it?"}]}
    began = time.perf_counter()
    first = 0.0
    text = ""
    async with http.stream("POST", f"{url}/v1/chat/completions", json=body) as response:
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                chunk = json.loads(line[6:])
                assert "error" not in chunk, chunk
                choices = chunk["choices"]
                content = choices[0]["delta"].get("content") if choices else None
                if content and not first:
                    first = time.perf_counter() - began
                text += content or ""
    return first, len(text.split())


async def measure(server: Server, clients: int, words: int) -> dict[str, object]:
    """A row: the times to the first word, and what the server has used."""
    busy, memory = server.usage
    began = time.perf_counter()
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(timeout=600, limits=limits) as http:
        results = await asyncio.gather(*(stream(http, server.url) for _ in range(clients)))
    seconds = time.perf_counter() - began
    used, now = server.usage
    assert {count for _, count in results} == {words}, "each client has received each word once"
    return {
        "clients": clients,
        **{f"first word {name}": value for name, value in percentiles([first for first, _ in results]).items()},
        "seconds": round(seconds, 1),
        "CPU seconds": round(used - busy, 2),
        "memory, MB": round(now),
        "memory before, MB": round(memory),
    }


async def measure_idle(server: Server, clients: int, seconds: int) -> dict[str, object]:
    """A row: what so many streams of a run in which nothing happens take."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(timeout=600, limits=limits) as http, contextlib.AsyncExitStack() as streams:
        started = await http.post(f"{server.url}/runs", json={"target": "agent/one", "input": "?"})
        run = started.json()["id"]
        await http.post(f"{server.url}/runs/{run}/pause", json={})
        _, before = server.usage
        for _ in range(clients):
            await streams.enter_async_context(http.stream("GET", f"{server.url}/runs/{run}/events"))
        busy, _ = server.usage
        await asyncio.sleep(seconds)
        used, memory = server.usage
        await http.post(f"{server.url}/runs/{run}/cancel", json={})
    return {
        "idle streams": clients,
        "seconds": seconds,
        "CPU, %": round(100 * (used - busy) / seconds, 1),
        "memory, MB": round(memory),
        "memory before, MB": round(before),
    }


async def main() -> None:
    """Measures and writes the results."""
    given = arguments(__doc__, clients=200, words=100, pause=30, idle=1_000, seconds=60)
    report = Report("gateway", given)
    async with serving_times(given["words"], given["pause"] / 1_000) as model, BenchmarkEnvironment.running() as env:
        manifests = env.folder / "one.yaml"
        manifests.write_text(json.dumps(agent("one")))
        settings = process_env(
            TEMPORAL_ADDRESS=env.address,
            OPENAI_BASE_URL=model,
            OPENAI_API_KEY=KEY,
            BATON_HOME=str(env.folder),
            BATON_JOURNAL_URL=f"sqlite:///{env.folder / 'journal.db'}",
            BATON_MAX_CONCURRENT_ACTIVITIES="1000",
            BATON_GATEWAY_RATE="1000000",
            BATON_GATEWAY_MAX_STREAMS="10000",
        )
        worker = WorkerProcess(settings, env.folder / "worker.log", manifests)
        worker.start()
        gateway_port, proxy_port = own_ports()
        command = [str(BATON), "serve", "--port", str(gateway_port), "-n", "*"]
        plain = [sys.executable, "-m", "benchmarks.plain_proxy", str(proxy_port), model]
        async with (
            serving(command, gateway_port, settings, env.folder / "gateway.log") as gateway,
            serving(plain, proxy_port, settings, env.folder / "proxy.log") as proxy,
        ):
            await ready(gateway)
            for clients in (1, given["clients"]):
                for name, server in (("plain proxy", proxy), ("gateway", gateway)):
                    report.row({"server": name, **await measure(server, clients, given["words"])})
            report.row({"server": "gateway", **await measure_idle(gateway, given["idle"], given["seconds"])})
        await worker.stop()
    report.write()


async def ready(gateway: Server) -> None:
    """Waits until the gateway knows the worker's agent."""
    async with httpx.AsyncClient(timeout=60) as http:
        while not (await http.get(f"{gateway.url}/targets")).json().get("targets"):
            await asyncio.sleep(0.2)


if __name__ == "__main__":
    asyncio.run(main())
