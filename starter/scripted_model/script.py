"""The script of a scripted model: the answers of each speaker, read from a YAML file."""

import re
from collections import Counter
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, field_validator

Request = dict[str, Any]
"""The JSON body of a request for a chat completion."""

MODEL_PREFIX = "scripted:"
"""How the model's name begins in every answer, so that nobody takes it for the answer of a language model."""


class _ScriptPart(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ScriptedToolCall(_ScriptPart):
    """A tool call in an answer."""

    name: str
    arguments: dict[str, Any] | str = {}
    id: str | None = None


class Reply(_ScriptPart):
    """One answer or one failure.

    - ``text`` and ``calls``: the answer. ``delay``: seconds before it. ``pause``: seconds between its chunks.
    - ``status``: this HTTP error in place of an answer, with the error ``code`` and the ``headers``.
    - ``cut``: the stream breaks off after so many characters. ``raw``: the whole body. ``hang``: it never answers.
    - ``before``: failures that are served first, each once.
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


class ScriptLine(_ScriptPart):
    """The answers of one speaker in their order; the last one is repeated.

    A request is the speaker's if its system prompt contains ``system``, in any case, and if it asks for ``model``; each
    fits any request if it is left out. The speaker's earlier turns are the messages of ``agent`` in the conversation.
    """

    system: str = ""
    agent: str | None = None
    model: str | None = None
    say: list[Reply] = Field(min_length=1)

    @field_validator("say", mode="before")
    @classmethod
    def _expand_texts(cls, value: object) -> object:
        """A text in the list stands for an answer with that text."""
        if not isinstance(value, list):
            return value
        return [{"text": each} if isinstance(each, str) else each for each in value]

    def matches(self, request: Request) -> bool:
        """Whether a request is this speaker's."""
        system = " ".join(each.get("content") or "" for each in request["messages"] if each["role"] == "system")
        return self.system.lower() in system.lower() and self.model in (None, request["model"])

    def turns_taken(self, request: Request) -> int:
        """The speaker's messages in the conversation, or in a panel, where it sees none, the rounds that are over."""
        messages: int = sum(
            each["role"] == "assistant" and self.agent in (None, each.get("name")) for each in request["messages"]
        )
        found = _ROUND.search(" ".join(str(each.get("content")) for each in request["messages"][:2]))
        return messages + (int(found[1] or found[2]) - 1 if found else 0)


_ROUND = re.compile(
    r'# (?:This round|The round[^\n]*)\nRound (\d+) of|^.*\{"goal":.*"round":(\d+),"maxRounds"', re.DOTALL
)
"""Where a panel's prompts name the round: as text for default speakers, as JSON for others."""


class Script(_ScriptPart):
    """A script. The first of its ``lines`` that matches a request answers it; ``delay`` is the default of answers."""

    delay: float = 0
    lines: list[ScriptLine] = Field(min_length=1)

    def model_post_init(self, _context: object) -> None:
        """Starts to count the failures that were served."""
        self._failures_served: Counter[tuple[int, int]] = Counter()

    @classmethod
    def read(cls, file: Path) -> "Script":
        """Reads a script; raises pydantic's ValidationError or yaml's YAMLError."""
        return cls.model_validate(yaml.safe_load(file.read_text()))

    def answer(self, request: Request) -> Reply:
        """The answer to a request; an HTTP error 404 if no line matches it."""
        for number, line in enumerate(self.lines):
            if line.matches(request):
                index = min(line.turns_taken(request), len(line.say) - 1)
                reply = self._failure(number, index, line.say[index]) or line.say[index]
                return reply.model_copy(update={"delay": reply.delay or self.delay})
        return Reply(status=404, text="no line of the script fits this request")

    def _failure(self, line: int, index: int, reply: Reply) -> Reply | None:
        """The next failure that comes before a reply."""
        served = self._failures_served[line, index]
        if served == len(reply.before):
            return None
        self._failures_served[line, index] += 1
        return reply.before[served]
