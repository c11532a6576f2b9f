"""The request and the result of the activity ``last_failures``."""

from ...resources.base import JsonModel
from ..failure import Cause


class LastFailuresRequest(JsonModel):
    """``last_failures``: what has failed last in runs, given by their workflow ids."""

    runs: tuple[str, ...]


class LastFailures(JsonModel):
    """The result of ``last_failures``: the runs in which a call has failed and is being tried again."""

    by_run: dict[str, Cause] = {}
