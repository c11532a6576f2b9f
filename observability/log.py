"""The log of a worker: lines on stderr, as text or as JSON, without secrets."""

import asyncio
import logging
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Literal, TextIO

from opentelemetry import trace
from pythonjsonlogger.core import RESERVED_ATTRS
from pythonjsonlogger.json import JsonFormatter
from temporalio import activity, workflow

_speaker = ContextVar[Mapping[str, object]]("speaker", default={})  # noqa: B039  # never changed


def note_request(arguments: Sequence[object]) -> None:
    """Records the member and the turn of the running activity for the log, if its first argument has them."""
    request = arguments[0] if arguments else None
    speaker = getattr(request, "speaker", None)
    fields = {
        "member": getattr(request, "member", None) or (speaker and speaker.rpartition("/")[2]),
        "turn": getattr(request, "turn", None),
    }
    _speaker.set({name: value for name, value in fields.items() if value is not None})


class LogContext(logging.Filter):
    """Adds ``run`` (the workflow id), ``run_id``, ``member``, ``turn``, ``trace_id`` and ``span_id``, where known."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Adds the fields; always returns True."""
        fields: dict[str, object] = {}
        if workflow.in_workflow():
            run = workflow.info()
            fields = {"run": run.workflow_id, "run_id": run.run_id}
        elif activity.in_activity():
            call = activity.info()
            fields = {"run": call.workflow_id, "run_id": call.workflow_run_id, **_speaker.get()}
        span = trace.get_current_span().get_span_context()
        if span.is_valid:
            fields |= {"trace_id": trace.format_trace_id(span.trace_id), "span_id": trace.format_span_id(span.span_id)}
        record.__dict__.update(fields)
        return True


LogFormat = Literal["text", "json"]


class FailedAttempts(logging.Filter):
    """Shortens the SDK's log of a failed activity attempt to one line, and drops that of a canceled one.

    Temporal's UI shows the details, and a bug's traceback is logged separately.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is logged."""
        error = record.exc_info[1] if record.exc_info else None
        if error:
            record.msg, record.args = f"{record.getMessage().partition(' (')[0]}: {error}", ()
            record.exc_info = None
        return not isinstance(error, asyncio.CancelledError)


class RedactingFormatter(logging.Formatter):
    """Removes secrets from the output of another formatter, including tracebacks."""

    def __init__(self, formatter: logging.Formatter, redact: Callable[[str], str]) -> None:
        super().__init__()
        self._formatter = formatter
        self._redact = redact

    def format(self, record: logging.LogRecord) -> str:
        """The text of a log record."""
        return self._redact(self._formatter.format(record))


_FAILED_ATTEMPTS = FailedAttempts()


def shorten_sdk_log() -> None:
    """Keeps the SDK from logging tracebacks of failed activities, even if the worker is embedded in a program."""
    # One filter for all workers of a process: a logger adds the same filter only once.
    logging.getLogger("temporalio.activity").addFilter(_FAILED_ATTEMPTS)


def log_to_stderr(redact: Callable[[str], str], form: LogFormat) -> None:
    """Sends the log of this process to stderr, without secrets; also Python's warnings, and an error that ends it."""
    logging.basicConfig(level=logging.INFO, handlers=[handler_of(redact, form, sys.stderr)], force=True)
    logging.captureWarnings(True)
    if form == "json":
        sys.excepthook = _log_uncaught
    for library in ("httpx", "httpx2", "httpcore", "openai", "anthropic", "botocore", "aiobotocore", "a2a", "mcp"):
        logging.getLogger(library).setLevel(logging.WARNING)


def _log_uncaught(kind: type[BaseException], error: BaseException, trace_: TracebackType | None) -> None:
    logging.getLogger("baton").critical("%s: %s", kind.__name__, error, exc_info=(kind, error, trace_))


def handler_of(redact: Callable[[str], str], form: LogFormat, stream: TextIO) -> logging.Handler:
    """Writes log records to a stream, without secrets, with the run and the member that they are about.

    The SDK's context, which it would append to the message, is in fields of its own.
    """
    activity.logger.activity_info_on_message = workflow.logger.workflow_info_on_message = False
    handler = logging.StreamHandler(stream)
    handler.setFormatter(RedactingFormatter(_json() if form == "json" else _text(), redact))
    handler.addFilter(LogContext())
    return handler


class EscapingFormatter(logging.Formatter):
    """One line per record: text quoted in a message may contain line breaks and terminal escape sequences.

    The line ends with the fields that LogContext adds, such as ``(run=my-run run_id=… member=critic turn=2)``.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # the name of the base class
        """The line of a record."""
        context = " ".join(f"{name}={record.__dict__[name]}" for name in _SHOWN if name in record.__dict__)
        line = super().formatMessage(record)
        return _escaped(f"{line} ({context})" if context else line, _CONTROLS)

    def formatException(self, ei: Any) -> str:  # noqa: N802  # the name of the base class
        """The escaped traceback, on separate lines."""
        return _escaped(super().formatException(ei), _CONTROLS_IN_LINES)


_SHOWN = ("run", "run_id", "member", "turn")
"""The fields of a record that its line of text shows."""

_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_CONTROLS_IN_LINES = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def _escaped(text: str, controls: re.Pattern[str]) -> str:
    return controls.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def _text() -> logging.Formatter:
    return EscapingFormatter("%(asctime)s %(levelname)s %(message)s")


def _json() -> logging.Formatter:
    return JsonFormatter(
        "%(levelname)s %(name)s %(message)s",
        rename_fields={"levelname": "level", "name": "logger"},
        reserved_attrs=[*RESERVED_ATTRS, "temporal_log", "__temporal_core_log"],
        timestamp=True,
    )
