"""The estimate of a call: made only under a budget, measured once for a catalog, and beside the event loop."""

import threading
from dataclasses import dataclass, field

from baton.activities.context.metering import Meter
from baton.contracts.message import Head, Message
from baton.contracts.turn import Thread
from baton.resources.catalog import Catalog
from tests.harness.environment import Json, agent
from tests.harness.manifests import Writer


@dataclass
class MeasuredTool:
    """A tool definition that notes in which threads it is measured."""

    name: str
    measured: list[str] = field(default_factory=list)

    def __repr__(self) -> str:
        self.measured.append(threading.current_thread().name)
        return "x" * 4_000


def meter(write: Writer, **budget: Json) -> Meter:
    """The meter of an agent, with or without a budget."""
    catalog: Catalog = write.load(agent("one", **budget)).catalog
    thread = Thread(catalog=catalog.sha, question="run/1", head=Head(), account="run")
    return Meter(thread, "Agent/default/one", catalog, tenant=None)


QUESTION = [Message(role="user", content="Why?")]


async def test_without_a_budget_nothing_is_measured(write: Writer) -> None:
    tool = MeasuredTool("tool")
    assert await meter(write).model_charge(QUESTION, [tool], None) is None
    assert tool.measured == []


async def test_under_a_budget_tools_are_measured_once_and_beside_the_event_loop(write: Writer) -> None:
    tool = MeasuredTool("tool")
    budgeted = meter(write, budget={"tokens": 100_000})
    charges = [await budgeted.model_charge(QUESTION, [tool], None) for _ in range(3)]
    tokens = {charge.amount.tokens for charge in charges if charge}
    assert tokens == {(QUESTION[0].byte_size + len(f"{[MeasuredTool('tool')]}")) // 4}
    assert len(tool.measured) == 1
    assert tool.measured[0] != threading.current_thread().name
    other = MeasuredTool("other")
    await budgeted.model_charge(QUESTION, [tool, other], None)
    assert (len(tool.measured), len(other.measured)) == (2, 1), "another list of tools is measured by itself"
