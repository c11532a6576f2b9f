"""What does a command's end say? Every error becomes a sentence on stderr and an exit code, never a traceback."""

import typer
import yaml
from pydantic import ValidationError
from rich.console import Console
from temporalio.service import RPCError, RPCStatusCode

from ...conversation.failure import BatonError
from ...conversation.settings_error import SettingsError
from ...conversation.temporal.temporal_client import ConnectionFailed
from ...resources.problems import ManifestError
from ..console.printer import tell_problems
from ..runs.runs import NoSuchRunError
from ..server.connection import UnreachableError
from ..server.embedded import ServerError
from .run import LostError
from .targets import UsageError

DONE, REFUSED, FAILED, UNREACHABLE, INTERRUPTED = 0, 1, 2, 3, 130

START = "start a server and a worker with 'baton dev', or set TEMPORAL_ADDRESS to a server that runs"


class CommandEndError(Exception):
    """A command has said all there is to say, and ends with an exit code."""

    def __init__(self, code: int) -> None:
        self.code = code
        super().__init__(code)


def exit_code(app: typer.Typer, console: Console) -> int:
    """Runs the command line; the exit code of what came of it."""
    try:
        app()
        return DONE
    except SystemExit as end:  # typer's own: of --help, bad usage, or Ctrl-C
        return INTERRUPTED if end.code == INTERRUPTED else REFUSED if end.code else DONE
    except CommandEndError as end:
        return end.code
    except ManifestError as error:
        tell_problems(console, error)
        return REFUSED
    except Exception as error:
        code, text = _meaning(error)
        console.print(f"error: {text}", soft_wrap=True, markup=False, style="red")
        return code


def _meaning(error: Exception) -> tuple[int, str]:
    """The exit code and the sentence for an error; one that nobody has thought of goes on as it is."""
    match error:
        case UsageError() | NoSuchRunError():
            return REFUSED, str(error)
        case ValidationError() | yaml.YAMLError() | OSError() | UnicodeDecodeError():
            return REFUSED, str(error)
        case BatonError():
            return REFUSED, error.message
        case UnreachableError() | ServerError():
            return UNREACHABLE, str(error)
        case RPCError(status=RPCStatusCode.INVALID_ARGUMENT | RPCStatusCode.RESOURCE_EXHAUSTED):
            return REFUSED, f"Temporal refused it: {error.message}"
        case RPCError(status=RPCStatusCode.NOT_FOUND | RPCStatusCode.FAILED_PRECONDITION):
            return REFUSED, error.message
        case RPCError(message=text) | LostError(args=(text,)):
            return UNREACHABLE, f"Temporal did not answer: {text}; {START}"
        case ConnectionFailed():
            return UNREACHABLE, f"{error}; {START}"
        case SettingsError():
            return REFUSED, str(error)
    raise error
