"""Hypothesis strategies for random teams: all strategies, nested, with members of every behavior."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from baton.testing import Reply, Request, ScriptedToolCall
from tests.harness.environment import Json, agent, manifest

BEHAVIORS = ("answers", "calculates", "is busy", "errs", "stumbles", "ends", "fails")
SELECTOR_BEHAVIORS = ("good", "loud", "garbage", "last", "both", "ends", "fails")
"""What agents do in a turn, and what a selector replies."""

TOOLS = ("calculator", "noop", "terminate")
STRATEGIES = ("sequential", "round-robin", "selector", "graph", "parallel")
ALL_STRATEGIES = (*STRATEGIES, "handoff", "panel", "debate")
"""A panel is a round-robin with the fields of panels."""

CONDITIONS = ("true", "false", "turn < 3", "message.contains('1')", "speaker.endsWith('0') || tokens > 100")
AGGREGATOR = "x"
TOKEN = re.compile(r"<\d+>")
"""Every reply of the model holds a number of its own."""


@dataclass(frozen=True)
class Node:
    """An agent with a behavior for each of its turns, or a team with its members.

    It is named after its position: ``team-0-2`` is the third member of the first member of ``team``. ``tools`` are
    those of an agent.
    """

    behaviors: tuple[str, ...] = ()
    members: tuple["Node", ...] = ()
    spec: Json = field(default_factory=dict)
    tools: tuple[str, ...] = TOOLS

    def named(self, name: str = "team") -> Iterator[tuple[str, "Node"]]:
        """All agents and teams with their names."""
        yield name, self
        for index, member in enumerate(self.members):
            yield from member.named(f"{name}-{index}")
        if self.spec.get("aggregator"):
            yield f"{name}-{AGGREGATOR}", Node(self.behaviors, tools=self.tools)

    def manifests(self) -> list[Json]:
        """The manifests of all of them."""
        return [node.manifest(name) for name, node in self.named()]

    def manifest(self, name: str) -> Json:
        """Its own manifest."""
        if not self.members:
            return agent(name, *self.tools, parallelToolCalls=True, **self.spec)
        spec = {**self.spec, "members": [self._member(f"{name}-{index}") for index in range(len(self.members))]}
        if edges := spec.pop("edges", ()):
            spec["graph"] = {"edges": [{**edge, "from": f"{name}-{a}", "to": f"{name}-{b}"} for a, b, edge in edges]}
        if spec.get("aggregator"):
            spec["aggregator"] = f"{name}-{AGGREGATOR}"
        return manifest("Team", name, spec)

    def _member(self, name: str) -> Json:
        """The entry of a member; debaters have a stance."""
        return {"name": name, **({"stance": f"the side of {name}"} if self.spec["strategy"] == "debate" else {})}

    @property
    def bound(self) -> int:
        """How many turns it may take at most as a team."""
        spec, count = self.spec, len(self.members)
        if spec["strategy"] == "round-robin":
            return int(spec["maxTurns"]) * count
        return int(spec["maxTurns"]) if "maxTurns" in spec else count + ("aggregator" in spec)


AGENTS = st.builds(Node, st.lists(st.sampled_from(BEHAVIORS), min_size=1, max_size=2).map(tuple))


NO_BUDGET: st.SearchStrategy[Json] = st.just({})


def nodes(
    depth: int = 3,
    strategies: Sequence[str] = STRATEGIES,
    agents: st.SearchStrategy[Node] = AGENTS,
    budgets: st.SearchStrategy[Json] = NO_BUDGET,
) -> st.SearchStrategy[Node]:
    """Agents, and teams nested up to a depth."""
    return agents if depth == 0 else st.one_of(agents, teams(depth, strategies, agents, budgets))


@st.composite
def teams(
    draw: st.DrawFn,
    depth: int = 3,
    strategies: Sequence[str] = STRATEGIES,
    agents: st.SearchStrategy[Node] = AGENTS,
    budgets: st.SearchStrategy[Json] = NO_BUDGET,
) -> Node:
    """A team of one of these strategies, with its settings, and with one of these budgets; ``{}`` is none."""
    strategy = draw(st.sampled_from(strategies))
    fewest = 2 if strategy == "debate" else 1
    members = tuple(draw(st.lists(nodes(depth - 1, strategies, agents, budgets), min_size=fewest, max_size=3)))
    spec: Json = {"strategy": "round-robin" if strategy == "panel" else strategy}
    if strategy in ("panel", "debate"):
        spec |= draw(_PANEL if strategy == "panel" else _DEBATE)
    elif strategy == "parallel":
        spec |= draw(st.fixed_dictionaries({}, optional=_PARALLEL))
    elif strategy != "sequential" or draw(st.booleans()):
        spec |= draw(st.fixed_dictionaries({"maxTurns": st.integers(1, 4)}, optional=_BOUNDED))
        spec |= {"loops": True} if strategy == "sequential" else {}
    if strategy == "selector":
        spec["selector"] = draw(st.fixed_dictionaries({}, optional=_SELECTOR))
    if strategy == "graph" or (strategy == "selector" and draw(st.booleans())):
        spec["edges"] = draw(edges(len(members), conditional=strategy == "graph"))
    if budget := draw(budgets):
        spec["budget"] = budget
    return Node(("answers",), members, spec)


_PARALLEL: dict[str, Any] = {
    "aggregator": st.just(AGGREGATOR),
    "maxConcurrency": st.integers(1, 2),
    "onMemberError": st.sampled_from(("fail", "continue")),
}
_BOUNDED: dict[str, Any] = {"onMaxTurns": st.just("complete"), "terminateWhen": st.sampled_from(CONDITIONS)}
_PANEL = st.fixed_dictionaries(
    {"maxRounds": st.integers(1, 2)}, optional={"referee": st.just(True), "synthesizer": st.just(False)}
)
_DEBATE = st.fixed_dictionaries(
    {"maxRounds": st.integers(1, 2), "shuffleForJudge": st.just(False)},  # the order would differ in each run
    optional={"moderator": st.just(True), "synthesizer": st.just(False)},
)
_SELECTOR: dict[str, Any] = {"style": st.just("text"), "enableTerminateTool": st.booleans()}


@st.composite
def edges(draw: st.DrawFn, count: int, *, conditional: bool) -> list[tuple[int, int, Json]]:
    """Edges between so many members, at least one."""
    indices = st.integers(0, count - 1)
    drawn: list[tuple[int, int, Json]] = []
    for index in range(count):
        if conditional and draw(st.booleans()):
            drawn.append((index, draw(indices), {"when": draw(st.sampled_from(CONDITIONS))}))
        if not drawn or draw(st.booleans()):
            drawn.append((index, draw(indices), {}))
    return drawn


class RandomTeamModel:
    """A model that answers all members and selectors of a team. ``exchanges`` are its requests and replies."""

    def __init__(self, team: Node, selector_behaviors: list[str], slow: int | None = None) -> None:
        self.behaviors = {name: node.behaviors for name, node in team.named()}
        self.selector_behaviors, self.slow = selector_behaviors, slow
        self.exchanges: list[tuple[Request, Reply]] = []
        self.turns, self.choices = Counter[str](), 0

    def answer(self, request: Request) -> Reply:
        """The reply to a request; reply number ``slow`` is delayed."""
        mark = f"<{len(self.exchanges)}>"
        reply = self._choose(request, mark) if is_choice(request) else self._speak(request, mark)
        reply.delay = 0.3 if len(self.exchanges) + 1 == self.slow else 0
        self.exchanges.append((request, reply))
        return reply

    def _speak(self, request: Request, mark: str) -> Reply:
        messages = request["messages"]
        name = str(messages[0]["content"]).removeprefix("You are ").removesuffix(".")
        if messages[-1]["role"] == "tool":
            return Reply(text=f"So it is {mark}.")
        behaviors = self.behaviors[name]
        behavior = behaviors[min(self.turns[name], len(behaviors) - 1)]
        self.turns[name] += 1
        calculation = ScriptedToolCall(name="calculator", arguments={"expression": "6*7"})
        match behavior:
            case "calculates":
                return Reply(text=mark, calls=[calculation])
            case "is busy":
                return Reply(text=mark, calls=[calculation, ScriptedToolCall(name="noop", arguments={"message": "x"})])
            case "errs":
                return Reply(text=mark, calls=[ScriptedToolCall(name="unknown"), ScriptedToolCall(name="calculator")])
            case "ends":
                return Reply(text=mark, calls=[ScriptedToolCall(name="terminate", arguments={"response": "Done."})])
            case "fails":
                return Reply(status=400, text="no")
            case "stumbles" if self.turns[name] == 1:
                return Reply(status=503, headers={"retry-after-ms": "1"})
        return Reply(text=f"{name} says {mark}.")

    def _choose(self, request: Request, mark: str) -> Reply:
        names = str(re.findall(r"which of them \((.*?)\)", request["messages"][0]["content"])[0]).split(", ")
        selector_behavior, self.choices = (
            self.selector_behaviors[self.choices % len(self.selector_behaviors)],
            self.choices + 1,
        )
        good, by_tool = names[self.choices % len(names)], bool(request.get("tools"))
        match selector_behavior:
            case "good":
                return named(good) if by_tool else Reply(text=good)
            case "loud":
                return Reply(text=f"It is {good.upper()}, I think.")
            case "last":
                return Reply(text=f"{re.findall('# (.*):', request['messages'][0]['content'])[-1]}")
            case "both":
                return Reply(text=" or ".join(names))
            case "ends":
                end = ScriptedToolCall(name="terminate", arguments={"response": f"Enough {mark}."})
                return Reply(calls=[end]) if by_tool else Reply(text=f"TERMINATE: Enough {mark}.")
            case "fails":
                return Reply(status=400, text="no")
        return Reply(text="Bananas.")


def named(name: str) -> Reply:
    """A selector's reply by its tool."""
    return Reply(calls=[ScriptedToolCall(name="select-next-speaker", arguments={"name": name})])


def is_choice(request: Request) -> bool:
    """Whether a request comes from a selector."""
    return "You moderate a discussion" in str(request["messages"][0]["content"])
