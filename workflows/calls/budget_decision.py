"""A budget that is used up: whether a person grants more."""

from temporalio import workflow

from ...conversation.contracts.decisions import PendingDecision
from ...conversation.contracts.grants import BUDGET_RULE, GrantRequest
from ...conversation.errors import InvalidInput
from ...conversation.messages.person_decision import PersonDecision
from ...resources.budget import Budget
from ..state.errors import ActivityFailed
from ..state.run_state import RunState


async def ask_for_more(run: RunState, failed: ActivityFailed) -> GrantRequest:
    """Waits until a person has said yes, and what is granted then. Raises ActivityFailed after a no, and ``failed``
    itself if it is not about a budget that asks.

    One decision holds for all runs that wait for the same budget: its rule has the number of the grant.
    """
    failure, reached = failed.failure, failed.failure.budget
    if not (reached and reached.on_exceeded == "ask" and reached.account and reached.more):
        raise failed
    limits = reached.more.model_copy(update={"on_exceeded": "stop"})  # the default, which is not shown
    number = reached.grants or 0
    rule = f"{BUDGET_RULE}{reached.owner}/{number}"
    here = workflow.info().workflow_id
    asked = PendingDecision(
        id=workflow.uuid4().hex[:10],  # several calls of a run may wait at once
        kind="budget",
        run=here,
        speaker=reached.owner,
        since=workflow.now(),
        tool="budget",
        arguments=limits.model_dump_json(by_alias=True, exclude_none=True, exclude_defaults=True),
        rule=rule,
        question=failure.message,
    )

    async def check(decision: PersonDecision) -> None:
        if decision.arguments is not None and reached.limit not in _granted(decision.arguments).model_dump(
            by_alias=True, exclude_none=True
        ):
            raise ActivityFailed.of(InvalidInput(f"the budget needs more {reached.limit}"))

    decision = await run.decisions.wait(asked, check)
    if not decision.approved:
        stopped = reached.model_copy(update={"on_exceeded": "stop"})
        text = f"{failure.message}; more was not granted. {decision.reason}".rstrip()
        raise ActivityFailed(failure.model_copy(update={"budget": stopped, "message": text}))
    more = _granted(decision.arguments) if decision.arguments else limits
    return GrantRequest(account=reached.account, number=number, more=more)


def _granted(arguments: str) -> Budget:
    """What a person has granted in place of the same amounts. Raises ActivityFailed."""
    try:
        return Budget.model_validate_json(arguments)
    except ValueError:
        text = 'write what is granted as a budget has it, such as {"tokens": 5000}'
        raise ActivityFailed.of(InvalidInput(text)) from None
