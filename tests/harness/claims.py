"""An application with workflows and an activity of its own, which asks Baton's teams: it runs in the SDK's sandbox."""

from datetime import timedelta
from typing import Any

from temporalio import activity, workflow

import baton.workflow

with workflow.unsafe.imports_passed_through():
    from pydantic import BaseModel


class Decision(BaseModel):
    """What the team decides about a claim."""

    approved: bool
    amount: int = 0


@activity.defn
async def pay(amount: int) -> str:
    """An activity of the application."""
    return f"paid {amount}"


@workflow.defn
class Claim:
    """A workflow of the application, in the SDK's sandbox."""

    @workflow.run
    async def run(self, text: str) -> str:
        decision = await baton.workflow.run_team("claims", text, output=Decision)
        if not decision.approved:
            return "rejected"
        return await workflow.execute_activity(pay, decision.amount, start_to_close_timeout=timedelta(seconds=10))


@workflow.defn
class Question:
    """Asks an agent for text, with options that a test gives."""

    @workflow.run
    async def run(self, question: str, options: dict[str, Any]) -> str:
        return await baton.workflow.run_agent("adjuster", question, **options)


@workflow.defn
class Untyped:
    """Expects a decision of an agent that has no schema."""

    @workflow.run
    async def run(self, question: str) -> bool:
        decision = await baton.workflow.run_agent("talker", question, output=Decision)
        return decision.approved


@workflow.defn
class Control:
    """Starts a team, sends it a message, and ends it once it was told to."""

    def __init__(self) -> None:
        self._is_over = False

    @workflow.signal
    def end(self) -> None:
        """Ends the team."""
        self._is_over = True

    @workflow.run
    async def run(self) -> dict[str, Any]:
        run = await baton.workflow.start_team("circle", "Go on.", id=f"{workflow.info().workflow_id}/circle")
        await run.steer("Be brief.", name="dana")
        await workflow.wait_condition(lambda: self._is_over)
        await run.terminate("enough")
        return await run.status()


@workflow.defn
class Long:
    """Has long values of its own, and asks an agent a long question."""

    @workflow.run
    async def run(self, length: int) -> str:
        text = await workflow.execute_activity(write, length, start_to_close_timeout=timedelta(seconds=10))
        agent_id = f"{workflow.info().workflow_id}/adjuster"
        return await baton.workflow.run_agent("adjuster", text, id=agent_id) + text[:3]


@activity.defn
async def write(length: int) -> str:
    """A long text."""
    return "x" * length
