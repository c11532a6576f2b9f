"""``kind: ConfigMap``: values that are not secret."""

from typing import Literal

from pydantic import Field

from .base import SetByServer
from .manifest import Manifest


class ConfigMap(Manifest):
    """A ``v1`` ConfigMap."""

    api_version: Literal["v1"] = Field(description="'v1'")  # type: ignore[assignment]  # a kind of the core group
    kind: Literal["ConfigMap"] = "ConfigMap"
    data: dict[str, str] = Field({}, description="values as plain text, each under its key")
    binary_data: SetByServer = None
    immutable: SetByServer = None
