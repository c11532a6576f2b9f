"""Headers that a query or an agent adds to requests for what it uses, by type and labels (ARK: queries, overrides)."""

from typing import Literal

from pydantic import Field

from .base import JsonModel
from .labels import LabelSelector
from .manifest import Manifest
from .values import Headers

ALLOW_BROUGHT = "baton/allow-brought"
"""The annotation by which a manifest of the worker says what runs may do with it: see docs/security.md."""

ResourceType = Literal["model", "mcpserver", "a2aserver", "executionengine"]


class Override(JsonModel):
    """Headers for the models or servers that a query or an agent uses; for all of the type, or those with labels."""

    resource_type: ResourceType = Field(description="'model', 'mcpserver', 'a2aserver' or 'executionengine'")
    headers: Headers = Field(min_length=1, description="headers of each request; they replace those of its manifest")
    label_selector: LabelSelector | None = Field(None, description="labels of the manifests; by default all")

    def is_for(self, manifest: Manifest) -> bool:
        """Whether its headers are sent to the model or server of a manifest."""
        selector = self.label_selector
        fits = selector is None or selector.matches(manifest.metadata.labels)
        return fits and manifest.kind.lower() == self.resource_type
