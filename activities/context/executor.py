"""What executes an agent elsewhere: an ExecutionEngine, or an A2AServer."""

from ...conversation.errors import UnknownResource
from ...resources.a2a_server import A2AServer, A2AServerSpec
from ...resources.agent import Agent
from ...resources.base import PREALPHA
from ...resources.catalog import Catalog
from ...resources.execution_engine import ExecutionEngine
from ...resources.manifest import Metadata
from ...resources.values import ValueSource
from .lookup import find_optional

Executor = ExecutionEngine | A2AServer


def find_executor(agent: Agent, catalog: Catalog) -> Executor | None:
    """The manifest of what executes an agent; None if its model is asked here.

    An A2AServer that has no manifest is made from the address in the agent's annotations (ARK: agent execution, A2A).
    """
    reference = agent.executor()
    found = find_optional(catalog, reference) if reference else None
    if isinstance(found, Executor) or not agent.is_remote:
        return found if isinstance(found, Executor) else None
    if agent.a2a_address is None:
        raise UnknownResource(f"{agent.id} is executed elsewhere, and nothing says where")
    name = reference.name if reference else agent.name
    metadata = Metadata(name=name, namespace=agent.namespace)
    spec = A2AServerSpec(address=ValueSource(value=agent.a2a_address))
    return A2AServer(api_version=PREALPHA, metadata=metadata, spec=spec)
