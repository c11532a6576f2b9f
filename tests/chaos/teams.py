"""Which teams are killed? One of each strategy, played by a model that marks every answer with a number of its own."""

import asyncio
import hashlib
import json
import re
from collections import Counter
from itertools import pairwise
from typing import Any

from baton.conversation.messages.turn import TurnResult
from baton.starter.scripted_model.script import Call, Reply, Request
from tests.chaos.ground import Ground
from tests.harness.environment import Handle, Json, agent, manifest, team, texts

MARK, LABEL = re.compile(r"<\d+>"), re.compile(r"run-[\w-]+")
HELD_CALL = 3
"""The call of each run for whose answer the model can be made to take its time."""

A, B, C, D = "abcd"
AGENTS = [agent(A, modelRef={"name": "held"}), *map(agent, (B, C, D))]
EDGES = {"edges": [{"from": one, "to": other} for one, other in pairwise((A, B, C, D))]}
BOUND = {"onMaxTurns": "complete"}
_ROLES = [{"name": name, "role": f"the {name}"} for name in (A, B)]
_STANCES = [{"name": name, "stance": f"Stance {name}"} for name in (A, B)]
TEAMS: dict[str, Json] = {
    "sequential": team("team", A, B, C, D, strategy="sequential"),
    "parallel": team("team", A, B, C, strategy="parallel", aggregator=D),
    "round-robin": team("team", A, B, maxTurns=2, **BOUND),
    "selector": team("team", A, B, C, strategy="selector", maxTurns=3, **BOUND),
    "graph": team("team", A, B, C, D, strategy="graph", graph=EDGES, maxTurns=4, **BOUND),
    "panel": manifest("Team", "team", {"strategy": "round-robin", "members": _ROLES, "maxRounds": 2}),
    "debate": manifest("Team", "team", {"strategy": "debate", "members": _STANCES, "maxRounds": 2}),
}
"""A panel is a round-robin whose members have roles; all others are strategies by their names."""


class Asked:
    """One call of a run: which question it was, and which answers were given to it."""

    def __init__(self, request: Request) -> None:
        said = json.dumps(request["messages"])
        self.run = LABEL.findall(said)[0]
        self.question = hashlib.sha256(said.encode()).hexdigest()


class Cast:
    """Plays all members, selectors and judges. The third call of each run is answered after ``hold`` seconds."""

    def __init__(self) -> None:
        self.hold, self.said = 0.0, 0
        self.questions: dict[str, dict[str, list[int]]] = {}
        """By run and question, the numbers of the answers that were given."""

    def answer(self, request: Request) -> Reply:
        """What is said, with a number by which it is known wherever it stands."""
        asked, self.said = Asked(request), self.said + 1
        questions = self.questions.setdefault(asked.run, {})
        questions.setdefault(asked.question, []).append(self.said)
        reply = self._words(request, f"<{self.said}>")
        first = len(questions) == HELD_CALL and len(questions[asked.question]) == 1
        reply.delay = self.hold if first else 0.02
        return reply

    def _words(self, request: Request, mark: str) -> Reply:
        system = str(request["messages"][0]["content"])
        if "You judge a debate" in system:
            return Reply(text=json.dumps({"verdict": f"{mark} It is KEY.", "winner": "Stance a", "reasoning": "So."}))
        if candidates := re.findall(r"which of them \((.*?)\)", system):
            choice = {"name": candidates[0].split(", ")[0]}
            return Reply(text=mark, calls=[Call(name="select-next-speaker", arguments=choice)])
        return Reply(text=f"{mark} I was asked with KEY.")

    def calls(self, run: str) -> int:
        """How many calls a run has made, each counted once."""
        return len(self.questions.get(run, {}))

    def held(self, run: str) -> int | None:
        """The number of the answer that took its time."""
        asked = [*self.questions.get(run, {}).values()]
        return asked[HELD_CALL - 1][0] if len(asked) >= HELD_CALL else None

    def repeated(self, run: str) -> list[int]:
        """The numbers of first answers whose question was asked once more."""
        return [numbers[0] for numbers in self.questions[run].values() for _ in numbers[1:]]


class Played:
    """A run of a team of one strategy."""

    def __init__(self, ground: Ground, cast: Cast, strategy: str, label: str, handle: Handle) -> None:
        self._ground, self._cast, self.handle = ground, cast, handle
        self.strategy, self.label = strategy, label
        self.run_id = str(handle.first_execution_run_id)

    @classmethod
    async def begin(cls, ground: Ground, cast: Cast, strategy: str, number: str) -> "Played":
        """Starts a team."""
        label, workflow = f"run-{strategy}-{number}", "round-robin" if strategy == "panel" else strategy
        given = {"team": "team", "input": f"{label}?", "resources": [*AGENTS, TEAMS[strategy]]}
        return cls(ground, cast, strategy, label, await ground.start(workflow, given, label))

    @property
    def marks(self) -> Counter[str]:
        """The answers that stand in the journal, by their numbers."""
        said = (row["content"] for row in self._ground.rows(self.run_id) if row["role"] == "assistant")
        return Counter(mark for text in said for mark in MARK.findall(text))

    @property
    def is_held(self) -> bool:
        """Whether its third call was made."""
        return self._cast.held(self.label) is not None

    @property
    def is_kept(self) -> bool:
        """Whether the answer to its third call stands in the journal."""
        return f"<{self._cast.held(self.label)}>" in self.marks

    async def end(self) -> Json:
        """What has come of it, without what differs between two runs of the same team."""
        turn = TurnResult.model_validate_json(json.dumps(await asyncio.wait_for(self.handle.result(), 60)))
        rows = Counter(self._plain(f"{row['role']} {row['content']}") for row in self._ground.rows(self.run_id))
        said = [self._plain(text) for text in texts(turn.messages)]
        end: dict[str, Any] = {"stop": turn.stop_reason, "failure": str(turn.failure), "said": said}
        return {**end, "calls": self._cast.calls(self.label), "rows": dict(sorted(rows.items()))}

    def _plain(self, text: str) -> str:
        return MARK.sub("<>", LABEL.sub("run", text))
