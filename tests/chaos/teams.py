"""What runs while processes are killed: a team of each strategy, a query, and a model that numbers its replies."""

import asyncio
import hashlib
import json
import re
from collections import Counter
from itertools import pairwise
from typing import Any

from baton.contracts.status import Status
from baton.contracts.turn import TurnResult
from baton.testing import Reply, Request, ScriptedToolCall
from tests.chaos.environment import ProcessEnvironment
from tests.harness.environment import Handle, Json, agent, manifest, team, texts

MARK, LABEL = re.compile(r"<\d+>"), re.compile(r"run-[\w-]+")
DELAYED_CALL = 3
"""The number of the model call of each run that can be delayed."""

A, B, C, D = "abcd"
AGENTS = [agent(A, modelRef={"name": "secret-model"}), *map(agent, (B, C, D))]
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
    "handoff": team("team", A, B, C, D, strategy="handoff", maxTurns=4, **BOUND),
    "panel": manifest("Team", "team", {"strategy": "round-robin", "members": _ROLES, "maxRounds": 2}),
    "debate": manifest("Team", "team", {"strategy": "debate", "members": _STANCES, "maxRounds": 2}),
}
"""A panel is a round-robin whose members have roles; all others are strategies by their names."""

QUERY = "query"
"""A query to one agent, which takes the agent's turn in its own run: ``COUNTED`` tool calls, and an answer."""

COUNTED = 2
RUNS = (*TEAMS, QUERY)
_COUNTER = agent("counter", "calculator")


class ModelCall:
    """One model call: its run, and a hash of its messages."""

    def __init__(self, request: Request) -> None:
        said = json.dumps(request["messages"])
        self.run = LABEL.findall(said)[0]
        self.question = hashlib.sha256(said.encode()).hexdigest()


class MarkingModel:
    """Answers all members, selectors and judges. The third call of each run is answered after ``delay`` seconds.

    With ``holds`` it is answered once the server of the model releases it.
    """

    def __init__(self) -> None:
        self.delay, self.holds, self.said = 0.0, False, 0
        self.questions: dict[str, dict[str, list[int]]] = {}
        """By run and request, the numbers of the replies."""

    def answer(self, request: Request) -> Reply:
        """A reply that holds its number, so that it can be recognized in messages and in the journal."""
        asked, self.said = ModelCall(request), self.said + 1
        questions = self.questions.setdefault(asked.run, {})
        questions.setdefault(asked.question, []).append(self.said)
        reply = self._words(request, f"<{self.said}>")
        first = len(questions) == DELAYED_CALL and len(questions[asked.question]) == 1
        reply.delay = self.delay if first else 0.02
        reply.held = self.holds and first
        return reply

    def _words(self, request: Request, mark: str) -> Reply:
        system = str(request["messages"][0]["content"])
        if "You judge a debate" in system:
            return Reply(text=json.dumps({"verdict": f"{mark} It is KEY.", "winner": "Stance a", "reasoning": "So."}))
        if "You are counter" in system and sum(each["role"] == "tool" for each in request["messages"]) < COUNTED:
            return Reply(text=mark, calls=[ScriptedToolCall(name="calculator", arguments={"expression": "1 + 1"})])
        names = [tool["function"]["name"] for tool in request.get("tools", [])]
        if transfer := next((name for name in names if name.startswith("transfer_to_")), None):
            return Reply(text=mark, calls=[ScriptedToolCall(name=transfer, arguments={"message": mark})])
        if candidates := re.findall(r"which of them \((.*?)\)", system):
            choice = {"name": candidates[0].split(", ")[0]}
            return Reply(text=mark, calls=[ScriptedToolCall(name="select-next-speaker", arguments=choice)])
        return Reply(text=f"{mark} I was asked with KEY.")

    def calls(self, run: str) -> int:
        """How many different calls a run has made."""
        return len(self.questions.get(run, {}))

    def delayed_call(self, run: str) -> int | None:
        """The number of the reply to the delayed call, if it was made."""
        asked = [*self.questions.get(run, {}).values()]
        return asked[DELAYED_CALL - 1][0] if len(asked) >= DELAYED_CALL else None

    def repeated(self, run: str) -> list[int]:
        """The numbers of the first replies to calls that were made more than once."""
        return [numbers[0] for numbers in self.questions[run].values() for _ in numbers[1:]]


class TeamRun:
    """A run of a team of one strategy, or of a query to one agent."""

    def __init__(self, env: ProcessEnvironment, model: MarkingModel, strategy: str, label: str, handle: Handle) -> None:
        self._env, self._model, self.handle = env, model, handle
        self.strategy, self.label = strategy, label
        self.run_id = str(handle.first_execution_run_id)

    @classmethod
    async def start(cls, env: ProcessEnvironment, model: MarkingModel, strategy: str, number: str) -> "TeamRun":
        """Starts a team, or a query."""
        label, workflow = f"run-{strategy}-{number}", "round-robin" if strategy == "panel" else strategy
        given: Json = {"team": "team", "input": f"{label}?", "resources": [*AGENTS, TEAMS.get(strategy, _COUNTER)]}
        if strategy == QUERY:
            spec = {"input": f"{label}?", "targets": [{"type": "agent", "name": "counter"}]}
            given = {"name": "question", "spec": spec, "resources": [_COUNTER]}
        return cls(env, model, strategy, label, await env.start(workflow, given, label))

    @property
    def marks(self) -> Counter[str]:
        """How often each reply, by its number, is in the journal."""
        said = (row["content"] for row in self._env.rows(self.run_id) if row["role"] == "assistant")
        return Counter(mark for text in said for mark in MARK.findall(text))

    @property
    def is_delayed(self) -> bool:
        """Whether its delayed call was made."""
        return self._model.delayed_call(self.label) is not None

    @property
    def is_written(self) -> bool:
        """Whether the reply to its delayed call is in the journal, by this run or a child run."""
        return any(f"<{self._model.delayed_call(self.label)}>" in row["content"] for row in self._env.rows())

    async def end(self) -> Json:
        """Its result and rows, without what differs between two runs of the same team."""
        result = await asyncio.wait_for(self.handle.result(), 200)
        turn = (Status if self.strategy == QUERY else TurnResult).model_validate_json(json.dumps(result))
        messages = turn.messages if isinstance(turn, TurnResult) else turn.responses[0].messages
        rows = Counter(self._plain(f"{row['role']} {row['content']}") for row in self._env.rows(self.run_id))
        said = [self._plain(text) for text in texts(messages)]
        end: dict[str, Any] = {"stop": turn.stop_reason, "failure": str(turn.failure), "said": said}
        return {**end, "calls": self._model.calls(self.label), "rows": dict(sorted(rows.items()))}

    def _plain(self, text: str) -> str:
        return MARK.sub("<>", LABEL.sub("run", text))
