"""Who are a panel's default speakers? Agents that no manifest describes, made of what their team says of itself."""

from ...conversation.contracts.panel_requests import SpeakerBrief
from ...conversation.errors import UnknownResource
from ...conversation.messages.panel import Decision, RefereeOutput, Verdict
from ...resources.agent import Agent, AgentSpec, AgentTool, InlineModel
from ...resources.base import API_VERSION, JsonObject, Plain, Ref
from ...resources.capability import Capability
from ...resources.catalog import Catalog, Resource
from ...resources.default_prompts import default_prompt
from ...resources.manifest import Metadata
from ...resources.panel import Prompts
from ...resources.team import Team

MEMBER, PART = "Seat", "Part"
"""The first word of the id of a default member, and of whoever has another part."""


def cast_id(team: Team, part: str, name: str) -> str:
    """The id of a default speaker, ``Seat/namespace/team/name`` or ``Part/namespace/team/part``."""
    return f"{MEMBER if part == 'member' else PART}/{team.namespace}/{team.name}/{name}"


def speaker_of(catalog: Catalog, speaker_id: str) -> Resource:
    """Who is known by an id: a resource of the catalog, or a team's default speaker. Raises UnknownResource."""
    kind, namespace, *names = speaker_id.split("/")
    if kind in (MEMBER, PART):
        team = catalog.get("Team", namespace, names[0])
        if isinstance(team, Team):
            return cast(team, "member" if kind == MEMBER else names[1], names[1], catalog)
    elif found := catalog.by_id(speaker_id):
        return found
    raise UnknownResource(f"the run's catalog has no {speaker_id}")


def deliverable(catalog: Catalog, brief: SpeakerBrief | None) -> JsonObject | None:
    """The JSON Schema of what a panel delivers, for whoever synthesizes it (seed 002, ``outputSchema``)."""
    team = catalog.by_id(brief.team) if brief and brief.part == "synthesizer" else None
    return team.spec.output_schema if isinstance(team, Team) else None


def cast(team: Team, part: str, name: str, catalog: Catalog) -> Agent:
    """A team's default speaker. Its prompt is a template of ``resources.panel.PROMPT_NAMES``."""
    spec, own = team.spec, getattr(team.spec.prompts or Prompts(), part)
    model = spec.model
    return Agent(
        api_version=API_VERSION,
        metadata=Metadata(name=name, namespace=team.namespace),
        spec=AgentSpec(
            prompt=own or default_prompt(spec.strategy, part),
            model=InlineModel(name=model.name) if model and not model.namespace else None,
            model_ref=Ref(name=model.name, namespace=model.namespace) if model and model.namespace else None,
            tools=_tools(team, catalog),
            output_schema=_schema(team, part),
            context_window=spec.context_window,
        ),
    )


def capabilities(team: Team, catalog: Catalog) -> list[Capability]:
    """What the team's default speakers use."""
    refs = [catalog.get("Capability", ref.namespace or team.namespace, ref.name) for ref in team.spec.uses]
    return [found for found in refs if isinstance(found, Capability)]


def _tools(team: Team, catalog: Catalog) -> tuple[AgentTool, ...]:
    """The team's own tools, then those of its capabilities; of two by one name the first."""
    given = [*team.spec.tools, *(tool for each in capabilities(team, catalog) for tool in each.spec.tools)]
    return tuple({tool.name: tool for tool in reversed(given)}[name] for name in dict.fromkeys(t.name for t in given))


def _schema(team: Team, part: str) -> JsonObject | None:
    if part == "synthesizer":
        return team.spec.output_schema
    shapes: dict[str, type[Plain]] = {"referee": RefereeOutput, "moderator": Decision, "judge": Verdict}
    shape = shapes.get(part)
    return shape.model_json_schema(by_alias=True) if shape else None
