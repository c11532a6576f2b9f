"""The workflow types that a worker runs."""

from temporalio.common import VersioningBehavior

from .agent import AgentWorkflow, ModelWorkflow, ToolWorkflow
from .expire import ExpireWorkflow, VersionedExpireWorkflow
from .notify import NotifyWorkflow, VersionedNotifyWorkflow
from .query import QueryWorkflow
from .run.base import workflow_type
from .strategies.debate import DebateWorkflow
from .strategies.graph import GraphWorkflow
from .strategies.handoff import HandoffWorkflow
from .strategies.parallel import ParallelWorkflow
from .strategies.round_robin import RoundRobinWorkflow
from .strategies.selector import SelectorWorkflow
from .strategies.sequential import SequentialWorkflow

WORKFLOW = "__temporal_workflow_definition"
"""The attribute in which the SDK keeps the definition of a workflow class."""

STRATEGIES = (
    SequentialWorkflow,
    RoundRobinWorkflow,
    SelectorWorkflow,
    GraphWorkflow,
    ParallelWorkflow,
    DebateWorkflow,
    HandoffWorkflow,
)
"""The workflow types of the strategies in ``resources/strategies.py``; a test compares them."""

WORKFLOWS = (QueryWorkflow, AgentWorkflow, ModelWorkflow, ToolWorkflow, ExpireWorkflow, NotifyWorkflow, *STRATEGIES)


def _pinned(workflow_class: type) -> type:
    """The same workflow type, which stays on the version of the worker that has started it.

    Otherwise a worker could only be made with a default for all types, which an application may not want for its own.
    """
    run = vars(workflow_class)["run"]
    own = {"run": run, "__module__": workflow_class.__module__, "__doc__": workflow_class.__doc__}
    subclass = type(workflow_class.__name__, (workflow_class,), own)  # the SDK wants ``run`` in the class itself
    return workflow_type(getattr(workflow_class, WORKFLOW).name, VersioningBehavior.PINNED)(subclass)


VERSIONED_WORKFLOWS = (
    *(_pinned(each) for each in WORKFLOWS if each not in (ExpireWorkflow, NotifyWorkflow)),
    VersionedExpireWorkflow,
    VersionedNotifyWorkflow,
)
"""The workflow types for versioned workers."""
