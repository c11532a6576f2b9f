"""Loads the manifests in a command's files, and finds the resources that it names."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from ...resources.agent import Agent
from ...resources.base import API_VERSION, Reference
from ...resources.catalog import Catalog, Resource
from ...resources.content import part_of_file, part_of_url
from ...resources.documents import Document, is_stream
from ...resources.loader import Loaded, OfWorkers, load_files
from ...resources.manifest import Metadata
from ...resources.problems import did_you_mean
from ...resources.query import TARGETS, ConversationId, Query, QueryName, QuerySpec, Target, TargetType
from ...resources.role import OfCluster
from ...resources.values import Parameter
from ..errors import UsageError
from .terminal import print_message

Q = TypeVar("Q", Query, QueryName, Query | QueryName)
R = TypeVar("R", bound=Resource)


def load_manifests(paths: Sequence[Path], *, recursive: bool = False) -> Loaded:
    """Reads manifests; prints warnings. Raises ManifestError."""
    return _load(paths, None, recursive=recursive)


def load_manifests_of(paths: Sequence[Path], namespace: str | None, *, recursive: bool = False) -> Loaded:
    """Reads manifests; those that name no namespace are in ``namespace``. Prints warnings.

    Raises ManifestError, and UsageError if a manifest names another namespace.
    """
    if namespace is None:
        return load_manifests(paths, recursive=recursive)
    loaded = _load(paths, partial(_with_namespace, namespace), recursive=recursive)
    for manifest in loaded.manifests:
        if manifest.namespace != namespace and not isinstance(manifest, OfCluster):
            raise UsageError(f"{manifest.id} is in the namespace {manifest.namespace}, but -n is {namespace}")
    return loaded


def _load(paths: Sequence[Path], change: Callable[[Document], Document] | None, *, recursive: bool) -> Loaded:
    loaded = load_files(paths, change, recursive=recursive)
    if loaded.ignored:
        names = ", ".join(loaded.ignored)
        print_message(f"note: ignored, because no run needs them: {names}", style="dim")
    for notice in loaded.notices():
        print_message(f"warning: {notice}", style="dim")
    return loaded


def reject_secrets_of_streams(loaded: Loaded) -> None:
    """Raises UsageError if a Secret or a literal key was read from standard input or a pipe: workers can't read it."""
    if any(is_stream(Path(file)) for file in loaded.secret_files):
        raise UsageError(
            "Secrets and keys can't be read from stdin or a pipe: workers read them from files, and no copy is stored. "
            "Write them to a file and pass -f FILE"
        )


def read_parameters(assignments: Sequence[str]) -> list[Parameter]:
    """Parameters written as ``name=value``. Raises UsageError."""
    parameters = []
    for assignment in assignments:
        name, _, value = assignment.partition("=")
        if not (name and value):
            raise UsageError(f"'{assignment}' is not a parameter: write -p name=value")
        parameters.append(Parameter(name=name, value=value))
    return parameters


def _with_parameters(parameters: Sequence[Parameter], document: Document) -> Document:
    """The document; if it is a Query, with these parameters, which replace its own with the same names."""
    data = document.data
    spec = data.get("spec") if isinstance(data, dict) and data.get("kind") == "Query" else None
    own = spec.get("parameters", []) if isinstance(spec, dict) else None
    if not (parameters and isinstance(data, dict) and isinstance(spec, dict) and isinstance(own, list)):
        return document
    names = [parameter.name for parameter in parameters]
    unchanged = [parameter for parameter in own if not (isinstance(parameter, dict) and parameter.get("name") in names)]
    added = [parameter.model_dump(mode="json", exclude_unset=True) for parameter in parameters]
    return replace(document, data={**data, "spec": {**spec, "parameters": [*unchanged, *added]}})


def _with_namespace(namespace: str, document: Document) -> Document:
    """The document, in ``namespace`` if it names none."""
    metadata = document.data.get("metadata") if isinstance(document.data, dict) else None
    if not isinstance(document.data, dict) or not isinstance(metadata, dict) or "namespace" in metadata:
        return document
    if str(document.data.get("kind")).startswith("Cluster"):  # it has none
        return document
    return replace(document, data={**document.data, "metadata": {**metadata, "namespace": namespace}})


