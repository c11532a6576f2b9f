"""The workflow types that a worker runs."""

from .agent import AgentWorkflow, ModelWorkflow
from .query import QueryWorkflow
from .strategies.debate import DebateWorkflow
from .strategies.graph import GraphWorkflow
from .strategies.parallel import ParallelWorkflow
from .strategies.round_robin import RoundRobinWorkflow
from .strategies.selector import SelectorWorkflow
from .strategies.sequential import SequentialWorkflow
from .tool import ToolWorkflow

STRATEGIES = (
    SequentialWorkflow,
    RoundRobinWorkflow,
    SelectorWorkflow,
    GraphWorkflow,
    ParallelWorkflow,
    DebateWorkflow,
)
"""One for each strategy of ``resources``; a test compares them."""

WORKFLOWS = (QueryWorkflow, AgentWorkflow, ModelWorkflow, ToolWorkflow, *STRATEGIES)
