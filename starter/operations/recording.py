"""Recordings of runs: the file, which call of a run has which recorded answer, and what differs if none has."""

import contextlib
import hashlib
import json
import textwrap
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal, Self

from pydantic import JsonValue, ValidationError, model_validator

from ...activities.context.outside import OutsideCall, OutsideKind, redacted_json
from ...contracts.inputs import ForkedRun
from ...contracts.message import Message
from ...contracts.status import Phase
from ...contracts.text import parse_json
from ...resources.base import JsonModel, JsonObject
from ...resources.catalog import Catalog
from ...resources.query import Query
from ..errors import UsageError
from ..history.run_events import RequestKind

SUFFIX = ".run.json"
"""The end of the name of a recording's file."""


class RecordedCall(JsonModel):
    """A call of a run, and its answer. ``place`` is the path of the run that made it, below its root run."""

    kind: OutsideKind
    caller: str
    purpose: str
    place: str = ""
    request: JsonObject
    answer: JsonObject

    @model_validator(mode="after")
    def _decision_is_readable(self) -> Self:
        changed = self.answer.get("arguments")
        if self.kind == "person" and isinstance(changed, str):
            try:
                json_object(changed)
            except ValueError as error:
                raise ValueError(f"the changed arguments of a decision: {error}") from None
        return self

    @property
    def key(self) -> str:
        """What identifies it: who asks, and what."""
        return key_of(self.kind, self.caller, self.purpose, self.request)


class RecordedRequest(JsonModel):
    """A request of a client to a run, such as a message. It arrived ``during`` the call with that number, from 1.

    With 0 it arrived before the first call.
    """

    kind: RequestKind
    data: JsonObject
    by: str = ""
    during: int = 0


class RecordedChange(JsonModel):
    """The values of a field before a fork has changed it, and after that; null for a field that is not set."""

    before: JsonValue = None
    after: JsonValue = None


class RecordedRow(JsonModel):
    """A row of the journal."""

    id: str
    parent: str = ""
    depth: int
    message: Message


class RecordedFork(JsonModel):
    """What a fork has gone on from: the run ``forked`` at a place, with ``changes`` of fields of its manifests.

    ``states`` are those of the fork and the runs below it, by their places, ``rows`` the conversations to which they
    refer, with the ``attachments`` (Base64) by their ids, and ``spent`` what was used of budgets, by place and owner.
    """

    forked: str
    at: str
    changes: dict[str, RecordedChange] = {}
    states: dict[str, ForkedRun] = {}
    rows: tuple[RecordedRow, ...] = ()
    attachments: dict[str, str] = {}
    spent: dict[str, dict[str, dict[str, int]]] = {}


