"""Helpers for runs that continue as new: their histories in order, and a model that counts its replies."""

from temporalio.client import WorkflowHistory

from baton.starter.scripted_model import Reply, Request
from tests.harness.environment import Environment, Handle

BOUND = 150
"""Events that a run may have at most on a server where runs continue as new after 50: one more step is allowed."""


def count_replies(request: Request) -> Reply:
    """A model that replies with the number of its reply."""
    return Reply(text=str(sum(message["role"] == "assistant" for message in request["messages"]) + 1))


async def continued_runs(env: Environment, handle: Handle) -> list[WorkflowHistory]:
    """The histories of a run and of the runs in which it was continued, in order."""
    histories = []
    run_id = (await handle.describe()).raw_description.workflow_execution_info.first_run_id
    while run_id:
        history = await env.client.get_workflow_handle(handle.id, run_id=run_id).fetch_history()
        histories.append(history)
        run_id = history.events[-1].workflow_execution_continued_as_new_event_attributes.new_execution_run_id
    return histories


async def check_continued(env: Environment, handle: Handle, at_least: int = 3) -> list[WorkflowHistory]:
    """Checks that the run was continued several times and that each history is short; its histories."""
    histories = await continued_runs(env, handle)
    assert len(histories) >= at_least
    assert max(len(history.events) for history in histories) <= BOUND
    return histories


def numbers(upto: int) -> list[str]:
    """The replies of ``count_replies``, from 1."""
    return [str(number) for number in range(1, upto + 1)]
