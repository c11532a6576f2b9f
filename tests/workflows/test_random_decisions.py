"""Random decisions about several calls at once: in any order, with changes and timeouts, and with an early end."""

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import Literal

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from baton.contracts.decisions import ApproveRequest, PendingDecision
from baton.starter.runs.decisions import NotDecided, decide, pending_decisions
from tests.harness.environment import Environment, Handle, Json, agent, call, line, team
from tests.harness.tool_server import ToolServer
from tests.workflows.test_approval import tool

Said = Literal["yes", "no", "other", "rejected in time", "made in time"]
RULES: dict[Said, Json] = {
    "rejected in time": {"timeout": "400ms"},
    "made in time": {"timeout": "400ms", "onTimeout": "proceed"},
}
SAID: tuple[Said, ...] = ("yes", "no", "other", *RULES)


@dataclass(frozen=True)
class Case:
    """What is said to each buyer, in which order, and after how many decisions the run is ended, and how."""

    said: tuple[Said, ...]
    order: tuple[int, ...]
    ends_after: int | None
    signal: str

    @property
    def allowed(self) -> dict[str, str]:
        """What may be bought, by the name of the buyer."""
        items = {f"buyer-{number}": each for number, each in enumerate(self.said)}
        made = {name: each for name, each in items.items() if each not in ("no", "rejected in time")}
        return {name: f"{name}-other" if each == "other" else name for name, each in made.items()}


CASES = st.builds(
    Case,
    said=st.lists(st.sampled_from(SAID), min_size=2, max_size=4).map(tuple),
    order=st.permutations(range(4)).map(tuple),
    ends_after=st.none() | st.integers(0, 3),
    signal=st.sampled_from(["cancel", "terminate_team"]),
)


def cases(count: int) -> list[Case]:
    """Cases that Hypothesis chooses: each test run has the same."""
    found: list[Case] = []

    @settings(
        max_examples=count,
        phases=[Phase.generate],
        database=None,
        derandomize=True,
    )
    @given(CASES)
    def collect(case: Case) -> None:
        found.append(case)

    collect()
    return found


async def say(env: Environment, handle: Handle, asked: PendingDecision, said: Said) -> None:
    """Says it twice at once: one of the two is told that the call is decided, or that the run is ending."""
    request = ApproveRequest(call=asked.id, approved=said != "no", by="ann")
    changed: Json = {"arguments": {"item": f"{asked.speaker}-other"}} if said == "other" else {}
    both = [decide(env.client, handle, request.model_copy(update=changed)) for _ in range(2)]
    outcomes = await asyncio.gather(*both, return_exceptions=True)
    refused = [each for each in outcomes if isinstance(each, NotDecided)]
    assert len(refused) in (1, 2), outcomes
    assert all(isinstance(each, NotDecided) for each in outcomes if isinstance(each, BaseException))


async def check(env: Environment, shop: ToolServer, case: Case) -> None:
    shop.seen.clear()
    names = [f"buyer-{number}" for number in range(len(case.said))]
    tools = [tool(shop, RULES.get(each, {}), f"tool-{name}") for name, each in zip(names, case.said, strict=True)]
    env.script(*(line(name, call(f"tool-{name}", item=name), "Done.") for name in names))
    buyers = [agent(name, f"tool-{name}") for name in names]
    handle = await env.start_team([*buyers, *tools, team("team", *names, strategy="parallel")])
    waits = [name for name, each in zip(names, case.said, strict=True) if each not in RULES]
    asked: dict[str, PendingDecision] = {}
    while not {*waits} <= {*asked}:
        asked |= {each.speaker: each for each in await pending_decisions(env.client, handle.id)}
    waits.sort(key=lambda name: case.order[names.index(name)])
    for number, name in enumerate(waits):
        if number == case.ends_after:
            await handle.signal(case.signal, {"now": True})
        await say(env, handle, asked[name], case.said[names.index(name)])
    turn = await env.turn_result(handle)
    made = Counter(each.path.partition("item=")[2] for each in shop.seen)
    assert set(made.values()) <= {1}, "a call was made twice"
    assert set(made) <= {*case.allowed.values()}, "a call was made without its yes"
    ended_early = case.ends_after is not None and case.ends_after < len(waits)
    assert ended_early or set(made) == {*case.allowed.values()}, turn


@pytest.mark.slow
async def test_each_call_is_decided_once_in_any_order_and_only_made_with_its_yes(
    env: Environment, tool_server: ToolServer
) -> None:
    for case in cases(12):
        await check(env, tool_server, case)
