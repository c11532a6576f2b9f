"""The workflow types that a worker runs."""

from .agent import AgentWorkflow, ModelWorkflow, ToolWorkflow
from .expire import ExpireWorkflow, VersionedExpireWorkflow
from .notify import NotifyWorkflow, VersionedNotifyWorkflow
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

WORKFLOWS = (QueryWorkflow, AgentWorkflow, ModelWorkflow, ToolWorkflow, ExpireWorkflow, NotifyWorkflow, *STRATEGIES)

VERSIONED_WORKFLOWS = (
    *(each for each in WORKFLOWS if each not in (ExpireWorkflow, NotifyWorkflow)),
    VersionedExpireWorkflow,
    VersionedNotifyWorkflow,
)
"""The workflow types for versioned workers."""
