"""Runs the command line and ends the process with an exit code; errors are printed as one sentence on stderr.

Exit codes: 0 done, 1 usage error or invalid manifest, 2 the query failed or was canceled, 3 Temporal is unreachable,
130 interrupted by Ctrl-C.
"""

import contextlib
import logging
import os
import sys
from contextvars import copy_context
from typing import NoReturn

import typer

from .terminal import logs_messages, print_message

DONE = 0
REFUSED = 1
FAILED = 2
UNREACHABLE = 3
INTERRUPTED = 130


class CommandEndError(Exception):
    """A command has printed its output, and ends with an exit code."""

    def __init__(self, code: int) -> None:
        self.code = code
        super().__init__(code)


def run_and_exit(app: typer.Typer) -> NoReturn:
    """Runs the command line and exits with the code of its result."""
    code = exit_code(app)
    logging.shutdown()  # of a server: it writes the counts of repeated warnings
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # the reader of a pipe may have exited
            stream.flush()
    os._exit(code)  # the SDK's threads can't be joined, and would abort an interpreter that ends before them


def exit_code(app: typer.Typer) -> int:
    """Runs the command line in a context of its own, and returns the exit code."""
    return copy_context().run(_exit_code, app)


def _exit_code(app: typer.Typer) -> int:
    try:
        # Typer prints its errors itself, unless they are to be logged; then it returns the code of an exit.
        ended = app(standalone_mode=not logs_messages())
        return INTERRUPTED if ended == INTERRUPTED else REFUSED if ended else DONE
    except SystemExit as end:  # raised by typer and rich: for --help, bad usage, Ctrl-C, or a closed pipe
        if isinstance(end.__context__, BrokenPipeError):  # the reader, such as head, has read enough
            return DONE
        return INTERRUPTED if end.code == INTERRUPTED else REFUSED if end.code else DONE
    except CommandEndError as end:
        return end.code
    except Exception as error:
        return _report(error)


def _report(error: Exception) -> int:
    """Prints an error and returns its exit code. An unexpected error is raised again."""
    from ...resources.problems import ManifestError

    if isinstance(error, ManifestError):
        for line in error.lines():
            print_message(line)
        count = len(error.problems)
        print_message(f"{count} {'problem' if count == 1 else 'problems'}", style="red")
        return REFUSED
    if said := getattr(error, "format_message", None):  # typer's own errors: it does not export their class
        print_message(f"error: {said()}", style="red")
        return REFUSED
    code, text = _explain(error)
    print_message(f"error: {text}", style="red")
    return code


def _explain(error: Exception) -> tuple[int, str]:
    """The exit code and the text for an error; raises unexpected errors again."""
    import yaml
    from pydantic import BaseModel, ValidationError
    from temporalio.service import RPCError, RPCStatusCode

    from ...contracts.errors import BatonError
    from ...contracts.settings import SettingsError
    from ...installation import MissingExtraError
    from ...resources.problems import dotted_path, explain_errors
    from ...temporal.client import ConnectionFailed
    from ..errors import START_HINT, ConnectionLostError, UnreachableError, UsageError
    from ..runs.control import RunEndedError
    from ..runs.runs import NoSuchRunError, NotServedError
    from ..runs.start import NotForkedError, NotRetriedError
    from ..server.embedded import ServerError

    match error:
        case UsageError() | NoSuchRunError() | NotRetriedError() | NotForkedError() | RunEndedError():
            return REFUSED, str(error)
        case ValidationError():
            return REFUSED, "; ".join(f"{dotted_path(path)}: {text}" for path, text in explain_errors(error, BaseModel))
        case SettingsError() | MissingExtraError() | yaml.YAMLError() | OSError() | UnicodeDecodeError():
            return REFUSED, str(error)
        case BatonError():
            return REFUSED, error.message
        case UnreachableError() | ServerError() | NotServedError():
            return UNREACHABLE, str(error)
        case RPCError(status=RPCStatusCode.INVALID_ARGUMENT | RPCStatusCode.RESOURCE_EXHAUSTED):
            return REFUSED, f"Temporal rejected the request: {error.message}"
        case RPCError(status=RPCStatusCode.NOT_FOUND | RPCStatusCode.FAILED_PRECONDITION):
            return REFUSED, error.message
        case RPCError(message=text) | ConnectionLostError(args=(text,)):
            return UNREACHABLE, f"Temporal did not answer: {text}; {START_HINT}"
        case ConnectionFailed():
            return UNREACHABLE, f"{error}; {START_HINT}"
    raise error
