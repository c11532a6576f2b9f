"""Manifests over HTTP: those that workers know, their drawings, versions and differences, and changes of the store.

Who may see and write which ones is decided in ``manifest_access.py``; what is taken and returned is in
``manifest_messages.py``.
"""

import asyncio
import contextlib
import difflib
import json
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import BaseModel, JsonValue
from starlette.requests import Request
from temporalio.client import Client

from ...contracts.identity import Actor
from ...contracts.text import format_time
from ...resources.base import JsonObject
from ...resources.catalog import Catalog, Resource, catalog_of
from ...resources.documents import Document, parse_documents
from ...resources.loader import Loaded, load_documents
from ...resources.problems import ManifestError, Problem
from ...resources.stored import STORABLE, Key, StoredManifest, check_storable, check_with, key_of, refers_to
from ..diagram.build import build_diagram
from ..diagram.layout import Drawing, drawing_of
from ..operations.manifests import (
    Store,
    StoreContents,
    WorkerFiles,
    has_journal,
    open_store,
    read_worker_files,
)
from ..operations.quotas import quota_usage
from ..text import as_yaml
from .access import Caller
from .api import ApiOperation
from .errors import BadRequestError, ConflictError, NotFoundError, TooLargeError, UnavailableError
from .manifest_access import WRITABLE, KnownManifests, ManifestAccess, may_write, use_of
from .manifest_messages import (
    MAX_LISTED,
    MAX_TEXT,
    ApplyMessage,
    DeleteMessage,
    DifferenceLine,
    ManifestChange,
    ManifestChanges,
    ManifestDifference,
    ManifestInfo,
    ManifestList,
    ManifestText,
    ProblemInfo,
    QuotaList,
    RunDrawing,
    TextMessage,
    Validation,
    VersionInfo,
    VersionList,
    WriteMessage,
    Written,
)
from .protocol import caller_of, read_body
from .runs import Runs
from .settings import GatewaySettings
from .targets import FRESH_SECONDS, Targets

_log = logging.getLogger(__name__)

MAX_COMPARED_LINES = 4_000
"""Lines of a manifest that is compared: the time for a comparison grows with their square."""

MAX_DIFFERENCES = 5_000
"""The most lines of a difference."""

CONCURRENT_STORES = 4
"""The number of requests that use the store at once; further ones wait."""

CONCURRENT_CHECKS = 2
"""How many manifests are judged at once, each in a thread: requests of others must not wait for them."""

KUBECTL = "kubectl.kubernetes.io/"
"""The beginning of kubectl's annotations, which may repeat values that were taken out of a manifest."""

UNKNOWN = "unknown here"
"""What a drawing says of a resource that does not exist, or that the caller may not use."""

T = TypeVar("T")


