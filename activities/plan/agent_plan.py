"""The plans of those that answer by themselves: an agent, a model, and a tool."""

from ...conversation.contracts.plan import AgentPlan, ApprovalPlan, DelegatePlan, ToolPlan, ToolTarget
from ...conversation.contracts.questions import QuestionsPlan
from ...resources.a2a_server import A2AServer
from ...resources.agent import Agent
from ...resources.agent_tool import AgentTool
from ...resources.approval import Approval, strictest
from ...resources.base import Reference
from ...resources.catalog import Catalog
from ...resources.duration import parse_duration
from ...resources.manifest import Manifest
from ...resources.mcp_server import MCPServer
from ...resources.model import Model
from ...resources.team import Team
from ...resources.tool import Tool
from ..context.executor import find_executor
from ..context.lookup import find, mcp_server_of
from ..context.model_chain import longest_timeout, model_chain


def agent_plan(agent: Agent, catalog: Catalog, team: Team | None = None) -> AgentPlan:
    """How an agent takes its turn. Where it has no context window of its own, that of its team counts."""
    owner = team if team and not agent.spec.context_window else agent
    window = owner.spec.context_window.used_in(owner.namespace) if owner.spec.context_window else None
    if executor := find_executor(agent, catalog):
        plan = AgentPlan(
            kind="agent",
            name=agent.name,
            namespace=agent.namespace,
            models=(),
            max_iterations=agent.spec.max_iterations,
            window=window,
            engine=executor.name,
            timeout=parse_duration(executor.spec.timeout).total_seconds(),
            budget=agent.budget,
        )
        questions = _questions(executor)
        return plan.model_copy(update={"questions": questions}) if questions else plan
    models = model_chain(agent, catalog)
    return AgentPlan(
        kind="agent",
        name=agent.name,
        namespace=agent.namespace,
        models=tuple(each.name for each in models),
        model_timeout=longest_timeout(models),
        tools=tuple(_tool_plan(given, reference, catalog) for given, reference in agent.tools()),
        max_iterations=agent.spec.max_iterations,
        window=window,
        parallel_tool_calls=agent.spec.parallel_tool_calls,
        budget=agent.budget,
    )


def _tool_plan(given: AgentTool, reference: Reference | None, catalog: Catalog) -> ToolPlan:
    """How a tool is used; fields with their default value stay unset, so that they take no space in the history."""
    tool = find(catalog, reference) if reference else None
    timeout = tool_timeout(tool, catalog) if isinstance(tool, Tool) else None
    plan = ToolPlan(name=given.name, on_error=given.on_error, timeout=timeout)
    said = given.untrusted_content
    untrusted = said if said is not None else isinstance(tool, Tool) and tool.is_untrusted
    asks, own = (_asks(tool, catalog), tool.spec.approval) if isinstance(tool, Tool) else (None, None)
    rule = tool.id if isinstance(tool, Tool) else given.name
    approval = _approval(strictest(own, given.approval), rule)
    questions = _questions(mcp_server_of(tool, catalog)) if isinstance(tool, Tool) else None
    other = {"untrusted": untrusted, "asks": asks, "approval": approval, "questions": questions}
    return plan.model_copy(update={key: each for key, each in other.items() if each})


def _asks(tool: Tool, catalog: Catalog) -> DelegatePlan | None:
    """Whom a tool asks, and the type of the workflow that runs it."""
    found = find(catalog, tool.asks) if tool.asks else None
    if isinstance(found, Team):
        return DelegatePlan(kind="team", name=found.name, namespace=found.namespace, workflow=found.spec.strategy)
    if isinstance(found, Agent):
        return DelegatePlan(kind="agent", name=found.name, namespace=found.namespace, workflow="agent")
    return None


def _approval(rule: Approval | None, manifest: str) -> ApprovalPlan | None:
    if rule is None or not rule.required:
        return None
    plan = ApprovalPlan(rule=manifest)
    other = {"timeout": rule.seconds, "proceeds": rule.on_timeout == "proceed"}
    return plan.model_copy(update={key: each for key, each in other.items() if each})


def _questions(server: Manifest | None) -> QuestionsPlan | None:
    """How the questions of a server are put to people, if they are."""
    given = server.spec.questions if isinstance(server, MCPServer | A2AServer) else None
    if server is None or given is None:
        return None
    other = {"timeout": given.seconds, "skips": given.on_timeout == "skip"}
    return QuestionsPlan(server=server.id).model_copy(update={key: each for key, each in other.items() if each})


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


def tool_plan(tool: Tool, catalog: Catalog) -> ToolTarget:
    """How a tool is used by itself."""
    plan = ToolTarget(kind="tool", name=tool.name, namespace=tool.namespace, timeout=tool_timeout(tool, catalog))
    asks, approval = _asks(tool, catalog), _approval(tool.spec.approval, tool.id)
    other = {"asks": asks, "approval": approval, "questions": _questions(mcp_server_of(tool, catalog))}
    return plan.model_copy(update={key: each for key, each in other.items() if each})


def tool_timeout(tool: Tool, catalog: Catalog) -> float | None:
    """The seconds that one use may take; None for the usual timeout."""
    if tool.mcp_server():
        server = mcp_server_of(tool, catalog)
        return server.call_timeout if server else None
    return tool.spec.http.seconds if tool.spec.http else None
