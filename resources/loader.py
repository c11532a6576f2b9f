"""Loads manifests from files and folders, and reports all errors at once."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path as FilePath

from .agent import BUILT_INS, Agent
from .base import Path, Reference
from .catalog import Catalog, Missing, Resource, catalog_of
from .documents import Document, manifest_files, read_documents, variables_in_free_text
from .manifest import Manifest
from .member import Member
from .parse import manifest_error, manifest_of, split_list
from .problems import ManifestError, Problem, did_you_mean, dotted_path
from .query import Query
from .rights import accounts_without_rights
from .secret import Secret, Secrets, extract_secrets
from .skill_folder import with_folder
from .team import Team
from .template import TemplateError, check_names, names_in
from .tool import Tool
from .validation import (
    UNBOUNDED,
    Violation,
    missing_keys,
    notices,
    queries_without_targets,
    unbounded_teams,
    unsupported_fields,
    violations,
)
from .values import QUERY, Parameter, PresetArguments, sources


def missing_memories(catalog: Catalog) -> Iterator[Violation]:
    """The queries whose conversation is kept by the journal, although they name a Memory."""
    for query in (each for each in catalog.manifests if isinstance(each, Query) and each.spec.memory):
        if not catalog.find(reference := query.memory_reference()):
            text = f"{reference} is not in the files: unless the worker has it, the journal keeps the conversation"
            yield Violation(query, reference.path, text)


ARGUMENTS = "input."
"""The prefix of a tool call's arguments in the templates of a tool."""


def unknown_parameters(start: Resource, catalog: Catalog) -> Iterator[Violation]:
    """Unknown parameters in a run of ``start``. Only a run knows which query, agents and tools come together."""
    query = start if isinstance(start, Query) else None
    yield from queries_without_targets(catalog)
    asked = _names(query.spec.parameters) if query else set[str]()
    for manifest in catalog.manifests:
        for path, source in sources(manifest):
            wanted = source.value_from.query_parameter_ref if source.value_from else None
            if wanted and wanted.name not in asked:
                known = ", ".join(sorted(asked)) or "none"
                text = f"the query has no parameter '{wanted.name}'; it has: {known}"
                yield Violation(manifest, (*path, "valueFrom", "queryParameterRef", "name"), text)
    for tool, user in _uses(start, catalog):
        theirs = {*asked, *_names(user.spec.parameters if user else ())}
        yield from _unmet_by_tool(tool, theirs)
        yield from _unmet_by_presets(tool, ("spec",), tool.spec.partial, {*theirs, *_names(tool.parameters)}, asked)
    for agent in (each for each in catalog.manifests if isinstance(each, Agent)):
        own = {*asked, *_names(agent.spec.parameters)}
        for index, given in enumerate(agent.spec.tools):
            yield from _unmet_by_presets(agent, ("spec", "tools", index), given.partial, own, asked)


def _uses(start: Resource, catalog: Catalog) -> Iterator[tuple[Tool, Agent | None]]:
    """Each tool of a run with each agent that has it; with None if the tool is a target of the query."""
    for manifest in catalog.manifests:
        if isinstance(manifest, Agent):
            found = (catalog.find(reference) for _, reference in manifest.tools() if reference)
            yield from ((tool, manifest) for tool in found if isinstance(tool, Tool))
    if isinstance(start, Query):
        found = (catalog.find(reference) for reference in catalog.targets(start))
        yield from ((tool, None) for tool in found if isinstance(tool, Tool))


def _unmet_by_tool(tool: Tool, known: set[str]) -> Iterator[Violation]:
    for path, template in tool.templates():
        arguments = [name for name in names_in(template) if name.startswith(ARGUMENTS) and path[-1] != "url"]
        try:
            check_names(template, {*known, *_names(tool.parameters), *arguments})
        except TemplateError as error:
            yield Violation(tool, path, str(error))


def _unmet_by_presets(
    owner: Tool | Agent, path: Path, presets: PresetArguments | None, known: set[str], asked: set[str]
) -> Iterator[Violation]:
    for index, template in presets.templates() if presets else ():
        try:
            check_names(template, {*known, *(f"{QUERY}{name}" for name in asked)})
        except TemplateError as error:
            yield Violation(owner, (*path, "partial", "parameters", index, "value"), str(error))


