"""A panel whose worker is killed within a round continues, with every entry and every warning once."""

import json
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from temporalio.client import Client

from baton.contracts.turn import TurnResult
from baton.starter.history.tasks import list_tasks
from baton.starter.server.embedded import EmbeddedServer
from baton.testing import Script
from tests.harness.environment import ended, texts
from tests.harness.killable import Kill, KillableWorker, wait_until
from tests.harness.panels import SYNTHESIS, panel, panelist_line, prompt_line, role_member
from tests.harness.processes import ROOT
from tests.harness.replayer import replay

SCRIPT = Script(
    lines=[
        panelist_line("a", "a1", "a2", "a3"),
        panelist_line("b", "b1", "b2", "b3"),
        prompt_line("You are the referee", *(json.dumps({"critique": f"c{n}"}) for n in (1, 2, 3))),
        SYNTHESIS,
    ]
)
SAID = [each for n in "123" for each in (f"a{n}", f"b{n}", f"{{'choice': {n}}}", f"c{n}")]

KILL_POINTS: dict[str, Callable[[KillableWorker], bool]] = {
    "in-a-members-call": lambda killable: len(killable.model.requests) >= 5,
    "as-a-contribution-is-entered": lambda killable: killable.journal_rows() >= 9,
    "after-the-function-has-spoken": lambda killable: killable.journal_rows() >= 13,
}


@pytest.mark.slow
@pytest.mark.parametrize("kill_point", KILL_POINTS)
async def test_a_panel_killed_in_mid_round_has_nothing_twice(
    client: Client, server: EmbeddedServer, tmp_path: Path, kill_point: str
) -> None:
    own = {"BATON_FUNCTIONS": "tests.harness.functions", "PYTHONPATH": str(ROOT)}
    async with KillableWorker.ready(client, server.address, tmp_path, SCRIPT.answer, **own) as killable:
        is_reached = partial(KILL_POINTS[kill_point], killable)
        kill = Kill(SCRIPT.answer, is_reached)
        killable.model._answer = kill.answer
        members = role_member("a"), role_member("b"), {"name": "ballot", "type": "activity"}
        resources = [panel(*members, maxRounds=3, referee=True, contributions={"session": "s"})]
        handle = await killable.start("round-robin", team="panel", input="Why?", resources=resources)
        await wait_until(is_reached)
        killable.worker.kill()
        kill.is_over = True
        killable.worker.start()
        turn = await ended(handle, TurnResult)
    assert texts(turn.messages) == [*SAID, "The deliverable."]
    answered = Counter(_question(each.body["messages"]) for each in killable.model.requests if each.answered)
    assert set(answered.values()) == {1}, "no answered call was repeated"
    assert (tmp_path / "worker.log").read_text().count("converted with str()") == 1
    await replay([await handle.fetch_history()])
    found = await list_tasks(client, handle)
    assert [task.goal for task in found] == [f"{name} (round {n})" for n in (1, 2, 3) for name in ("a", "b", "ballot")]
    attempts = {task.goal: task.attempts for task in found}  # on a busy machine any call may miss a heartbeat
    assert attempts["b (round 2)"] > 1 or kill_point != "in-a-members-call"


def _question(messages: list[dict[str, str]]) -> str:
    return messages[0]["content"] + messages[1]["content"]
