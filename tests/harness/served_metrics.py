"""A worker process whose runs make it record every metric, and what it serves afterwards."""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import yaml
from prometheus_client import parser
from prometheus_client.metrics_core import Metric as Family
from temporalio.client import Client

from baton.starter.server.embedded import EmbeddedServer
from baton.testing import Reply, Request, Script, ScriptedModel
from tests.activities.test_inline_manifests import model
from tests.harness.collector import Collector
from tests.harness.environment import KEY, Handle, agent, call, line, team
from tests.harness.killable import wait_until
from tests.harness.ports import own_port
from tests.harness.processes import WorkerProcess, process_env
from tests.harness.tool_server import Answer, ToolServer
from tests.workflows.test_approval import approve, pending, tool
from tests.workflows.test_circuit_breakers import SOON, breaker

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


@dataclass
class ServingWorker:
    """A worker process at an address."""

    url: str
    queue: str
    log: Path

    async def metrics(self, accept: str = "") -> httpx.Response:
        """What it answers Prometheus."""
        return await asyncio.to_thread(httpx.get, f"{self.url}/metrics", headers={"accept": accept}, timeout=30)


@contextlib.asynccontextmanager
async def serving_worker(
    client: Client, server: EmbeddedServer, folder: Path, **variables: str
) -> AsyncIterator[ServingWorker]:
    """Runs a worker while the block runs: its team has used two tools, and waited for a person and for a server."""
    port, queue = own_port(), uuid.uuid4().hex
    script = Script(
        lines=[line("a", call("calculator", expression="1+1"), call("buy", item="pen"), KEY), line("b", "Yes.")]
    )
    failed = list[Request]()

    def answer(request: Request) -> Reply:
        failed.append(request)
        return script.answer(request) if len(failed) > 1 else Reply(status=503, headers=SOON)

    with ScriptedModel(answer).serve() as url, ToolServer().serving() as shop:
        shop.answers(Answer("bought"))
        gpt, buy = model(url), tool(shop, {})
        gpt["spec"] |= {**breaker(open_for="3s"), "pricing": {"input": 10, "output": 20, "cachedInput": 1}}
        members = [agent("a", "calculator", "buy", modelRef={"name": "gpt"}), agent("b")]
        talks = team("team", "a", "b", maxTurns=1, onMaxTurns="complete")
        (folder / "team.yaml").write_text(yaml.safe_dump_all([*members, talks, gpt, buy]))
        env = process_env(
            BATON_TASK_QUEUE=queue,
            BATON_HEALTH_PORT=str(port),
            BATON_HOME=str(folder),
            TEMPORAL_ADDRESS=server.address,
            OPENAI_BASE_URL=url,
            OPENAI_API_KEY=KEY,
            **variables,
        )
        worker = WorkerProcess(env, folder / "worker.log", folder / "team.yaml")
        worker.start()
        try:
            run = await client.start_workflow(
                "round-robin", {"team": "team", "input": "Why?"}, id=f"run-{queue}", task_queue=queue
            )
            await _finish(run)
            yield ServingWorker(f"http://127.0.0.1:{port}", queue, worker.log)
        finally:
            await worker.stop()


@dataclass
class Served:
    """What one worker has served and sent after its run; ``queue`` is its task queue."""

    text: str
    openmetrics: str
    types: tuple[str, str]
    collector: Collector
    queue: str
    log: str

    @property
    def families(self) -> dict[str, Family]:
        """What Prometheus' own parser reads, by the names of the metrics."""
        return {family.name: family for family in parser.text_string_to_metric_families(self.text)}

    @property
    def samples(self) -> dict[str, set[str]]:
        """The labels of each sample, by the name that PromQL uses."""
        labels: dict[str, set[str]] = {}
        for family in self.families.values():
            for sample in family.samples:
                labels.setdefault(sample.name, set()).update(sample.labels)
        return labels


@contextlib.asynccontextmanager
async def served_metrics(client: Client, server: EmbeddedServer, folder: Path) -> AsyncIterator[Served]:
    """What a worker process has served to Prometheus, and sent to a collector."""
    collector = Collector()
    with collector.serving() as url:
        sends = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": url,
            "OTEL_EXPORTER_OTLP_HEADERS": "x-team=ours",
            "OTEL_METRIC_EXPORT_INTERVAL": "200",
            "OTEL_SERVICE_NAME": "our-worker",
        }
        async with serving_worker(client, server, folder, BATON_LOG_FORMAT="json", **sends) as worker:
            as_text, as_openmetrics = await worker.metrics(), await worker.metrics(OPENMETRICS)
            await asyncio.wait_for(wait_until(lambda: _has_ended(collector)), 60)
        types = as_text.headers["content-type"], as_openmetrics.headers["content-type"]
        yield Served(as_text.text, as_openmetrics.text, types, collector, worker.queue, worker.log.read_text())


def _has_ended(collector: Collector) -> bool:
    """Whether a collector has got the end of the run."""
    ended = collector.metrics.get("baton.runs.ended")
    return ended is not None and any(point.as_int or point.as_double for point in ended.sum.data_points)


async def _finish(run: Handle) -> None:
    (approval,) = await pending(run)
    await approve(run, approval, approved=True)
    await run.result()
