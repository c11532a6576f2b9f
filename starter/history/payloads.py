"""Decodes the payloads and the failures of a history."""

from typing import TypeVar

from temporalio.api.common.v1 import Payloads
from temporalio.api.failure.v1 import Failure as TemporalFailure
from temporalio.converter import DataConverter
from temporalio.exceptions import ApplicationError, FailureError
from temporalio.exceptions import TimeoutError as ActivityTimeout

from ...conversation.errors import BudgetExceeded
from ...conversation.failure import BudgetReached, Failure

T = TypeVar("T")


async def decode_payload(converter: DataConverter, payloads: Payloads, kind: type[T]) -> T:
    """The only value of some payloads.

    Raises InvalidInput if it is not of that kind, and SettingsError if it is encrypted and the key is missing.
    """
    values = await converter.decode(payloads.payloads, [kind])
    value: T = values[0]
    return value


async def decode_failure(converter: DataConverter, failure: TemporalFailure) -> Failure:
    """A failure of an activity or a workflow, in the form in which the workflow itself would record it."""
    error = await converter.decode_failure(failure)
    match error:
        case ActivityTimeout(message=text):
            return Failure(family="TimeoutError", type="CallTimeout", message=text)
        case ApplicationError(message=text, type=kind, details=[str() as family, *more]):
            about = next((each for each in more if isinstance(each, dict)), {})
            budget = BudgetReached.model_validate(about) if about and kind == BudgetExceeded.__name__ else None
            known = {"wait": about.get("wait"), "budget": budget}
            return Failure(family=family, type=kind or "ActivityError", message=text).model_copy(update=known)
    kind = error.type if isinstance(error, ApplicationError) else None
    text = error.message if isinstance(error, FailureError) else str(error)
    return Failure(family="BatonError", type=kind or "ActivityError", message=text)
