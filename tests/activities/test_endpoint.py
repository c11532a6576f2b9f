"""Tests of endpoints: a model's server, key and headers come from manifests, ConfigMaps, Secrets or the query."""

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml
from temporalio.client import Client

from baton.activities.context.metering import ChainedModel, model_chain, selector_model_chain
from baton.activities.context.value_resolver import ValueResolver
from baton.activities.model.connection import endpoint_of
from baton.activities.runtime.secrets import SecretStore
from baton.contracts.errors import KeyMissing
from baton.resources.agent import Agent
from baton.resources.catalog import Catalog
from baton.resources.loader import load_files
from baton.resources.model import Model
from baton.resources.provenance import Provenance
from baton.resources.run_catalog import RunCatalog
from baton.resources.secret import Secrets
from baton.resources.team import Team
from tests.harness.environment import Environment, Json, agent, manifest, team
from tests.harness.manifests import Writer, model

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


def endpoint(manifest: Json, provenance: Provenance = Provenance.FILES, **environment: str) -> Any:
    given = Model.model_validate(manifest)
    catalog = RunCatalog.of(Catalog(manifests=(given,)), lambda _: provenance)
    return endpoint_of(ChainedModel(given, "m"), ValueResolver(catalog, SecretStore(Secrets(), environment)))


OF_WORKER: dict[str, Any] = {"OPENAI_API_KEY": "sk-worker", "OPENAI_BASE_URL": "http://gateway.local/v1"}


@pytest.mark.parametrize("provenance", [Provenance.FILES, Provenance.INLINE])
def test_a_model_that_names_no_server_uses_that_of_the_workers_environment(provenance: Provenance) -> None:
    used = endpoint(asked_by("openai"), provenance, **OF_WORKER)
    assert (used.base_url, used.api_key) == ("http://gateway.local/v1", "sk-worker")
    used = endpoint(asked_by("openai"), provenance, OPENAI_API_KEY="sk-worker")
    assert (used.base_url, used.api_key) == ("https://api.openai.com/v1", "sk-worker")
    used = endpoint(asked_by("openai", apiKey="own"), provenance, **OF_WORKER)
    assert (used.base_url, used.api_key) == ("http://gateway.local/v1", "own")
    with pytest.raises(KeyMissing, match=r"Model/default/m has no config\.openai\.apiKey"):
        endpoint(asked_by("openai"), provenance)


@pytest.mark.parametrize("url", ["http://gateway.local/v1", "https://other.example/v1", "https://api.openai.com/v1/"])
def test_the_workers_key_never_goes_to_an_address_that_an_inline_model_names(url: str) -> None:
    assert endpoint(asked_by("openai", baseUrl=url), Provenance.INLINE, **OF_WORKER).api_key == "none"
    assert endpoint(asked_by("openai", baseUrl=url), Provenance.RUN, **OF_WORKER).api_key == "none"


def test_the_workers_key_goes_only_to_its_server_also_for_its_own_models() -> None:
    assert endpoint(asked_by("openai", baseUrl="http://gateway.local/v1/"), **OF_WORKER).api_key == "sk-worker"
    assert endpoint(asked_by("openai", baseUrl="https://other.example/v1"), **OF_WORKER).api_key == "none"


def test_an_inline_model_with_headers_does_not_use_the_workers_server() -> None:
    headers = {"X-User": "root"}
    with pytest.raises(KeyMissing, match=r"Model/default/m has no config\.openai\.apiKey"):
        endpoint(asked_by("openai", headers=headers), Provenance.INLINE, **OF_WORKER)
    assert endpoint(asked_by("openai", headers=headers), **OF_WORKER).api_key == "sk-worker"


@pytest.mark.parametrize("kind", ["gemini", "azure"])
def test_other_providers_do_not_use_the_workers_openai_key(kind: str) -> None:
    assert endpoint(asked_by(kind, baseUrl="http://gateway.local/v1"), **OF_WORKER).api_key == "none"


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


def test_the_settings_of_an_agent_apply_with_fallbacks_and_when_it_selects_but_to_no_other_call(write: Writer) -> None:
    chooser = agent("chooser", modelRef={"name": "m"}, temperature=0.1, maxTokens=9)
    first = asked_by("openai", apiKey="k" * 20)
    first["spec"] |= {"fallback": {"name": "other"}, "temperature": 0.7, "seed": 7}
    other = manifest("Model", "other", {"type": "gemini", "model": "g", "config": {"gemini": {}}, "maxTokens": 5})
    panel = team("t", "chooser", strategy="selector", maxTurns=2, selector={"agent": "chooser"})
    catalog = write.load(chooser, first, other, panel).catalog
    speaker = catalog.by_id("Agent/default/chooser")
    selecting = catalog.by_id("Team/default/t")
    assert isinstance(speaker, Agent)
    assert isinstance(selecting, Team)
    expected = [{"temperature": 0.1, "max_tokens": 9, "seed": 7}, {"temperature": 0.1, "max_tokens": 9}]
    for chain in (model_chain(speaker, catalog), selector_model_chain(selecting, catalog)):
        assert [model.settings.chosen for model in chain] == expected
        assert [model.max_output_tokens for model in chain] == [9, 9]
        assert [model.without_agent.settings.chosen for model in chain] == [
            {"temperature": 0.7, "seed": 7},
            {"max_tokens": 5},
        ]
