"""Heartbeats of a call cost Temporal few requests."""

import time

import pytest
from temporalio.client import Client
from temporalio.runtime import MetricBuffer, Runtime, TelemetryConfig

from baton.starter.server.embedded import EmbeddedServer
from baton.temporal.activity import INTERVAL
from baton.temporal.converter import DATA_CONVERTER
from baton.testing import Reply
from tests.harness.environment import Environment, agent


@pytest.mark.slow
async def test_a_call_sends_a_heartbeat_per_interval_at_most(
    server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    counted = MetricBuffer(100_000)
    runtime = Runtime(telemetry=TelemetryConfig(metrics=counted))
    client = await Client.connect(server.address, runtime=runtime, data_converter=DATA_CONVERTER)
    async with Environment.running(client, tmp_path_factory.mktemp("heartbeats")) as env:
        env.answer = lambda _: Reply(text="Because.", delay=8.0)
        begun = time.monotonic()
        handle = await env.start("agent", {"agent": "one", "input": "Why?", "resources": [agent("one")]})
        assert (await env.turn_result(handle)).message == "Because."
        seconds = time.monotonic() - begun
        sent = [
            update.value
            for update in counted.retrieve_updates()
            if update.metric.name == "temporal_request"
            and update.attributes.get("operation") == "RecordActivityTaskHeartbeat"
        ]
    assert 1 <= sum(sent) <= seconds / INTERVAL + 1  # a machine that stalls sends fewer, or takes longer
