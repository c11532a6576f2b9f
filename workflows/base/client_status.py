"""The status of a run for those who have started it, in the dialect of the run."""

from ...conversation.contracts.ark_status import ArkTarget, in_dialect
from ...conversation.contracts.requests import Pinned
from ...conversation.contracts.status import Status
from ...resources.base import JsonObject


def for_client(status: Status, pinned: Pinned | None, target: ArkTarget | None = None) -> Status | JsonObject:
    """The status in the dialect in which the run was pinned, or in which it could not be pinned.

    ``target`` is what runs, where that is no query. Until a run is pinned, its dialect is not known.
    """
    failed = status.failure.dialect if status.failure else None
    return in_dialect(status, pinned.thread.dialect if pinned else failed, target)