def _names(parameters: tuple[Parameter, ...]) -> set[str]:
    return {parameter.name for parameter in parameters}


def unknown_presets(catalog: Catalog) -> Iterator[Violation]:
    """Preset arguments that a tool does not have, as far as its manifest says what it has (ARK's samples have such)."""
    for owner in catalog.manifests:
        for path, presets, tool in _used(owner, catalog):
            known = tool.input_schema.get("properties") if isinstance(tool, Tool) else None
            for index, each in enumerate(presets.parameters if presets and known and isinstance(known, dict) else ()):
                if isinstance(known, dict) and tool and each.name not in known:
                    text = f"'{each.name}' is not a property of {tool.id}'s inputSchema; it is sent all the same"
                    place = ("spec", *path, "partial", "parameters", index, "name")
                    yield Violation(owner, place, f"{text}; its properties: {', '.join(known)}")


def _used(owner: Manifest, catalog: Catalog) -> Iterator[tuple[Path, PresetArguments | None, Manifest | None]]:
    if isinstance(owner, Tool):
        yield (), owner.spec.partial, owner
    elif isinstance(owner, Agent):
        for number, (given, reference) in enumerate(owner.tools()):
            yield ("tools", number), given.partial, catalog.find(reference) if reference else None


@dataclass
class Loaded:
    """The result of loading: the catalog, the Secrets and their files, and the documents that were ignored."""

    catalog: Catalog = field(default_factory=Catalog)
    secrets: Secrets = field(default_factory=Secrets)
    secret_files: set[str] = field(default_factory=set)
    ignored: list[str] = field(default_factory=list)
    places: dict[str, Document] = field(default_factory=dict)
    stored: Catalog = field(default_factory=Catalog)  # what workers know without the files: no run has to bring it

    def problem(self, manifest: Manifest, path: Path, text: str) -> Problem:
        """An error of a manifest, with file and line."""
        document = self.places[manifest.id]
        return Problem(document.file, document.line(path), manifest.id, dotted_path(path), text)

    def notices(self) -> list[Problem]:
        """Ignored fields, older values, missing libraries, teams without a bound, what looks like a variable."""
        found = [self.problem(*notice) for manifest in self.catalog.manifests for notice in notices(manifest)]
        found.extend(self.problem(team, ("spec", "maxTurns"), UNBOUNDED) for team in unbounded_teams(self.catalog))
        for manifest in self.catalog.manifests:
            places = variables_in_free_text(self.places[manifest.id].data)
            found.extend(self.problem(manifest, path, text) for path, text in places)
        rules = (missing_memories, accounts_without_rights, unknown_presets)
        return found + [self.problem(*notice) for rule in rules for notice in rule(self.catalog)]

    def unresolved(self) -> list[Problem]:
        """References to resources that are not in the files."""
        needs = (Missing(m, r) for m in self.catalog.manifests for r in m.references if not r.optional)
        missing = [
            self._missing(each)
            for each in needs
            if not (self.catalog.find(each.reference) or self.secrets.find(each.reference))
        ]
        return [*missing, *(self.problem(*violation) for violation in queries_without_targets(self.catalog))]

    def default_members(self) -> list[Problem]:
        """Members of panels that become default members because no manifest has their name."""
        return [
            self.problem(team, each.path, f"no Agent or Team '{each.name}' is known: it becomes a default member")
            for team, member, each in self._panel_members()
            if not member.role and each.optional and each.kinds and not self.catalog.find(each)
        ]

    def unused_roles(self) -> list[Problem]:
        """Roles of panel members that have a prompt of their own, and so are not told their role."""
        return [
            self.problem(team, (*each.path[:-1], "role"), f"is not told to {found.id}, which has its own prompt")
            for team, member, each in self._panel_members()
            if member.role and (found := self.catalog.find(each))
        ]

    def _panel_members(self) -> Iterator[tuple[Team, Member, Reference]]:
        for team in self.catalog.manifests:
            if isinstance(team, Team) and team.spec.is_panel:
                yield from ((team, *each) for each in zip(team.spec.members, team.members(), strict=True))

    def needed_by(self, start: Resource, *, elsewhere: bool = False) -> Catalog:
        """``start`` and all resources that it needs. With ``elsewhere``, Secrets may be on a worker on another machine.

        Raises:
            ManifestError: a resource is not in the files, or uses a field that is not supported yet.
        """
        catalog, missing = self.catalog.needed_by(start)
        refused = [v for manifest in catalog.manifests for v in unsupported_fields(manifest)]
        refused.extend(unknown_parameters(start, catalog))
        missed = [m for m in missing if not (self.secrets.find(m.reference) or self.stored.find(m.reference))]
        if elsewhere:
            missed = [each for each in missed if each.reference.kinds != ("Secret",)]
        problems = [*map(self._missing, missed), *(self.problem(*violation) for violation in refused)]
        if problems:
            raise ManifestError(dict.fromkeys(problems))
        return catalog

    def _missing(self, missing: Missing) -> Problem:
        owner, reference = missing
        names = [m.name for m in self.catalog.manifests if m.kind in reference.kinds]
        names += BUILT_INS if reference.kinds == ("Tool",) and isinstance(owner, Agent) else ()
        hint = did_you_mean(reference.name, names) if names else "add it to the files"
        return self.problem(owner, reference.path, f"{reference} is not in the files; {hint}")


