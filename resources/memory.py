"""``kind: Memory``: where conversations are kept between queries (seed 003, Memory)."""

from typing import Literal

from pydantic import Field

from .base import JsonModel
from .manifest import Manifest
from .values import Address, Headers


class MemorySpec(JsonModel):
    """A memory's ``spec``."""

    address: Address = Field(description="the address of its service, as {value: ADDRESS}")
    headers: Headers = Field((), description="headers of each request")


class Memory(Manifest):
    """A service that keeps conversations."""

    kind: Literal["Memory"] = "Memory"
    spec: MemorySpec = Field(description="where the memory is")
