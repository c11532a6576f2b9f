"""Loads manifests from files and folders, and reports all errors at once."""

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path as FilePath

from .agent import BUILT_INS, Agent
from .base import Path, Reference
from .catalog import Catalog, Missing, Resource, catalog_of
from .documents import Document, manifest_files, read_documents, variables_in_free_text
from .manifest import Manifest
from .mcp_server import MCPServer
from .member import Member
from .parse import manifest_error, manifest_of, split_list
from .problems import ManifestError, Problem, did_you_mean, dotted_path
from .query import Query
from .rights import accounts_without_rights
from .schedule import TEMPLATE, Schedule
from .secret import Secret, Secrets, extract_secrets
from .skill_folder import with_folder
from .team import Team
from .validation import (
    UNBOUNDED,
    Registered,
    Violation,
    ambiguous_texts,
    missing_keys,
    missing_memories,
    notices,
    queries_without_targets,
    unbounded_teams,
    unknown_parameters,
    unknown_presets,
    unregistered,
    unsupported_fields,
    violations,
)
from .values import sources


@dataclass(frozen=True)
class OfWorkers:
    """The manifests that workers have, in the store and in their own files; ``is_complete`` if none is unknown."""

    catalog: Catalog
    is_complete: bool
    secrets: frozenset[tuple[str, str]] = frozenset()
    """The namespaces and names of the Secrets in the store. Which ones are in workers' files is not known."""

    workers: int = 0
    """The number of live workers."""

    in_files: frozenset[str] = frozenset()
    """The ids of the manifests that are in the files of live workers."""

    is_store_readable: bool = False
    """Whether all manifests of the store are here."""

    knows_rights: bool = False
    """Whether all Roles, their bindings and their accounts are here."""

    def has_secret(self, reference: Reference) -> bool:
        """Whether a reference leads to a Secret in the store."""
        return "Secret" in reference.kinds and (reference.namespace, reference.name) in self.secrets