def load_files(
    paths: Iterable[FilePath], change: Callable[[Document], Document] | None = None, *, recursive: bool = False
) -> Loaded:
    """Reads files and folders of manifests, with ``recursive`` also the folders in them; ``-`` is standard input.

    ``change`` can replace each document before it is checked.

    Raises:
        ManifestError: with all errors of all files.
    """
    documents: list[Document] = []
    problems: list[Problem] = []
    for path in paths:
        files = manifest_files(path, recursive=recursive)
        for file in files:
            try:
                documents.extend(found := read_documents(file))
            except ManifestError as error:
                problems.extend(error.problems)
                continue
            if file == path and all(document.data is None for document in found):
                problems.append(Problem(str(file), 0, "", "", "contains no manifest"))
        if not files and manifest_files(path, recursive=True):
            text = "contains no manifest; the folders in it are read with -R"
            problems.append(Problem(str(path), 0, "", "", text))
    split = chain.from_iterable(map(split_list, documents))
    return load_documents(map(change, split) if change else split, problems, folders=True)


def load_secrets(files: Iterable[FilePath]) -> tuple[Secrets, tuple[str, ...]]:
    """The Secrets of files, with the literal keys of Models, and the files that are not entirely readable."""
    loaded, unreadable = Loaded(), list[str]()
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
    """Makes manifests of documents and checks the rules between them; raises ManifestError as ``load_files``.

    The ``folders`` of Skills are only read for files, and never for what a run brings.
    """
    loaded, found, manifests = Loaded(), list(problems), list[Resource]()
    for document in chain.from_iterable(map(split_list, documents)):
        before = len(loaded.secrets)
        try:
            added = _add(document, loaded)
            manifests.extend(with_folder(each, document) if folders else each for each in added)
        except ManifestError as error:
            found.extend(error.problems)
        if len(loaded.secrets) > before:
            loaded.secret_files.add(document.file)
    loaded.catalog = catalog_of(manifests)
    found.extend(loaded.problem(*violation) for violation in _broken_rules(loaded))
    if found:
        raise ManifestError(sorted(found, key=lambda problem: (problem.file, problem.line)))
    return loaded


def _add(document: Document, loaded: Loaded) -> list[Resource]:
    """Adds the manifest of a document. A Secret, or a literal secret, goes to the Secrets."""
    manifest = manifest_of(document)
    if manifest is None:
        kind = document.data.get("kind") if isinstance(document.data, dict) else None
        what = str(kind or "a document without a kind")
        loaded.ignored.append(str(Problem(document.file, document.line(()), "", "", what)))
        return []
    if earlier := loaded.places.get(manifest.id):
        text = f"is defined twice: first at {earlier.file}:{earlier.line(())}"
        raise manifest_error(document, ("metadata", "name"), manifest.id, text)
    loaded.places[manifest.id] = document
    if isinstance(manifest, Secret):
        loaded.secrets.add(manifest)
        return []
    return [extract_secrets(manifest, loaded.secrets)]


def _broken_rules(loaded: Loaded) -> Iterator[Violation]:
    yield from violations(loaded.catalog)
    yield from missing_keys(loaded.catalog, loaded.secrets)
