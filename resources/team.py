"""``kind: Team``: who takes part, and by which strategy they speak (seeds 000 and 001)."""

from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from resources.base import NOT_YET, FieldError, Name, NameOrRef, NotYet, Plain, Ref, Reference
from resources.manifest import Manifest

Strategy = Literal["sequential", "parallel", "round-robin", "selector", "graph"]

_KINDS = {"agent": ("Agent",), "team": ("Team",), None: ("Agent", "Team")}


class Member(Plain):
    """One member. Without ``type`` it is the agent of that name, else the team of that name."""

    name: Name = Field(description="the name of an agent or a team")
    type: Literal["agent", "team"] | None = Field(None, description="'agent' or 'team'")
    namespace: Name | None = None


class Selector(Plain):
    """How the strategy ``selector`` chooses who speaks next."""

    model: NameOrRef | None = None
    agent: NameOrRef | None = None
    selector_prompt: str | None = None
    style: Literal["tool", "text"] | None = None
    enable_terminate_tool: bool = False
    terminate_prompt: str | None = None


class Edge(Plain):
    """Who may speak after whom."""

    from_: str = Field(alias="from", description="the member that has spoken")
    to: str = Field(description="the member that speaks next")


class Graph(Plain):
    """The edges of the strategy ``graph``."""

    edges: tuple[Edge, ...] = Field(min_length=1, description="at least one edge {from, to}")


class TeamSpec(Plain):
    """A team's ``spec``."""

    strategy: Annotated[Strategy, NotYet(frozenset({"parallel", "selector", "graph"}))] = Field(
        description="'sequential', 'parallel', 'round-robin', 'selector' or 'graph'"
    )
    members: tuple[Member, ...] = Field(min_length=1, description="at least one member {name, type}")
    description: str | None = Field(None, description="a word for people")
    max_turns: int | None = Field(None, ge=1, description="how many rounds a round-robin may take")
    on_max_turns: Literal["fail", "complete"] = Field("fail", description="'fail', or 'complete' for a normal end")
    loops: Annotated[bool, NOT_YET] = False
    selector: Annotated[Selector | None, NOT_YET] = None
    graph: Annotated[Graph | None, NOT_YET] = None

    @model_validator(mode="after")
    def _graph_fits(self) -> Self:
        if self.strategy == "graph" and not self.graph:
            raise FieldError(("graph",), "is missing: the strategy 'graph' needs graph.edges")
        names = {member.name for member in self.members}
        leaving: set[str] = set()
        for index, edge in enumerate(self.graph.edges if self.graph else ()):
            for end, name in (("from", edge.from_), ("to", edge.to)):
                if name not in names:
                    raise FieldError(("graph", "edges", index, end), f"'{name}' is not a member")
            if edge.from_ in leaving and self.strategy == "graph":
                raise FieldError(("graph", "edges", index), f"member '{edge.from_}' has more than one outgoing edge")
            leaving.add(edge.from_)
        return self


class Team(Manifest):
    """Members that answer a question together."""

    kind: Literal["Team"] = "Team"
    spec: TeamSpec = Field(description="the team's strategy and members")

    def references(self) -> Iterator[Reference]:
        yield from super().references()
        yield from self.members()

    def members(self) -> Iterator[Reference]:
        """Who speaks in this team, in the order written."""
        for index, member in enumerate(self.spec.members):
            ref = Ref(name=member.name, namespace=member.namespace)
            yield self._refer(("spec", "members", index, "name"), _KINDS[member.type], ref)
