"""Parses manifests from documents, by kind and apiVersion; other kinds are ignored."""

import json
from collections.abc import Iterator
from typing import TypeVar

from pydantic import ValidationError

from .base import JsonObject, Path
from .catalog import KINDS, Resource
from .documents import Document, unrendered
from .manifest import Manifest
from .problems import ManifestError, Problem, did_you_mean, dotted_path, explain_errors
from .role import RBAC
from .secret import Secret

GROUP = "ark.mckinsey.com/"
IGNORED_KINDS = ("A2ATask", "ToolApprovalRequest", "ToolInteraction")
"""Kinds of ARK that Baton ignores: its records of runs."""

MANIFEST_KINDS: dict[str, type[Resource | Secret]] = {**KINDS, "Secret": Secret}

M = TypeVar("M", bound=Manifest)


def split_list(document: Document) -> Iterator[Document]:
    """The document, or the items of a Kubernetes ``List``; nothing for an empty one."""
    data = document.data
    if isinstance(data, dict) and data.get("kind") == "List" and isinstance(items := data.get("items"), list):
        lines: dict[Path, dict[Path, int]] = {}
        for path, line in document.lines.items():
            lines.setdefault(path[:2], {})[path[2:]] = line
        for index, item in enumerate(items):
            yield from split_list(Document(document.file, item, lines.get(("items", index), {})))
    elif data is not None:
        yield document


def manifest_of(document: Document) -> Resource | Secret | None:
    """The manifest in a document; None for a kind that Baton ignores. Raises ManifestError."""
    data = document.data
    if not isinstance(data, dict):
        raise manifest_error(
            document, (), "", "is not a manifest: it must be a mapping with apiVersion, kind and metadata"
        )
    kind = str(data.get("kind", ""))
    version = str(data.get("apiVersion", ""))
    model = MANIFEST_KINDS.get(kind)
    ours = version.startswith(GROUP) or (model is not None and ("/" not in version or version == RBAC))
    if model is None and ours and kind not in IGNORED_KINDS:
        hint = did_you_mean(kind, (*KINDS, *IGNORED_KINDS))
        raise manifest_error(document, ("kind",), kind, f"'{kind}' is not a kind; {hint}")
    if model is None or not ours:
        return None
    if places := [*unrendered(data)]:
        resource = _id(kind, data)
        raise ManifestError(
            Problem(document.file, document.line(path), resource, dotted_path(path), text) for path, text in places
        )
    return _validated(document, data, model)


def _validated(document: Document, data: JsonObject, model: type[M]) -> M:
    resource = _id(model.__name__, data)
    try:
        return model.model_validate_json(json.dumps(data), strict=True, extra="forbid", by_name=False, by_alias=True)
    except ValidationError as error:
        problems = [
            Problem(document.file, document.line(path), resource, dotted_path(path), text)
            for path, text in explain_errors(error, model)
        ]
        raise ManifestError(problems) from None


def _id(kind: str, data: JsonObject) -> str:
    metadata = data.get("metadata")
    fields = metadata if isinstance(metadata, dict) else {}
    return f"{kind}/{fields.get('namespace', 'default')}/{fields.get('name', '?')}"


def manifest_error(document: Document, path: Path, resource: str, text: str) -> ManifestError:
    """The error for one path in a document."""
    return ManifestError([Problem(document.file, document.line(path), resource, dotted_path(path), text)])
