"""The exit code and the sentence for every error that a command can end with."""

import yaml
from pydantic import ValidationError
from temporalio.service import RPCError, RPCStatusCode

from ...contracts.errors import BatonError
from ...contracts.settings import SettingsError
from ...temporal.client import ConnectionFailed
from ..errors import START_HINT, ConnectionLostError, UnreachableError, UsageError
from ..runs.runs import NoSuchRunError
from ..server.embedded import ServerError
from .exit_codes import REFUSED, UNREACHABLE


def explain(error: Exception) -> tuple[int, str]:
    """The exit code and the sentence for an error; raises one that is not expected here."""
    match error:
        case UsageError() | NoSuchRunError() | SettingsError():
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
        case RPCError(message=text) | ConnectionLostError(args=(text,)):
            return UNREACHABLE, f"Temporal did not answer: {text}; {START_HINT}"
        case ConnectionFailed():
            return UNREACHABLE, f"{error}; {START_HINT}"
    raise error
