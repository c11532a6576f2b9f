"""Searches histories and files for secrets: as they are, as base64 and as hexadecimal digits."""

import base64
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from temporalio.api.enums.v1 import EventType, TimeoutType
from temporalio.api.history.v1 import HistoryEvent

PIECE = 1 << 22
"""Bytes of a file that are read at a time."""


def forms(secret: str) -> set[bytes]:
    """The forms of a secret in bytes. Base64 inside a longer text has three forms, one for each offset."""
    raw = secret.encode()
    spelled = {raw, raw.hex().encode(), raw.hex().upper().encode()}
    for before in range(3):
        text = base64.b64encode(b"\0" * before + raw)
        spelled.add(text[(0, 2, 3)[before] : len(text) - 4])
    return spelled


class SecretSearch:
    """A search for secrets and its findings. Counts timeouts and failed workflow tasks, too."""

    def __init__(self, secrets: Iterable[str]) -> None:
        self._forms = set().union(*map(forms, secrets))
        self._leaks: list[str] = []
        self._bytes, self._places = 0, Counter[str]()
        self.events = Counter[str]()

    def text(self, place: str, data: bytes, kind: str = "outputs") -> None:
        """Searches some bytes."""
        self._bytes, self._places[kind] = self._bytes + len(data), self._places[kind] + 1
        if any(form in data for form in self._forms):
            self._leaks.append(place)

    def history(self, run: str, events: Iterable[HistoryEvent]) -> None:
        """Searches the history of a run."""
        all_events = [*events]
        self.events.update(map(_name, all_events))
        self.text(run, b"".join(event.SerializeToString() for event in all_events), "histories")

    def file(self, file: Path) -> None:
        """Searches a file, piece by piece."""
        longest = max(map(len, self._forms))
        with file.open("rb") as opened:
            before = b""
            while piece := opened.read(PIECE):
                self._bytes += len(piece)
                if any(form in before + piece for form in self._forms):
                    self._leaks.append(file.name)
                before = piece[-longest:]
        self._places["files"] += 1

    @property
    def found(self) -> dict[str, Any]:
        """Where secrets were found, what was searched, and how many events tell of timeouts and failed tasks."""
        wrong = {name: count for name, count in self.events.items() if name.endswith(("TIMED_OUT", "TASK_FAILED"))}
        searched = {**self._places, "megabytes": round(self._bytes / 1e6, 1)}
        return {"leaks": self._leaks, "searched": searched, "events": wrong}


def _name(event: HistoryEvent) -> str:
    """The type of an event; of a workflow task that timed out, also the kind of its timeout."""
    name = EventType.Name(event.event_type).removeprefix("EVENT_TYPE_")
    if event.event_type != EventType.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT:
        return name
    kind = TimeoutType.Name(event.workflow_task_timed_out_event_attributes.timeout_type).removeprefix("TIMEOUT_TYPE_")
    return f"{kind} of {name}"
