"""The rules of the manifest store: which manifests may be stored, and their dependencies and dependents."""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from pydantic import ValidationError

from .base import Reference
from .catalog import KINDS, Catalog, Resource, catalog_of
from .documents import Document
from .loader import Loaded, hint_for
from .manifest import Manifest
from .mcp_server import MCPServer
from .problems import ManifestError, Problem, dotted_path, explain_errors
from .query import Query
from .schedule import Schedule
from .secret import Secret, Secrets
from .validation import missing_keys, queries_without_targets, violations
from .values import sources

STORABLE: Mapping[str, type[Manifest]] = {
    **{name: kind for name, kind in KINDS.items() if kind is not Schedule},
    Secret.__name__: Secret,
}
"""The kinds that are stored."""

_NO_COMMAND = "a command may only be in a worker's own files: start the workers with this MCPServer"
_NO_SCHEDULE = "schedules are stored in Temporal: apply it with baton schedules apply"
_NO_LITERAL = "is a literal secret, which is not stored: put it into a Secret, and refer to that with valueFrom"
_NO_KEY = (
    "Secrets are only stored encrypted: set BATON_ENCRYPTION_KEYS for the workers and for this command, or start the "
    "workers with this file (-f)"
)


def check_storable(loaded: Loaded, *, encrypted: bool) -> None:
    """Raises ManifestError for manifests that can't be stored: literal secrets, commands and Schedules.

    Secrets can't be stored unless the store is ``encrypted``.
    """
    if unstorable := [*_not_storable(loaded, encrypted=encrypted)]:
        raise ManifestError(sorted(unstorable, key=lambda problem: (problem.file, problem.line)))


def _not_storable(loaded: Loaded, *, encrypted: bool) -> Iterator[Problem]:
    for manifest in loaded.manifests:
        if isinstance(manifest, Secret) and not encrypted:
            yield loaded.problem(manifest, ("kind",), _NO_KEY)
        if isinstance(manifest, Schedule):
            yield loaded.problem(manifest, ("kind",), _NO_SCHEDULE)
        if isinstance(manifest, MCPServer) and manifest.spec.command:
            yield loaded.problem(manifest, ("spec", "command"), _NO_COMMAND)
        for path, source in sources(manifest):
            ref = source.value_from.secret_key_ref if source.value_from else None
            if ref and ref.name == manifest.own_secret and loaded.secrets.get(manifest.namespace, ref.name):
                yield loaded.problem(manifest, path, _NO_LITERAL)


def check_with(loaded: Loaded, stored: Catalog, *, force: bool = False) -> None:
    """Raises ManifestError if files and the store together break a rule, or no run could use them.

    With ``force`` references may be unresolved. References to Secrets are resolved by a worker, when they are used.
    """
    places = {manifest.id: Document("the store", None, {}) for manifest in stored.manifests} | loaded.places
    together = replace(loaded, catalog=catalog_of(loaded.catalog.overlaid_on(stored).manifests), places=places)
    problems = [together.problem(*violation) for violation in violations(together.catalog)]
    problems += [together.problem(*violation) for violation in missing_keys(together.catalog, Secrets())]
    problems += loaded.unsupported()
    if not force:
        problems += _unknown(together, {manifest.id for manifest in loaded.catalog.manifests})
    if problems:
        raise ManifestError(dict.fromkeys(problems))


def _unknown(together: Loaded, new: Collection[str]) -> Iterator[Problem]:
    known = together.catalog
    for manifest in known.manifests:
        for reference in manifest.references if manifest.id in new else ():
            if reference.optional or reference.kinds == ("Secret",) or known.find(reference):
                continue
            text = f"{reference} is neither in the files nor in the store; {hint_for(manifest, reference, known)}"
            yield together.problem(manifest, reference.path, text)
    yield from (together.problem(*orphan) for orphan in queries_without_targets(known) if orphan.manifest.id in new)


def users(stored: Catalog, deleted: Collection[str]) -> Iterator[tuple[Manifest, Reference]]:
    """The manifests that depend on one of those with the ids ``deleted``, with their references."""
    remaining = catalog_of(manifest for manifest in stored.manifests if manifest.id not in deleted)
    for manifest in remaining.manifests:
        for reference in manifest.references:
            was_known = stored.find(reference) or _id_of_secret(reference) in deleted
            if not reference.optional and was_known and not remaining.find(reference):
                yield manifest, reference
    before = {query.manifest.id for query in queries_without_targets(stored)}
    for query, path, _ in queries_without_targets(remaining):
        if isinstance(query, Query) and query.id not in before:
            yield query, replace(stored.targets(query)[0], path=path)


def kind_of(word: str) -> str | None:
    """The kind for a word in a command, such as ``Query`` for ``queries``; None if it is not storable."""
    names = {form: kind for kind in STORABLE for form in (kind.lower(), _plural(kind.lower()))}
    return names.get(word.lower())


