"""``kind: Memory``: a store of conversations between queries (ARK: queries, memory)."""

from typing import Literal

from pydantic import Field

from .base import Duration, JsonModel
from .manifest import Manifest
from .values import Address, Headers, ValueSource


class MemorySpec(JsonModel):
    """The ``spec`` of a Memory."""

    address: Address = Field(description="the address of its service, as {value: ADDRESS}")
    headers: Headers = Field((), description="headers of each request")
    timeout: Duration = Field("30s", description="how long a response may take, such as '30s'")
    on_error: Literal["fail", "continue"] = Field(
        "fail", description="'continue' to answer without the conversation if it can't be read"
    )


class Memory(Manifest):
    """A service that stores conversations."""

    kind: Literal["Memory"] = "Memory"
    spec: MemorySpec = Field(description="where the memory is")

    @property
    def address(self) -> ValueSource:
        """The server's address."""
        return self.spec.address
