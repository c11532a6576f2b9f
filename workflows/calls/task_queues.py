"""Where do a run's calls and child runs wait, and whose turn is it there? As its first step has found out."""

from temporalio import workflow
from temporalio.common import Priority

from ...conversation.contracts.requests import Route


def route() -> Route:
    """The way of the run that is asking."""
    found: Route = workflow.instance().route
    return found


def priority() -> Priority:
    """Whose turn it is where many wait; what isn't said is inherited from the run, and by a run from its parent.

    A run without a tenant is one of its own, with all that it starts.
    """
    run = workflow.info()
    alone = None if run.priority.fairness_key else run.first_execution_run_id
    return Priority(priority_key=route().priority, fairness_key=route().tenant or alone)