@dataclass
class Loaded:
    """The result of loading: the catalog, the Secrets and their files, and the documents that were ignored."""

    catalog: Catalog = field(default_factory=Catalog)
    secrets: Secrets = field(default_factory=Secrets)
    secret_files: set[str] = field(default_factory=set)
    ignored: list[str] = field(default_factory=list)
    places: dict[str, Document] = field(default_factory=dict)
    of_workers: OfWorkers | None = None
    """What workers have, which is not sent inline; None if that was not looked up."""

    @property
    def available(self) -> Catalog:
        """The manifests of a run as a worker sees them: those of the files take precedence."""
        return self.catalog.overlaid_on(self.of_workers.catalog) if self.of_workers else self.catalog

    @property
    def manifests(self) -> Sequence[Resource | Secret]:
        """The manifests, also the Secrets, but not those of literal keys, sorted by their ids."""
        secrets = (secret for secret in self.secrets if secret.id in self.places)
        return sorted((*self.catalog.manifests, *secrets), key=lambda manifest: manifest.id)

    @property
    def is_self_contained(self) -> bool:
        """Whether all references are resolved by the files."""
        references = (reference for manifest in self.catalog.manifests for reference in manifest.references)
        required = (one for one in references if not one.optional)
        found = all(self.catalog.find(one) or self.secrets.find(one) for one in required)
        return found and not any(queries_without_targets(self.catalog))

    @property
    def has_commands(self) -> bool:
        """Whether an MCPServer is a command, which only a worker that has it among its own manifests may start."""
        return any(isinstance(manifest, MCPServer) and manifest.spec.command for manifest in self.catalog.manifests)

    def problem(self, manifest: Manifest, path: Path, text: str) -> Problem:
        """An error of a manifest, with file and line if it is in a file."""
        document = self.places.get(manifest.id) or Document("", None, {})
        return Problem(document.file, document.line(path), manifest.id, dotted_path(path), text)

    def notices(self) -> list[Problem]:
        """Warnings: ignored fields, deprecated values, missing libraries, unbounded teams, unexpanded variables."""
        warnings = [self.problem(*notice) for manifest in self.catalog.manifests for notice in notices(manifest)]
        warnings.extend(self.problem(team, ("spec", "maxTurns"), UNBOUNDED) for team in unbounded_teams(self.catalog))
        for manifest in self.catalog.manifests:
            places = variables_in_free_text(self.places[manifest.id].data)
            warnings.extend(self.problem(manifest, path, text) for path, text in places)
        rules = (missing_memories, accounts_without_rights, unknown_presets)
        return warnings + [self.problem(*notice) for rule in rules for notice in rule(self.catalog)]

    def unresolved(
        self, known: Catalog | None = None, stored: Secrets | None = None, secrets_of: Container[str] | None = None
    ) -> list[Problem]:
        """References to resources that are not in the files, or not ``known``, which also has those of the files.

        ``stored`` are Secrets besides those of the files. Of Secrets, only the references in manifests of the kinds
        ``secrets_of`` count; None for all kinds.
        """
        known = known or self.catalog
        secrets = (self.secrets, stored or Secrets())
        required = (
            Missing(manifest, reference)
            for manifest in self.catalog.manifests
            for reference in manifest.references
            if not reference.optional
            and (secrets_of is None or manifest.kind in secrets_of or "Secret" not in reference.kinds)
        )
        missing = [
            self._missing(candidate)
            for candidate in required
            if not (known.find(candidate.reference) or any(one.find(candidate.reference) for one in secrets))
        ]
        orphans = (orphan for orphan in queries_without_targets(known) if self.catalog.by_id(orphan.manifest.id))
        return [*missing, *(self.problem(*orphan) for orphan in orphans)]

    def unregistered(self, registered: Registered) -> list[Problem]:
        """Functions, activities and workflows that the manifests name, and that a worker does not have."""
        return [self.problem(*violation) for violation in unregistered(self.catalog, registered)]

    def unsupported(self) -> list[Problem]:
        """Fields that are not supported yet: runs that need such a manifest are refused."""
        return [self.problem(*field) for manifest in self.catalog.manifests for field in unsupported_fields(manifest)]

    def unknown_parameters(self) -> list[Problem]:
        """Parameters that the queries in the files lack: a command must give them, or the run is refused."""
        queries = (manifest for manifest in self.catalog.manifests if isinstance(manifest, Query))
        unmet = (found for query in queries for found in unknown_parameters(query, self.catalog.needed_by(query)[0]))
        return [*dict.fromkeys(self.problem(*violation) for violation in unmet)]

    def services(self) -> list[Problem]:
        """References to services, which not all workers can resolve."""
        text = "a worker outside of a cluster needs BATON_SERVICE_URL for it"
        return [
            self.problem(manifest, (*path, "valueFrom", "serviceRef"), text)
            for manifest in self.catalog.manifests
            for path, source in sources(manifest)
            if source.value_from and source.value_from.service_ref
        ]

    def default_members(self) -> list[Problem]:
        """Members of panels that become default members because no manifest has their name."""
        return [
            self.problem(
                team, reference.path, f"no Agent or Team '{reference.name}' is known: it becomes a default member"
            )
            for team, member, reference in self._panel_members()
            if not member.role and reference.optional and reference.kinds and not self.catalog.find(reference)
        ]

    def unused_roles(self) -> list[Problem]:
        """Roles of panel members that have their own prompt, into which no role is inserted."""
        return [
            self.problem(
                team, (*reference.path[:-1], "role"), f"is not passed to {manifest.id}, which has its own prompt"
            )
            for team, member, reference in self._panel_members()
            if member.role and (manifest := self.catalog.find(reference))
        ]

    def _panel_members(self) -> Iterator[tuple[Team, Member, Reference]]:
        for team in self.catalog.manifests:
            if isinstance(team, Team) and team.spec.is_panel:
                for member, reference in zip(team.spec.members, team.members(), strict=True):
                    yield team, member, reference

    def needed_by(self, start: Resource, *, elsewhere: bool = False) -> Catalog:
        """``start``, and the manifests of the files that it needs, also below manifests of the workers.

        With ``elsewhere``, Secrets may be on a worker on another machine.

        Raises:
            ManifestError: a resource is neither in the files nor on the workers, as far as that is known; or one in the
                files uses a field that is not supported yet.
        """
        reached, _ = self.available.needed_by(start)
        catalog = Catalog(manifests=tuple(m for m in reached.manifests if m.id == start.id or self.catalog.by_id(m.id)))
        refused = [v for manifest in catalog.manifests for v in unsupported_fields(manifest)]
        rules = (*unknown_parameters(start, reached), *ambiguous_texts(reached))
        refused.extend(violation for violation in rules if catalog.by_id(violation.manifest.id))
        problems = [self.problem(*violation) for violation in refused]
        if not self.of_workers or self.of_workers.is_complete:
            problems = [*self.missing_for(start, elsewhere=elsewhere), *problems]
        if problems:
            raise ManifestError(dict.fromkeys(problems))
        return catalog

    def missing_for(self, start: Resource, *, elsewhere: bool = False) -> list[Problem]:
        """The references below ``start`` that neither the files nor the workers resolve, as far as that is known."""
        reached, missing = self.available.needed_by(start)
        missed = [one for one in missing if not self.secrets.find(one.reference)]
        if self.of_workers:
            missed = [one for one in missed if not self.of_workers.has_secret(one.reference)]
        # Secrets are on the workers with the manifests that refer to them.
        missed = [
            one
            for one in missed
            if one.reference.kinds != ("Secret",) or not (elsewhere or self.catalog.by_id(one.owner.id) is None)
        ]
        return [*map(self._missing, missed), *(self.problem(*orphan) for orphan in queries_without_targets(reached))]

    def scheduled_query(self, schedule: Schedule, *, elsewhere: bool = False) -> tuple[Query, Catalog]:
        """The query of a Schedule, and all manifests of the files that it needs.

        The catalog is empty for a query that only workers have: its runs read the version that is current when they
        start. With ``elsewhere``, Secrets may be on a worker on another machine. Raises ManifestError, as
        ``needed_by``.
        """
        inline = schedule.inline_query()
        if inline is None:
            (reference,) = schedule.references
            query = self.available.find(reference)
            if not isinstance(query, Query):
                raise ManifestError([self._missing(Missing(schedule, reference))])
            is_of_workers = self.catalog.by_id(query.id) is None
            return query, Catalog() if is_of_workers else self.needed_by(query, elsewhere=elsewhere)
        if self.catalog.by_id(inline.id):
            text = f"{inline.id} is also in the files, and the query in a Schedule has the Schedule's name: rename one"
            raise ManifestError([self.problem(schedule, ("metadata", "name"), text)])
        places = {**self.places, inline.id: self.places[schedule.id].part(TEMPLATE)}
        catalog = Catalog(manifests=(*self.catalog.manifests, inline))
        return inline, replace(self, catalog=catalog, places=places).needed_by(inline, elsewhere=elsewhere)

    def _missing(self, missing: Missing) -> Problem:
        owner, reference = missing
        where = "neither in the files nor on the workers" if self.of_workers else "not in the files"
        hint = hint_for(owner, reference, self.available)
        return self.problem(owner, reference.path, f"{reference} is {where}; {hint}")


