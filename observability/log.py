"""The log of a worker: lines on stderr, as text or as JSON, without secrets."""

import asyncio
import contextlib
import logging
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, TextIO, cast, get_args

from temporalio import activity, workflow

from ..contracts.settings import SettingsError
from ..installation import require
from .run_log import CALLS, FIELDS

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
        if trace := sys.modules.get("opentelemetry.trace"):  # a program that has not imported it has no span
            span = trace.get_current_span().get_span_context()
            if span.is_valid:
                fields |= {"trace_id": f"{span.trace_id:032x}", "span_id": f"{span.span_id:016x}"}
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


LIBRARIES = ("a2a", "aiobotocore", "alembic", "anthropic", "botocore", "httpcore", "httpx", "httpx2", "mcp", "openai")
"""Libraries of whose messages only warnings and errors are logged."""

REPEATED = 60.0
"""Seconds for which equal warnings are counted, before the last one is logged with the count."""

MAX_WARNINGS = 1_000
"""Different warnings that are counted at the same time. Others are logged as they come."""

_NUMBERS = re.compile(r"\d+")


@dataclass
class _Counted:
    """Equal warnings since the last one that was logged: their count and the latest one."""

    count: int = 0
    last: logging.LogRecord | None = None


class CountingHandler(logging.StreamHandler[TextIO]):
    """Writes records to a stream; of equal warnings and errors the first, and then one in ``seconds``, with a count.

    Warnings are equal if they have the same logger and the same text apart from numbers, whatever run they are about.
    The line of the last one has the field ``repeated``: how many there were since the line before.
    """

    def __init__(self, stream: TextIO, seconds: float = REPEATED) -> None:
        super().__init__(stream)
        self._seconds = seconds
        self._counted: dict[tuple[str, str], _Counted] = {}
        self._timer: threading.Timer | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Writes or counts a record. The caller holds the handler's lock."""
        if record.levelno < logging.WARNING:
            super().emit(record)
            return
        error = record.exc_info[1] if record.exc_info else None
        try:
            key = record.name, _NUMBERS.sub("0", f"{record.getMessage()} {error!r}")
        except Exception:  # the arguments don't fit the text, or an error has no representation
            self.handleError(record)
            return
        if known := self._counted.get(key):
            known.count += 1
            known.last = record
            return
        if len(self._counted) < MAX_WARNINGS:
            self._counted[key] = _Counted()
            self._start_timer()
        super().emit(record)

    def _start_timer(self) -> None:
        if self._timer is None:
            self._timer = threading.Timer(self._seconds, self._next_round)
            self._timer.daemon = True
            with contextlib.suppress(RuntimeError):  # the interpreter is ending, and its end writes the counts
                self._timer.start()

    def _next_round(self) -> None:
        with self._locked():
            self._timer = None
            self.write_counts()
            if self._counted:
                self._start_timer()

    def write_counts(self) -> None:
        """Writes the last of each warning that was repeated. One that was not is forgotten."""
        repeated = {key: known for key, known in self._counted.items() if known.last}
        self._counted = {key: _Counted() for key in repeated}
        for known in repeated.values():
            assert known.last
            known.last.__dict__["repeated"] = known.count
            super().emit(known.last)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        self.acquire()
        try:
            yield
        finally:
            self.release()

    def close(self) -> None:
        """Writes what was counted, at the end of the process or when another handler takes its place."""
        with self._locked():
            if self._timer:
                self._timer.cancel()
            self.write_counts()
            self._counted = {}
        super().close()


LogLevel = Literal["debug", "info", "warning", "error"]


def log_to_stderr(
    redact: Callable[[str], str], form: LogFormat, level: LogLevel = "info", *, calls: bool = False
) -> None:
    """Sends the log of this process to stderr, without secrets; also Python's warnings, and an error that ends it.

    ``level`` is the lowest that is logged; ``debug`` applies to Baton alone. ``calls``: each call of a model, a tool, a
    remote agent and a function is logged.
    """
    lowest = logging.getLevelNamesMapping()[level.upper()]
    logging.basicConfig(level=max(lowest, logging.INFO), handlers=[handler_of(redact, form, sys.stderr)], force=True)
    logging.getLogger("baton").setLevel(lowest)
    CALLS.setLevel(logging.DEBUG if calls else max(lowest, logging.INFO))
    logging.captureWarnings(True)
    if form == "json":
        sys.excepthook = _log_uncaught
        sys.unraisablehook = _log_unraisable
        threading.excepthook = _log_uncaught_in_thread
    for library in LIBRARIES:
        logging.getLogger(library).setLevel(max(lowest, logging.WARNING))


def log_to_stderr_as_set(environment: Mapping[str, str]) -> None:
    """Sends the log of a process that has no secrets to stderr, as BATON_LOG_FORMAT and BATON_LOG_LEVEL say.

    Raises SettingsError, and MissingExtraError.
    """
    form = environment.get("BATON_LOG_FORMAT") or "text"
    level = environment.get("BATON_LOG_LEVEL") or "info"
    if form not in get_args(LogFormat):
        raise SettingsError(f"BATON_LOG_FORMAT: is '{form}', must be text or json")
    if level not in get_args(LogLevel):
        raise SettingsError(f"BATON_LOG_LEVEL: is '{level}', must be debug, info, warning or error")
    log_to_stderr(str, cast(LogFormat, form), cast(LogLevel, level))


def _log_uncaught(kind: type[BaseException], error: BaseException, trace_: TracebackType | None) -> None:
    logging.getLogger("baton").critical("%s: %s", kind.__name__, error, exc_info=(kind, error, trace_))


def _log_unraisable(unraisable: "sys.UnraisableHookArgs") -> None:
    error = unraisable.exc_value or unraisable.exc_type()
    text = unraisable.err_msg or "an exception is ignored in"
    traced = (type(error), error, unraisable.exc_traceback)
    logging.getLogger("baton").error("%s %r: %s", text, unraisable.object, error, exc_info=traced)


def _log_uncaught_in_thread(uncaught: threading.ExceptHookArgs) -> None:
    if uncaught.exc_value and uncaught.exc_type is not SystemExit:
        _log_uncaught(uncaught.exc_type, uncaught.exc_value, uncaught.exc_traceback)


def handler_of(redact: Callable[[str], str], form: LogFormat, stream: TextIO) -> CountingHandler:
    """Writes log records to a stream, without secrets, with the run and the member that they are about.

    The SDK's context, which it would append to the message, is in fields of its own.
    """
    activity.logger.activity_info_on_message = workflow.logger.workflow_info_on_message = False
    handler = CountingHandler(stream)
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


_SHOWN = tuple(dict.fromkeys(("run", "run_id", "member", "turn", *FIELDS, "repeated")))
"""The fields of a record that its line of text shows."""

_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_CONTROLS_IN_LINES = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def _escaped(text: str, controls: re.Pattern[str]) -> str:
    return controls.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def _text() -> logging.Formatter:
    return EscapingFormatter("%(asctime)s %(levelname)s %(message)s")


def _json() -> logging.Formatter:
    require("worker", "BATON_LOG_FORMAT=json")
    from pythonjsonlogger.core import RESERVED_ATTRS  # noqa: PLC0415  # not of every extra
    from pythonjsonlogger.json import JsonFormatter  # noqa: PLC0415

    return JsonFormatter(
        "%(levelname)s %(name)s %(message)s",
        rename_fields={"levelname": "level", "name": "logger"},
        reserved_attrs=[*RESERVED_ATTRS, "temporal_log", "__temporal_core_log"],
        timestamp=True,
    )
