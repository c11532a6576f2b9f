"""The storage drivers for values that are too large for a history: the journal, and an S3 bucket if one is set."""

import hashlib
import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote, urlsplit

from temporalio.api.common.v1 import Payload
from temporalio.contrib.aws.s3driver import S3StorageDriver, S3StorageDriverClient
from temporalio.converter import (
    StorageDriver,
    StorageDriverClaim,
    StorageDriverRetrieveContext,
    StorageDriverStoreContext,
    StorageDriverWorkflowInfo,
)

from ..contracts.settings import SettingsError
from ..installation import require
from ..temporal.client import EXTERNAL_STORAGE_URL
from ..temporal.external_storage import missing_value

_Result = TypeVar("_Result")


def storage_drivers(environment: Mapping[str, str], *journal: StorageDriver) -> Sequence[StorageDriver]:
    """The storage drivers: the first stores new values, and every value is read by the driver that stored it.

    Raises SettingsError if the environment names an unusable bucket.
    """
    url = environment.get(EXTERNAL_STORAGE_URL)
    return (_BucketDriver(_S3Client(), _bucket(url)), *journal) if url else journal


def _bucket(url: str) -> str:
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = urlsplit("")
    if parts.scheme != "s3" or not parts.netloc or "@" in parts.netloc or any((parts.path.strip("/"), *parts[3:])):
        raise SettingsError(f"{EXTERNAL_STORAGE_URL}: must be s3://BUCKET; region and keys come from boto3's settings")
    require("s3", EXTERNAL_STORAGE_URL)
    return parts.netloc


class _S3Client(S3StorageDriverClient):
    """Uses S3 with boto3's own settings. It connects once per value, because large values are rare."""

    async def put_object(self, *, bucket: str, key: str, data: bytes) -> None:
        await _connected(lambda s3: s3.put_object(bucket=bucket, key=key, data=data))

    async def object_exists(self, *, bucket: str, key: str) -> bool:
        return await _connected(lambda s3: s3.object_exists(bucket=bucket, key=key))

    async def get_object(self, *, bucket: str, key: str) -> bytes:
        return await _connected(lambda s3: s3.get_object(bucket=bucket, key=key))


class _BucketDriver(S3StorageDriver):
    """Reads values one by one, so that a missing one does not affect the others."""

    async def retrieve(
        self, context: StorageDriverRetrieveContext, claims: Sequence[StorageDriverClaim]
    ) -> list[Payload]:
        return [await self._read(context, claim) for claim in claims]

    async def _read(self, context: StorageDriverRetrieveContext, claim: StorageDriverClaim) -> Payload:
        try:
            return (await super().retrieve(context, [claim]))[0]
        except (KeyError, ValueError):  # the claim names no object, or the object has other content
            return missing_value("a reference to a value in the bucket matches no object")
        except RuntimeError as error:
            if not _is_missing(error.__cause__, of_another=claim.claim_data.get("bucket") != self._bucket):
                raise
            return missing_value("the bucket does not hold a value that a run refers to")


def _is_missing(error: BaseException | None, *, of_another: bool) -> bool:
    """Whether S3 reports that there is no such object, or will never return it.

    A reference is untrusted input from a client: its names may be invalid. ``of_another``: it names a bucket other than
    the configured one, which may be inaccessible.
    """
    code = getattr(error, "response", {}).get("Error", {}).get("Code")
    closed = of_another and code in ("AccessDenied", "403", "AllAccessDisabled", "PermanentRedirect")
    is_name = type(error).__name__ != "ParamValidationError"
    return closed or not is_name or code in ("NoSuchKey", "NoSuchBucket", "InvalidBucketName", "404")


async def _connected(use: Callable[[S3StorageDriverClient], Awaitable[_Result]]) -> _Result:
    import aioboto3  # noqa: PLC0415  # of the extra `s3`
    from temporalio.contrib.aws.s3driver.aioboto3 import new_aioboto3_client  # noqa: PLC0415

    async with aioboto3.Session().client("s3") as client:
        return await use(new_aioboto3_client(client))


if TYPE_CHECKING:  # clients import this module, and few of them need the database
    from .database import Database


async def delete_from_bucket(
    environment: Mapping[str, str], namespace: str, workflows: Collection[tuple[str, str]]
) -> None:
    """Deletes the values that workflows have stored in the bucket of an environment, if it names one.

    ``workflows`` are types and ids: all executions with such an id lose their values. Raises SettingsError.
    """
    url = environment.get(EXTERNAL_STORAGE_URL)
    if not url:
        return
    import aioboto3  # noqa: PLC0415  # of the extra `s3`

    bucket_name = _bucket(url)
    async with aioboto3.Session().resource("s3") as s3:
        bucket = await s3.Bucket(bucket_name)
        for workflow_type, workflow_id in sorted({*workflows}):
            prefix = f"v0/ns/{_key_part(namespace)}/wt/{_key_part(workflow_type)}/wi/{_key_part(workflow_id)}/"
            await bucket.objects.filter(Prefix=prefix).delete()


def _key_part(text: str) -> str:
    """A part of an object's key, encoded as the SDK's driver does."""
    return quote(text, safe="!*'()").replace("~", "%7E")


_SHA = re.compile(r"[0-9a-f]{64}")


class JournalStorageDriver(StorageDriver):
    """Stores large values in a journal's database, which ``open_database`` opens for every operation.

    One that ``replays`` writes nothing: the values that a replay stores are in the journal already.
    """

    def __init__(
        self, open_database: "Callable[[], AbstractAsyncContextManager[Database]]", *, replays: bool = False
    ) -> None:
        self._open_database = open_database
        self._replays = replays

    def name(self) -> str:
        """The name that histories refer to: never change it."""
        return "baton-journal"

    async def store(self, context: StorageDriverStoreContext, payloads: Sequence[Payload]) -> list[StorageDriverClaim]:
        """Stores values; an identical value, as during replay, is stored once."""
        target = context.target
        family = workflow_family(target.id or "") if isinstance(target, StorageDriverWorkflowInfo) else ""
        blobs = [payload.SerializeToString(deterministic=True) for payload in payloads]
        if self._replays:
            return [StorageDriverClaim({"sha": hashlib.sha256(blob).hexdigest()}) for blob in blobs]
        async with self._open_database() as database:
            return [StorageDriverClaim({"sha": await database.put_blob(blob, family)}) for blob in blobs]

    async def retrieve(
        self, context: StorageDriverRetrieveContext, claims: Sequence[StorageDriverClaim]
    ) -> list[Payload]:
        """Reads values; missing ones are returned as ``missing_value``."""
        shas = [claim.claim_data.get("sha", "") for claim in claims]
        async with self._open_database() as database:
            return [await _read(database, sha) for sha in shas]


async def _read(database: "Database", sha: str) -> Payload:
    if not _SHA.fullmatch(sha):
        return missing_value("the journal holds no value of that name")
    from ..contracts.errors import JournalLost  # noqa: PLC0415  # many models, which commands needn't load

    try:
        return Payload.FromString(await database.get_blob(sha))
    except JournalLost as lost:
        return missing_value(lost.message)


def workflow_family(workflow_id: str) -> str:
    """The group of workflows whose values are deleted together, as a SHA-256.

    A family is a workflow and all its descendants, whose ids begin with its own and a slash. A run that was reset or
    continued as new refers to values of the previous run, which has the same id. Runs whose ids, chosen by clients,
    share the part before the first slash are one family: their values stay until none of these runs needs any.
    """
    return hashlib.sha256(workflow_id.partition("/")[0].encode()).hexdigest()
