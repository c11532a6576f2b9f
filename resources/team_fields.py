"""Parts of a team's ``spec``: the selector, the graph, and when a team makes no progress."""

from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from .base import FieldError, JsonModel, NameOrRef, Path
from .condition import Condition
from .template import check_names

PROMPT_NAMES = ("Roles", "Participants", "History")
"""The names in a selector's prompt (ARK: team strategies, template variables)."""


def _check_prompt(text: str) -> str:
    check_names(text, PROMPT_NAMES)
    return text


class SelectorSpec(JsonModel):
    """How the strategy ``selector`` chooses who speaks next."""

    model: NameOrRef | None = Field(None, description="the Model that chooses; by default the Model 'default'")
    agent: NameOrRef | None = Field(None, description="the Agent that chooses, in place of a model")
    selector_prompt: Annotated[str, AfterValidator(_check_prompt)] | None = Field(
        None, min_length=1, description="its prompt, with {{.Roles}}, {{.Participants}} and {{.History}}"
    )
    style: Literal["tool", "text"] = Field("tool", description="'tool' for a forced tool call, or 'text'")
    enable_terminate_tool: bool = Field(False, description="whether the selector can end the team")
    terminate_prompt: str | None = Field(None, min_length=1, description="in which case it should end the team")

    @model_validator(mode="after")
    def _one_model_or_agent(self) -> Self:
        if self.model and self.agent:
            raise FieldError(("agent",), "can't be combined with model: keep one of them")
        return self


class Edge(JsonModel):
    """An edge: a member that may speak after another one."""

    from_: str = Field(alias="from", description="the member that has spoken")
    to: str = Field(description="the member that speaks next")
    when: Condition | None = Field(None, description="a condition in CEL; edges are tried in order")


class GraphSpec(JsonModel):
    """The edges of the strategy ``graph``, or those that limit a selector."""

    edges: tuple[Edge, ...] = Field(min_length=1, description="at least one edge {from, to}")

    def problems(self, names: list[str], *, limits: bool) -> Iterator[tuple[Path, str]]:
        """The errors of the edges between these members. With ``limits`` the edges limit a selector's choice."""
        closed: dict[str, bool] = {}
        for index, edge in enumerate(self.edges):
            path: Path = ("edges", index)
            for end, name in (("from", edge.from_), ("to", edge.to)):
                if name not in names:
                    yield (*path, end), f"'{name}' is not a member"
            if limits and edge.when:
                yield (*path, "when"), "can't be used with a selector, which decides itself: remove it"
            elif edge.from_ in closed and not limits:
                text = f"member '{edge.from_}' has more than one outgoing edge"
                yield path, text if not edge.when else f"{text}, and an earlier edge has no 'when'"
            if not edge.when:
                closed[edge.from_] = True

    def has_cycle(self, start: str) -> bool:
        """Whether a path along the edges, from ``start``, reaches a member twice."""
        path, branches, seen = [start], [self._after(start)], {start}
        while branches:
            step = next(branches[-1], None)
            if step is None:
                path.pop(), branches.pop()
            elif step in path:
                return True
            elif step not in seen:
                seen.add(step)
                path.append(step)
                branches.append(self._after(step))
        return False

    def _after(self, name: str) -> Iterator[str]:
        return (edge.to for edge in self.edges if edge.from_ == name)


class NoProgress(JsonModel):
    """When a team makes no progress: its members only repeat themselves."""

    window: int = Field(4, ge=2, description="how many turns in a row may repeat earlier messages of their speakers")
    action: Literal["stop", "warn"] = Field("stop", description="'stop' ends the team, 'warn' only logs a warning")