def hint_for(owner: Manifest, reference: Reference, known: Catalog) -> str:
    """What a reference that can't be resolved may mean: what has that name, or a similar one in the namespace."""
    of_kind = [one for one in known.manifests if one.kind in reference.kinds and one.id != owner.id]
    named = [one for one in known.manifests if (one.name, one.namespace) == (reference.name, reference.namespace)]
    if others := named or [one for one in of_kind if one.name == reference.name]:
        return f"there is {' and '.join(f'{other.kind} {other.namespace}/{other.name}' for other in others)}"
    names = [one.name for one in of_kind if one.namespace == reference.namespace]
    names += BUILT_INS if reference.kinds == ("Tool",) and isinstance(owner, Agent) else ()
    return did_you_mean(reference.name, names) if names else "add it to the files"


def load_files(
    paths: Iterable[FilePath],
    change: Callable[[Document], Document] | None = None,
    *,
    others: Iterable[Document] = (),
    recursive: bool = False,
) -> Loaded:
    """Reads files and folders of manifests, with ``recursive`` including subfolders; ``-`` is standard input.

    ``change`` can replace each document before it is checked. ``others`` are documents besides those of the files.

    Raises:
        ManifestError: with all errors of all files.
    """
    documents = [*others]
    problems: list[Problem] = []
    for path in paths:
        files = manifest_files(path, recursive=recursive)
        for file in files:
            try:
                documents.extend(read := read_documents(file))
            except ManifestError as error:
                problems.extend(error.problems)
                continue
            if file == path and all(document.data is None for document in read):
                problems.append(Problem(str(file), 0, "", "", "contains no manifest"))
        if not files and manifest_files(path, recursive=True):
            text = "contains no manifest; -R reads its subfolders"
            problems.append(Problem(str(path), 0, "", "", text))
    split = chain.from_iterable(map(split_list, documents))
    return load_documents(map(change, split) if change else split, problems, folders=True)


