"""What a line of the log is about: the run, the member and its turn, and the trace, in fields of their own."""

import logging
from collections.abc import Mapping, Sequence
from contextvars import ContextVar

from opentelemetry import trace
from temporalio import activity, workflow

_said = ContextVar[Mapping[str, object]]("said", default={})  # noqa: B039  # never changed


def note_request(arguments: Sequence[object]) -> None:
    """Notes for the log who takes which turn in the running activity, whose arguments these are."""
    _said.set(_about(arguments[0] if arguments else None))


def _about(request: object) -> Mapping[str, object]:
    """The member and the turn of an activity's request, as far as it has them."""
    speaker, member = getattr(request, "speaker", None), getattr(request, "member", None)
    found = {"member": member or (speaker and speaker.rpartition("/")[2]), "turn": getattr(request, "turn", None)}
    return {name: value for name, value in found.items() if value is not None}


class LogContext(logging.Filter):
    """Adds ``run`` (the workflow id), ``run_id``, ``member``, ``turn``, ``trace_id`` and ``span_id``, where known."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Changes the record, and lets every one pass."""
        known: dict[str, object] = {}
        if workflow.in_workflow():
            info = workflow.info()
            known = {"run": info.workflow_id, "run_id": info.run_id}
        elif activity.in_activity():
            doing = activity.info()
            known = {"run": doing.workflow_id, "run_id": doing.workflow_run_id, **_said.get()}
        if (span := trace.get_current_span().get_span_context()).is_valid:
            known |= {"trace_id": trace.format_trace_id(span.trace_id), "span_id": trace.format_span_id(span.span_id)}
        record.__dict__.update(known)
        return True
