"""External storage for values that are too large for a history, with checks of references that clients have sent."""

from collections.abc import Sequence

from temporalio.api.common.v1 import Payload
from temporalio.api.sdk.v1.external_storage_pb2 import ExternalStorageReference
from temporalio.converter import DataConverter, ExternalStorage

from ..contracts.settings import SettingsError, check_private_names

DRIVERS = frozenset({"baton-journal", "aws.s3driver"})
"""The names of all drivers with which any release has stored values."""

_UNREADABLE = b"binary/unreadable"
"""An encoding that no stored value has."""

_MARK = "__temporal_external_storage_reference"
"""The metadata by which the SDK recognizes an encrypted reference."""


def missing_value(reason: str) -> Payload:
    """A payload instead of a value that a driver does not have; converting it raises JournalLost.

    An error raised by the driver itself would fail the workflow task for any reference that a client makes up.
    """
    return Payload(metadata={"encoding": _UNREADABLE}, data=reason.encode())


def check_not_missing(payloads: Sequence[Payload]) -> None:
    """Raises JournalLost if one of the payloads is a missing value."""
    for payload in payloads:
        if payload.metadata.get("encoding") == _UNREADABLE:
            from ..contracts.errors import JournalLost  # noqa: PLC0415  # many models, which commands needn't load

            raise JournalLost(payload.data.decode(errors="replace"))


class CheckedStorage(ExternalStorage):
    """External storage that ignores invalid references.

    Any client may send a signal whose encoding claims that it is a reference. The SDK can't decode it, and so fails the
    workflow task forever: the run would receive no other signal and no cancellation. A payload that refers to no driver
    of Baton or of this storage is passed through, and the payload converter rejects it. A reference to a driver that
    this worker lacks waits for a worker that has it.
    """

    # A private method of the SDK (1.35), which has no hook for the recognition of references.
    def _decode_reference(self, payload: Payload) -> ExternalStorageReference | None:
        try:
            reference = super()._decode_reference(payload)
        except Exception:  # a converter may raise anything for bytes that a client has sent
            return None
        known = DRIVERS | {driver.name() for driver in self.drivers}
        return reference if reference and reference.driver_name in known else None


class CheckedConverter(DataConverter):
    """A data converter that ignores a reference mark on a payload that is not a reference."""

    # A private method of the SDK (1.35), which raises for such a mark before any public hook is called.
    async def _decode_reference_payload_sequence(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [await self._unmarked(payload) if _MARK in payload.metadata else payload for payload in payloads]

    async def _unmarked(self, payload: Payload) -> Payload:
        try:
            return (await super()._decode_reference_payload_sequence([payload]))[0]
        except SettingsError:  # the task waits for a worker that has the key
            raise
        except Exception:  # it is no reference
            plain = Payload()
            plain.CopyFrom(payload)
            del plain.metadata[_MARK]
            return plain


def check_private_hooks() -> None:
    """Raises SettingsError for a version of the SDK without the private methods that are overridden here."""
    check_private_names("temporalio", ExternalStorage, ["_decode_reference"])
    check_private_names("temporalio", DataConverter, ["_decode_reference_payload_sequence"])
