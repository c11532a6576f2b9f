"""A gateway as the other side of commands: people have a key for it instead of the database's password."""

import asyncio
import json
import os
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import NamedTuple, Self
from urllib.parse import quote

import httpx
import yaml
from pydantic import JsonValue

from ...activities.runtime.outbound import BodyLimits, Destination, Outbound
from ...contracts.errors import BatonError
from ...journal.leases import without_lease
from ...resources.base import JsonObject
from ...resources.loader import Loaded
from ...resources.provenance import Provenance
from ...resources.secret import Secret
from ...resources.stored import Key, StoredManifest, key_of, text_of
from ..errors import UsageError
from .quotas import QuotaReport

GATEWAY_KEY = "BATON_GATEWAY_KEY"
GATEWAY_URL = "BATON_GATEWAY_URL"
"""The variables with the key, and with the address unless ``--gateway`` has it."""

TIMEOUT = 60.0

MAX_BYTES = 50_000_000
MAX_OBJECTS = 1_000_000
"""Limits of a response."""


class Described(NamedTuple):
    """A manifest with its ``source``, what it refers to and what refers to it, and its versions in the store."""

    manifest: StoredManifest
    source: str
    refers_to: Sequence[str]
    used_by: Sequence[str]
    versions: Sequence[StoredManifest]