def kind_words() -> Iterable[str]:
    """The plural words for all storable kinds."""
    return (_plural(kind.lower()) for kind in STORABLE)


def _plural(word: str) -> str:
    return f"{word[:-1]}ies" if word.endswith("y") else f"{word}s"


def details(manifest: Resource) -> str:
    """The details of a manifest for a wide table."""
    spec = getattr(manifest, "spec", None)
    words = [str(getattr(spec, "strategy", "") or "")]
    shown = (
        reference
        for reference in manifest.references
        if reference.kinds and reference.kinds[0] not in ("Memory", "ArkConfig")
    )
    words += [f"{reference.kinds[0].lower()} {reference.name}" for reference in shown]
    description = getattr(spec, "description", None) or getattr(spec, "input", None)
    return ", ".join(dict.fromkeys(filter(None, [*words, *([" ".join(description.split())] if description else [])])))


Key = tuple[str, str, str]
"""Kind, namespace and name of a resource."""


class Revision(NamedTuple):
    """A state of the store: the number of its last change, and the random id of that change.

    If the store was restored from a backup, later changes get numbers again that other changes had.
    """

    number: int = 0
    change: str = ""


UNUSED = Revision()
"""The revision of a store that was never used."""


class StoredManifest(NamedTuple):
    """A version of a resource: its manifest as JSON, or an empty text if it was deleted or has a ``problem``.

    Versions are counted from 1, ``revision`` counts the changes of the whole store, ``change`` is the id of its change,
    ``changed`` is in seconds since 1970.
    """

    kind: str
    namespace: str
    name: str
    version: int
    revision: int
    change: str
    changed: int
    manifest: str
    problem: str = ""
    """Why it can't be read, as a sentence."""

    lacks_key: bool = False
    """Whether it can't be read because this process lacks the key, which another worker may have."""

    author: str | None = None
    """The name of who has written it, if that is known."""

    secret: Secret | None = None
    """A Secret with its values, for workers; its ``manifest``, which commands show, has none."""

    @property
    def key(self) -> Key:
        """Kind, namespace and name."""
        return self.kind, self.namespace, self.name

    @property
    def place(self) -> str:
        """Its name in messages, which is also the associated data of the encrypted text."""
        return f"{'/'.join(self.key)} version {self.version}"

    def has_labels(self, required: Mapping[str, str | None]) -> bool:
        """Whether its manifest has these labels; the value None stands for any."""
        manifest = json.loads(self.manifest) if self.manifest else {}
        labels = manifest.get("metadata", {}).get("labels") or {}
        return all(label in labels and value in (None, labels[label]) for label, value in required.items())

    @property
    def is_secret(self) -> bool:
        """Whether it is a Secret, also one that can't be read."""
        return self.kind == Secret.__name__

    @property
    def is_deleted(self) -> bool:
        """Whether the resource was deleted by this version."""
        return not (self.manifest or self.problem)

    def resource(self) -> Resource | None:
        """The manifest; None if it was deleted, and for a Secret, which no catalog has. Raises ValueError if it can't
        be read.

        Fields added by a newer release are ignored, as in a run's catalog.
        """
        if self.problem:
            raise ValueError(self.problem)
        if not self.manifest or self.is_secret:
            return None
        if self.kind not in KINDS:
            raise ValueError(f"this version of Baton does not know the kind {self.kind}")
        try:
            resource = KINDS[self.kind].model_validate_json(self.manifest)
        except ValidationError as error:
            problems = explain_errors(error, KINDS[self.kind])
            raise ValueError("; ".join(f"{dotted_path(path)}: {text}" for path, text in problems)) from None
        if key_of(resource) != self.key:
            raise ValueError(f"it is the manifest of {resource.id}")
        return resource


def key_of(manifest: Manifest) -> Key:
    """Kind, namespace and name of a manifest."""
    return manifest.kind, manifest.namespace, manifest.name


def _id_of_secret(reference: Reference) -> str | None:
    """The id of the Secret that a reference names; catalogs have none."""
    return f"Secret/{reference.namespace}/{reference.name}" if reference.kinds == ("Secret",) else None


def refers_to(reference: Reference, key: Key, known: Catalog) -> bool:
    """Whether a reference leads to a ``known`` resource, or to a Secret, with this key."""
    found = known.find(reference)
    return key_of(found) == key if found else _id_of_secret(reference) == "/".join(key)


def text_of(manifest: Manifest) -> str:
    """The JSON that is stored of a manifest; that of a Secret has its values."""
    return manifest.canonical if isinstance(manifest, Secret) else manifest.model_dump_json(exclude_unset=True)


def latest_revision(manifests: Iterable[StoredManifest]) -> Revision:
    """The revision at which the last of these versions was written."""
    return max((Revision(manifest.revision, manifest.change) for manifest in manifests), default=UNUSED)