class Recording(JsonModel):
    """A run that can be replayed without the servers that it has called.

    ``workflow`` and ``input`` start it; of a query, ``query`` is the manifest. ``before`` are the messages of the
    conversation that it continued, with the ``attachments`` (Base64) by their ids. ``manifests`` are the SHA-256 of the
    manifests that it used, by their ids. ``requester`` is who has started it, if a gateway knows that.
    ``mcp_tools`` are the tools of MCPServers, ``operations`` those of OpenAPI documents, and ``descriptions`` those of
    remote agents, by the ids of their manifests. ``requests`` are those of clients while it ran. ``fork`` is what it
    has gone on from: then it has only the calls after that.
    """

    version: Literal[1] = 1
    run: str
    baton: str = ""
    question: str
    answer: str
    phase: Phase
    stop_reason: str | None = None
    error: str | None = None
    workflow: str
    input: JsonObject
    requester: str | None = None
    query: JsonObject | None = None
    before: tuple[Message, ...] = ()
    attachments: dict[str, str] = {}
    manifests: dict[str, str] = {}
    mcp_tools: dict[str, tuple[JsonObject, ...]] = {}
    operations: dict[str, dict[str, JsonObject]] = {}
    descriptions: dict[str, str] = {}
    requests: tuple[RecordedRequest, ...] = ()
    calls: tuple[RecordedCall, ...] = ()
    fork: RecordedFork | None = None

    def write(self, path: Path) -> None:
        """Writes the file, whole or not at all. Messages and tools that several requests contain are in it once.

        Raises UsageError if it can't be written.
        """
        data = self.model_dump(mode="json", by_alias=True, exclude_defaults=True)
        new = path.with_name(f"{path.name}.new")
        try:
            new.write_text(readable(_packed({"version": self.version, **data})) + "\n", encoding="utf-8")
            new.replace(path)
        except OSError as error:
            with contextlib.suppress(OSError):
                new.unlink()
            raise UsageError(f"the recording {path} can't be written: {error.strerror}") from None

    @classmethod
    def read(cls, path: Path) -> "Recording":
        """Reads a file. Raises UsageError if it can't be read, or is not a recording."""
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            if not isinstance(data, dict):
                raise ValueError("it is not a JSON object")
            return cls.model_validate(_unpacked(data))
        except OSError as error:
            raise UsageError(f"the recording {path} can't be read: {error.strerror}") from None
        except (RecursionError, ValidationError) as error:
            if isinstance(error, RecursionError) or is_too_deep(error):
                raise UsageError(f"{path} is not a recording of a run: it is nested too deeply") from None
            first = error.errors(include_input=False, include_url=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise UsageError(f"{path} is not a recording of a run: {where}: {first['msg']}") from None
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise UsageError(f"{path} is not a recording of a run: {error}") from None


def json_object(text: str) -> JsonObject:
    """The JSON object in a text. Raises ValueError if it is anything else."""
    value = parse_json(text)
    if not isinstance(value, dict):
        raise ValueError("it is not a JSON object")
    return value


def is_too_deep(error: RecursionError | ValidationError) -> bool:
    """Whether an error says that a value is nested more deeply than a recording may be."""
    return isinstance(error, RecursionError) or any(
        problem["type"] == "recursion_depth_exceeded" for problem in error.errors(include_url=False)
    )


def manifest_checksums(catalog: Catalog) -> dict[str, str]:
    """The SHA-256 of the manifests of a catalog, by their ids; without that of the query, which a recording holds."""
    return {
        manifest.id: hashlib.sha256(_canonical(manifest.model_dump(mode="json", exclude_defaults=True))).hexdigest()
        for manifest in catalog.manifests
        if not isinstance(manifest, Query)
    }


def _canonical(value: JsonValue) -> bytes:
    return json.dumps(value, sort_keys=True, ensure_ascii=False).encode(errors="surrogatepass")


def key_of(kind: str, caller: str, purpose: str, request: JsonObject) -> str:
    """What identifies a call: who asks, and what."""
    return hashlib.sha256(_canonical([kind, caller, purpose, request])).hexdigest()


# Most messages of a request are also in the next one. The file has them once, in the order of their appearance, which
# is the transcript of the run; requests have their numbers, from 1. Tools have their names instead of numbers.


def _packed(data: JsonObject) -> JsonObject:
    messages: dict[bytes, int] = {}
    shared: list[JsonValue] = []
    tools: dict[str, JsonValue] = {}
    calls = []
    for call in _objects(data.get("calls")):
        request = dict(_object(call["request"]))
        if "messages" in request:
            numbers: list[JsonValue] = []
            for message in _list(request["messages"]):
                number = messages.setdefault(_canonical(message), len(messages) + 1)
                if number > len(shared):
                    shared.append(message)
                numbers.append(number)
            request["messages"] = numbers
        if "tools" in request:
            request["tools"] = [_shared_name(tool, tools) for tool in _objects(request["tools"])]
        calls.append({**call, "request": request})
    tables: JsonObject = {"messages": shared, "tools": tools}
    return {**{key: value for key, value in data.items() if key != "calls"}, **tables, "calls": [*calls]}


def _shared_name(tool: JsonObject, tools: dict[str, JsonValue]) -> str:
    """The name under which the file has a tool: two agents may have different tools of the same name."""
    name = str(tool.get("name"))
    number = 1
    key = name
    while tools.setdefault(key, tool) != tool:
        number += 1
        key = f"{name}#{number}"
    return key


def _unpacked(data: JsonObject) -> JsonObject:
    messages = _list(data.get("messages"))
    tools = _object(data.get("tools") or {})
    calls = []
    for call in _objects(data.get("calls")):
        request = dict(_object(call["request"]))
        if "messages" in request:
            request["messages"] = [messages[_number(number) - 1] for number in _list(request["messages"])]
        if "tools" in request:
            request["tools"] = [tools[str(name)] for name in _list(request["tools"])]
        calls.append({**call, "request": request})
    return {**data, "calls": [*calls]}


def _number(value: JsonValue) -> int:
    if not isinstance(value, int) or value < 1:
        raise ValueError(f"a message has the number {value}")
    return value


def _list(value: JsonValue) -> list[JsonValue]:
    return value if isinstance(value, list) else []


def _objects(value: JsonValue) -> list[JsonObject]:
    return [item for item in _list(value) if isinstance(item, dict)]


def _object(value: JsonValue) -> JsonObject:
    if not isinstance(value, dict):
        raise TypeError("a request is not an object")
    return value


WIDTH = 120
"""Characters of a line in a file, where values allow it."""


def readable(value: JsonValue, indent: str = "") -> str:
    """JSON in which a value is on one line if it fits there."""
    line = json.dumps(value, ensure_ascii=False)
    if len(indent) + len(line) <= WIDTH or not isinstance(value, dict | list):
        return line
    deeper = f"{indent}  "
    if isinstance(value, dict):
        items = [
            f"{deeper}{json.dumps(key, ensure_ascii=False)}: {readable(item, deeper)}" for key, item in value.items()
        ]
        return "{\n" + ",\n".join(items) + f"\n{indent}}}"
    return "[\n" + ",\n".join(f"{deeper}{readable(item, deeper)}" for item in value) + f"\n{indent}]"


@dataclass(frozen=True)
class RequestDifference:
    """A call that differs between a recording and a run of it.

    ``call`` names it. ``nearest`` is the number of the recorded call that is most like it, from 1, ``field`` the first
    field in which they differ, with the ``recorded`` value and that of ``now``; a value that is missing is None.
    """

    call: str
    problem: str
    nearest: int | None = None
    field: str = ""
    recorded: JsonValue = None
    now: JsonValue = None

    def __str__(self) -> str:
        text = wrapped(f"{self.call}: {self.problem}")
        if not self.nearest:
            return text
        nearest = wrapped(f"  the nearest is call {self.nearest}; it differs first in {self.field}", "    ")
        return "\n".join([text, nearest, *shown_pair(self.recorded, self.now)])


def described(kind: str, caller: str, purpose: str, request: JsonObject) -> str:
    """A call as people read it."""
    match kind:
        case "model":
            what = f"asks the model {request.get('model')}" + ("" if purpose == "call" else f" ({purpose})")
        case "tool":
            what = f"calls the tool {purpose}"
        case "agent":
            what = f"is executed by {purpose}"
        case "function":
            what = f"calls the function {purpose}"
        case _:
            what = f"waits for a person ({purpose})"
    return f"{caller} {what}"


REPORT_WIDTH = 78
"""Characters of a line in a report, which the command indents by two."""

SHOWN = 58
"""Characters of a value in a difference."""


def wrapped(text: str, indent: str = "  ") -> str:
    """A sentence of a report in as many lines as it needs; ``indent`` begins those after the first."""
    return textwrap.fill(text, REPORT_WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def shown_pair(recorded: JsonValue, now: JsonValue) -> tuple[str, str]:
    """Two lines with two values, from shortly before the place where their texts differ."""
    texts = [json.dumps(value, ensure_ascii=False) for value in (recorded, now)]
    texts = [text[1:-1] if isinstance(value, str) else text for text, value in zip(texts, (recorded, now), strict=True)]
    pairs = enumerate(zip(*texts, strict=False))
    same = next((index for index, (one, other) in pairs if one != other), min(map(len, texts)))
    start = max(0, same - SHOWN // 3) if max(map(len, texts)) > SHOWN else 0
    shown = [f"{'…' * bool(start)}{text[start : start + SHOWN]}{'…' * (len(text) > start + SHOWN)}" for text in texts]
    first, second = (
        "(missing)" if value is None else f'"{text}"' if isinstance(value, str) else text
        for value, text in zip((recorded, now), shown, strict=True)
    )
    return f"    recorded: {first}", f"    now:      {second}"


def _differences(recorded: JsonValue, now: JsonValue, path: str = "") -> Iterator[tuple[str, JsonValue, JsonValue]]:
    """The fields in which two values differ: their paths, and both values."""
    if recorded == now:
        return
    if isinstance(recorded, dict) and isinstance(now, dict):
        for key in dict.fromkeys((*recorded, *now)):
            yield from _differences(recorded.get(key), now.get(key), f"{path}.{key}" if path else key)
    elif isinstance(recorded, list | None) and isinstance(now, list | None):  # a request has no empty lists
        old, new = _by_name(recorded or []), _by_name(now or [])
        for name in dict.fromkeys((*old, *new)):
            yield from _differences(old.get(name), new.get(name), f"{path}[{name}]")
    else:
        yield path, recorded, now


def _by_name(items: list[JsonValue]) -> dict[str, JsonValue]:
    """The items of a list by their names, if they are tools, else by their indexes."""
    names = [item.get("name") if isinstance(item, dict) and "parameters" in item else None for item in items]
    if all(names) and len({*names}) == len(names):
        return dict(zip(map(str, names), items, strict=True))
    return {str(index): item for index, item in enumerate(items)}


class RecordedAnswers:
    """Finds the answers of a recording. Each is used once.

    A call is identified by who asks, and by its whole request; not by its position, so members that speak concurrently
    don't disturb each other. Of equal calls the one at the same place in the tree of runs is used, else the first.
    """

    def __init__(self, calls: Iterable[RecordedCall]) -> None:
        self._calls = [*calls]
        self._keys = [call.key for call in self._calls]
        self._unused = defaultdict[str, list[int]](list)
        self._replaced = set[int]()
        for index, key in enumerate(self._keys):
            self._unused[key].append(index)

    def take(self, call: OutsideCall, place: str) -> tuple[int, JsonObject] | None:
        """The number of a recorded call, from 1, and its answer; None if none is left that is equal."""
        equal = self._unused[key_of(call.kind, call.caller, call.purpose, call.request)]
        if not equal:
            return None
        index = next((index for index in equal if self._calls[index].place == place), equal[0])
        equal.remove(index)
        return index + 1, self._calls[index].answer

    def replaced_by(self, call: OutsideCall, place: str) -> int | None:
        """The number of the recorded call instead of which a call without an answer is made; None if there is none.

        It is the first one of that caller for that purpose, at the same place if there is one, that was neither taken
        nor replaced. It can still be taken.
        """
        unused = {index for indexes in self._unused.values() for index in indexes} - self._replaced
        who = call.kind, call.caller, call.purpose
        equal = [
            index
            for index in sorted(unused)
            if (self._calls[index].kind, self._calls[index].caller, self._calls[index].purpose) == who
        ]
        if not equal:
            return None
        index = next((index for index in equal if self._calls[index].place == place), equal[0])
        self._replaced.add(index)
        return index + 1

    def missing(self, call: OutsideCall, place: str) -> RequestDifference:
        """What a call without an answer differs in from the nearest recorded one; this may take seconds."""
        name = described(call.kind, call.caller, call.purpose, call.request)
        if count := self._keys.count(key_of(call.kind, call.caller, call.purpose, call.request)):
            return RequestDifference(name, f"the request is recorded {_times(count)}, and is now made once more")
        nearest: tuple[tuple[int, bool, bool], int, tuple[str, JsonValue, JsonValue]] | None = None
        for index, recorded in enumerate(self._calls):
            if recorded.kind != call.kind:
                continue
            most = nearest[0][0] + 1 if nearest else None
            found = [*islice(_differences(_whole(recorded), _whole(call)), most)]
            rank = len(found), index not in self._unused[self._keys[index]], recorded.place != place
            if nearest is None or rank < nearest[0]:
                nearest = rank, index, next(iter(found), ("order of its fields", None, None))
        if nearest is None:
            return RequestDifference(name, f"there is no recording of any call of this kind ({call.kind})")
        _, index, (field, old, new) = nearest
        return RequestDifference(name, "no recording of this request", index + 1, field, old, new)

    def unused(self) -> Iterator[RequestDifference]:
        """The recorded calls that were not made, in order."""
        for index in sorted(index for indexes in self._unused.values() for index in indexes):
            call = self._calls[index]
            name = described(call.kind, call.caller, call.purpose, call.request)
            yield RequestDifference(name, f"call {index + 1} of the recording was not made")


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _whole(call: OutsideCall | RecordedCall) -> JsonObject:
    return {"caller": call.caller, "purpose": call.purpose, **call.request}


def place_of(run: str, root: str) -> str:
    """The path of a run below its root."""
    return run.removeprefix(root).removeprefix("/")


def redacted_recording(recording: Recording, redact: Callable[[str], str]) -> Recording:
    """The recording without the secrets that ``redact`` knows, also in its names."""
    data: JsonObject = recording.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    for call in _objects(data.get("calls")):
        answer = _object(call["answer"])
        if call["kind"] == "person" and isinstance(changed := answer.get("arguments"), str):  # it stays valid JSON
            answer["arguments"] = json.dumps(redacted_json(json_object(changed), redact), ensure_ascii=False)
    return Recording.model_validate_json(json.dumps(redacted_json(data, redact)))


def changed_manifests(recorded: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """The ids of the manifests that have changed, with what has happened to them."""
    changes = []
    for name in sorted({*recorded, *now}):
        if name not in now:
            changes.append(f"{name} is not used any more")
        elif name not in recorded:
            changes.append(f"{name} is new")
        elif recorded[name] != now[name]:
            changes.append(f"{name} has changed")
    return changes