class ManifestOperations:
    """The operations."""

    def __init__(
        self,
        targets: Targets,
        runs: Runs,
        settings: GatewaySettings,
        client: Client,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._targets = targets
        self._access = ManifestAccess(targets, settings)
        self._runs = runs
        self._settings = settings
        self._client = client
        self._environ = environ
        self._judging = asyncio.Semaphore(CONCURRENT_CHECKS)
        self._opening = asyncio.Semaphore(CONCURRENT_STORES)
        self._reading = asyncio.Lock()
        self._cached: KnownManifests | None = None
        self._cached_at = 0.0

    @property
    def operations(self) -> Sequence[ApiOperation]:
        """All of them."""
        one = "/manifests/{kind}/{namespace}/{name}"
        of_target = "/targets/{kind}/{namespace}/{name}/drawing"
        return [
            ApiOperation("GET", of_target, "Draw a target", self.draw_target, answer=Drawing),
            ApiOperation("GET", "/runs/{run}/drawing", "Draw the team of a run", self.draw_run, answer=RunDrawing),
            ApiOperation(
                "GET",
                "/manifests",
                "List manifests",
                self.list_manifests,
                answer=ManifestList,
                query=("kind", "namespace"),
            ),
            ApiOperation(
                "POST", "/manifests/validate", "Validate a manifest", self.validate, body=TextMessage, answer=Validation
            ),
            ApiOperation(
                "POST",
                "/manifests/apply",
                "Write manifests together",
                self.apply,
                body=ApplyMessage,
                answer=ManifestChanges,
            ),
            ApiOperation(
                "POST",
                "/manifests/delete",
                "Delete manifests together",
                self.delete,
                body=DeleteMessage,
                answer=ManifestChanges,
            ),
            ApiOperation("GET", one, "Get a manifest", self.get, answer=ManifestText, query=("version",)),
            ApiOperation("PUT", one, "Write a manifest into the store", self.put, body=WriteMessage, answer=Written),
            ApiOperation("GET", f"{one}/versions", "List versions", self.versions, answer=VersionList),
            ApiOperation(
                "GET",
                f"{one}/difference",
                "Compare versions",
                self.compare,
                answer=ManifestDifference,
                query=("from", "to"),
            ),
            ApiOperation("GET", "/quotas", "List the usage under Quotas", self.quotas, answer=QuotaList),
            ApiOperation("GET", f"{one}/drawing", "Draw a manifest", self.draw, answer=Drawing, query=("version",)),
        ]

    async def draw_target(self, request: Request) -> BaseModel:
        """The drawing of a served target with its members, as far as the caller may use them."""
        path = request.path_params
        caller = caller_of(request)
        target = await self._targets.find(caller, f"{path['kind']}/{path['namespace']}/{path['name']}")
        catalog = await self._targets.catalog()
        return await self._judge(lambda: _draw(self._access.usable(catalog, caller), target.manifest))

    async def draw_run(self, request: Request) -> BaseModel:
        """The drawing of the team that a run asks, with inline manifests of the run."""
        caller = caller_of(request)
        run = await self._runs.find(caller, request.path_params["run"])
        asked = (await run.starts())[-1]
        inline = await run.inline_manifests()
        known = await self._targets.catalog()

        def drawing() -> RunDrawing:
            catalog = inline.overlaid_on(self._access.usable(known, caller))
            team = catalog.get("Team", asked.namespace, asked.name) if asked.kind == "team" else None
            if team is None:
                return RunDrawing()
            return RunDrawing(drawing=_draw(catalog, team), is_inline=inline.by_id(team.id) is not None)

        return await self._judge(drawing)

    async def list_manifests(self, request: Request) -> BaseModel:
        """The manifests that the caller may use, of a kind or in a namespace."""
        caller = caller_of(request)
        known = await self._known(caller)
        kind, namespace = request.query_params.get("kind"), request.query_params.get("namespace")
        infos = [
            info
            for info in await self._judge(lambda: [*self._infos(caller, known)])
            if info.kind == (kind or info.kind) and info.namespace == (namespace or info.namespace)
        ]
        return ManifestList(
            manifests=infos[:MAX_LISTED],
            more=max(0, len(infos) - MAX_LISTED),
            can_store=known.has_store,
            creatable=[kind for kind in WRITABLE if self._access.may_create(caller, known.rights, kind)],
        )

    async def get(self, request: Request) -> BaseModel:
        """A manifest as runs use it, or a version in the store."""
        caller = caller_of(request)
        key = _key_of_path(request)
        known = await self._known(caller)
        text, info = await self._read(request, caller, known, key)

        def described() -> ManifestText:
            resource = _resource(key, text)
            usable = self._access.usable(known.catalog, caller, known.rights)
            return ManifestText(
                info=info,
                text=as_yaml(text),
                newest=known.newest(key),
                refers_to=[*dict.fromkeys(_referred(resource, usable))] if resource else [],
                used_by=[*_users(key, usable)],
                warnings=_warnings(known, key),
            )

        return await self._judge(described)

    async def versions(self, request: Request) -> BaseModel:
        """The versions of a manifest in the store."""
        key = _key_of_path(request)
        caller = caller_of(request)
        known = await self._known(caller)
        self._access.check_visible(caller, known, key)
        async with self._store() as store:
            versions = await store.versions(key)
        return VersionList(
            versions=[
                VersionInfo(
                    version=stored.version,
                    changed=_time(stored),
                    author=stored.author,
                    deleted=stored.is_deleted,
                    problem=stored.problem or None,
                )
                for stored in versions
            ]
        )

    async def compare(self, request: Request) -> BaseModel:
        """The difference between two versions; without ``to`` it is what runs use."""
        caller = caller_of(request)
        key = _key_of_path(request)
        known = await self._known(caller)
        before, _ = await self._read(request, caller, known, key, "from")
        after, _ = await self._read(request, caller, known, key, "to")
        return await self._judge(lambda: _difference(before, after))

    async def quotas(self, request: Request) -> BaseModel:
        """What the caller's namespace and ServiceAccount have used under their Quotas."""
        caller = caller_of(request)
        async with self._store() as store:
            used = await quota_usage(store, self._client, self._environ.get("BATON_TASK_QUEUE"))
        own = caller.account.namespace, str(caller.account)
        return QuotaList(quotas=[usage.report for usage in used if caller.sees_all or usage.tenant in own])

    async def draw(self, request: Request) -> BaseModel:
        """The drawing of a manifest, or of a version of it, with the present versions of what it refers to."""
        caller = caller_of(request)
        key = _key_of_path(request)
        known = await self._known(caller)
        text, _ = await self._read(request, caller, known, key)
        resource = _resource(key, text)
        if resource is None:
            raise BadRequestError("this version can't be read by this release: it can't be drawn")
        return await self._judge(
            lambda: _draw(
                catalog_of([resource]).overlaid_on(self._access.usable(known.catalog, caller, known.rights)), resource
            )
        )

    async def validate(self, request: Request) -> BaseModel:
        """Checks manifests as ``baton apply`` does, together with those of the store that the caller may use."""
        caller = caller_of(request)
        body = await read_body(request, TextMessage)
        known = await self._known(caller)
        return await self._judge(
            lambda: _validate(
                body.text,
                body.namespace,
                self._access.usable(known.storable_with, caller, known.rights),
                self._access.usable(known.catalog, caller, known.rights),
            )
        )

    async def put(self, request: Request) -> BaseModel:
        """Writes a manifest into the store, after the same checks as ``baton apply``."""
        caller = caller_of(request)
        key = _key_of_path(request)
        body = await read_body(request, WriteMessage)
        known = await self._known(caller)
        self._access.check_writable(caller, known, key)
        try:
            loaded = await self._judge(
                lambda: _load(body.text, key[1], self._access.usable(known.storable_with, caller, known.rights))
            )
        except ManifestError as error:
            raise BadRequestError("\n".join(map(str, error.problems[:20])), param="text") from None
        keys = [key_of(manifest) for manifest in loaded.manifests]
        if keys != [key]:
            found = ", ".join("/".join(each) for each in keys) or "no manifest"
            raise BadRequestError(f"the text has to be the manifest of {'/'.join(key)}, but has {found}", param="text")
        self._access.check_uses(caller, known, loaded)

        def check(contents: StoreContents) -> None:
            stored = contents.newest.get(key)
            newest = stored.version if stored and not stored.is_deleted else 0
            if newest != body.version:
                seen = f"version {newest} was written meanwhile" if newest else "it was deleted meanwhile"
                raise ConflictError(f"{'/'.join(key)} has changed: {seen}; nothing was written", param="version")

        async with self._store(caller) as store:
            with self._access.refusals(caller, known, loaded):
                ((_, applied),) = await store.apply(loaded, check=check)
            newest = (await store.contents()).newest[key].version
        self._cached = None
        _log_change(caller, f"{'/'.join(key)} version {newest}", applied)
        return Written(applied=applied, version=newest)

    async def apply(self, request: Request) -> BaseModel:
        """Writes several manifests into the store, all or none, and deletes those that are to be pruned."""
        caller = caller_of(request)
        body = await read_body(request, ApplyMessage)
        pruned = body.prune
        if pruned is not None and not (pruned.namespace or pruned.labels):
            raise BadRequestError("name a namespace or labels: nothing else is pruned", param="prune")
        known = await self._known(caller)
        try:
            loaded = await self._judge(
                lambda: _load(body.text, body.namespace, self._access.usable(known.storable_with, caller, known.rights))
            )
        except ManifestError as error:
            raise BadRequestError("\n".join(map(str, error.problems[:20])), param="text") from None
        for manifest in loaded.manifests:
            self._access.check_writable(caller, known, key_of(manifest))
        self._access.check_uses(caller, known, loaded)

        def prune(stored: StoredManifest) -> bool:
            if pruned is None or stored.kind not in WRITABLE or pruned.namespace not in (None, stored.namespace):
                return False
            if not stored.has_labels(pruned.labels):
                return False
            if not self._access.is_visible(caller, known.rights, use_of(stored.key)):
                return False  # it belongs to others, who may use the same labels
            self._access.check_writable(caller, known, stored.key)
            return True

        async with self._store(caller) as store:
            with self._access.refusals(caller, known, loaded):
                applied = await store.apply(loaded, dry=body.dry_run, prune=prune)
        self._cached = None
        changes = [ManifestChange(id="/".join(key), applied=how) for key, how in applied]
        if not body.dry_run:
            for change in changes:
                _log_change(caller, change.id, change.applied)
        return ManifestChanges(changes=changes)

    async def delete(self, request: Request) -> BaseModel:
        """Deletes several manifests from the store, all or none."""
        caller = caller_of(request)
        body = await read_body(request, DeleteMessage)
        known = await self._known(caller)
        keys = [_key_of_id(each) for each in body.ids]
        for key in keys:
            self._access.check_writable(caller, known, key)

        def check(contents: StoreContents) -> None:
            for key in keys:
                stored = contents.newest.get(key)
                if stored is None or stored.is_deleted:
                    raise NotFoundError(
                        f"there is no {'/'.join(key)[:300]} in the store; nothing was deleted", param="ids"
                    )

        async with self._store(caller) as store:
            with self._access.refusals(caller, known):
                await store.delete(keys, dry=body.dry_run, check=check)
        self._cached = None
        if not body.dry_run:
            for key in keys:
                _log_change(caller, "/".join(key), "deleted")
        return ManifestChanges(changes=[ManifestChange(id=each, applied="deleted") for each in body.ids])

    @contextlib.asynccontextmanager
    async def _store(self, caller: Caller | None = None) -> AsyncIterator[Store]:
        """The store, which the ``caller`` may change. Each has connections of its own, so there are few at once."""
        if not has_journal(self._environ):
            raise NotFoundError("this gateway has no store: set BATON_JOURNAL_URL to that of the workers")
        actor = Actor(caller.name, "gateway", verified=caller.is_verified) if caller else None
        async with self._opening, open_store(self._environ, actor) as store:
            yield store

    async def _known(self, caller: Caller) -> KnownManifests:
        """All manifests, for a caller. Raises JournalUnavailable, RPCError, and UnavailableError."""
        rights = await self._targets.catalog()
        if not has_journal(self._environ):
            return KnownManifests({}, WorkerFiles(), rights, rights, rights, rights, has_store=False)
        async with self._reading:
            if self._cached is None or time.monotonic() - self._cached_at > FRESH_SECONDS:
                async with open_store(self._environ) as store:
                    contents = await store.contents()
                    files = await read_worker_files(store.journal, self._client, self._environ.get("BATON_TASK_QUEUE"))
                stored = await asyncio.to_thread(lambda: catalog_of(contents.readable))
                in_files = catalog_of({manifest.id: manifest for manifest, _ in files.manifests}.values())
                in_files = in_files.overlaid_on(self._targets.in_files)
                self._cached = KnownManifests(
                    stored=contents.newest,
                    files=files,
                    in_files=in_files,
                    catalog=in_files.overlaid_on(stored),
                    storable_with=stored,
                    rights=rights,
                    has_store=True,
                )
                self._cached_at = time.monotonic()
            known = replace(self._cached, rights=rights)
        namespaces = {caller.account.namespace, *(manifest.namespace for manifest in known.catalog.manifests)}
        if not self._targets.knows_rights(caller, namespaces):
            raise UnavailableError(
                "who may see the manifests is not known now: no worker was live yet whose Roles could be read",
                retry_after=FRESH_SECONDS,
            )
        return known

    async def _judge(self, work: Callable[[], T]) -> T:
        """The result of work that needs much CPU time, in a thread."""
        async with self._judging:
            return await asyncio.to_thread(work)

    def _infos(self, caller: Caller, known: KnownManifests) -> Iterator[ManifestInfo]:
        for manifest in sorted(
            self._access.usable(known.catalog, caller, known.rights).manifests, key=lambda one: one.id
        ):
            yield self._info(caller, known, key_of(manifest), manifest)
        unreadable = [
            key
            for key, stored in sorted(known.stored.items())
            if stored.problem and not stored.is_secret and not known.catalog.by_id("/".join(key))
        ]
        for key in unreadable:
            if self._access.is_shown(caller, known, key):
                yield self._info(caller, known, key, None)

    def _info(self, caller: Caller, known: KnownManifests, key: Key, manifest: Resource | None) -> ManifestInfo:
        stored = known.stored.get(key)
        stored = None if stored and stored.is_deleted else stored
        spec = getattr(manifest, "spec", None)
        members = getattr(spec, "members", None)
        return ManifestInfo(
            id="/".join(key),
            kind=key[0],
            namespace=key[1],
            name=key[2],
            source=_source(known, key),
            version=stored.version if stored else None,
            changed=_time(stored) if stored else None,
            description=getattr(spec, "description", None),
            strategy=getattr(spec, "strategy", None),
            members=len(members) if members is not None else None,
            writable=known.has_store and may_write(caller, known.rights, key),
            problem=stored.problem or None if stored and manifest is None else None,
        )

    async def _read(
        self, request: Request, caller: Caller, known: KnownManifests, key: Key, parameter: str = "version"
    ) -> tuple[JsonObject, ManifestInfo]:
        """The version of a manifest that a parameter of the request names, or what runs use. Raises NotFoundError."""
        self._access.check_visible(caller, known, key)
        manifest = known.catalog.by_id("/".join(key))
        info = self._info(caller, known, key, manifest)
        asked = request.query_params.get(parameter)
        if asked is None:
            if manifest is None:
                stored = known.stored[key]
                raise NotFoundError(stored.problem or f"{'/'.join(key)} was deleted")
            data: JsonObject = manifest.model_dump(mode="json", exclude_unset=True)
            return _shown(data), info
        if not (asked.isascii() and asked.isdecimal() and len(asked) < 10):
            raise BadRequestError(f"{parameter} has to be the number of a version", param=parameter)
        async with self._store() as store:
            versions = {stored.version: stored for stored in await store.versions(key)}
        found = versions.get(int(asked))
        if found is None or found.is_deleted:
            known_versions = ", ".join(str(each.version) for each in versions.values() if not each.is_deleted) or "none"
            raise NotFoundError(f"{'/'.join(key)} has no version {asked}; known: {known_versions}", param=parameter)
        if found.problem:
            raise BadRequestError(f"version {asked} can't be read: {found.problem}", param=parameter)
        return _shown(json.loads(found.manifest)), info


def operations(
    targets: Targets, runs: Runs, settings: GatewaySettings, client: Client, environ: Mapping[str, str]
) -> Sequence[ApiOperation]:
    """The operations of manifests, which belong to Baton's own protocol."""
    return ManifestOperations(targets, runs, settings, client, environ).operations


def _key_of_path(request: Request) -> Key:
    """The key in a path. Raises NotFoundError."""
    path = request.path_params
    return _kind(path["kind"]), path["namespace"], path["name"]


def _key_of_id(text: str) -> Key:
    """The key in an id: ``KIND/NAMESPACE/NAME``. Raises BadRequestError and NotFoundError."""
    parts = text.split("/")
    if len(parts) != 3:
        raise BadRequestError(f"'{text[:300]}' is not of the form KIND/NAMESPACE/NAME", param="ids")
    return _kind(parts[0]), parts[1], parts[2]


def _kind(word: str) -> str:
    """A kind, which may be written in lower case. Raises NotFoundError."""
    kinds = {name.lower(): name for name in STORABLE}
    kind = kinds.get(word.lower())
    if kind is None:
        raise NotFoundError(f"there is no kind '{word[:100]}'; known: {', '.join(kinds.values())}")
    return kind


def _log_change(caller: Caller, what: str, change: str) -> None:
    """Logs what a caller has done with a manifest."""
    if change in ("pruned", "deleted"):
        _log.info("%s (%s) has deleted %s", caller.name, caller.account, what)
    else:
        _log.info("%s (%s) has written %s: %s", caller.name, caller.account, what, change)


def _shown(data: JsonObject) -> JsonObject:
    """A manifest without kubectl's annotations."""
    metadata = data.get("metadata")
    annotations = metadata.get("annotations") if isinstance(metadata, dict) else None
    if not isinstance(metadata, dict) or not isinstance(annotations, dict):
        return data
    kept: JsonObject = {name: text for name, text in annotations.items() if not name.startswith(KUBECTL)}
    others: JsonObject = {name: value for name, value in metadata.items() if name != "annotations"}
    return {**data, "metadata": {**others, "annotations": kept} if kept else others}


def _referred(resource: Resource, known: Catalog) -> Iterator[str]:
    """The ids of what a manifest refers to; of what is not known, the reference in words."""
    for reference in resource.references:
        found = known.find(reference)
        if found and known.by_id(found.id):
            yield found.id
        elif not reference.optional and not found:
            yield str(reference)


def _users(key: Key, known: Catalog) -> Iterator[str]:
    """The ids of the manifests that refer to a resource."""
    for user in known.manifests:
        if any(refers_to(reference, key, known) for reference in user.references):
            yield user.id


def _resource(key: Key, data: JsonObject) -> Resource | None:
    """The manifest in data; None if this release can't read it."""
    try:
        return StoredManifest(*key, 1, 0, "", 0, json.dumps(data)).resource()
    except ValueError:
        return None


def _source(known: KnownManifests, key: Key) -> str:
    count = sum(number for manifest, number in known.files.manifests if key_of(manifest) == key)
    if not count and known.in_files.by_id("/".join(key)):
        return "files"
    if not count:
        return "store" if known.has_store else "workers"
    return "files" if count >= known.files.workers else f"files of {count} of {known.files.workers} workers"


def _warnings(known: KnownManifests, key: Key) -> list[str]:
    """What a writer should know before a change."""
    variants = [manifest for manifest, _ in known.files.manifests if key_of(manifest) == key]
    texts = []
    if known.in_files.by_id("/".join(key)):
        texts.append("Workers have this manifest in their own files, and their runs use that one, not the store's.")
    if len(variants) > 1:
        texts.append("Workers have different versions of it in their files.")
    return texts


def _time(stored: StoredManifest) -> str:
    return format_time(datetime.fromtimestamp(stored.changed, UTC))


def _draw(catalog: Catalog, manifest: Resource) -> Drawing:
    return drawing_of(build_diagram(catalog, [manifest], manifest.namespace, missing=UNKNOWN))


def _difference(before: JsonValue, after: JsonValue) -> ManifestDifference:
    texts = [as_yaml(before), as_yaml(after)]
    if max(map(len, texts)) > MAX_TEXT:
        raise TooLargeError(f"a manifest of more than {MAX_TEXT:,} characters is not compared here")
    before_lines, after_lines = (text.splitlines() for text in texts)
    if max(len(before_lines), len(after_lines)) > MAX_COMPARED_LINES:
        raise TooLargeError(f"a manifest of more than {MAX_COMPARED_LINES:,} lines is not compared here")
    kinds: dict[str, Literal["added", "removed", "same", "place"]] = {"+": "added", "-": "removed", "@": "place"}
    lines = [
        DifferenceLine(kind=kinds.get(line[:1], "same"), text=line if line[:1] == "@" else line[1:])
        for line in difflib.unified_diff(before_lines, after_lines, lineterm="", n=3)
        if not line.startswith(("--- ", "+++ "))
    ]
    return ManifestDifference(lines=lines[:MAX_DIFFERENCES], truncated=len(lines) > MAX_DIFFERENCES)


def _parsed(text: str, namespace: str) -> Loaded:
    """The manifests in a text, in a namespace if they name none. Raises ManifestError."""
    documents = [_in_namespace(document, namespace) for document in parse_documents(text, Path("manifest"))]
    if all(document.data is None for document in documents):
        raise ManifestError([Problem("manifest", 0, "", "", "the text contains no manifest")])
    return load_documents(documents)


def _in_namespace(document: Document, namespace: str) -> Document:
    if namespace == "default":  # as without one: files that baton apply writes don't get one either
        return document
    data = document.data
    metadata = data.get("metadata") if isinstance(data, dict) else None
    if not isinstance(data, dict) or not isinstance(metadata, dict) or "namespace" in metadata:
        return document
    return replace(document, data={**data, "metadata": {**metadata, "namespace": namespace}})


def _load(text: str, namespace: str, known: Catalog) -> Loaded:
    """The manifests in a text, checked as ``baton apply`` does, together with others. Raises ManifestError."""
    loaded = _parsed(text, namespace)
    check_storable(loaded, encrypted=False)  # no Secret is written over HTTP
    check_with(loaded, known)
    return loaded


def _validate(text: str, namespace: str, stored: Catalog, known: Catalog) -> Validation:
    try:
        loaded = _load(text, namespace, stored)
    except ManifestError as error:
        return Validation(problems=[_problem(each) for each in error.problems[:200]], warnings=[])
    notices: list[Problem] = [*loaded.notices(), *loaded.default_members(), *loaded.unused_roles()]
    notices += [_ignored(place) for place in loaded.ignored]
    drawn = next((one for kind in DRAWN for one in loaded.catalog.manifests if one.kind == kind), None)
    drawing = _draw(loaded.catalog.overlaid_on(known), drawn) if drawn else None
    return Validation(
        problems=[],
        warnings=[_problem(each) for each in notices[:200]],
        ids=[manifest.id for manifest in loaded.manifests],
        drawing=drawing,
    )


DRAWN = ("Team", "Query", "Agent")
"""The kinds that are drawn with what they refer to."""


def _ignored(what: str) -> Problem:
    return Problem("manifest", 0, "", "", f"{what}: is ignored, because no run needs it")


def _problem(problem: Problem) -> ProblemInfo:
    return ProblemInfo(
        line=problem.line or None,
        resource=problem.resource or None,
        field=problem.field or None,
        text=problem.text,
    )