def load_secrets(files: Iterable[FilePath]) -> tuple[Secrets, tuple[str, ...]]:
    """The Secrets in files, including the literal keys of Models, and the files that could not be fully read."""
    loaded = Loaded()
    unreadable: list[str] = []
    for file in files:
        try:
            documents = read_documents(file)
        except ManifestError:
            unreadable.append(str(file))
            continue
        for document in chain.from_iterable(map(split_list, documents)):
            try:
                _add(document, loaded)
            except ManifestError:
                unreadable.append(str(file))
    return loaded.secrets, tuple(dict.fromkeys(unreadable))


def load_documents(documents: Iterable[Document], problems: Iterable[Problem] = (), *, folders: bool = False) -> Loaded:
    """Parses manifests from documents and checks the rules between them; raises ManifestError as ``load_files``.

    The ``folders`` of Skills are only read for files, never for inline manifests.
    """
    loaded = Loaded()
    reported = list(problems)
    manifests: list[Resource] = []
    for document in chain.from_iterable(map(split_list, documents)):
        before = len(loaded.secrets)
        try:
            added = _add(document, loaded)
            manifests.extend(with_folder(manifest, document) if folders else manifest for manifest in added)
        except ManifestError as error:
            reported.extend(error.problems)
        if len(loaded.secrets) > before:
            loaded.secret_files.add(document.file)
    loaded.catalog = catalog_of(manifests)
    reported.extend(loaded.problem(*violation) for violation in _broken_rules(loaded))
    if reported:
        raise ManifestError(sorted(reported, key=lambda problem: (problem.file, problem.line)))
    return loaded


def _add(document: Document, loaded: Loaded) -> list[Resource]:
    """Adds the manifest of a document. Secrets and literal secrets are added to ``loaded.secrets``."""
    manifest = manifest_of(document)
    if manifest is None:
        kind = document.data.get("kind") if isinstance(document.data, dict) else None
        what = str(kind or "a document without a kind")
        loaded.ignored.append(str(Problem(document.file, document.line(()), "", "", what)))
        return []
    if earlier := loaded.places.get(manifest.id):
        first = f"first at {earlier.file}:{earlier.line(())}" if earlier.file else "differently; rename one of them"
        text = f"is defined twice: {first}"
        raise manifest_error(document, ("metadata", "name"), manifest.id, text)
    loaded.places[manifest.id] = document
    if isinstance(manifest, Secret):
        loaded.secrets.add(manifest)
        return []
    return [extract_secrets(manifest, loaded.secrets)]


def _broken_rules(loaded: Loaded) -> Iterator[Violation]:
    yield from violations(loaded.catalog)
    yield from missing_keys(loaded.catalog, loaded.secrets)
