"""Who speaks with whom? Boxes in boxes with arrows between them, made of manifests alone."""

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Literal

from ...resources.agent import Agent
from ...resources.base import Reference
from ...resources.catalog import Catalog, Resource
from ...resources.member import Member
from ...resources.model import Model
from ...resources.query import Query
from ...resources.team import Team
from ..text.escape import escape_control_characters
from .strategies import Arrow, arrange, strategy_label

Shape = Literal["page", "query", "team", "agent", "model", "tool", "missing", "selector", "dot"]

TITLE, LINE, QUESTION, DEEPEST = 60, 36, 110, 40
"""Characters in a title, in a line below it, and of a question; and teams in teams that are drawn."""

NOWHERE = "not in the files"
_NO_XML = re.compile("[\ufffe\uffff]")


@dataclass(frozen=True)
class Box:
    """One who takes part. ``inside`` stands in columns from left to right, and ``arrows`` join what stands there."""

    shape: Shape
    lines: tuple[str, ...] = ()
    column: int = 0
    inside: tuple["Box", ...] = ()
    arrows: tuple[Arrow, ...] = ()


def build_diagram(catalog: Catalog, shown: Sequence[Resource], namespace: str = "default") -> Box:
    """A page with queries and what they ask, each asked one once, or with other resources one below the other."""
    draft = _Draft(catalog)
    queries = [each for each in shown if isinstance(each, Query)]
    boxes = [Box("query", _lines(_title(each, namespace), _short(each.spec.input, QUESTION))) for each in queries]
    places: dict[str, int] = {}
    arrows: list[Arrow] = []
    for index, query in enumerate(queries):
        for reference in catalog.targets(query):
            if (place := places.setdefault(str(reference), len(boxes))) == len(boxes):
                boxes.append(replace(draft.referred(reference, namespace), column=1))
            arrows.append(Arrow(index, place))
    others = [each for each in shown if not isinstance(each, Query)]
    boxes.extend(draft.box(each, _title(each, namespace)) for each in others)
    return Box("page", inside=tuple(boxes), arrows=tuple(dict.fromkeys(arrows)))


def outermost_teams(catalog: Catalog) -> list[Team]:
    """The teams that are no member of another."""
    teams = [each for each in catalog.manifests if isinstance(each, Team)]
    members = {found.id for team in teams for each in team.members() if (found := catalog.find(each))}
    return [team for team in teams if team.id not in members]


@dataclass
class _Draft:
    """A chart in the making: each team is drawn with its members where it comes first, and closed after that."""

    catalog: Catalog
    drawn: set[str] = field(default_factory=set)

    def referred(self, reference: Reference, namespace: str, depth: int = 0) -> Box:
        """The box for what a reference leads to."""
        title = _title(reference, namespace)
        found = self.catalog.find(reference)
        return self.box(found, title, depth) if found else Box("missing", _lines(title, NOWHERE))

    def box(self, resource: Resource, title: str, depth: int = 0) -> Box:
        """The box of one resource."""
        match resource:
            case Team():
                return self._team(resource, title, depth)
            case Agent():
                ends = ["can end the team"] if depth and resource.can_terminate else []
                return Box("agent", _lines(title, *self._equipment(resource), *ends))
            case Model():
                parts = ("model", resource.spec.server, resource.spec.model.value)
                return Box("model", _lines(title, " · ".join(part for part in parts if part)))
            case _:
                return Box("tool", _lines(title, resource.kind.lower()))

    def _team(self, team: Team, title: str, depth: int) -> Box:
        head = _lines(title, strategy_label(team.spec))
        if team.id in self.drawn or depth > DEEPEST:
            why = "drawn elsewhere" if team.id in self.drawn else "its members are too deep to be drawn"
            return Box("team", (*head, why))
        self.drawn.add(team.id)
        plan = arrange(
            team.spec, {part: reference.name if reference else part for part, reference in team.appointed()}
        )
        placed = []
        for column, member, reference in zip(plan.columns, team.spec.members, team.members(), strict=True):
            box = replace(self._member(member, reference, team.namespace, depth), column=column)
            lines = (f"{member.as_} = {box.lines[0]}", *box.lines[1:]) if member.as_ else box.lines
            placed.append(replace(box, lines=(*lines, *_lines("", member.stance or "")[1:])))
        for index in plan.unreachable:
            placed[index] = replace(placed[index], lines=(*placed[index].lines, "is never reached"))
        helpers = [Box(shape, lines, column) for shape, lines, column in plan.helpers]
        return Box("team", head, inside=(*placed, *helpers), arrows=plan.arrows)

    def _member(self, member: Member, reference: Reference, namespace: str, depth: int) -> Box:
        """The box of a member, which in a panel may be a function, or a default one."""
        if reference.kinds and (self.catalog.find(reference) or not reference.optional):
            return self.referred(reference, namespace, depth + 1)
        function = member.type == "activity"
        return Box("tool" if function else "agent", _lines(member.name, "function" if function else member.role or ""))

    def _equipment(self, agent: Agent) -> list[str]:
        """Model and tools, in one line if there is room."""
        model = agent.model_reference()
        tools = [self._named(tool.name, reference) for tool, reference in agent.tools()]
        parts = [part for part in (self._named(model.name, model), ", ".join(tools)) if part]
        return [line] if len(line := " · ".join(parts)) <= LINE else parts

    def _named(self, name: str, reference: Reference | None) -> str:
        known = reference is None or reference.optional or self.catalog.find(reference)
        return name if known else f"{name} ({NOWHERE})".replace(" ", "\xa0")


def _title(named: Resource | Reference, namespace: str) -> str:
    """The name, with its namespace where that isn't the one around it."""
    return named.name if named.namespace == namespace else f"{named.namespace}/{named.name}"


def _short(text: str, length: int) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= length else f"{flat[: length - 1].rstrip()}…"


def _lines(title: str, *notes: str) -> tuple[str, ...]:
    """A title, and notes in lines that are not too wide, without characters that no picture can hold."""
    wrapped = (textwrap.wrap(note, LINE, break_on_hyphens=False) for note in notes)
    lines = (_short(title, TITLE), *chain.from_iterable(wrapped))
    return tuple(_NO_XML.sub("\ufffd", escape_control_characters(line)).replace("\xa0", " ") for line in lines)
