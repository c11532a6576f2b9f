"""The storage driver for Temporal's SDK that keeps long values in the journal, under the SHA-256 of their bytes."""

import hashlib
import re
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

from ...conversation.errors import JournalLost
from ...conversation.temporal.external_storage import missing_value

if TYPE_CHECKING:  # clients import this module, and few of them need the database
    from .database import Database


_SHA = re.compile(r"[0-9a-f]{64}")


class JournalStorageDriver(StorageDriver):
    """Stores long values in a journal's database, which ``open_database`` opens for each use."""

    def __init__(self, open_database: "Callable[[], AbstractAsyncContextManager[Database]]") -> None:
        self._open_database = open_database

    def name(self) -> str:
        """The name that histories refer to: never change it."""
        return "baton-journal"

    async def store(self, context: StorageDriverStoreContext, payloads: Sequence[Payload]) -> list[StorageDriverClaim]:
        """Stores values; the same value again, as in a replay, is stored once."""
        target = context.target
        family = workflow_family(target.id or "") if isinstance(target, StorageDriverWorkflowInfo) else ""
        blobs = [payload.SerializeToString(deterministic=True) for payload in payloads]
        async with self._open_database() as database:
            return [StorageDriverClaim({"sha": await database.put_blob(blob, family)}) for blob in blobs]

    async def retrieve(
        self, context: StorageDriverRetrieveContext, claims: Sequence[StorageDriverClaim]
    ) -> list[Payload]:
        """Reads values; see ``missing_value`` for those that are not there."""
        shas = [claim.claim_data.get("sha", "") for claim in claims]
        async with self._open_database() as database:
            return [await _read(database, sha) for sha in shas]


async def _read(database: "Database", sha: str) -> Payload:
    if not _SHA.fullmatch(sha):
        return missing_value("the journal holds no value of that name")
    try:
        return Payload.FromString(await database.get_blob(sha))
    except JournalLost as lost:
        return missing_value(lost.message)


def workflow_family(workflow_id: str) -> str:
    """The group of workflows whose values are deleted together, as a SHA-256.

    It is a workflow and all its descendants, whose ids begin with its own and a slash. A run that was reset or
    continued as new refers to values of the run before it, which has the same id. Runs to which clients have given ids
    that begin alike up to the first slash are one group: their values stay until none of these runs needs any.
    """
    return hashlib.sha256(workflow_id.partition("/")[0].encode()).hexdigest()