def load_for_runs(
    paths: Sequence[Path],
    target: str | None,
    namespace: str | None,
    parameters: Sequence[Parameter] = (),
    *,
    recursive: bool = False,
) -> Loaded:
    """Reads the manifests for runs, with those of the workers if the files lack the target or what they refer to.

    ``parameters`` are added to the queries; manifests that name no namespace are in ``namespace``. Prints warnings.
    Raises ManifestError.
    """

    def change(document: Document) -> Document:
        changed = _with_parameters(parameters, document)
        return _with_namespace(namespace, changed) if namespace else changed

    loaded = _load(paths, change, recursive=recursive)
    if loaded.is_self_contained and (target is None or _is_known(loaded, target, namespace)):
        return loaded
    return with_manifests_of_workers(loaded)


def with_manifests_of_workers(loaded: Loaded) -> Loaded:
    """The same, with the manifests that workers have in the store and in their files."""
    from ...contracts.errors import JournalUnavailable
    from ..operations.manifests import manifests_of_workers
    from .client import with_running_server

    try:
        of_workers = with_running_server(manifests_of_workers)
    except JournalUnavailable as error:
        print_message(f"note: it is not known which manifests the workers have: {error.message}")
        of_workers = OfWorkers(Catalog(), is_complete=False)
    return replace(loaded, of_workers=of_workers)


def check_runnable(loaded: Loaded, queries: Sequence[Query | QueryName], *, remote: bool) -> None:
    """Raises ManifestError or UsageError if a manifest is missing, or no worker can read a Secret.

    Prints what is not in the files if it is not known whether the workers have it.
    """
    for query in queries:
        start = query if isinstance(query, Query) else loaded.available.get("Query", query.namespace, query.name)
        if start is None:  # only the workers know
            continue
        loaded.needed_by(start, elsewhere=remote)
        if loaded.of_workers and not loaded.of_workers.is_complete:
            for problem in loaded.missing_for(start, elsewhere=remote):
                print_message(f"note: not all manifests of the workers are known here: {problem}")
    if not remote:
        reject_secrets_of_streams(loaded)


def choose_queries(
    loaded: Loaded,
    target: str | None,
    text: str | None,
    namespace: str | None,
    parameters: Sequence[Parameter] = (),
) -> Sequence[Query | QueryName]:
    """The queries to run: those in the files (in a namespace), the named one, or one for a target and an input.

    Raises UsageError.
    """
    if target is None:
        queries = _in_namespace(
            [manifest for manifest in loaded.catalog.manifests if isinstance(manifest, Query)], namespace
        )
        if not queries:
            what = (
                "no Query found in the files: add one, or pass" if loaded.places else "nothing to run: pass -f FILE, or"
            )
            raise UsageError(f'{what} KIND/NAME "question"')
        return queries
    word, _, name = target.partition("/")
    kind = word.capitalize()
    if not name or kind not in (*TARGETS, "Query"):
        known = ", ".join(f"{one.lower()}/NAME" for one in (*TARGETS, "Query"))
        raise UsageError(f"'{target}' can't be run: name one of {known}")
    if not _is_known(loaded, target, namespace) and (loaded.of_workers is None or loaded.of_workers.is_complete):
        raise UsageError(_unknown_target(loaded, kind, name, namespace or "default"))
    if kind in TARGETS:
        if not text:
            raise UsageError(f"'{target}' needs an input, as in: {target} \"question\"")
        return [_query(TARGETS[kind], name, namespace or "default", text, parameters)]
    if text:
        raise UsageError(f"'{target}' takes no input: a Query has its own")
    query = loaded.catalog.get(kind, namespace or "default", name)
    if isinstance(query, Query):
        return [query]
    if parameters:
        raise UsageError(f"'{target}' takes no parameters: the Query on the workers has its own")
    return [QueryName(name, namespace or "default")]


def _is_known(loaded: Loaded, target: str, namespace: str | None) -> bool:
    """Whether the files or, as far as that is known, the workers have the resource written as ``KIND/NAME``."""
    kind, _, name = target.partition("/")
    return loaded.available.find(Reference((), (kind.capitalize(),), namespace or "default", name)) is not None


