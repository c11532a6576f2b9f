"""What does a scripted model say? The words of a YAML file, chosen by who asks and how often it has spoken."""

import re
from collections import Counter
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, field_validator

Request = dict[str, Any]
"""The JSON body of a request for a chat completion."""


MODEL_PREFIX = "scripted:"
"""What every model's name begins with in an answer, so that nobody takes a script's words for a model's."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ScriptedToolCall(_Strict):
    """A tool call."""

    name: str
    arguments: dict[str, Any] | str = {}
    id: str | None = None


class Reply(_Strict):
    """One answer, or one failure.

    It comes after ``delay`` seconds, its pieces ``pause`` seconds apart. With a ``status`` it is that HTTP error, with
    ``cut`` it breaks off after so many characters, with ``raw`` that is the body of the answer, with ``hang`` it never
    comes. ``before`` are failures that come first, each once.
    """

    text: str = ""
    calls: list[ScriptedToolCall] = []
    delay: float = 0
    pause: float = 0
    status: int | None = None
    code: str | None = None
    headers: dict[str, str] = {}
    cut: int | None = None
    raw: str | None = None
    hang: bool = False
    before: list["Reply"] = []


class ScriptLine(_Strict):
    """The answers of one speaker, in their order; the last is said again and again.

    ``system`` is a part of the system prompt by which it is known (case-blind; empty fits everybody), ``agent`` its
    name in the conversation, by which its earlier messages are counted.
    """

    system: str = ""
    agent: str | None = None
    model: str | None = None
    say: list[Reply] = Field(min_length=1)

    @field_validator("say", mode="before")
    @classmethod
    def _texts(cls, value: object) -> object:
        return (
            [{"text": each} if isinstance(each, str) else each for each in value] if isinstance(value, list) else value
        )

    def matches(self, request: Request) -> bool:
        """Whether it is this speaker who asks."""
        system = " ".join(each.get("content") or "" for each in request["messages"] if each["role"] == "system")
        return self.system.lower() in system.lower() and self.model in (None, request["model"])

    def turns_taken(self, request: Request) -> int:
        """How many messages of this speaker the conversation holds; in a panel, where it holds none, rounds count."""
        said: int = sum(
            each["role"] == "assistant" and self.agent in (None, each.get("name")) for each in request["messages"]
        )
        told = _ROUND.search(" ".join(str(each.get("content")) for each in request["messages"][:2]))
        return said + (int(told[1] or told[2]) - 1 if told else 0)


_ROUND = re.compile(
    r'# (?:This round|The round[^\n]*)\nRound (\d+) of|^.*\{"goal":.*"round":(\d+),"maxRounds"', re.DOTALL
)
"""How a panel tells in which round it is: default speakers in words, others as JSON."""


class Script(_Strict):
    """What a scripted model says; the first line that fits answers."""

    delay: float = 0
    lines: list[ScriptLine] = Field(min_length=1)

    def model_post_init(self, _context: object) -> None:
        """Begins to count the failures that were served."""
        self._served: Counter[tuple[int, int]] = Counter()

    @classmethod
    def read(cls, file: Path) -> "Script":
        """Reads a script; raises pydantic's ValidationError or yaml's YAMLError."""
        return cls.model_validate(yaml.safe_load(file.read_text()))

    def answer(self, request: Request) -> Reply:
        """What is said to a request."""
        for number, line in enumerate(self.lines):
            if line.matches(request):
                index = min(line.turns_taken(request), len(line.say) - 1)
                reply = line.say[index]
                served = self._served[number, index]
                if served < len(reply.before):
                    self._served[number, index] += 1
                    reply = reply.before[served]
                return reply.model_copy(update={"delay": reply.delay or self.delay})
        return Reply(status=404, text="no line of the script fits this request")
