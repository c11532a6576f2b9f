"""Where are values kept that are too long for a history? In the journal, under the SHA-256 of their bytes."""

import hashlib
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

from temporalio.api.common.v1 import Payload
from temporalio.converter import (
    StorageDriver,
    StorageDriverClaim,
    StorageDriverRetrieveContext,
    StorageDriverStoreContext,
    StorageDriverWorkflowInfo,
)

if TYPE_CHECKING:  # a command that needs none doesn't wait for it
    from . import Database


class Blobs(StorageDriver):
    """The driver of Temporal's SDK for a journal's database, which ``reach`` gives while it is used."""

    def __init__(self, reach: Callable[[], "AbstractAsyncContextManager[Database]"]) -> None:
        self._reach = reach

    def name(self) -> str:
        """What stands in histories."""
        return "baton-journal"

    async def store(self, context: StorageDriverStoreContext, payloads: Sequence[Payload]) -> list[StorageDriverClaim]:
        """Keeps values, each once however often it is stored: a replay stores them again."""
        target = context.target
        user = family(target.id or "") if isinstance(target, StorageDriverWorkflowInfo) else ""
        async with self._reach() as journal:
            names = [await journal.keep(payload.SerializeToString(deterministic=True), user) for payload in payloads]
        return [StorageDriverClaim({"sha": name}) for name in names]

    async def retrieve(
        self, context: StorageDriverRetrieveContext, claims: Sequence[StorageDriverClaim]
    ) -> list[Payload]:
        """Gives values back; raises JournalLost where one is missing."""
        async with self._reach() as journal:
            return [Payload.FromString(await journal.kept(claim.claim_data["sha"])) for claim in claims]


def family(workflow: str) -> str:
    """Whose values go together: a workflow's and those of all below it, whose ids begin with its own and a slash.

    A run that was reset, or goes on in a new one, refers to values of the run before it, which has the same id.
    """
    return hashlib.sha256(workflow.partition("/")[0].encode()).hexdigest()
