"""The calls that leave a run: to models, tools, remote agents and functions. Recordings hold them, and answer them."""

import os
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from pydantic import JsonValue

from ...contracts import errors
from ...contracts.errors import BatonError, NotCarriedOut, ToolFailed
from ...contracts.inputs import ForkedRun
from ...journal.accounts import Amount
from ...resources.base import JsonObject
from ...resources.run_catalog import RunCatalog
from .value_resolver import ValueResolver

OutsideKind = Literal["model", "tool", "agent", "function", "person"]
"""What is called. People are asked by workflows, not by activities: only recordings have calls to them."""


@dataclass(frozen=True)
class OutsideCall:
    """A call, as JSON that does not depend on when and where the run takes place.

    ``caller`` is the id of the manifest that calls, such as ``Agent/default/writer``, and ``run`` the workflow id of
    its run. ``purpose`` distinguishes the calls of one caller to one kind of target: a tool's name, ``choice`` of a
    selector, and so on. ``request`` has no secrets.
    """

    kind: OutsideKind
    caller: str
    purpose: str
    run: str
    request: JsonObject


Live = Callable[[], Awaitable[JsonObject]]
"""Makes the call, and returns its answer as JSON. Raises the errors of the call."""


class Outside(Protocol):
    """What answers the calls of a worker's runs, and lists the tools of servers for new runs.

    A worker has none, unless it replays a recording.
    """

    @property
    def hides_secrets(self) -> bool:
        """Whether no request is ever sent, so that Secrets need no values."""
        ...

    async def answer(self, call: OutsideCall, live: Live | None) -> JsonObject:
        """The answer of a call: a recorded one, or that of ``live``. Raises NotRecorded, and the errors of the call.

        Without ``live`` the worker can't make the call.
        """
        ...

    async def note(self, call: OutsideCall, answer: JsonObject) -> None:
        """Takes note of a call whose answer is already in the journal."""
        ...

    async def pin(self, values: ValueResolver, live: Callable[[], Awaitable[RunCatalog]]) -> RunCatalog:
        """The catalog of a new run, with data from its servers: recorded, or that of ``live``."""
        ...

    def forked(self, run: str) -> "RecordedState":
        """What a recorded fork, or a run below it with that workflow id, has gone on from."""
        ...


@dataclass(frozen=True)
class RecordedState:
    """The state of a run at the point of a fork, and what was ``spent`` there of budgets, by their owners."""

    forked: ForkedRun
    spent: Mapping[str, Amount]


BLOCK = "BATON_BLOCK_MODEL_REQUESTS"
"""The environment variable of a process that calls no models, as long as it is set: also of those that it starts."""


def check_not_blocked(what: str) -> None:
    """Raises NotCarriedOut for a call in a process that must not make any."""
    if os.environ.get(BLOCK):
        raise NotCarriedOut(f"{what} is not called: requests to models are blocked in this process ({BLOCK})")


_FENCE = re.compile(r"untrusted-content-[0-9a-f]{16}")


def without_marks(value: JsonValue) -> JsonValue:
    """A value without the random marks around untrusted content, which are different in each run."""
    match value:
        case str():
            return _FENCE.sub("untrusted-content", value)
        case list():
            return [without_marks(item) for item in value]
        case dict():
            return {key: without_marks(item) for key, item in value.items()}
    return value


def redacted_json(value: JsonValue, redact: Callable[[str], str]) -> JsonValue:
    """A value with all its texts redacted, also the keys of objects. A number with a secret becomes a text."""
    match value:
        case str():
            return redact(value)
        case int() | float() if redact(str(value)) != str(value):
            return redact(str(value))
        case list():
            return [redacted_json(item, redact) for item in value]
        case dict():
            return {redact(key): redacted_json(item, redact) for key, item in value.items()}
    return value


def canonical_request(request: Mapping[str, JsonValue], redact: Callable[[str], str]) -> JsonObject:
    """A request as a recording holds it: without secrets and without random marks, and without empty fields."""
    full: JsonObject = {key: value for key, value in request.items() if value not in (None, "", [], {})}
    canonical = without_marks(redacted_json(full, redact))
    assert isinstance(canonical, dict)
    return canonical


def error_json(type_: str, message: str) -> JsonObject:
    """The answer of a call that failed."""
    return {"error": {"type": type_, "message": message}}


def raise_recorded(answer: JsonObject) -> None:
    """Raises the error of an answer, if it is one. It is final: the recorded call was not repeated any more."""
    recorded = answer.get("error")
    if isinstance(recorded, dict):
        kind = getattr(errors, str(recorded.get("type")), ToolFailed)
        if not (isinstance(kind, type) and issubclass(kind, BatonError)):
            kind = ToolFailed
        raise kind(str(recorded.get("message", "")), retryable=False)
