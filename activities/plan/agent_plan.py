"""The plans of those that answer by themselves: an agent, a model, and a tool."""

from ...conversation.contracts.plan import AgentPlan, ToolPlan, ToolTarget
from ...resources.agent import Agent
from ...resources.catalog import Catalog
from ...resources.model import Model
from ...resources.team import Team
from ...resources.tool import Tool
from ..context.lookup import find
from ..context.model_chain import longest_timeout, model_chain


def agent_plan(agent: Agent, catalog: Catalog, team: Team | None = None) -> AgentPlan:
    """How an agent takes its turn. Where it has no context window of its own, that of its team counts."""
    tools = []
    for given, reference in agent.tools():
        tool = find(catalog, reference) if reference else None
        timeout = tool.timeout if isinstance(tool, Tool) else None
        tools.append(ToolPlan(name=given.name, on_error=given.on_error, timeout=timeout))
    models = model_chain(agent, catalog)
    return AgentPlan(
        kind="agent",
        name=agent.name,
        namespace=agent.namespace,
        models=tuple(each.name for each in models),
        model_timeout=longest_timeout(models),
        tools=tuple(tools),
        max_iterations=agent.spec.max_iterations,
        window=agent.spec.context_window or (team.spec.context_window if team else None),
        parallel_tool_calls=agent.spec.parallel_tool_calls,
    )


def model_plan(model: Model, catalog: Catalog) -> AgentPlan:
    """How a model answers by itself: as an agent without a prompt and without tools."""
    models = model_chain(model, catalog)
    return AgentPlan(
        kind="model",
        name=model.name,
        namespace=model.namespace,
        models=tuple(each.name for each in models),
        model_timeout=longest_timeout(models),
    )


def tool_plan(tool: Tool) -> ToolTarget:
    """How a tool is used by itself."""
    return ToolTarget(kind="tool", name=tool.name, namespace=tool.namespace, timeout=tool.timeout)
