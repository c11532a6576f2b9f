"""The models that are asked one after the other, and how long each of them is tried."""

from collections.abc import Iterator
from dataclasses import replace

from ...conversation.contracts.heartbeats import MISSED_HEARTBEATS
from ..state.constants import FALLBACK_FAMILIES
from ..state.errors import ActivityFailed
from ..state.run_state import RunState
from .options import CALL, ActivityOptions, call_timeouts


def attempts(number: int) -> ActivityOptions:
    """The options of a call that is tried so often; attempts that only miss a heartbeat come on top."""
    policy = replace(CALL["retry_policy"], maximum_attempts=number + MISSED_HEARTBEATS)
    return {**CALL, "retry_policy": policy}


class FallbackModel:
    """One model of a chain, as a context: an error after which the next one is to be asked is suppressed."""

    def __init__(self, run: RunState, models: tuple[str, ...], index: int, seconds: float | None) -> None:
        self.name, self.index = models[index], index
        self.task_queue = run.task_queues.for_model(self.name)
        self._is_last = index == len(models) - 1
        tried = attempts(10 if self._is_last else 6)  # a minute and a half at least, or 15 seconds
        self.options: ActivityOptions = {**tried, **call_timeouts(seconds)}

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: object, _traceback: object) -> bool:
        return isinstance(error, ActivityFailed) and not self._is_last and error.failure.family in FALLBACK_FAMILIES


def fallback_chain(run: RunState, models: tuple[str, ...], seconds: float | None) -> Iterator[FallbackModel]:
    """The model and its fallbacks, in their order. An answer of each may take so many seconds."""
    return (FallbackModel(run, models, index, seconds) for index in range(len(models)))
