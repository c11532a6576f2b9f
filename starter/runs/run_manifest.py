"""Reads the manifest of a run's query, agent or team from its history, and adds its status."""

from pydantic import JsonValue
from temporalio.client import Client

from ...conversation.contracts.ark_status import ArkTarget, ark_status
from ...conversation.contracts.status import Status
from ...conversation.temporal.execution_chain import execution_chain
from ...resources.base import API_VERSION, JsonModel, JsonObject
from .run_handle import RunHandle


async def run_manifest(client: Client, handle: RunHandle, status: Status) -> JsonObject:
    """The manifest with which a run was started, with this status; without a spec if the run's input has none."""
    run_id = handle.run_id or (await handle.describe()).run_id
    (_, started), *_ = await execution_chain(client, handle.id, run_id)
    values = await client.data_converter.decode(started.input.payloads, [dict[str, JsonValue]])
    return {**_manifest(values[0], started.workflow_type.name), "status": to_json(status)}


def in_ark_dialect(manifest: JsonObject) -> JsonObject:
    """A manifest of ``run_manifest`` with its status in ARK's dialect."""
    kind, (name, _) = str(manifest["kind"]).lower(), _name(manifest)
    target = None if kind == "query" else ArkTarget(type=kind, name=str(name))
    return {**manifest, "status": to_json(ark_status(Status.model_validate(manifest["status"]), target))}


def to_json(value: JsonModel) -> JsonObject:
    """A model as JSON, with the fields that were set."""
    plain: JsonObject = value.model_dump(mode="json", exclude_unset=True)
    return plain


def _manifest(given: JsonObject, workflow_type: str) -> JsonObject:
    """The manifest among the resources in a workflow's input, or one that is made from that input."""
    kind = "Query" if workflow_type == "query" else "Agent" if workflow_type == "agent" else "Team"
    name = given.get("name") or given.get("team") or given.get("agent") or "query"
    namespace = given.get("namespace", "default")
    resources = given.get("resources")
    for each in resources if isinstance(resources, list) else []:
        if isinstance(each, dict) and each.get("kind") == kind and _name(each) == (name, namespace):
            return each
    base: JsonObject = {
        "apiVersion": API_VERSION,
        "kind": kind,
        "metadata": {"name": name, "namespace": namespace},
    }
    return {**base, "spec": given["spec"]} if "spec" in given else base


def _name(manifest: JsonObject) -> tuple[JsonValue, JsonValue]:
    metadata = manifest.get("metadata")
    return (metadata.get("name"), metadata.get("namespace", "default")) if isinstance(metadata, dict) else (None, None)
