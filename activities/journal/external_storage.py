"""The storage drivers for values that are too long for a history: the journal, and an S3 bucket if one is set."""

import importlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar
from urllib.parse import urlsplit

from temporalio.api.common.v1 import Payload
from temporalio.contrib.aws.s3driver import S3StorageDriver, S3StorageDriverClient
from temporalio.converter import StorageDriver, StorageDriverClaim, StorageDriverRetrieveContext

from ...conversation.settings_error import SettingsError
from ...conversation.temporal.external_storage import missing_value
from ...conversation.temporal.temporal_client import EXTERNAL_STORAGE_URL

_Result = TypeVar("_Result")


def storage_drivers(environment: Mapping[str, str], *journal: StorageDriver) -> Sequence[StorageDriver]:
    """The drivers to use: new values go to the first, and each value is read by the driver that has stored it.

    Raises SettingsError if the environment names a bucket that can't be used.
    """
    url = environment.get(EXTERNAL_STORAGE_URL)
    return (_BucketDriver(_S3Client(), _bucket(url)), *journal) if url else journal


def _bucket(url: str) -> str:
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = urlsplit("")
    if parts.scheme != "s3" or not parts.netloc or "@" in parts.netloc or any((parts.path.strip("/"), *parts[3:])):
        raise SettingsError(f"{EXTERNAL_STORAGE_URL}: write s3://BUCKET; region and keys are read as boto3 reads them")
    try:
        importlib.import_module("aioboto3")
    except ImportError:
        extra = "Baton's extra 's3' (in a checkout of Baton: pip install -e '.[s3]')"
        hint = f"S3 needs packages that are not installed: install {extra}"
        raise SettingsError(f"{EXTERNAL_STORAGE_URL}: {hint}") from None
    return parts.netloc


class _S3Client(S3StorageDriverClient):
    """Uses S3 with boto3's own settings. It connects for each value, because long values are few."""

    async def put_object(self, *, bucket: str, key: str, data: bytes) -> None:
        await _connected(lambda s3: s3.put_object(bucket=bucket, key=key, data=data))

    async def object_exists(self, *, bucket: str, key: str) -> bool:
        return await _connected(lambda s3: s3.object_exists(bucket=bucket, key=key))

    async def get_object(self, *, bucket: str, key: str) -> bytes:
        return await _connected(lambda s3: s3.get_object(bucket=bucket, key=key))


class _BucketDriver(S3StorageDriver):
    """Reads each value by itself: one that is missing does not keep the others."""

    async def retrieve(
        self, context: StorageDriverRetrieveContext, claims: Sequence[StorageDriverClaim]
    ) -> list[Payload]:
        return [await self._read(context, each) for each in claims]

    async def _read(self, context: StorageDriverRetrieveContext, claim: StorageDriverClaim) -> Payload:
        try:
            return (await super().retrieve(context, [claim]))[0]
        except (KeyError, ValueError):  # the claim names no object, or another one stands there
            return missing_value("what refers to a value in the bucket does not fit to one")
        except RuntimeError as error:
            if not _is_missing(error.__cause__, of_another=claim.claim_data.get("bucket") != self._bucket):
                raise
            return missing_value("the bucket does not hold a value that a run refers to")


def _is_missing(error: BaseException | None, *, of_another: bool) -> bool:
    """Whether S3 says that there is no such object, to somebody who may list the bucket; or never will give it.

    A reference is whatever a client has written: its names may be none, and its bucket ``of_another`` may be closed.
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
