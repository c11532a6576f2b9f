"""Queries as ARK of today has them: canceled from the start, and with the defaults of an ArkConfig."""

import pytest

from tests.harness.environment import Environment, agent, line, manifest
from tests.workflows.test_ttl import expiry


async def test_a_query_that_says_cancel_is_canceled_before_anybody_is_asked(env: Environment) -> None:
    handle = await env.start_query([agent("one")], "agent/one", cancel=True)
    status = await env.status(handle)
    assert (status.phase, status.stop_reason, status.note) == ("Canceled", "canceled", "spec.cancel is true")
    assert env.model.requests == []


@pytest.mark.parametrize(("own", "seconds"), [({}, 7200), ({"ttl": "1h"}, 3600)], ids=["default", "own"])
async def test_a_query_without_a_ttl_has_that_of_the_ark_config(
    env: Environment, own: dict[str, str], seconds: int
) -> None:
    env.script(line("one", "Yes."))
    config = manifest("ArkConfig", "default", {"queryTTL": "2h"})
    handle = await env.start_query([agent("one"), config], "agent/one", **own)
    assert (await env.status(handle)).phase == "Completed"
    waiting = await expiry(env, handle)
    assert waiting
    async for event in waiting.fetch_history_events():
        started = event.workflow_execution_started_event_attributes
        assert f'"seconds":{seconds}.0'.encode() in started.input.SerializeToString()
        break
