"""Provenance: the origin of a manifest, or of a part of a URL, and whether a worker trusts it."""

from enum import Enum


class Provenance(Enum):
    """The origin of a value, the most trusted first. The values are stored in pinned catalogs."""

    FILES = "files"
    """The files and the environment variables of the worker."""
    STORE = "store"
    """The manifest store."""
    TRUSTED = "trusted"
    """The input of a run whose client the worker trusts as it trusts its own files."""
    INLINE = "inline"
    """The input of any other run."""
    RUN = "run"
    """A parameter of a query that came with the run, or the transcript of a panel."""
    MODEL = "model"
    """An argument of a tool call."""
    SERVER = "server"
    """A response: a redirect, an agent card, an OpenAPI document."""

    @property
    def is_own(self) -> bool:
        """Whether the worker trusts it, so that it may use Secrets and the worker's own network."""
        return self in (Provenance.FILES, Provenance.STORE, Provenance.TRUSTED)

    @property
    def is_of_manifest(self) -> bool:
        """Whether it is part of a manifest, so that the annotation of a Secret can name its host."""
        return self.is_own or self is Provenance.INLINE

    def or_less_trusted(self, *others: "Provenance") -> "Provenance":
        """The least trusted of this one and the others: the provenance of a value derived from all of them."""
        return max((self, *others), key=[*Provenance].index)
