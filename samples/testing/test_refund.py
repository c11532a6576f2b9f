"""Tests of the team in refunds.yaml: pytest samples/testing. No language model is called, and no key is needed."""

from datetime import timedelta
from pathlib import Path

import pytest

from baton.testing import Environment, Reply, Request, ScriptedToolCall
from baton.testing.pytest import EnvironmentFactory

MANIFESTS = Path(__file__).with_name("refunds.yaml")


class Till:
    """The till of the shop, as far as the team uses it."""

    def __init__(self) -> None:
        self.refunds: list[tuple[str, int]] = []

    def refund(self, order: str, euros: int) -> str:
        """Refunds an order."""
        self.refunds.append((order, euros))
        return f"refunded {euros} EUR"


@pytest.fixture
def till() -> Till:
    """An empty till."""
    return Till()


def clerk(request: Request) -> Reply | str:
    """Answers as the model of the clerk: refunds the amount in the question, and reports the result."""
    if request.tool_results:
        return "It is refunded." if "refunded" in request.tool_results[0] else "It is not refunded."
    euros = next(int(word) for word in request.text.split() if word.isdigit())
    return Reply(calls=[ScriptedToolCall(name="refund", arguments={"order": "A-7", "euros": euros})])


@pytest.fixture
def env(baton_environment: EnvironmentFactory, till: Till) -> Environment:
    """The team with models that are scripted: a function for the clerk, and texts for the writer."""
    return baton_environment(MANIFESTS, model={"clerk": clerk, "writer": ["Dear customer"]}, functions=[till.refund])


def test_a_small_refund_is_paid_at_once(env: Environment, till: Till) -> None:
    result = env.wait(env.run("team/refunds", "My cup of 20 EUR came broken."))
    assert result.message == "Dear customer"
    assert till.refunds == [("A-7", 20)]


def test_the_writer_reads_what_the_clerk_did(env: Environment) -> None:
    env.wait(env.run("team/refunds", "My cup of 20 EUR came broken."))
    assert [received.body.agent for received in env.model.requests] == ["clerk", "clerk", "writer"]
    assert "It is refunded." in str(env.model.requests[-1].body["messages"])


def test_a_large_refund_is_paid_after_an_approval(env: Environment, till: Till) -> None:
    run = env.wait(env.start("team/refunds", "My desk of 300 EUR came broken."))
    refund = env.wait(env.pending_decision(run))
    assert till.refunds == []
    env.wait(run.approve(refund.id))
    env.wait(run.result())
    assert till.refunds == [("A-7", 300)]


def test_a_refund_that_nobody_approves_within_a_day_is_not_paid(env: Environment, till: Till) -> None:
    run = env.wait(env.start("team/refunds", "My desk of 300 EUR came broken."))
    env.wait(env.pending_decision(run))
    env.wait(env.skip_time(run, timedelta(hours=24)))
    env.wait(run.result())
    assert till.refunds == []
    assert "It is not refunded." in str(env.model.requests[-1].body["messages"])


def test_an_overloaded_model_is_called_again(baton_environment: EnvironmentFactory) -> None:
    busy = Reply(status=503, headers={"retry-after": "0"})
    env = baton_environment(MANIFESTS, model={"clerk": [Reply(text="Done.", before=[busy])], "writer": ["Dear"]})
    assert env.wait(env.run("team/refunds", "My cup came broken.")).message == "Dear"
