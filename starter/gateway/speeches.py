"""What is said in a run, one speech after the other, in an order that is the same for all readers.

A speech is the answer of a model, or the message of a person or a function. Speeches come whole: a later one waits for
the end of an earlier one. The events have to be read depth first: see ``stream_events``.
"""

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from ...contracts.text import beginning_of, full_length
from ..history.events import (
    Event,
    MessageEvent,
    ModelAnsweredEvent,
    ModelCalledEvent,
    ModelFailedEvent,
    RunEndedEvent,
    RunStartedEvent,
    TextDeltaEvent,
    TextRetractedEvent,
    WaitEndedEvent,
    WaitStartedEvent,
)

_MEMBER = re.compile(r"/(?:target-\d+|turn-\d+|round-\d+/[^/]+)/[^/]+")
"""What leads from a run to that of a target or a member. The runs of tools have other paths, and say nothing here."""


@dataclass
class Speech:
    """What a ``speaker`` says in the run ``run``, in its turn ``turn``; ``id`` is that of its first event.

    ``text`` is what was received of the current ``draft``, which is numbered as in the events; of one that was read
    after its end, and that is very long, it is the beginning. ``length`` is that of the whole text once the speech has
    ended; it ``is_cut_off`` if the model's token limit has ended it. A speech that has failed ends without a text.
    ``retracted`` is the last draft that was taken back, and ``waited`` is the number of attempts before a wait for the
    end of an outage. ``from_person`` is as in ``MessageEvent``.
    """

    id: str
    run: str
    speaker: str
    turn: int | None = None
    draft: int = 1
    retracted: int = 0
    waited: int = 0
    text: str = ""
    length: int = 0
    has_ended: bool = False
    has_failed: bool = False
    is_cut_off: bool = False
    from_person: bool = False


@dataclass(frozen=True)
class Said:
    """More of the text of a speech was received."""

    speech: Speech


@dataclass(frozen=True)
class Retracted:
    """The text of the current draft, of which something was received, is taken back."""

    speech: Speech
    text: str


@dataclass(frozen=True)
class Spoken:
    """A speech has ended; its text may be empty."""

    speech: Speech


@dataclass(frozen=True)
class Waits:
    """The run waits, or a wait has ended."""

    event: WaitStartedEvent | WaitEndedEvent


@dataclass(frozen=True)
class Begun:
    """The run has begun."""

    event: RunStartedEvent


@dataclass(frozen=True)
class Over:
    """The run has ended."""

    event: RunEndedEvent


Update = Begun | Said | Retracted | Spoken | Waits | Over


@dataclass
class Answers:
    """The answers of models, which messages of conversations repeat."""

    _latest: dict[str, tuple[str, str]] = field(default_factory=dict)
    """The place in the history, and the text, of the latest answer in each run."""

    _in_panels: set[tuple[str, str]] = field(default_factory=set)
    """The open calls in panels: their runs and ids."""

    _quotable: set[str] = field(default_factory=set)
    """The texts of answers in panels, whose conversations repeat them."""

    def read(self, event: Event) -> None:
        """Takes note of a call or an answer."""
        if isinstance(event, ModelCalledEvent) and (event.part is not None or event.round is not None):
            self._in_panels.add((event.run, event.call))
        elif isinstance(event, ModelAnsweredEvent):
            text = event.text or ""
            self._latest[event.run] = (history_place(event), text)
            if (event.run, event.call) in self._in_panels:
                self._in_panels.discard((event.run, event.call))
                self._quotable.add(text)

    def have(self, event: MessageEvent) -> bool:
        """Whether a message repeats an answer: as the message of the call, or as a quote in a panel."""
        if self._latest.get(event.run) == (history_place(event), event.text):
            return True
        return event.part is not None and event.text in self._quotable


