"""The table of team strategies: their names, and the rules in which they differ.

To add a strategy: its name and its row here, its file in ``workflows/strategies/``, and its class in
``workflows/registry.py``. A field of a team that only some strategies use names them with `only_for`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

Strategy = Literal["sequential", "parallel", "round-robin", "selector", "graph", "debate"]

SpeakingOrder = Literal["in_order", "at_once", "selected", "by_edges"]
"""Who speaks next: the next member in order; all at the same time; the choice of a selector; the end of an edge."""

PanelRole = Literal["referee", "moderator", "judge", "synthesizer"]
"""Who can take part in a panel or a debate besides its members."""


@dataclass(frozen=True)
class AppliesTo:
    """Marks a field of a team that only these strategies use; with any other strategy it is an error to set it."""

    strategies: tuple[Strategy, ...]


def only_for(*strategies: Strategy) -> AppliesTo:
    """The mark of a field that only these strategies use."""
    return AppliesTo(strategies)


@dataclass(frozen=True)
class PanelRules:
    """The rules of a strategy whose teams can be panels (round-robin pattern: config reference).

    The ``default_roles`` are filled unless the manifest says otherwise. ``always`` tells that every team of the
    strategy is a panel; else it is one if it has a field of panels. ``stances`` tells that each member needs a stance.
    """

    default_rounds: int
    default_roles: tuple[PanelRole, ...]
    always: bool = False
    stances: bool = False


class TeamShape(Protocol):
    """What decides whether the strategy of a team alone might never end it."""

    @property
    def loops(self) -> bool:
        """Whether the members of a sequence speak again from the first one."""

    @property
    def is_panel(self) -> bool:
        """Whether the team has rounds, whose number is bounded."""

    @property
    def has_cycle(self) -> bool:
        """Whether the edges of a graph lead back to a member that has spoken."""


def _is_bounded(_: TeamShape) -> bool:
    return False


@dataclass(frozen=True)
class StrategyRules:
    """The rules for every team of one strategy (ARK: team strategies).

    ``turn_unit`` is what ``maxTurns`` or ``maxRounds`` counts. ``repeats`` tells that members can speak more than once.
    ``is_endless`` tells of a team whether its strategy alone might never end it.
    """

    order: SpeakingOrder
    turn_unit: Literal["turn", "round"] = "turn"
    repeats: bool = False
    is_endless: Callable[[TeamShape], bool] = _is_bounded
    panel: PanelRules | None = None

    @property
    def finds_members_by_name(self) -> bool:
        """Whether the next speaker is found by its name, so that names have to be unique."""
        return self.order in ("selected", "by_edges")


STRATEGIES: dict[Strategy, StrategyRules] = {
    "sequential": StrategyRules("in_order", is_endless=lambda team: team.loops),
    "parallel": StrategyRules("at_once"),
    "round-robin": StrategyRules(
        "in_order",
        turn_unit="round",
        repeats=True,
        is_endless=lambda team: not team.is_panel,
        panel=PanelRules(default_rounds=5, default_roles=("synthesizer",)),
    ),
    "selector": StrategyRules(
        "selected",
        repeats=True,
        is_endless=lambda _: True,
    ),
    "graph": StrategyRules(
        "by_edges",
        repeats=True,
        is_endless=lambda team: team.has_cycle,
    ),
    "debate": StrategyRules(
        "in_order",
        turn_unit="round",
        repeats=True,
        panel=PanelRules(default_rounds=2, default_roles=("judge", "synthesizer"), always=True, stances=True),
    ),
}

PANEL_STRATEGIES: tuple[Strategy, ...] = tuple(name for name, rules in STRATEGIES.items() if rules.panel)
"""The strategies whose teams can be panels."""


def default_rounds(strategy: Strategy) -> int:
    """How many rounds a panel of this strategy has if its manifest doesn't say; 0 where there are no panels."""
    panel = STRATEGIES[strategy].panel
    return panel.default_rounds if panel else 0


def listed() -> str:
    """The names of all strategies as a text: ``'sequential', 'parallel' … or 'debate'``."""
    *names, last = (f"'{name}'" for name in STRATEGIES)
    return f"{', '.join(names)} or {last}"
