"""``kind: Memory``: a store of conversations between queries (ARK: queries, memory)."""

from typing import Literal

from pydantic import Field

from .base import JsonModel
from .manifest import Manifest
from .values import Address, Headers


class MemorySpec(JsonModel):
    """The ``spec`` of a Memory."""

    address: Address = Field(description="the address of its service, as {value: ADDRESS}")
    headers: Headers = Field((), description="headers of each request")


class Memory(Manifest):
    """A service that stores conversations."""

    kind: Literal["Memory"] = "Memory"
    spec: MemorySpec = Field(description="where the memory is")
