"""The data of a diagram: boxes that contain boxes, and arrows between them."""

from dataclasses import dataclass
from typing import Literal

Shape = Literal["page", "query", "team", "agent", "human", "model", "tool", "missing", "selector", "dot"]


@dataclass(frozen=True)
class Arrow:
    """An arrow between two boxes, which are given by their index in the box around them."""

    start: int
    end: int
    two_way: bool = False
    dashed: bool = False
    label: str = ""


@dataclass(frozen=True)
class Box:
    """A resource or another shape, with its lines of text.

    The boxes ``inside`` stand in columns, from left to right by their ``column``; ``arrows`` connect them.
    """

    shape: Shape
    lines: tuple[str, ...] = ()
    column: int = 0
    inside: tuple["Box", ...] = ()
    arrows: tuple[Arrow, ...] = ()


@dataclass(frozen=True)
class Arrangement:
    """How a team's members stand: the column of each, and the arrows between them.

    ``helpers`` are boxes that are no members; arrows count them after the members. ``unreachable`` are the members that
    never speak.
    """

    columns: tuple[int, ...]
    arrows: tuple[Arrow, ...] = ()
    helpers: tuple[Box, ...] = ()
    unreachable: tuple[int, ...] = ()
