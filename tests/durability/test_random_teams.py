"""Random teams: whatever the nesting, a run ends within its bounds, and nothing is lost, doubled or counted wrongly."""

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

from baton.conversation.contracts.status import Status
from baton.starter.history.events import Event, EventRecorder
from baton.starter.history.follow import follow
from baton.starter.history.run_events import RunEvent
from tests.harness.environment import Environment, Json
from tests.harness.random_teams import SELECTOR_BEHAVIORS, Node, RandomTeamModel, teams
from tests.harness.run_invariants import FinishedRun, check_run

Wish = tuple[int, str, Json | None]
"""A signal (or a cancel) that is sent once the model has been asked so often."""

WISHES = st.tuples(
    st.integers(1, 6),
    st.sampled_from(("terminate_team", "cancel")),
    st.sampled_from((None, {"reason": "enough"}, {"reason": "enough", "now": True})),
)
EXAMPLES = settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
pytestmark = pytest.mark.timeout(400)  # a counterexample takes a while to be made small
Until = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest_asyncio.fixture(loop_scope="session")
async def until(env: Environment) -> AsyncIterator[Until]:
    """Runs a coroutine to its end, on the loop of the stage's worker."""
    yield asyncio.get_running_loop().run_until_complete


async def play(env: Environment, team: Node, selector_behaviors: list[str], wish: Wish | None = None) -> FinishedRun:
    """Runs a team to its end, whatever that is."""
    model = RandomTeamModel(team, selector_behaviors, slow=wish and wish[0])
    env.answer = model.answer
    env.model.requests.clear()
    async with asyncio.timeout(60):
        handle = await env.start_team(team.manifests())
        ending = asyncio.create_task(handle.result())
        if wish:
            asked = asyncio.create_task(env.wait_for_calls(wish[0]))
            await asyncio.wait([ending, asked], return_when=asyncio.FIRST_COMPLETED)
            if not ending.done():
                await (handle.signal(wish[1], wish[2]) if wish[2] else handle.cancel())
            asked.cancel()
        with contextlib.suppress(WorkflowFailureError):
            await ending
        status = Status.model_validate_json(json.dumps(await handle.query("status")))  # a cancel has no other details
        recorder, told = EventRecorder(), list[Event]()

        def tell(happening: RunEvent) -> None:
            told.extend(recorder.record(happening))

        await follow(env.client, handle, tell)
    assert status.head
    rows, values = env.transcript(status.head.id), [each.value for each in told]
    return FinishedRun(
        team, model, status, rows, values, [each.answered for each in env.model.requests], wish is not None
    )


@EXAMPLES
@given(team=teams(), selector_behaviors=st.lists(st.sampled_from(SELECTOR_BEHAVIORS), min_size=1, max_size=5))
def test_every_team_ends_within_its_bounds_with_everything_said_once_and_counted(
    env: Environment, until: Until, team: Node, selector_behaviors: list[str]
) -> None:
    run = until(play(env, team, selector_behaviors))
    check_run(run)


@EXAMPLES
@given(
    team=teams(), selector_behaviors=st.lists(st.sampled_from(SELECTOR_BEHAVIORS), min_size=1, max_size=5), wish=WISHES
)
def test_every_team_that_is_ended_from_outside_keeps_what_was_said_until_then(
    env: Environment, until: Until, team: Node, selector_behaviors: list[str], wish: Wish
) -> None:
    run = until(play(env, team, selector_behaviors, wish))
    check_run(run)
