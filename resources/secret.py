"""``kind: Secret``: values that only the worker reads, at the moment of use."""

import base64
import binascii
from typing import Annotated, Literal, Self

from pydantic import Field, SecretStr, WithJsonSchema, model_validator

from .base import FieldError, SetByServer
from .manifest import Manifest

Hidden = Annotated[SecretStr, WithJsonSchema({"type": "string"})]
"""Text that is hidden in logs and errors."""


class Secret(Manifest):
    """A ``v1`` Secret. It is never part of a catalog or a history: these only have references to it."""

    api_version: Literal["v1"] = Field(description="'v1'")  # type: ignore[assignment]  # a kind of the core group
    kind: Literal["Secret"] = "Secret"
    data: dict[str, Hidden] = Field({}, description="values in base64, each under its key")
    string_data: dict[str, Hidden] = Field({}, description="values as plain text, each under its key")
    type: str = "Opaque"
    immutable: SetByServer = None

    @model_validator(mode="after")
    def _decodable(self) -> Self:
        for key, value in self.data.items():
            if _decoded(value) is None:
                raise FieldError(("data", key), "is not base64 of UTF-8 text; plain text goes under stringData")
        return self

    def value(self, key: str) -> str | None:
        """The text under ``key``; ``stringData`` wins, as in Kubernetes. None if there is no such key."""
        if key in self.string_data:
            return self.string_data[key].get_secret_value()
        return _decoded(self.data[key]) if key in self.data else None


def _decoded(value: SecretStr) -> str | None:
    try:
        return base64.b64decode("".join(value.get_secret_value().split()), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None
