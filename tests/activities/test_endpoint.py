"""Tests of endpoints: a model's server, key and headers come from manifests, ConfigMaps, Secrets or the query."""

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml
from temporalio.client import Client

from baton.activities.context.metering import ChainedModel
from baton.activities.context.value_resolver import ValueResolver
from baton.activities.model.connection import endpoint_of
from baton.activities.runtime.secrets import SecretStore
from baton.contracts.errors import KeyMissing
from baton.resources.loader import load_files
from baton.resources.model import Model
from baton.resources.secret import Secrets
from tests.harness.environment import Environment, Json, agent, manifest
from tests.harness.manifests import Writer, model, own_catalog

HELD = "sk-azure-00112233445566"
SECRET = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "safe"}, "stringData": {"key": HELD}}
OF_SECRET = {"valueFrom": {"secretKeyRef": {"name": "safe", "key": "key"}}}


def asked_by(kind: str, **config: Any) -> Json:
    return manifest("Model", "m", {"type": kind, "model": {"value": "gpt-x"}, "config": {kind: config}})


@pytest_asyncio.fixture(loop_scope="session")
async def env(client: Client, tmp_path: Path) -> AsyncIterator[Environment]:
    """A worker that was given a Secret."""
    (tmp_path / "secret.yaml").write_text(yaml.safe_dump(SECRET))
    async with Environment.running(client, tmp_path, load_files([tmp_path / "secret.yaml"])) as env:
        yield env


async def put(env: Environment, *manifests: Json, **spec: Any) -> list[Mapping[str, str]]:
    """The headers with which the model ``m`` is asked by an agent."""
    received: list[Mapping[str, str]] = []
    env.model.on_headers = received.append
    brought = [agent("one", modelRef={"name": "m"}), *manifests]
    status = await env.status(await env.start_query(brought, "agent/one", **spec))
    assert status.phase == "Completed", status.error
    return received


@pytest.mark.parametrize("key", [{"apiKey": OF_SECRET}, {"auth": {"apiKey": OF_SECRET}}], ids=["apiKey", "auth"])
async def test_azure_gets_its_own_path_header_and_api_version(env: Environment, key: Json) -> None:
    server = env.model_url.removesuffix("/v1")
    (headers,) = await put(env, asked_by("azure", baseUrl={"value": server}, apiVersion="2025-01-01", **key))
    assert headers["api-key"] == HELD
    assert env.model.requests[0].path == "/openai/deployments/gpt-x/chat/completions?api-version=2025-01-01"


async def test_gemini_gets_the_same_request_as_openai(env: Environment) -> None:
    (headers,) = await put(env, asked_by("gemini", baseUrl={"value": env.model_url}, apiKey=OF_SECRET))
    assert headers["authorization"] == f"Bearer {HELD}"
    assert env.model.requests[0].body["model"] == "gpt-x"


async def test_properties_are_sent_as_json_and_headers_as_they_are(env: Environment) -> None:
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"url": env.model_url}}
    given = {
        "baseUrl": {"valueFrom": {"configMapKeyRef": {"name": "c", "key": "url"}}},
        "apiKey": OF_SECRET,
        "headers": [{"name": "X-Team", "value": OF_SECRET}, {"name": "X-Plain", "value": {"value": "yes"}}],
        "properties": {
            "temperature": {"value": "0.2"},
            "max_tokens": {"valueFrom": {"queryParameterRef": {"name": "most"}}},
            "reasoning_effort": {"value": "low"},
        },
    }
    parameters = [{"name": "most", "value": "512"}]
    (headers,) = await put(env, asked_by("openai", **given), config, parameters=parameters)
    assert (headers["x-team"], headers["x-plain"]) == (HELD, "yes")
    request = env.model.requests[0].body
    assert [request[key] for key in ("temperature", "max_tokens", "reasoning_effort")] == [0.2, 512, "low"]
    async for run in env.closed_runs():
        assert HELD not in str(await run.fetch_history())


def endpoint(manifest: Json) -> Any:
    given = Model.model_validate(manifest)
    return endpoint_of(ChainedModel(given, "m"), ValueResolver(own_catalog(given), SecretStore(Secrets(), {})))


def test_each_type_has_a_default_server() -> None:
    assert endpoint(asked_by("openai", apiKey="k")).base_url == "https://api.openai.com/v1"
    assert endpoint(asked_by("gemini", apiKey="k")).base_url.startswith("https://generativelanguage.googleapis.com/")
    with pytest.raises(KeyMissing, match=r"Model/default/m has no config\.gemini\.apiKey"):
        endpoint(asked_by("gemini"))


def test_an_endpoint_shows_neither_key_nor_headers() -> None:
    shown = repr(
        endpoint(asked_by("openai", apiKey="hidden-key", headers=[{"name": "X-Token", "value": "hidden-too"}]))
    )
    assert "hidden" not in shown


def test_a_literal_in_a_secret_header_never_enters_the_catalog(tmp_path: Path) -> None:
    loaded = Writer(tmp_path).load(model(headers={"X-Api-Key": HELD, "X-Plain": "seen"}))
    assert HELD not in loaded.catalog.canonical
    assert "seen" in loaded.catalog.canonical


def test_a_property_cannot_replace_a_field_that_baton_sets(tmp_path: Path) -> None:
    said = Writer(tmp_path).refusal(model(properties={"messages": "[]"}))
    assert said[0].endswith("spec.config.openai.properties: 'messages' is set by Baton itself")
