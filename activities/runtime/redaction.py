"""Redaction: no secret leaves the worker in an activity's error."""

import asyncio
import logging
from collections.abc import Callable

from temporalio import activity
from temporalio.exceptions import ApplicationError
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from ...conversation.failure import MAX_ERROR_TEXT
from ...conversation.text import truncate
from .log_context import note_request
from .retry import is_last_attempt, retry_delay


class RedactionInterceptor(Interceptor):
    """Removes secrets from every activity's error, and the errors that caused it, before Temporal gets it."""

    def __init__(self, redact: Callable[[str], str]) -> None:
        self._redact = redact

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002  # SDK's
        return _RedactingActivities(super().intercept_activity(next), self._redact)


class _RedactingActivities(ActivityInboundInterceptor):
    def __init__(self, next_interceptor: ActivityInboundInterceptor, redact: Callable[[str], str]) -> None:
        super().__init__(next_interceptor)
        self._redact = redact

    async def execute_activity(self, input: ExecuteActivityInput) -> object:  # noqa: A002  # the SDK's name
        note_request(input.args)
        try:
            return await super().execute_activity(input)
        except asyncio.CancelledError:
            raise
        except ApplicationError as error:
            info = activity.info()
            raise ApplicationError(
                truncate(self._redact(error.message), MAX_ERROR_TEXT),
                *(self._redact(each) if isinstance(each, str) else each for each in error.details),
                *((info.attempt,) if error.details else ()),
                type=error.type,
                non_retryable=error.non_retryable or is_last_attempt(info.attempt, info.retry_policy),
                next_retry_delay=retry_delay(error.next_retry_delay, info.attempt),
            ) from None
        except Exception as error:  # a bug in Baton: Temporal retries the activity
            logging.getLogger(__name__).exception("%s failed", input.fn.__name__)
            raise ApplicationError(
                truncate(self._redact(str(error)), MAX_ERROR_TEXT), type=type(error).__name__
            ) from None
