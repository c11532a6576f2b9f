"""Random nested teams end within their bounds, and no message or count is lost, doubled or wrong."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from temporalio.client import WorkflowFailureError

from baton.contracts.status import Status
from baton.starter.history.ark_events import ArkEvent, EventRecorder
from baton.starter.history.follow import follow
from baton.starter.history.run_events import RunEvent
from tests.harness.environment import Environment, Json
from tests.harness.random_teams import SELECTOR_BEHAVIORS, Node, RandomTeamModel, teams
from tests.harness.run_invariants import FinishedRun, check_run

Interruption = tuple[int, str, Json | None]
"""A signal or a cancel: after how many model calls it is sent, its name, and its argument."""

INTERRUPTIONS = st.tuples(
    st.integers(1, 6),
    st.sampled_from(("terminate_team", "cancel")),
    st.sampled_from((None, {"reason": "enough"}, {"reason": "enough", "now": True})),
)
EXAMPLES = settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
pytestmark = pytest.mark.timeout(900)  # a counterexample takes a while to be made small
RunUntilComplete = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest_asyncio.fixture(loop_scope="session")
async def run_until_complete(env: Environment) -> AsyncIterator[RunUntilComplete]:
    """Runs a coroutine to its end, on the event loop of the environment's worker."""
    yield asyncio.get_running_loop().run_until_complete


async def run_team(
    env: Environment, team: Node, selector_behaviors: list[str], interruption: Interruption | None = None
) -> FinishedRun:
    """Runs a team to its end, whatever that is."""
    model = RandomTeamModel(team, selector_behaviors, slow=interruption and interruption[0])
    env.answer = model.answer
    env.model.requests.clear()
    async with asyncio.timeout(200):
        handle = await env.start_team(team.manifests())
        ending = asyncio.create_task(handle.result())
        if interruption:
            asked = asyncio.create_task(env.wait_for_calls(interruption[0]))
            await asyncio.wait([ending, asked], return_when=asyncio.FIRST_COMPLETED)
            if not ending.done():
                await (handle.signal(interruption[1], interruption[2]) if interruption[2] else handle.cancel())
            asked.cancel()
        with contextlib.suppress(WorkflowFailureError):
            await ending
        status = Status.model_validate_json(json.dumps(await handle.query("status")))  # a cancel has no other details
        recorder, events = EventRecorder(), list[ArkEvent]()

        def record(event: RunEvent) -> None:
            events.extend(recorder.record(event))

        await follow(env.client, handle, record)
    assert status.head
    rows, values = env.transcript(status.head.id), [each.value for each in events]
    return FinishedRun(
        team, model, status, rows, values, [each.answered for each in env.model.requests], interruption is not None
    )


@EXAMPLES
@given(team=teams(), selector_behaviors=st.lists(st.sampled_from(SELECTOR_BEHAVIORS), min_size=1, max_size=5))
def test_every_team_ends_within_its_bounds_with_everything_said_once_and_counted(
    env: Environment, run_until_complete: RunUntilComplete, team: Node, selector_behaviors: list[str]
) -> None:
    run = run_until_complete(run_team(env, team, selector_behaviors))
    check_run(run)


@pytest.mark.slow
@EXAMPLES
@given(
    team=teams(),
    selector_behaviors=st.lists(st.sampled_from(SELECTOR_BEHAVIORS), min_size=1, max_size=5),
    interruption=INTERRUPTIONS,
)
def test_every_team_that_is_ended_from_outside_keeps_what_was_said_until_then(
    env: Environment,
    run_until_complete: RunUntilComplete,
    team: Node,
    selector_behaviors: list[str],
    interruption: Interruption,
) -> None:
    run = run_until_complete(run_team(env, team, selector_behaviors, interruption))
    check_run(run)
