"""Default agents: a panel's members and roles that have no manifest of their own, made from the team's manifest."""

from ...conversation.contracts.panel_requests import SpeakerBrief
from ...conversation.errors import UnknownResource
from ...conversation.messages.panel import Decision, RefereeOutput, Verdict
from ...resources.agent import Agent, AgentSpec, InlineModel
from ...resources.agent_tool import AgentTool
from ...resources.base import API_VERSION, JsonModel, JsonObject, Ref
from ...resources.capability import Capability
from ...resources.catalog import Catalog, Resource
from ...resources.default_prompts import default_prompt
from ...resources.manifest import Metadata
from ...resources.panel import Prompts
from ...resources.team import Team

MEMBER, ROLE = "Seat", "Part"
"""The first word of the id of a default member, and of the default agent of another role. Both are stored."""


def default_agent_id(team: Team, role: str, name: str) -> str:
    """The id of a default agent, ``Seat/namespace/team/name`` or ``Part/namespace/team/role``."""
    return f"{MEMBER if role == 'member' else ROLE}/{team.namespace}/{team.name}/{name}"


def find_speaker(catalog: Catalog, speaker_id: str) -> Resource:
    """The resource of the catalog, or the default agent of a team, that has an id. Raises UnknownResource."""
    kind, namespace, *names = speaker_id.split("/")
    if kind in (MEMBER, ROLE):
        team = catalog.get("Team", namespace, names[0])
        if isinstance(team, Team):
            return default_agent(team, "member" if kind == MEMBER else names[1], names[1], catalog)
    elif found := catalog.by_id(speaker_id):
        return found
    raise UnknownResource(f"the run's catalog has no {speaker_id}")


def panel_output_schema(catalog: Catalog, brief: SpeakerBrief | None) -> JsonObject | None:
    """The JSON Schema for the answer of a panel's synthesizer, if it has one (round-robin pattern: output schema)."""
    team = catalog.by_id(brief.team) if brief and brief.part == "synthesizer" else None
    return team.spec.output_schema if isinstance(team, Team) else None


def default_agent(team: Team, role: str, name: str, catalog: Catalog) -> Agent:
    """The default agent of a member or role. Its prompt is a template of ``resources.panel.PROMPT_NAMES``."""
    spec, own = team.spec, getattr(team.spec.prompts or Prompts(), role)
    model = spec.model
    return Agent(
        api_version=API_VERSION,
        metadata=Metadata(name=name, namespace=team.namespace),
        spec=AgentSpec(
            prompt=own or default_prompt(spec.strategy, role),
            model=InlineModel(name=model.name) if model and not model.namespace else None,
            model_ref=Ref(name=model.name, namespace=model.namespace) if model and model.namespace else None,
            tools=_tools(team, catalog),
            output_schema=_schema(team, role),
            context_window=spec.context_window,
        ),
    )


def capabilities(team: Team, catalog: Catalog) -> list[Capability]:
    """The capabilities that the team's default agents have."""
    refs = [catalog.get("Capability", ref.namespace or team.namespace, ref.name) for ref in team.spec.uses]
    return [found for found in refs if isinstance(found, Capability)]


def _tools(team: Team, catalog: Catalog) -> tuple[AgentTool, ...]:
    """The team's own tools, then those of its capabilities; of two with one name the first."""
    given = [*team.spec.tools, *(tool for each in capabilities(team, catalog) for tool in each.spec.tools)]
    return tuple({tool.name: tool for tool in reversed(given)}[name] for name in dict.fromkeys(t.name for t in given))


def _schema(team: Team, role: str) -> JsonObject | None:
    if role == "synthesizer":
        return team.spec.output_schema
    shapes: dict[str, type[JsonModel]] = {"referee": RefereeOutput, "moderator": Decision, "judge": Verdict}
    shape = shapes.get(role)
    return shape.model_json_schema(by_alias=True) if shape else None
