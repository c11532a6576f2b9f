"""What does a strategy need to be told? The parts of a team's ``spec`` that belong to one strategy or end a team."""

from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from .base import FieldError, JsonModel, NameOrRef, Path
from .condition import Condition
from .template import check_names

PROMPT_NAMES = ("Roles", "Participants", "History")
"""What can stand in a selector's prompt (seed 001, Template Variables)."""


def _check_prompt(text: str) -> str:
    check_names(text, PROMPT_NAMES)
    return text


class SelectorSpec(JsonModel):
    """How the strategy ``selector`` chooses who speaks next."""

    model: NameOrRef | None = Field(None, description="the Model that chooses; by default the Model 'default'")
    agent: NameOrRef | None = Field(None, description="the Agent that chooses, in place of a model")
    selector_prompt: Annotated[str, AfterValidator(_check_prompt)] | None = Field(
        None, min_length=1, description="what it is told, with {{.Roles}}, {{.Participants}} and {{.History}}"
    )
    style: Literal["tool", "text"] = Field("tool", description="'tool' for a forced tool call, or 'text'")
    enable_terminate_tool: bool = Field(False, description="whether it can end the team")
    terminate_prompt: str | None = Field(None, min_length=1, description="when it is to end the team")

    @model_validator(mode="after")
    def _one_chooser(self) -> Self:
        if self.model and self.agent:
            raise FieldError(("agent",), "stands beside model: keep one of them")
        return self


class Edge(JsonModel):
    """Who may speak after whom."""

    from_: str = Field(alias="from", description="the member that has spoken")
    to: str = Field(description="the member that speaks next")
    when: Condition | None = Field(None, description="a condition in CEL; edges are tried in order")


class GraphSpec(JsonModel):
    """The edges of the strategy ``graph``, or those that limit a selector."""

    edges: tuple[Edge, ...] = Field(min_length=1, description="at least one edge {from, to}")

    def problems(self, addresses: list[str], *, limits: bool) -> Iterator[tuple[Path, str]]:
        """What is wrong with the edges between these members; they may only limit a selector."""
        closed: dict[str, bool] = {}
        for index, edge in enumerate(self.edges):
            path: Path = ("edges", index)
            for end, name in (("from", edge.from_), ("to", edge.to)):
                if name not in addresses:
                    yield (*path, end), f"'{name}' is not a member"
            if limits and edge.when:
                yield (*path, "when"), "has no use beside a selector, which decides by itself: take it out"
            elif edge.from_ in closed and not limits:
                text = f"member '{edge.from_}' has more than one outgoing edge"
                yield path, text if not edge.when else f"{text}, and an edge without 'when' stands before this one"
            if not edge.when:
                closed[edge.from_] = True

    def has_cycle(self, start: str) -> bool:
        """Whether a way along the edges leads from ``start`` back to where it has been."""
        way, ways, seen = [start], [self._after(start)], {start}
        while ways:
            step = next(ways[-1], None)
            if step is None:
                way.pop(), ways.pop()
            elif step in way:
                return True
            elif step not in seen:
                seen.add(step)
                way.append(step)
                ways.append(self._after(step))
        return False

    def _after(self, name: str) -> Iterator[str]:
        return (edge.to for edge in self.edges if edge.from_ == name)


class NoProgress(JsonModel):
    """When a discussion counts as one that gets nowhere."""

    window: int = Field(4, ge=2, description="how many turns in a row may repeat what their speaker has said before")
    action: Literal["stop", "warn"] = Field("stop", description="'stop', or 'warn' in the log alone")
