"""What the operations of manifests take and return."""

from typing import Literal

from pydantic import Field

from ...resources.base import JsonModel
from ..diagram.layout import Drawing
from ..operations.manifests import Applied
from ..operations.quotas import QuotaReport

MAX_TEXT = 400_000
"""Characters of a manifest that is validated, written or compared over HTTP. ``baton apply`` takes larger ones."""

MAX_LISTED = 2_000
"""The most manifests in a list."""


class ManifestInfo(JsonModel):
    """A manifest in a list.

    ``source`` is where runs get it: ``store``, or ``files`` of workers, which precede the store. ``version`` is the
    newest in the store, if it is there, and ``changed`` the time at which that was written. ``writable``: the caller
    may write it. ``problem`` says why it can't be read.
    """

    id: str
    kind: str
    namespace: str
    name: str
    source: str
    version: int | None = None
    changed: str | None = None
    description: str | None = None
    strategy: str | None = None
    members: int | None = None
    writable: bool = False
    problem: str | None = None


class ManifestList(JsonModel):
    """The manifests that the caller may use; ``more`` is the number of those that are left out.

    ``can_store``: there is a store that this gateway can write. ``writable`` are the kinds of which the caller may
    write new ones in some namespace.
    """

    manifests: list[ManifestInfo]
    more: int = 0
    can_store: bool = False
    creatable: list[str] = []


class ManifestText(JsonModel):
    """A manifest as YAML, with the ids of what it refers to, and of what refers to it (``used_by``).

    The caller sees all of them; a reference to something else is there in words.

    ``newest`` is the newest version in the store, 0 if it is not there; a change of the manifest names it.
    """

    info: ManifestInfo
    text: str
    newest: int = 0
    refers_to: list[str] = []
    used_by: list[str] = []
    warnings: list[str] = []


class VersionInfo(JsonModel):
    """A version of a manifest in the store, when it was written, and by whom, if that is known."""

    version: int
    changed: str
    author: str | None = None
    deleted: bool = False
    problem: str | None = None


class VersionList(JsonModel):
    """The versions that the store still has, the newest first."""

    versions: list[VersionInfo]


class DifferenceLine(JsonModel):
    """A line of a difference: ``added``, ``removed``, in both of them, or the lines' numbers (``place``)."""

    kind: Literal["added", "removed", "same", "place"]
    text: str


class ManifestDifference(JsonModel):
    """The difference between two versions, line by line; ``truncated``: there is more."""

    lines: list[DifferenceLine]
    truncated: bool = False


class TextMessage(JsonModel, extra="forbid"):
    """A manifest as YAML or JSON, in the namespace ``namespace`` if it names none."""

    text: str = Field(max_length=MAX_TEXT)
    namespace: str = Field("default", max_length=253)


class WriteMessage(JsonModel, extra="forbid"):
    """The new text of a manifest. ``version`` is the newest one that the writer has seen, 0 if there was none."""

    text: str = Field(max_length=MAX_TEXT)
    version: int = Field(ge=0)


class PruneMessage(JsonModel, extra="forbid"):
    """What is deleted if it is not in the text: manifests of a ``namespace``, with ``labels``, of which null is any."""

    namespace: str | None = Field(None, max_length=253)
    labels: dict[str, str | None] = {}


class ApplyMessage(JsonModel, extra="forbid"):
    """Manifests to write together, in the namespace ``namespace`` if they name none; ``dry_run`` only checks them."""

    text: str = Field(max_length=MAX_TEXT)
    namespace: str = Field("default", max_length=253)
    dry_run: bool = False
    prune: PruneMessage | None = None


class DeleteMessage(JsonModel, extra="forbid"):
    """Manifests to delete together, by their ids; ``dry_run`` only checks that they may be."""

    ids: list[str] = Field(max_length=MAX_LISTED)
    dry_run: bool = False


class ManifestChange(JsonModel):
    """What was done with a manifest."""

    id: str
    applied: Literal["created", "configured", "unchanged", "pruned", "deleted"]


class ManifestChanges(JsonModel):
    """What was done with each manifest."""

    changes: list[ManifestChange]


class QuotaList(JsonModel):
    """What the caller's tenants have used under their Quotas; a caller who sees all runs sees all tenants."""

    quotas: list[QuotaReport]


class RunDrawing(JsonModel):
    """The drawing of the team that a run asks; none for an agent, or if the team's manifest is not known any more.

    ``is_inline``: the run has its manifest from its client, so it may have no page.
    """

    drawing: Drawing | None = None
    is_inline: bool = False


class ProblemInfo(JsonModel):
    """What is wrong with a manifest, in a sentence; ``line`` counts from 1, and is None if it is not known."""

    line: int | None = None
    resource: str | None = None
    field: str | None = None
    text: str


class Validation(JsonModel):
    """The result of a validation: ``problems`` prevent that the manifest is stored, ``warnings`` don't.

    ``ids`` are those of the manifests, if there is no problem. ``drawing`` is that of the first one that is drawn.
    """

    problems: list[ProblemInfo]
    warnings: list[ProblemInfo]
    ids: list[str] = []
    drawing: Drawing | None = None


class Written(JsonModel):
    """What was written: ``unchanged`` if the store had it already."""

    applied: Applied
    version: int