class RemoteGateway:
    """A gateway over HTTP."""

    def __init__(self, url: str, key: str | None) -> None:
        self._url = url.rstrip("/")
        self._key = key

    @classmethod
    def of(cls, url: str | None) -> Self | None:
        """The gateway at an address, or that of the environment if there is a key; None if none is to be used."""
        key = os.environ.get(GATEWAY_KEY) or None
        address = url or (os.environ.get(GATEWAY_URL) if key else None)
        return cls(address, key) if address else None

    def get(self, path: str, **query: str) -> JsonObject:
        """The JSON of a response. Raises UsageError with what the gateway says."""
        return self._request("GET", path, query=query)

    def post(self, path: str, body: JsonObject) -> JsonObject:
        """The JSON of the response to a POST. Raises UsageError with what the gateway says."""
        return self._request("POST", path, body=body)

    def _request(
        self, method: str, path: str, *, query: dict[str, str] | None = None, body: JsonObject | None = None
    ) -> JsonObject:
        headers = {"authorization": f"Bearer {self._key}"} if self._key else {}
        destination = Destination(self._url, Provenance.FILES, private_hosts=True)
        outbound = Outbound(BodyLimits(size=MAX_BYTES, objects=MAX_OBJECTS), destination=destination)

        async def send() -> httpx.Response:
            # The same changes again change nothing, and it is not a run that sends them.
            async with outbound.open(httpx.AsyncClient, timeout=TIMEOUT) as http:
                return await http.request(
                    method, f"{self._url}{path}", params=query or None, json=body, headers=headers
                )

        try:
            with without_lease():
                response = asyncio.run(send())
        except (BatonError, httpx.HTTPError, httpx.InvalidURL) as error:
            raise UsageError(f"the gateway at {self._url} can't be reached: {error or type(error).__name__}") from None
        try:
            answer: JsonValue = response.json()
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise UsageError(f"{self._url} is not a Baton gateway: its response, {response.status_code}, is not JSON")
        refusal = answer.get("error")
        if response.is_success and not refusal:
            return answer
        if response.status_code == httpx.codes.UNAUTHORIZED and not self._key:
            raise UsageError(f"the gateway at {self._url} needs a key: set {GATEWAY_KEY}")
        said = refusal.get("message") if isinstance(refusal, dict) else None
        raise UsageError(str(said or f"the gateway's response is {response.status_code}"))

    def apply(
        self,
        loaded: Loaded,
        *,
        dry: bool,
        prunes: bool,
        namespace: str | None,
        labels: dict[str, str | None],
    ) -> list[tuple[Key, str]]:
        """Writes the manifests of files. Raises UsageError, also for Secrets, which are not sent."""
        _check_no_secrets(loaded)
        body: JsonObject = {
            "text": "\n---\n".join(text_of(manifest) for manifest in loaded.manifests),
            "dryRun": dry,
            "prune": {"namespace": namespace, "labels": {**labels}} if prunes else None,
        }
        return [*_changes(self.post("/manifests/apply", body))]

    def waiting(self, run: str) -> list[JsonObject]:
        """What waits for people in a run, by its id. Raises UsageError."""
        items = self.get("/inbox").get("waiting")
        found = [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []
        decisions = [item.get("decision") for item in found if item.get("root") == run]
        return [decision for decision in decisions if isinstance(decision, dict)]

    def delete(self, keys: Sequence[Key], *, dry: bool) -> None:
        """Deletes manifests, all or none. Raises UsageError."""
        self.post("/manifests/delete", {"ids": ["/".join(key) for key in keys], "dryRun": dry})

    def manifests(self, **of: str) -> list[tuple[StoredManifest, str]]:
        """The manifests that the key's holder may use, with their sources, without their texts.

        Those ``of`` a kind or a namespace, or all. Raises UsageError.
        """
        listed = self.get("/manifests", **of).get("manifests")
        return [_listed(info) for info in listed if isinstance(info, dict)] if isinstance(listed, list) else []

    def manifest(self, key: Key, version: int | None = None) -> StoredManifest:
        """A manifest as runs use it, or a version in the store. Raises UsageError."""
        query = {} if version is None else {"version": str(version)}
        answer = self.get(_path(key), **query)
        info = answer.get("info")
        stored, _ = _listed(info if isinstance(info, dict) else {})
        return stored._replace(manifest=json.dumps(yaml.safe_load(str(answer.get("text") or "{}"))))

    def newest(self, loaded: Loaded) -> dict[Key, StoredManifest]:
        """The newest versions in the store of the manifests of files, of those that the key's holder may use.

        Raises UsageError, also for Secrets, which no gateway shows.
        """
        _check_no_secrets(loaded)
        keys = {key_of(manifest) for manifest in loaded.manifests}
        found = {}
        for kind, namespace in sorted({key[:2] for key in keys}):
            for stored, _ in self.manifests(kind=kind, namespace=namespace):
                if stored.key in keys and stored.version:  # 0: only workers' files have it
                    found[stored.key] = stored if stored.problem else self.manifest(stored.key, stored.version)
        return found

    def described(self, key: Key) -> Described:
        """A manifest as runs use it, with its surroundings. Raises UsageError."""
        answer = self.get(_path(key))
        info = answer.get("info")
        stored, source = _listed(info if isinstance(info, dict) else {})
        return Described(
            manifest=stored._replace(manifest=json.dumps(yaml.safe_load(str(answer.get("text") or "{}")))),
            source=source,
            refers_to=_texts(answer.get("refersTo")),
            used_by=_texts(answer.get("usedBy")),
            versions=self.versions(key),
        )

    def quotas(self) -> list[QuotaReport]:
        """The usage of the tenants of the key's holder. Raises UsageError."""
        listed = self.get("/quotas").get("quotas")
        return [QuotaReport.model_validate(each) for each in listed] if isinstance(listed, list) else []

    def versions(self, key: Key) -> list[StoredManifest]:
        """The versions of a manifest in the store, the newest first, without their texts. Raises UsageError."""
        versions = self.get(f"{_path(key)}/versions").get("versions")
        return [
            StoredManifest(
                *key,
                version=int(str(version.get("version"))),
                revision=0,
                change="",
                changed=_seconds(version.get("changed")),
                manifest="" if version.get("deleted") else "{}",
                problem=str(version.get("problem") or ""),
                author=str(version["author"]) if version.get("author") else None,
            )
            for version in (versions if isinstance(versions, list) else [])
            if isinstance(version, dict)
        ]


def _check_no_secrets(loaded: Loaded) -> None:
    """Raises UsageError for Secrets: they are neither sent to a gateway nor shown by it."""
    if secrets := [manifest.id for manifest in loaded.manifests if isinstance(manifest, Secret)]:
        raise UsageError(f"{', '.join(secrets)}: Secrets are not sent through a gateway, so nothing was sent")


def _path(key: Key) -> str:
    return "/manifests/" + "/".join(quote(part, safe="") for part in key)


def _changes(answer: JsonObject) -> Iterator[tuple[Key, str]]:
    changes = answer.get("changes")
    for change in changes if isinstance(changes, list) else []:
        if isinstance(change, dict):
            kind, namespace, name = str(change.get("id")).split("/")
            yield (kind, namespace, name), str(change.get("applied"))


def _listed(info: JsonObject) -> tuple[StoredManifest, str]:
    stored = StoredManifest(
        str(info.get("kind")),
        str(info.get("namespace")),
        str(info.get("name")),
        version=int(str(info.get("version") or 0)),
        revision=0,
        change="",
        changed=_seconds(info.get("changed")),
        manifest="",
        problem=str(info.get("problem") or ""),
    )
    return stored, str(info.get("source"))


def _texts(value: JsonValue) -> list[str]:
    return [str(each) for each in value] if isinstance(value, list) else []


def _seconds(at: JsonValue) -> int:
    return int(datetime.fromisoformat(at).timestamp()) if isinstance(at, str) else 0
