"""The payload codec and the data converter of an application, which settings name as ``tests.harness.scrambled:…``."""

import base64
import dataclasses
from collections.abc import Sequence

from temporalio.api.common.v1 import Payload
from temporalio.converter import DataConverter, PayloadCodec


class Scrambled(PayloadCodec):
    """A codec of the application: what it has encoded can be read by nobody without it."""

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [
            Payload(metadata={"encoding": b"binary/scrambled"}, data=base64.b64encode(each.SerializeToString())[::-1])
            for each in payloads
        ]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [
            Payload.FromString(base64.b64decode(each.data[::-1]))
            if each.metadata["encoding"] == b"binary/scrambled"
            else each
            for each in payloads
        ]


SCRAMBLED = dataclasses.replace(DataConverter.default, payload_codec=Scrambled())