def _unknown_target(loaded: Loaded, kind: str, name: str, namespace: str) -> str:
    """The error for a resource that neither the files nor the workers have."""
    known = loaded.available.manifests
    where = "neither in the files nor on the workers" if loaded.places else "not on the workers"
    same_name = [one for one in known if one.name == name and (one.kind, one.namespace) != (kind, namespace)]
    if elsewhere := [one for one in same_name if one.kind == kind]:
        hint = f"there is one in the namespace {elsewhere[0].namespace}: add -n {elsewhere[0].namespace}"
    elif others := [one for one in same_name if one.namespace == namespace and one.kind in (*TARGETS, "Query")]:
        hint = f"there is {others[0].kind.lower()}/{name}"
    elif names := [one.name for one in known if (one.kind, one.namespace) == (kind, namespace)]:
        hint = did_you_mean(name, names)
    else:
        hint = "add it to the files with -f, or to the workers' manifests with: baton apply -f FILE"
    return f"{kind} '{name}' in the namespace '{namespace}' is {where}; {hint}"


def in_conversation(query: Q, conversation: str | None) -> Q:
    """The query with another conversation; unchanged for None. Raises UsageError."""
    if conversation is None:
        return query
    if isinstance(query, QueryName):
        raise UsageError(
            f"--conversation can't be used with query/{query.name} of the workers: pass a team or an agent"
        )
    try:
        conversation_id = TypeAdapter(ConversationId).validate_python(conversation)
    except ValidationError as error:
        reason = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise UsageError(f"--conversation: '{conversation[:40]}' {reason}") from None
    return query.in_conversation(conversation_id)


def attaching(query: Query | QueryName, sources: Sequence[str]) -> Query | QueryName:
    """The query with the files at these paths and URLs after its question. Raises UsageError."""
    if not sources:
        return query
    if isinstance(query, QueryName):
        raise UsageError(f"--attach can't be used with query/{query.name} of the workers: pass a team or an agent")
    try:
        is_url = [source.startswith(("https://", "http://")) for source in sources]
        parts = [
            part_of_url(source) if url else part_of_file(Path(source))
            for source, url in zip(sources, is_url, strict=True)
        ]
        return query.attaching(parts)
    except ValidationError as error:
        raise UsageError(f"--attach: {error.errors()[0]['msg'].removeprefix('Value error, ')}") from None
    except OSError as error:
        raise UsageError(f"--attach: {error.filename}: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"--attach: {error}") from None


def find_resource(loaded: Loaded, target: str, namespace: str | None) -> Resource:
    """The resource written as ``KIND/NAME``; raises UsageError."""
    kind, _, name = target.partition("/")
    resource = loaded.catalog.get(kind.capitalize(), namespace or "default", name)
    if resource is None:
        known = ", ".join(f"{manifest.kind.lower()}/{manifest.name}" for manifest in loaded.catalog.manifests) or "none"
        raise UsageError(f"'{target}' is not in the files in namespace '{namespace or 'default'}'; known: {known}")
    return resource


def choose_agents(loaded: Loaded, name: str | None, namespace: str | None) -> list[Agent]:
    """The agent with that name, or all agents (in a namespace). Raises UsageError if there is none."""
    agents = _in_namespace(
        [manifest for manifest in loaded.catalog.manifests if isinstance(manifest, Agent)], namespace
    )
    chosen = [agent for agent in agents if name in (None, agent.name)]
    if not chosen:
        known = ", ".join(agent.name for agent in agents) or "none"
        raise UsageError(f"no Agent{f' {name}' if name else ''} found in the files; known: {known}")
    return chosen


def resources_to_draw(loaded: Loaded, target: str | None, namespace: str | None) -> list[Resource]:
    """The resources to draw: the named one, or the queries (in a namespace), or otherwise the outermost teams.

    Raises UsageError.
    """
    if target is not None:
        return [find_resource(loaded, target, namespace)]
    from ..diagram.build import outermost_teams

    queries = [manifest for manifest in loaded.catalog.manifests if isinstance(manifest, Query)]
    chosen: list[Resource] = [*_in_namespace(queries, namespace)]
    chosen = chosen or [*_in_namespace(outermost_teams(loaded.catalog), namespace)]
    if not chosen:
        raise UsageError("no Query or Team found in the files: pass a resource to draw, such as agent/NAME")
    return chosen


def _in_namespace(resources: Sequence[R], namespace: str | None) -> list[R]:
    return [resource for resource in resources if namespace in (None, resource.namespace)]


def _query(kind: TargetType, name: str, namespace: str, text: str, parameters: Sequence[Parameter]) -> Query:
    spec = {"input": text, "targets": (Target(type=kind, name=name),), "parameters": tuple(parameters)}
    metadata = Metadata(name=name, namespace=namespace)
    return Query(api_version=API_VERSION, kind="Query", metadata=metadata, spec=QuerySpec.model_validate(spec))
