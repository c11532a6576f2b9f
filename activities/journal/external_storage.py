"""Where do values go that are too long for a history? Into the journal, or an S3 bucket; each is read where it is."""

import importlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar
from urllib.parse import urlsplit

from temporalio.contrib.aws.s3driver import S3StorageDriver, S3StorageDriverClient
from temporalio.converter import StorageDriver

from ...conversation.settings_error import SettingsError

PAYLOADS_URL = "BATON_PAYLOADS_URL"

_Kept = TypeVar("_Kept")


def stores(environment: Mapping[str, str], *journal: StorageDriver) -> Sequence[StorageDriver]:
    """The drivers of long values: new ones go to the first, and each is read with the one that has kept it.

    Raises SettingsError where the environment names a place that can't be used.
    """
    url = environment.get(PAYLOADS_URL)
    return (S3StorageDriver(_S3(), _bucket(url)), *journal) if url else journal


def _bucket(url: str) -> str:
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = urlsplit("")
    if parts.scheme != "s3" or not parts.netloc or "@" in parts.netloc or any((parts.path.strip("/"), *parts[3:])):
        raise SettingsError(f"{PAYLOADS_URL}: write s3://BUCKET; region and keys are read as boto3 reads them")
    try:
        importlib.import_module("aioboto3")
    except ImportError:
        needs = "S3 needs packages that are not installed: pip install 'baton[s3]'"
        raise SettingsError(f"{PAYLOADS_URL}: {needs}") from None
    return parts.netloc


class _S3(S3StorageDriverClient):
    """S3 as boto3 is told of it by the environment, reached anew for each value: they are few."""

    async def put_object(self, *, bucket: str, key: str, data: bytes) -> None:
        await _reached(lambda s3: s3.put_object(bucket=bucket, key=key, data=data))

    async def object_exists(self, *, bucket: str, key: str) -> bool:
        return await _reached(lambda s3: s3.object_exists(bucket=bucket, key=key))

    async def get_object(self, *, bucket: str, key: str) -> bytes:
        return await _reached(lambda s3: s3.get_object(bucket=bucket, key=key))


async def _reached(use: Callable[[S3StorageDriverClient], Awaitable[_Kept]]) -> _Kept:
    import aioboto3  # noqa: PLC0415  # of the extra `s3`
    from temporalio.contrib.aws.s3driver.aioboto3 import new_aioboto3_client  # noqa: PLC0415

    async with aioboto3.Session().client("s3") as client:
        return await use(new_aioboto3_client(client))
