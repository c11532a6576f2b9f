"""What leaves an activity when it fails? Its error, without secrets, and without what lies behind it."""

import asyncio
import logging
from collections.abc import Callable

from temporalio import activity
from temporalio.exceptions import ApplicationError
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from ...conversation.failure import MAX_TEXT
from ...conversation.messages.message import cut
from .retry import delay, is_last


class Redaction(Interceptor):
    """Blacks secrets out of every error before Temporal hears of it."""

    def __init__(self, redact: Callable[[str], str]) -> None:
        self._redact = redact

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002  # SDK's
        return _Redacting(super().intercept_activity(next), self._redact)


class _Redacting(ActivityInboundInterceptor):
    def __init__(self, following: ActivityInboundInterceptor, redact: Callable[[str], str]) -> None:
        super().__init__(following)
        self._redact = redact

    async def execute_activity(self, input: ExecuteActivityInput) -> object:  # noqa: A002  # the SDK's name
        try:
            return await super().execute_activity(input)
        except asyncio.CancelledError:
            raise
        except ApplicationError as error:
            info = activity.info()
            raise ApplicationError(
                cut(self._redact(error.message), MAX_TEXT),
                *error.details,
                type=error.type,
                non_retryable=error.non_retryable or is_last(info.attempt, info.retry_policy),
                next_retry_delay=delay(error.next_retry_delay, info.attempt),
            ) from None
        except Exception as error:  # a bug of ours: Temporal is told of it, and tries again
            logging.getLogger(__name__).exception("%s failed", input.fn.__name__)
            raise ApplicationError(cut(self._redact(str(error)), MAX_TEXT), type=type(error).__name__) from None


class RedactingFormatter(logging.Formatter):
    """Blacks secrets out of every line of a log, tracebacks included.

    A failed attempt of an activity is one line: Temporal tells the rest, and a bug's traceback is logged apart.
    """

    def __init__(self, layout: str, redact: Callable[[str], str]) -> None:
        super().__init__(layout)
        self._redact = redact

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record."""
        if record.name == "temporalio.activity" and record.exc_info:
            record.msg, record.exc_info = f"{record.getMessage().partition(' (')[0]}: {record.exc_info[1]}", None
            record.args = ()
        return self._redact(super().format(record))
