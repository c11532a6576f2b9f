"""Finds what is long in the payloads of histories, and where it stands."""

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from google.protobuf.message import Message
from temporalio.api.common.v1 import Payload
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import WorkflowHistory

LONG = 4_000
"""Bytes above which a text, or all that is left of a payload, is long."""

Found = tuple[str, str]
"""The event with the type of its activity, child, signal or update; and the path of a text in the payload, with the
role of a message in it, or ``…`` for what is long without its long texts."""


def long_values(histories: Iterable[WorkflowHistory]) -> set[Found]:
    """Everything that is long in histories."""
    return {found for history in histories for found in _in_history(history)}


def _in_history(history: WorkflowHistory) -> Iterator[Found]:
    names: dict[int, str] = {}
    for event in history.events:
        place = _place(event, names)
        for payload in _payloads(event):
            if payload.metadata["encoding"] == b"json/plain":
                yield from ((place, path) for path in _long_in(json.loads(payload.data)))


def _place(event: HistoryEvent, names: dict[int, str]) -> str:
    """The event, without the words that all events have, and the type of what it is about."""
    kind = (event.WhichOneof("attributes") or "").removesuffix("_event_attributes")
    about: Any = getattr(event, f"{kind}_event_attributes")
    fields = {field.name for field in about.DESCRIPTOR.fields}
    name = next(
        (getattr(about, attribute).name for attribute in ("activity_type", "workflow_type") if attribute in fields), ""
    )
    if "signal_name" in fields:
        name = about.signal_name
    if kind == "workflow_execution_update_accepted":
        name = about.accepted_request.input.name
    if "scheduled_event_id" in fields:
        name = names.get(about.scheduled_event_id, name)
    names[event.event_id] = name
    return f"{kind} {name}".strip()


def _payloads(message: Message) -> Iterator[Payload]:
    """All payloads within a message, of headers too."""
    if isinstance(message, Payload):
        yield message
        return
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        is_map = field.message_type.GetOptions().map_entry
        values = value.values() if is_map else value if field.is_repeated else [value]
        for item in values:
            if isinstance(item, Message):
                yield from _payloads(item)


def _long_in(value: object) -> Iterator[str]:
    texts = {path: text for path, text in _texts(value, "") if len(text.encode()) > LONG}
    yield from (re.sub(r"\[\d+\]", "[]", path) for path in texts)
    left = len(json.dumps(value).encode()) - sum(len(json.dumps(text).encode()) for text in texts.values())
    if left > LONG:
        yield "…"


def _texts(value: object, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        if "role" in value:
            path = f"{path}({value['role']}{' calls' if value.get('toolCalls') else ''})"
        for key, item in value.items():
            yield from _texts(item, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _texts(item, f"{path}[{number}]")
