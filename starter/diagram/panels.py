"""Arranges the members of a panel or a debate: its rounds as a loop, then the judge and the synthesizer."""

from collections.abc import Mapping
from itertools import pairwise

from ...resources.team import TeamSpec
from .model import Arrangement, Arrow, Box


def arrange_panel(spec: TeamSpec, role_holders: Mapping[str, str]) -> Arrangement:
    """The members in a row or, with a moderator, next to it; then referee, judge and synthesizer, if it has them."""
    count = len(spec.members)
    members = _moderated(count) if "moderator" in role_holders else _in_row(count)
    helpers = [Box("agent", _lines("moderator", role_holders))] if "moderator" in role_holders else []
    arrows, last = [*members.arrows], count if helpers else count - 1
    column = max(members.columns)
    for role in ("referee", "judge", "synthesizer"):
        if role in role_holders:
            column += 1
            helpers.append(Box("agent", _lines(role, role_holders), column))
            before, last = last, count + len(helpers) - 1
            arrows.append(Arrow(before, last))
        if role == "referee" and spec.rounds > 1 and "moderator" not in role_holders:
            arrows.append(Arrow(last, 0))
    return Arrangement(members.columns, tuple(arrows), tuple(helpers))


def _moderated(count: int) -> Arrangement:
    """The members next to the moderator, who is the first box after them."""
    return Arrangement((1,) * count, tuple(Arrow(count, index, two_way=True) for index in range(count)))


def _in_row(count: int) -> Arrangement:
    return Arrangement(tuple(range(count)), tuple(Arrow(*pair) for pair in pairwise(range(count))))


def _lines(role: str, role_holders: Mapping[str, str]) -> tuple[str, ...]:
    """The name of who has a role, and the role unless that is the name."""
    name = role_holders[role]
    return (name,) if name == role else (name, role)
