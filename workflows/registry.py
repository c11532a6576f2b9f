"""The workflow types that a worker runs."""

import pydantic
import pydantic_core

from ..contracts.errors import BatonError
from .agent import AgentWorkflow, ModelWorkflow, ToolWorkflow
from .expire import ExpireWorkflow, VersionedExpireWorkflow
from .query import QueryWorkflow
from .strategies.debate import DebateWorkflow
from .strategies.graph import GraphWorkflow
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
)
"""One for each strategy of ``resources``; a test compares them."""

WORKFLOWS = (QueryWorkflow, AgentWorkflow, ModelWorkflow, ToolWorkflow, ExpireWorkflow, *STRATEGIES)

VERSIONED_WORKFLOWS = (*(each for each in WORKFLOWS if each is not ExpireWorkflow), VersionedExpireWorkflow)
"""The same for a worker that has a version."""

WORKFLOW_FAILURES = (pydantic.ValidationError, pydantic_core.PydanticSerializationError, BatonError)
"""Exceptions that fail a run. Any other is a bug in Baton: the run waits until the code is corrected."""
