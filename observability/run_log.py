"""The log lines about runs: their begin and end, their turns and waits, what controls them, and their calls.

Each line is a record of the logger ``baton.runs``: its message is the name of the event, and its fields are attributes
of the record. No field has a text of a conversation, the arguments of a call or a secret.
"""

import contextlib
import logging
from collections import deque
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Literal, TypedDict

from temporalio.bridge.proto.workflow_activation import WorkflowActivation

RunEvent = Literal[
    "run began", "run ended", "turn began", "turn ended", "wait began", "wait ended", "control message", "call"
]


class Fields(TypedDict, total=False):
    """The fields of the lines. One that is None is left out.

    ``run`` is a workflow id, and ``parent`` that of the run above. ``retries`` and ``forks`` name the run that a new
    one goes on from. ``target`` is what a run executes, and ``subject`` what is called or waited for. ``request`` is
    the name of a signal or an update, ``via`` the identity of the Temporal client that has sent it, and ``by`` the
    person's name, as the client says it; a gateway knows
    its ``account``, and whether the name was ``verified``. ``cost`` is in US dollars, and
    ``error`` the type of a failure.
    """

    run: str | None
    run_id: str | None
    workflow_type: str
    parent: str | None
    retries: str | None
    forks: str | None
    target: str | None
    request: str
    decision: str | None
    wait: str
    kind: str
    subject: str | None
    member: str | None
    turn: int | None
    phase: str
    reason: str | None
    outcome: str
    error: str | None
    by: str | None
    account: str
    verified: bool
    via: str | None
    turns: int | None
    tokens: int | None
    cost: float | None
    seconds: float | None


FIELDS = tuple(Fields.__annotations__)
"""The names of all fields, in the order in which a line of text shows them."""

_runs = logging.getLogger("baton.runs")
CALLS = logging.getLogger("baton.calls")
"""The logger of calls of models, tools, remote agents and functions, whose level is DEBUG if they are logged."""


def log_event(event: RunEvent, fields: Fields) -> None:
    """Logs an event of a run. Workflow code calls ``tell`` of ``workflows/state/decisions.py`` instead."""
    _runs.info(event, extra=_known(fields))


def log_call(fields: Fields) -> None:
    """Logs a call that has ended, if calls are logged (BATON_LOG_CALLS)."""
    if CALLS.isEnabledFor(logging.DEBUG):
        CALLS.debug("call", extra=_known(fields))


def _known(fields: Fields) -> dict[str, object]:
    known = {name: value for name, value in fields.items() if value is not None}
    return {
        name: round(value, 3) if name == "seconds" and isinstance(value, float) else value
        for name, value in known.items()
    }


@dataclass(frozen=True)
class Clients:
    """The identities of the Temporal clients whose requests an activation of a run contains.

    ``started`` is the one that has started the run. Signals of one name arrive in the order in which they were sent.
    """

    started: str | None = None
    updates: dict[str, str] = field(default_factory=lambda: dict[str, str]())
    signals: dict[str, deque[str]] = field(default_factory=lambda: dict[str, deque[str]]())

    @classmethod
    def of(cls, activation: WorkflowActivation) -> "Clients":
        """Those of an activation."""
        started = None
        updates = dict[str, str]()
        signals = dict[str, deque[str]]()
        for job in activation.jobs:
            if job.HasField("initialize_workflow"):
                started = job.initialize_workflow.identity
            elif job.HasField("signal_workflow"):
                signals.setdefault(job.signal_workflow.signal_name, deque()).append(job.signal_workflow.identity)
            elif job.HasField("do_update"):
                updates[job.do_update.id] = job.do_update.meta.identity
        return cls(started=started, updates=updates, signals=signals)

    def take_signal(self, name: str) -> str | None:
        """The client that has sent the next signal of that name."""
        senders = self.signals.get(name)
        return senders.popleft() or None if senders else None


_clients = ContextVar("clients", default=Clients())  # noqa: B039  # the default has no requests, so none is taken


@contextlib.contextmanager
def clients_of(activation: WorkflowActivation) -> Iterator[None]:
    """A context manager in which an activation is handled, also by the tasks that it starts."""
    token = _clients.set(Clients.of(activation))
    try:
        yield
    finally:
        _clients.reset(token)


def current_clients() -> Clients:
    """The clients of the current activation; none in a worker that an application has configured itself."""
    return _clients.get()
