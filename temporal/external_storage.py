"""External storage for values that are too long for a history, which passes over what no worker of Baton has stored."""

from collections.abc import Sequence

from temporalio.api.common.v1 import Payload
from temporalio.api.sdk.v1.external_storage_pb2 import ExternalStorageReference
from temporalio.converter import DataConverter, ExternalStorage

from ..contracts.errors import JournalLost
from ..contracts.settings import SettingsError

DRIVERS = frozenset({"baton-journal", "aws.s3driver"})
"""The names of all drivers with which a Baton has ever stored a value."""

_UNREADABLE = b"binary/unreadable"
"""An encoding that nothing is stored with."""

_MARK = "__temporal_external_storage_reference"
"""The metadata by which the SDK knows a reference that is encrypted."""


def missing_value(reason: str) -> Payload:
    """What stands in the place of a value that a driver does not have: whoever reads it gets JournalLost.

    Raised by the driver itself, it would fail a workflow task, and with it the run, for any reference that a client
    makes up.
    """
    return Payload(metadata={"encoding": _UNREADABLE}, data=reason.encode())


def check_not_missing(payloads: Sequence[Payload]) -> None:
    """Raises JournalLost if a value among these was missing."""
    for payload in payloads:
        if payload.metadata.get("encoding") == _UNREADABLE:
            raise JournalLost(payload.data.decode(errors="replace"))


class CheckedStorage(ExternalStorage):
    """External storage that takes only for a reference what is one.

    Any client may send a signal whose encoding says that it is a reference. The SDK can't read it, and so fails the
    workflow task for ever: the run would take no other signal and no cancel. What is no reference of a driver of
    Baton's is left as it is: whoever reads the value finds that it is none. A reference to a driver that this worker
    lacks waits for one that has it.
    """

    # A private method of the SDK (1.35): it has no hook where a payload is recognized as a reference.
    def _decode_reference(self, payload: Payload) -> ExternalStorageReference | None:
        try:
            reference = super()._decode_reference(payload)
        except Exception:  # whatever a converter raises about bytes that a client has sent
            return None
        return reference if reference and reference.driver_name in DRIVERS else None


class CheckedConverter(DataConverter):
    """A data converter that takes the mark of a reference for nothing where there is no reference."""

    # A private method of the SDK (1.35), which raises for a mark without a reference before any public hook is called.
    async def _decode_reference_payload_sequence(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [await self._unmarked(payload) if _MARK in payload.metadata else payload for payload in payloads]

    async def _unmarked(self, payload: Payload) -> Payload:
        try:
            return (await super()._decode_reference_payload_sequence([payload]))[0]
        except SettingsError:  # it waits for a worker that has the key
            raise
        except Exception:  # it is no reference
            plain = Payload()
            plain.CopyFrom(payload)
            del plain.metadata[_MARK]
            return plain
