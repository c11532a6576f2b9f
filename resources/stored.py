"""The rules of the manifest store: what may be stored, what it depends on, and what depends on it."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from typing import Annotated, NamedTuple

from pydantic import Field, TypeAdapter

from .base import Reference
from .catalog import KINDS, Catalog, Resource, catalog_of
from .documents import Document
from .loader import Loaded
from .manifest import Manifest
from .mcp_server import MCPServer
from .problems import ManifestError, Problem, did_you_mean
from .query import Query
from .schedule import Schedule
from .secret import Secrets
from .validation import missing_keys, queries_without_targets, violations
from .values import sources

STORABLE = {name: kind for name, kind in KINDS.items() if kind is not Schedule}
"""The kinds that are stored."""

_NO_COMMAND = "a command comes from a worker's own files alone: start the workers with this MCPServer"
_NO_SCHEDULE = "Temporal keeps schedules: apply it with baton schedules apply"
_NO_SECRET = "Secrets are not stored: add them to the workers' own files"
_NO_LITERAL = "is a literal secret, and Secrets are not stored: refer to one with valueFrom"


def check_storable(loaded: Loaded) -> None:
    """Raises ManifestError for what is never stored: Secrets, literal secrets, commands and Schedules."""
    if found := [*_not_storable(loaded)]:
        raise ManifestError(sorted(found, key=lambda problem: (problem.file, problem.line)))


def _not_storable(loaded: Loaded) -> Iterator[Problem]:
    for name, document in loaded.places.items():
        if name.startswith("Secret/"):
            yield Problem(document.file, document.line(()), name, "kind", _NO_SECRET)
    for manifest in loaded.catalog.manifests:
        if isinstance(manifest, Schedule):
            yield loaded.problem(manifest, ("kind",), _NO_SCHEDULE)
        if isinstance(manifest, MCPServer) and manifest.spec.command:
            yield loaded.problem(manifest, ("spec", "command"), _NO_COMMAND)
        for path, source in sources(manifest):
            ref = source.value_from.secret_key_ref if source.value_from else None
            if ref and ref.name == manifest.own_secret and loaded.secrets.get(manifest.namespace, ref.name):
                yield loaded.problem(manifest, path, _NO_LITERAL)


def check_with(loaded: Loaded, stored: Catalog, *, force: bool = False) -> None:
    """Raises ManifestError if manifests of files break a rule together with those of the store, or need others.

    With ``force`` they may need what neither has. A Secret is looked for by a worker, when it is used.
    """
    places = {each.id: Document("the store", None, {}) for each in stored.manifests} | loaded.places
    together = replace(loaded, catalog=catalog_of(loaded.catalog.overlaid_on(stored).manifests), places=places)
    found = [together.problem(*each) for each in violations(together.catalog)]
    found += [together.problem(*each) for each in missing_keys(together.catalog, Secrets())]
    if not force:
        found += _unknown(together, {each.id for each in loaded.catalog.manifests})
    if found:
        raise ManifestError(dict.fromkeys(found))


def _unknown(together: Loaded, new: Collection[str]) -> Iterator[Problem]:
    known = together.catalog
    for manifest in known.manifests:
        for reference in manifest.references if manifest.id in new else ():
            if reference.optional or reference.kinds == ("Secret",) or known.find(reference):
                continue
            hint = did_you_mean(reference.name, [each.name for each in known.manifests if each.kind in reference.kinds])
            text = f"{reference} is neither in the files nor in the store; {hint}"
            yield together.problem(manifest, reference.path, text)
    yield from (together.problem(*each) for each in queries_without_targets(known) if each.manifest.id in new)


def users(stored: Catalog, deleted: Collection[str]) -> Iterator[tuple[Manifest, Reference]]:
    """The manifests that need one of those with the ids ``deleted``, each with its reference."""
    kept = catalog_of(each for each in stored.manifests if each.id not in deleted)
    for manifest in kept.manifests:
        for reference in manifest.references:
            if not reference.optional and stored.find(reference) and not kept.find(reference):
                yield manifest, reference
    before = {each.manifest.id for each in queries_without_targets(stored)}
    for query, path, _ in queries_without_targets(kept):
        if isinstance(query, Query) and query.id not in before:
            yield query, replace(stored.targets(query)[0], path=path)


def kind_of(word: str) -> str | None:
    """The kind that a word of a command means, such as ``Query`` for ``queries``; None for none that is stored."""
    names = {form: kind for kind in STORABLE for form in (kind.lower(), _plural(kind.lower()))}
    return names.get(word.lower())


def kind_words() -> Iterable[str]:
    """The words for all kinds that are stored, in their plural."""
    return (_plural(kind.lower()) for kind in STORABLE)


def _plural(word: str) -> str:
    return f"{word[:-1]}ies" if word.endswith("y") else f"{word}s"


def details(manifest: Resource) -> str:
    """What a wide table tells of a manifest, in a few words."""
    spec = getattr(manifest, "spec", None)
    words = [str(getattr(spec, "strategy", "") or "")]
    told = (each for each in manifest.references if each.kinds and each.kinds[0] not in ("Memory", "ArkConfig"))
    words += [f"{each.kinds[0].lower()} {each.name}" for each in told]
    description = getattr(spec, "description", None) or getattr(spec, "input", None)
    return ", ".join(dict.fromkeys(filter(None, [*words, *([" ".join(description.split())] if description else [])])))


Key = tuple[str, str, str]
"""Kind, namespace and name of a resource."""

_RESOURCE: TypeAdapter[Resource] = TypeAdapter(Annotated[Resource, Field(discriminator="kind")])


class StoredManifest(NamedTuple):
    """A version of a resource: its manifest as JSON, or an empty text where it was deleted or has a ``problem``.

    Versions are counted from 1, ``revision`` counts the changes of the whole store, ``changed`` is in
    seconds since 1970.
    """

    kind: str
    namespace: str
    name: str
    version: int
    revision: int
    changed: int
    manifest: str
    problem: str = ""
    """Why it can't be read, as a sentence."""

    @property
    def key(self) -> Key:
        """Kind, namespace and name."""
        return self.kind, self.namespace, self.name

    @property
    def place(self) -> str:
        """Its name in sentences; the sealed text belongs to it."""
        return f"{'/'.join(self.key)} version {self.version}"

    @property
    def is_deleted(self) -> bool:
        """Whether the resource was deleted by this version."""
        return not (self.manifest or self.problem)

    def resource(self) -> Resource | None:
        """The manifest; None where it was deleted. Raises ValueError if it can't be read.

        Fields that a newer Baton has added are ignored, as in a run's catalog.
        """
        if self.problem:
            raise ValueError(self.problem)
        if not self.manifest:
            return None
        resource = _RESOURCE.validate_json(self.manifest)
        if key_of(resource) != self.key:
            raise ValueError(f"it is that of {resource.id}")
        return resource


def key_of(manifest: Resource) -> Key:
    """Kind, namespace and name of a manifest."""
    return manifest.kind, manifest.namespace, manifest.name
