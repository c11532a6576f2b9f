"""What holds for every decision of a person: on a tool call, on a question of the team or of a server, on a budget."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest
from a2a.types import Part
from temporalio.client import WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError

import baton
from baton.contracts.decisions import PendingDecision
from baton.contracts.status import Status
from baton.testing import ScriptLine
from tests.harness.agent_server import AgentServer, Turn
from tests.harness.environment import Environment, Handle, Json, agent, line, texts
from tests.harness.remote_agents import a2a_agent, a2a_server
from tests.harness.tool_server import ToolServer
from tests.starter.test_approvals import events, temporal
from tests.workflows.test_approval import BUY, pending, tool
from tests.workflows.test_people import ANN, people

__all__ = ["temporal"]


@dataclass
class Kind:
    """A kind of decision, and a team whose first member comes to wait for one; the member ``last`` speaks after it.

    ``effects`` counts what the decision allows. ``given`` is a decision that allows it, sent by the ``update`` under
    ``id_key``; ``refused`` is one that does not fit, and what is said of it. ``misdirected`` is what the other update
    says. ``left`` is the conversation of a run that ends before the decision. After ``opposite`` the run continues as
    well, without the effect.
    """

    update: str
    given: Json
    refused: tuple[Json, str]
    left: list[str]
    events: tuple[str, str]
    member: str | Json
    effects: Callable[[Environment], int]
    manifests: list[Json] = field(default_factory=list)
    lines: list[ScriptLine] = field(default_factory=list)
    spec: Json = field(default_factory=dict)
    opposite: Json | None = None

    @property
    def id_key(self) -> str:
        return "to" if self.update == "reply" else "call"

    @property
    def misdirected(self) -> tuple[str, str, Json, str]:
        """The other update, its key of the id, what it is sent, and what it says."""
        if self.update == "reply":
            return "approve", "call", {}, "is not waiting for approval"
        return "reply", "to", {"text": "Yes."}, "is waiting for approval, not for a reply"

    def team(self, env: Environment) -> list[Json]:
        """Scripts the model; the manifests of the team."""
        env.script(*self.lines, line("last", "Done."))
        return [people(self.member, "last", **self.spec), agent("last"), *self.manifests]

    async def decide(
        self, handle: Handle, asked: PendingDecision, by: str = "ann@desk", given: Json | None = None
    ) -> Json:
        """Decides by the update, as a client in any language would."""
        sent = {self.id_key: asked.id, "by": by, **(given or self.given)}
        decision: Json = await handle.execute_update(self.update, sent)
        return decision

    async def decide_by_handle(self, handle: baton.Handle, id_: str) -> baton.PersonDecision:
        """Decides by the Python interface."""
        if self.update == "reply":
            return await handle.reply(self.given["text"], id_, by="ann")
        return await handle.approve(id_, arguments=self.given["arguments"], by="ann")


def approval(shop: ToolServer, _: AgentServer) -> Kind:
    return Kind(
        update="approve",
        given={"arguments": {"item": "ink"}},
        refused=({"arguments": {"amount": "many"}}, "don't match its schema"),
        left=["", "Not executed: the turn ended first."],
        events=("ApprovalRequested", "CallApproved"),
        member="buyer",
        effects=lambda _: len(shop.seen),
        manifests=[agent("buyer", "buy"), tool(shop, {})],
        lines=[line("buyer", BUY, "Bought.")],
        opposite={"approved": False},
    )


def question(_: ToolServer, __: AgentServer) -> Kind:
    return Kind(
        update="reply",
        given={"text": "7"},
        refused=({"text": "Yes."}, "the reply is not JSON"),
        left=[],
        events=("ReplyRequested", "ReplyGiven"),
        member={**ANN, "outputSchema": {"type": "integer"}},
        effects=lambda env: len(env.model.requests),
    )


def question_of_a_server(_: ToolServer, agents: AgentServer) -> Kind:
    async def travel(turn: Turn) -> None:
        task = await turn.task()
        if turn.is_new:
            await task.requires_input(task.new_agent_message([Part(text="Which day?")]))
        else:
            await task.complete(task.new_agent_message([Part(text="Booked.")]))

    agents.behaviour = travel
    return Kind(
        update="reply",
        given={"text": "Monday"},
        refused=({"text": " "}, "1 to 64,000 bytes"),
        left=["Which day?"],
        events=("ReplyRequested", "ReplyGiven"),
        member="oracle",
        effects=lambda _: len(agents.turns),
        manifests=[a2a_agent("oracle"), a2a_server(agents, questions={})],
    )


def budget(_: ToolServer, __: AgentServer) -> Kind:
    return Kind(
        update="approve",
        given={"arguments": {"modelCalls": 5}},
        refused=({"arguments": {"tokens": 5}}, "the granted amounts must include modelCalls"),
        left=["a"],
        events=("GrantRequested", "GrantApproved"),
        member="one",
        effects=lambda env: len(env.model.requests),
        manifests=[agent("one")],
        lines=[line("one", "a")],
        spec={"budget": {"modelCalls": 1, "onExceeded": "ask"}},
    )


@pytest.fixture
def agents() -> Iterator[AgentServer]:
    agents = AgentServer()
    with agents.serving():
        yield agents


def name(kind: Callable[[ToolServer, AgentServer], Kind]) -> str:
    return kind.__name__


@pytest.fixture(params=[approval, question, question_of_a_server, budget], ids=name)
def kind(request: pytest.FixtureRequest, tool_server: ToolServer, agents: AgentServer) -> Kind:
    made: Kind = request.param(tool_server, agents)
    return made


async def refusal(handle: Handle, update: str, given: Json) -> str:
    """Why a decision is refused."""
    with pytest.raises(WorkflowUpdateFailedError) as error:
        await handle.execute_update(update, given)
    assert isinstance(error.value.cause, ApplicationError)
    return error.value.cause.message


@pytest.mark.full
@pytest.mark.parametrize("cached", [True, False], ids=["cached", "replayed at every step"])
async def test_a_run_waits_for_a_decision_which_is_made_once_also_while_the_run_is_paused(
    env: Environment, kind: Kind, cached: bool
) -> None:
    async with AsyncExitStack() as stack:
        here = env if cached else await stack.enter_async_context(env.without_cache())
        handle = await here.start_team(kind.team(here))
        (asked,) = await pending(handle)
        before = kind.effects(here)
        assert (await handle.query("status", result_type=Status)).phase == "InputRequired"
        assert "'nothing' is not waiting for a decision in this run; waiting here: " in await refusal(
            handle, kind.update, {**kind.given, kind.id_key: "nothing"}
        )
        wrong, says = kind.refused
        assert says in await refusal(handle, kind.update, {**wrong, kind.id_key: asked.id})
        other, key, given, says = kind.misdirected
        assert says in await refusal(handle, other, {**given, key: asked.id})
        assert (await pending(handle), kind.effects(here)) == ((asked,), before)
        await handle.signal("pause", {"name": "bob"})
        assert (await kind.decide(handle, asked))["by"] == "ann@desk"
        again = await refusal(handle, kind.update, {**kind.given, kind.id_key: asked.id})
        assert f"{asked.id} is already decided: " in again
        assert " by ann@desk at 20" in again
        await handle.signal("resume")
        assert (await here.turn_result(handle)).message == "Done."
        assert kind.effects(here) == before + 1


async def test_of_several_who_decide_at_once_exactly_one_wins(env: Environment, kind: Kind) -> None:
    handle = await env.start_team(kind.team(env))
    (asked,) = await pending(handle)
    before = kind.effects(env)
    other = kind.opposite or kind.given
    sent = {"ann": kind.given, "bob": other, "cid": kind.given, "dan": other}
    deciding = (kind.decide(handle, asked, by, given) for by, given in sent.items())
    outcomes = await asyncio.gather(*deciding, return_exceptions=True)
    (won,) = [each for each in outcomes if isinstance(each, dict)]
    lost = [each for each in outcomes if isinstance(each, WorkflowUpdateFailedError)]
    assert [f"by {won['by']} at " in str(each.cause) for each in lost] == [True] * 3
    await env.turn_result(handle)
    assert kind.effects(env) == before + (sent[won["by"]] == kind.given)


@pytest.mark.full
async def test_a_run_below_is_decided_through_the_root_which_waits_as_well_and_events_tell_by_whom(
    env: Environment, temporal: baton.Connection, kind: Kind
) -> None:
    run = await env.start_query([*kind.team(env), people("team", name="outer")], "team/outer")
    await env.find_runs(f"WorkflowId = '{run.id}' AND BatonPhase = 'InputRequired'", 1)
    handle = await temporal.attach(run.id)
    status = await handle.status()
    assert status.phase == "InputRequired"
    (outer,) = status.waiting_runs or ()
    between: Status = await env.client.get_workflow_handle(outer).query("status", result_type=Status)
    lists = [await handle.approvals(), await handle.inbox()]
    (asked,), others = lists if kind.update == "approve" else lists[::-1]
    assert (asked.run, others) == ((between.waiting_runs or ())[0], [])
    with pytest.raises(baton.Refused, match=f"'nothing' is not waiting for a decision; waiting: {asked.id}"):
        await kind.decide_by_handle(handle, "nothing")
    made = await kind.decide_by_handle(handle, asked.id)
    assert (made.approved, made.by) == (True, "ann")
    assert (await handle.result()).message == "Done."
    assert await env.find_runs(f"WorkflowId = '{run.id}' AND BatonPhase = 'Completed'", 1)
    with pytest.raises(baton.Refused, match=r"the run .* has ended"):
        await kind.decide_by_handle(handle, asked.id)
    told = [each for each in await events(env, run) if each["event"] in kind.events]
    assert [each["event"] for each in told] == [*kind.events]
    assert told[1]["by"] == "ann"


@pytest.mark.full
@pytest.mark.parametrize(
    ("signal", "request_", "reason"),
    [
        ("terminate_team", {"reason": "enough"}, "terminated"),
        ("terminate_team", {"now": True}, "terminated"),
        ("cancel", None, "canceled"),
    ],
    ids=["terminate", "terminate now", "cancel"],
)
async def test_a_run_that_waits_for_a_decision_can_be_ended(
    env: Environment, kind: Kind, signal: str, request_: Any, reason: str
) -> None:
    handle = await env.start_team(kind.team(env))
    await pending(handle)
    before = kind.effects(env)
    await handle.signal(signal, request_)
    turn = await asyncio.wait_for(env.turn_result(handle), 60)
    assert (turn.stop_reason, texts(turn.messages)) == (reason, kind.left)
    assert kind.effects(env) == before


async def test_the_timeout_of_a_query_ends_the_wait_for_a_decision(env: Environment, kind: Kind) -> None:
    status = await env.status(await env.start_query(kind.team(env), "team/team", timeout="1s"))
    assert (status.phase, status.stop_reason) == ("Failed", "timeout")


@pytest.mark.full
@pytest.mark.parametrize("kind", [approval, question, question_of_a_server], indirect=True, ids=name)
async def test_a_run_that_waits_for_a_decision_continues_as_new_and_waits_on(
    env_with_short_histories: Environment, kind: Kind
) -> None:
    env = env_with_short_histories
    handle = await env.start_team(kind.team(env))
    (asked,) = await pending(handle)
    before = kind.effects(env)
    first = (await handle.describe()).run_id
    handle = env.client.get_workflow_handle(handle.id)
    while (await handle.describe()).run_id == first:
        await handle.signal("session", {"n": 1})
    assert await pending(handle) == (asked,)
    assert await env.find_runs(f"WorkflowId = '{handle.id}' AND BatonPhase = 'InputRequired'", 1)
    wrong, says = kind.refused
    assert says in await refusal(handle, kind.update, {**wrong, kind.id_key: asked.id})
    await kind.decide(handle, asked)
    assert (await env.turn_result(handle)).message == "Done."
    assert kind.effects(env) == before + 1
