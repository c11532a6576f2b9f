"""The workflow types that a worker runs."""

from .agent import AgentWorkflow, ModelWorkflow, ToolWorkflow
from .expire import ExpireWorkflow, VersionedExpireWorkflow
from .query import QueryWorkflow
from .strategies.debate import DebateWorkflow
from .strategies.graph import GraphWorkflow
from .strategies.handoff import HandoffWorkflow
from .strategies.parallel import ParallelWorkflow
from .strategies.round_robin import RoundRobinWorkflow
from .strategies.selector import SelectorWorkflow
from .strategies.sequential import SequentialWorkflow

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

WORKFLOWS = (QueryWorkflow, AgentWorkflow, ModelWorkflow, ToolWorkflow, ExpireWorkflow, *STRATEGIES)

VERSIONED_WORKFLOWS = (
    *(workflow_class for workflow_class in WORKFLOWS if workflow_class is not ExpireWorkflow),
    VersionedExpireWorkflow,
)
"""The workflow types for versioned workers."""
