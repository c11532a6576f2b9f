"""The table of team strategies: their names and rules.

To add a strategy: add its name and its row here, its file in ``workflows/strategies/``, and its class in
``workflows/registry.py``. Fields of Team that only some strategies use are marked with `only_for` or `except_for`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

Strategy = Literal["sequential", "parallel", "round-robin", "selector", "graph", "debate", "handoff"]

RUN_TYPES = ("query", "agent", "model", "tool", *get_args(Strategy))
"""The workflow types that are runs."""

OWN_WORKFLOWS = frozenset({*RUN_TYPES, "expire", "notify"})
"""All workflow types of Baton, which no tool can start. A test compares them with those of the workers."""

SpeakingOrder = Literal["in_order", "at_once", "selected", "by_edges", "handed_off"]
"""Who speaks next: the next member in order; all concurrently; the selector's choice; the target of an edge; the member
to which the last speaker has transferred the conversation."""

PanelRole = Literal["referee", "moderator", "judge", "synthesizer"]
"""The roles in a panel or a debate besides its members."""


@dataclass(frozen=True)
class AppliesTo:
    """Marks a field of Team that only these strategies use; setting it with another strategy is an error."""

    strategies: tuple[Strategy, ...]


def only_for(*strategies: Strategy) -> AppliesTo:
    """The mark of a field that only these strategies use."""
    return AppliesTo(strategies)


def except_for(*strategies: Strategy) -> AppliesTo:
    """The mark of a field that all strategies but these use."""
    return AppliesTo(tuple(name for name in get_args(Strategy) if name not in strategies))


@dataclass(frozen=True)
class PanelRules:
    """The rules of a strategy whose teams can be panels (round-robin pattern: config reference).

    The ``default_roles`` have default agents unless the manifest says otherwise. ``always``: every team of the strategy
    is a panel; otherwise only one with a field of panels. ``stances``: every member needs a stance.
    """

    default_rounds: int
    default_roles: tuple[PanelRole, ...]
    always: bool = False
    stances: bool = False


class TeamShape(Protocol):
    """The properties of a team that determine whether its strategy alone might never end it."""

    @property
    def loops(self) -> bool:
        """Whether a sequence restarts after its last member."""

    @property
    def is_panel(self) -> bool:
        """Whether the team is a panel, whose number of rounds is limited."""

    @property
    def has_cycle(self) -> bool:
        """Whether the edges of a graph form a cycle."""


def _is_bounded(_: TeamShape) -> bool:
    return False


@dataclass(frozen=True)
class StrategyRules:
    """The rules for every team of one strategy (ARK: team strategies).

    ``turn_unit`` is the unit of ``maxTurns`` or ``maxRounds``. ``repeats``: members can speak more than once.
    ``is_endless`` returns whether a team's strategy alone might never end it; ``always_limited``: its models decide
    that, so a team without ``maxTurns`` has the default limit.
    """

    order: SpeakingOrder
    turn_unit: Literal["turn", "round"] = "turn"
    repeats: bool = False
    is_endless: Callable[[TeamShape], bool] = _is_bounded
    always_limited: bool = False
    panel: PanelRules | None = None

    @property
    def finds_members_by_name(self) -> bool:
        """Whether the next speaker is chosen by name, so that names have to be unique."""
        return self.order in ("selected", "by_edges", "handed_off")


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
    "handoff": StrategyRules("handed_off", repeats=True, always_limited=True),
}

PANEL_STRATEGIES: tuple[Strategy, ...] = tuple(name for name, rules in STRATEGIES.items() if rules.panel)
"""The strategies whose teams can be panels."""


def default_rounds(strategy: Strategy) -> int:
    """The default number of rounds of a panel with this strategy; 0 if the strategy has no panels."""
    panel = STRATEGIES[strategy].panel
    return panel.default_rounds if panel else 0


def listed() -> str:
    """The names of all strategies as a text: ``'sequential', 'parallel' … or 'debate'``."""
    *names, last = (f"'{name}'" for name in STRATEGIES)
    return f"{', '.join(names)} or {last}"
