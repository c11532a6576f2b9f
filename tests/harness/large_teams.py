"""Large teams: many agents at once, each with many steps and long results of tools; and long panels."""

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator

from baton.testing import Reply, Request, ScriptedToolCall
from tests.harness.environment import Json, agent, manifest, team
from tests.harness.panels import panel, role_member
from tests.harness.tool_server import Answer, ToolServer

STEPS = 18
"""Answers of each agent before its last one."""

RESULTS = 3
"""Tool calls of each of these answers."""

RESULT = "x" * 66_000
"""The result of each tool call."""

WINDOW = 8
"""Messages of the conversation that an agent reads."""

PARALLEL_CALLS = (STEPS + 1, STEPS * RESULTS)
"""The calls of models and of tools that each agent makes."""


class BusyModel:
    """A model in whose answers each agent uses tools, until its last one."""

    def __init__(self) -> None:
        self._steps = Counter[str]()
        self._lock = threading.Lock()

    def answer(self, request: Request) -> Reply:
        """The next answer of the agent that asks."""
        name = str(request["messages"][0]["content"])
        with self._lock:
            self._steps[name] += 1
            step = self._steps[name]
        if step > STEPS:
            return Reply(text=f"Done after {STEPS} steps.")
        call = ScriptedToolCall(name="look", arguments={"step": step})
        return Reply(text=f"step {step}", calls=[call] * RESULTS)


@contextlib.contextmanager
def serving_tool() -> Iterator[str]:
    """Serves the tool of a busy team while the block runs; yields its URL."""
    server = ToolServer()
    server.answers(Answer(RESULT))
    with server.serving():
        yield server.url


def busy_team(members: int, tool: str) -> list[Json]:
    """A parallel team of so many agents, whose tool is at a URL."""
    schema = {"type": "object", "properties": {"step": {"type": "integer"}}}
    look = {"type": "http", "description": "Looks.", "http": {"url": tool}, "inputSchema": schema}
    names = [f"a{number}-of-{members}" for number in range(members)]  # the model counts the steps of each name
    spec: Json = {"parallelToolCalls": True, "contextWindow": {"maxMessages": WINDOW}}
    agents = [agent(name, "look", **spec) for name in names]
    return [manifest("Tool", "look", look), *agents, team("team", *names, strategy="parallel")]


def long_panel(seats: int, rounds: int) -> list[Json]:
    """A panel of so many seats and rounds, with a synthesizer."""
    return [panel(*(role_member(f"s{number}") for number in range(seats)), maxRounds=rounds)]