@dataclass
class Speeches:
    """Makes the updates of a run's speeches from its events."""

    root: str
    _queue: deque[Speech] = field(default_factory=deque)
    _open: dict[tuple[str, str], Speech] = field(default_factory=dict)
    _announced: int = 0
    """The characters of the first speech in the queue that were announced."""

    _answers: Answers = field(default_factory=Answers)

    def feed(self, event: Event) -> Iterator[Update]:
        """The updates that an event brings."""
        if isinstance(event, RunEndedEvent) and event.run == self.root:
            yield from self._close()
            yield Over(event)
        elif isinstance(event, RunStartedEvent) and event.run == self.root:
            yield Begun(event)
        elif self._is_heard(event.run):
            yield from self._feed(event)

    def _feed(self, event: Event) -> Iterator[Update]:  # one case for each type
        self._answers.read(event)
        match event:
            case ModelCalledEvent() if (event.run, event.call) not in self._open:  # or it is made again after a wait
                speech = Speech(event.id, event.run, event.speaker, turn=event.turn)
                self._open[event.run, event.call] = speech
                self._queue.append(speech)
            case MessageEvent():
                if not self._answers.have(event):
                    speech = Speech(event.id, event.run, event.name, from_person=event.from_person)
                    self._queue.append(speech)
                    self._end(speech, event.text)
                    yield from self._announce()
            case WaitStartedEvent() | WaitEndedEvent():
                self._note_attempts(event)
                yield Waits(event)
            case TextDeltaEvent() | TextRetractedEvent() | ModelAnsweredEvent():
                if answer := self._open.get((event.run, event.call)):
                    yield from self._of_answer(answer, event)
            case ModelFailedEvent():
                if answer := self._open.pop((event.run, event.call), None):
                    answer.draft = max(event.draft, answer.retracted)
                    answer.has_failed = True
                    self._end(answer, "")
                    yield from self._announce()

    def _note_attempts(self, event: WaitStartedEvent | WaitEndedEvent) -> None:
        """Counts the attempts of a call that waits to be made again, of which not all readers have seen a text."""
        if not isinstance(event, WaitStartedEvent) or not event.attempts:
            return
        if speech := self._open.get((event.run, event.wait.removeprefix(f"{event.run}/"))):
            speech.waited += event.attempts
            speech.draft = max(speech.draft, speech.waited)

    def _of_answer(
        self, speech: Speech, event: TextDeltaEvent | TextRetractedEvent | ModelAnsweredEvent
    ) -> Iterator[Update]:
        match event:
            case TextDeltaEvent():
                speech.draft = event.draft
                speech.text = speech.text[: event.offset] + event.text
                yield from self._announce()
            case TextRetractedEvent():
                yield from self._retract(speech)
                speech.retracted = event.draft
            case ModelAnsweredEvent():
                del self._open[event.run, event.call]
                text = event.text or ""
                speech.draft = max(event.draft, speech.retracted + 1)
                speech.is_cut_off = event.finish_reason == "length"
                self._end(speech, text)
                yield from self._announce()

    def _is_heard(self, run: str) -> bool:
        """Whether a run is that of the target or of a member: what the runs of tools say is their result."""
        return run.startswith(self.root) and re.fullmatch(f"(?:{_MEMBER.pattern})*", run[len(self.root) :]) is not None

    def _end(self, speech: Speech, text: str) -> None:
        if len(speech.text) <= len(beginning_of(text)):  # of a long text more may have been received
            speech.text = text
        speech.length = max(full_length(text), len(text))  # the model may have written the mark of a truncated text
        speech.has_ended = True

    def _retract(self, speech: Speech) -> Iterator[Update]:
        text = speech.text
        speech.text = ""
        if self._queue and self._queue[0] is speech and self._announced:
            self._announced = 0
            yield Retracted(speech, text)

    def _announce(self) -> Iterator[Update]:
        """The updates of the first speech in the queue, and of the next ones if it has ended."""
        while self._queue:
            speech = self._queue[0]
            if len(speech.text) > self._announced:
                self._announced = len(speech.text)
                yield Said(speech)
            if not speech.has_ended:
                return
            self._queue.popleft()
            self._announced = 0
            yield Spoken(speech)

    def _close(self) -> Iterator[Update]:
        """Ends the speeches that the end of the run has cut off."""
        for speech in self._open.values():
            yield from self._retract(speech)
            speech.has_failed = True
            speech.has_ended = True
        self._open.clear()
        yield from self._announce()


def history_place(event: Event) -> str:
    """The place of an event in the history, which those that one history event has brought share."""
    return event.id.rpartition(".")[0]
