"""Tests of the table of providers: what is loaded when, and what is said where a provider's library is missing."""

import asyncio
import json
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from temporalio.client import Client

from baton.activities.model.providers import types_in
from baton.resources.catalog import Catalog
from baton.resources.loader import load_files
from baton.resources.model import Model
from tests.harness.environment import Json, manifest
from tests.harness.manifests import Writer
from tests.harness.processes import PATIENCE, process_env

CONNECTIONS: dict[str, Json] = {"anthropic": {"apiKey": "k" * 9}, "bedrock": {"region": "eu-west-1"}}
LIBRARIES = {"anthropic": "anthropic", "bedrock": "aiobotocore"}
BLOCKED = "import sys; sys.modules['{}'] = None\n"
OPENED = """
import sys
from baton.activities.model.providers import Providers, types_in
from baton.resources.loader import load_files
from pathlib import Path
"""


def of(provider: str) -> Json:
    """A Model of a provider."""
    config = {provider: CONNECTIONS[provider]}
    return manifest("Model", "m", {"type": "completions", "provider": provider, "model": "c", "config": config})


@pytest.fixture(params=CONNECTIONS)
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A file with a Model, named after its provider."""
    file = tmp_path / f"{request.param}.json"
    file.write_text(json.dumps(of(request.param)))
    return file


def python(code: str, *, without: str = "") -> "subprocess.CompletedProcess[str]":
    """Runs a program, in a process where a library is not installed."""
    blocked = BLOCKED.format(without) if without else ""
    return subprocess.run(
        [sys.executable, "-c", blocked + code], capture_output=True, text=True, env=process_env(), timeout=PATIENCE
    )


def lacks(provider: str) -> str:
    needs = f"a model of the provider '{provider}' needs packages that are not installed"
    return f'{needs}: pip install "baton-teams[{provider}]"'


@pytest.mark.slow
def test_a_providers_library_is_loaded_if_a_model_of_its_own_manifests_needs_it(file: Path) -> None:
    library = LIBRARIES[file.stem]
    shown = f"print({library!r} in sys.modules)"
    made = (
        f"{OPENED}Providers(); {shown}; Providers(types_in(load_files([Path({str(file)!r})]).catalog, {{}})); {shown}"
    )
    assert python(made).stdout.split() == ["False", "True"]


def test_the_library_for_models_without_a_manifest_is_loaded_if_the_environment_has_a_server() -> None:
    assert types_in(Catalog(), {}) == set()
    assert types_in(Catalog(), {"OPENAI_API_KEY": "k"}) == types_in(Catalog(), {"OPENAI_BASE_URL": "u"}) == {"openai"}


@pytest.mark.full
@pytest.mark.parametrize(("roles", "loads"), [("workflows", False), ("tools", False), ("models", True)])
async def test_a_worker_that_calls_no_models_loads_no_library_for_them(
    client: Client, tmp_path: Path, roles: str, *, loads: bool
) -> None:
    queues = {f"BATON_{name}TASK_QUEUE": uuid.uuid4().hex for name in ("", "MODEL_", "TOOL_")}
    where = {"TEMPORAL_ADDRESS": client.service_client.config.target_host, "BATON_ROLES": roles, **queues}
    given = process_env(BATON_HOME=str(tmp_path), OPENAI_API_KEY="k", **where)
    command = [sys.executable, "-X", "importtime", "-m", "baton.worker"]
    worker = await asyncio.create_subprocess_exec(*command, env=given, cwd="/", stderr=subprocess.PIPE)
    assert worker.stderr
    said: list[str] = []
    while "Worker started on task queue" not in "".join(said[-1:]):
        said.append((await worker.stderr.readline()).decode())
        assert said[-1], said
    worker.terminate()
    await worker.communicate()
    assert any(line.endswith(" openai\n") for line in said) == loads


@pytest.mark.full
def test_validate_says_which_library_is_missing(file: Path) -> None:
    code = f"sys.argv = ['baton', 'validate', '-f', {str(file)!r}]\n"
    code += "from baton.starter.cli import app, exit_codes; exit_codes.exit_code(app.app)"
    done = python(code, without=LIBRARIES[file.stem])
    assert done.stdout == "1 manifest is valid\n"
    assert lacks(file.stem) in " ".join(done.stderr.split())
    assert not load_files([file]).notices(), "it is installed here"


@pytest.mark.slow
async def test_a_worker_that_starts_says_which_library_is_missing(client: Client, file: Path) -> None:
    code = f"{BLOCKED.format(LIBRARIES[file.stem])}import runpy\nsys.argv = ['worker', {str(file)!r}]\n"
    code += "runpy.run_module('baton.worker', run_name='__main__', alter_sys=True)"
    where = {"TEMPORAL_ADDRESS": client.service_client.config.target_host, "BATON_TASK_QUEUE": uuid.uuid4().hex}
    given = process_env(BATON_HOME=str(file.parent), OPENAI_API_KEY="k", **where)
    worker = await asyncio.create_subprocess_exec(sys.executable, "-c", code, env=given, stderr=subprocess.PIPE)
    assert worker.stderr
    said: list[str] = []
    while "Worker started on task queue" not in "".join(said):
        said.append((await worker.stderr.readline()).decode())
        assert said[-1], said
    worker.terminate()
    assert await worker.wait() == 0
    (warned,) = [each for each in said if "WARNING" in each]
    assert f"Model/default/m: spec.provider: {lacks(file.stem)}" in warned


@pytest.mark.slow
def test_a_call_says_which_library_is_missing(file: Path) -> None:
    code = f"""{OPENED}
import asyncio
from baton.activities.context.metering import ChainedModel
catalog = load_files([Path({str(file)!r})]).catalog
try:
    asyncio.run(Providers(types_in(catalog, {{}})).of(ChainedModel(catalog.manifests[0], "m")))
except Exception as error:
    print(type(error).__name__, error.non_retryable, error.message)
"""
    done = python(code, without=LIBRARIES[file.stem])
    assert done.stdout == f"NotCarriedOut True Model/default/m: {lacks(file.stem)}\n", done.stderr


def test_a_provider_may_be_named_without_a_type(tmp_path: Path) -> None:
    """As newer versions of ARK write it."""
    spec = {**of("bedrock")["spec"]}
    del spec["type"]
    (tmp_path / "m.json").write_text(json.dumps(manifest("Model", "m", spec)))
    loaded = load_files([tmp_path / "m.json"])
    (model,) = loaded.catalog.manifests
    assert isinstance(model, Model)
    assert (model.spec.server, loaded.notices()) == ("bedrock", [])


def test_literal_keys_of_bedrock_never_enter_the_catalog(tmp_path: Path) -> None:
    keys = {name: f"literal-{name}" for name in ("apiKey", "accessKeyId", "secretAccessKey", "sessionToken")}
    spec = {"provider": "bedrock", "model": "c", "config": {"bedrock": keys}}
    canonical = Writer(tmp_path).load(manifest("Model", "m", spec)).catalog.canonical
    assert "literal-" not in canonical
    assert "inline.model.m" in canonical
