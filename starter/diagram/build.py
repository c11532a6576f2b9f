"""Builds the diagram of manifests: who asks whom, and who speaks after whom in each team."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ...resources.agent import Agent
from ...resources.base import Reference
from ...resources.catalog import Catalog, Resource
from ...resources.member import Member
from ...resources.model import Model
from ...resources.query import Query
from ...resources.team import Team
from .labels import MAX_LINE, box_lines, shorten, title_of
from .model import Arrow, Box
from .strategies import arrange, strategy_label

MAX_INPUT = 110
"""The length at which a query's input is cut, in characters."""

MAX_DEPTH = 30
"""How many levels of teams within teams are drawn."""

MISSING = "not in the files"


def build_diagram(catalog: Catalog, shown: Sequence[Resource], namespace: str = "default") -> Box:
    """A page with the queries and their targets, each target once, and the other resources one below the other."""
    builder = _BoxBuilder(catalog)
    queries = [each for each in shown if isinstance(each, Query)]
    boxes = [builder.query(each, namespace) for each in queries]
    indexes: dict[str, int] = {}
    arrows: list[Arrow] = []
    for index, query in enumerate(queries):
        for reference in catalog.targets(query):
            if (target := indexes.setdefault(str(reference), len(boxes))) == len(boxes):
                boxes.append(replace(builder.referenced(reference, namespace), column=1))
            arrows.append(Arrow(index, target))
    others = [each for each in shown if not isinstance(each, Query)]
    boxes.extend(builder.resource(each, title_of(each, namespace)) for each in others)
    return Box("page", inside=tuple(boxes), arrows=tuple(dict.fromkeys(arrows)))


def outermost_teams(catalog: Catalog) -> list[Team]:
    """The teams that are no member of another team."""
    teams = [each for each in catalog.manifests if isinstance(each, Team)]
    members = {found.id for team in teams for each in team.members() if (found := catalog.find(each))}
    return [team for team in teams if team.id not in members]


@dataclass
class _BoxBuilder:
    """Builds the boxes of one diagram. A team has its members inside only where it is drawn first."""

    catalog: Catalog
    drawn: set[str] = field(default_factory=set)

    def query(self, query: Query, namespace: str) -> Box:
        """The box of a query, with its input."""
        return Box("query", box_lines(title_of(query, namespace), shorten(query.spec.input, MAX_INPUT)))

    def referenced(self, reference: Reference, namespace: str, depth: int = 0) -> Box:
        """The box of a referenced resource."""
        title = title_of(reference, namespace)
        found = self.catalog.find(reference)
        return self.resource(found, title, depth) if found else Box("missing", box_lines(title, MISSING))

    def resource(self, resource: Resource, title: str, depth: int = 0) -> Box:
        """The box of a resource."""
        match resource:
            case Team():
                return self._team(resource, title, depth)
            case Agent():
                ends = ["can end the team"] if depth and resource.can_terminate else []
                return Box("agent", box_lines(title, *self._model_and_tools(resource), *ends))
            case Model():
                parts = ("model", resource.spec.server, resource.spec.model.value)
                return Box("model", box_lines(title, " · ".join(part for part in parts if part)))
            case _:
                return Box("tool", box_lines(title, resource.kind.lower()))

    def _team(self, team: Team, title: str, depth: int) -> Box:
        lines = box_lines(title, strategy_label(team.spec))
        if team.id in self.drawn or depth > MAX_DEPTH:
            why = "drawn elsewhere" if team.id in self.drawn else "its members are nested too deeply to be drawn"
            return Box("team", (*lines, why))
        self.drawn.add(team.id)
        names = {role: reference.name if reference else role for role, reference in team.role_holders()}
        arrangement = arrange(team.spec, names)
        members = [
            replace(self._member(team, member, reference, depth), column=column)
            for column, member, reference in zip(arrangement.columns, team.spec.members, team.members(), strict=True)
        ]
        for index in arrangement.unreachable:
            members[index] = replace(members[index], lines=(*members[index].lines, "is never reached"))
        return Box("team", lines, inside=(*members, *arrangement.helpers), arrows=arrangement.arrows)

    def _member(self, team: Team, member: Member, reference: Reference, depth: int) -> Box:
        """The box of a member, with its name in the team and its stance if it has them."""
        box = self._speaker(team, member, reference, depth)
        lines = (f"{member.as_} = {box.lines[0]}", *box.lines[1:]) if member.as_ else box.lines
        return replace(box, lines=(*lines, *box_lines("", member.stance or "")[1:]))

    def _speaker(self, team: Team, member: Member, reference: Reference, depth: int) -> Box:
        """The box of an agent or a team or, in a panel, of a function or a default member."""
        if reference.kinds and (self.catalog.find(reference) or not reference.optional):
            return self.referenced(reference, team.namespace, depth + 1)
        if member.is_human:
            return Box("human", box_lines(member.name, member.role or "a person"))
        if member.type == "activity":
            return Box("tool", box_lines(member.name, "function"))
        return Box("agent", box_lines(member.name, member.role or ""))

    def _model_and_tools(self, agent: Agent) -> list[str]:
        """The model or what executes it, and the tools of an agent, in one line if they fit."""
        if agent.is_remote:
            executor = agent.executor()
            by = f"executed by {self._name(executor.name, executor)}" if executor else f"at {agent.a2a_address}"
        else:
            model = agent.model_reference()
            by = self._name(model.name, model)
        tools = [self._name(tool.name, reference) for tool, reference in agent.tools()]
        parts = [part for part in (by, ", ".join(tools)) if part]
        return [line] if len(line := " · ".join(parts)) <= MAX_LINE else parts

    def _name(self, name: str, reference: Reference | None) -> str:
        """A name, with a note if its manifest is missing; no-break spaces keep the note in one line."""
        known = reference is None or reference.optional or self.catalog.find(reference)
        return name if known else f"{name} ({MISSING})".replace(" ", "\xa0")
