"""The commands of the store over a gateway: with a key and the rights of its account, and no password."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
import yaml

from baton.resources.documents import Document
from baton.resources.loader import load_documents
from baton.starter.operations.manifests import open_store
from tests.harness.environment import Environment, Json, agent, manifest
from tests.harness.gateway import GatewayServer, key_file, rights

MANIFESTS = [
    agent("one"),
    *rights("editor", {"resources": ["agents", "models"], "verbs": ["use", "update"]}),
]


@pytest_asyncio.fixture(loop_scope="session")
async def remote(served_env: Environment, tmp_path: Path) -> AsyncIterator[tuple[GatewayServer, dict[str, str]]]:
    path, keys = key_file(tmp_path, {"ed": {"serviceAccount": "editor"}, "guest": {"serviceAccount": "nobody"}})
    async with GatewayServer.running(served_env, BATON_GATEWAY_KEYS=str(path)) as gateway:
        yield gateway, keys


async def baton(gateway: GatewayServer, key: str, *arguments: str) -> tuple[int, str]:
    """Runs a command that knows nothing but the gateway: the exit code, and all that it prints."""
    environ = {"BATON_GATEWAY_URL": gateway.url, "BATON_GATEWAY_KEY": key, "PATH": "/usr/bin", "COLUMNS": "200"}
    process = await asyncio.create_subprocess_exec(
        *(str(Path(sys.executable).parent / "baton"), *arguments),
        env={**environ, "BATON_HOME": str(gateway.env.folder / "nowhere")},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await process.communicate()
    return process.returncode or 0, out.decode()


def write(folder: Path, *manifests: Json) -> str:
    file = folder / "files.yaml"
    file.write_text(yaml.safe_dump_all(manifests))
    return str(file)


def labeled(name: str, app: str, **spec: str) -> Json:
    one = agent(name, **spec)
    return {**one, "metadata": {"name": name, "labels": {"app": app}}}


@pytest.mark.slow
async def test_manifests_are_applied_pruned_shown_and_deleted_with_a_key(
    remote: tuple[GatewayServer, dict[str, str]], tmp_path: Path
) -> None:
    gateway, keys = remote
    both = write(tmp_path, labeled("kept", "shop"), labeled("gone", "shop"))
    assert await baton(gateway, keys["ed"], "apply", "-f", both) == (0, "agent/gone created\nagent/kept created\n")
    code, said = await baton(gateway, keys["guest"], "apply", "-f", both)
    assert (code, "may not update agents 'default/gone'" in said) == (1, True), said
    kept = write(tmp_path, labeled("kept", "shop", description="new"))
    pruned = ["apply", "--prune", "-l", "app=shop", "-f", kept]
    dry = await baton(gateway, keys["ed"], *pruned, "--dry-run")
    assert dry == (0, "agent/kept configured (dry run)\nagent/gone pruned (dry run)\n")
    assert await baton(gateway, keys["ed"], *pruned) == (0, "agent/kept configured\nagent/gone pruned\n")
    code, shown = await baton(gateway, keys["ed"], "get", "agents", "-l", "app=shop", "-o", "name")
    assert (code, shown) == (0, "agent/kept\n")
    code, history = await baton(gateway, keys["ed"], "history", "agent/kept", "--diff")
    assert code == 0, history
    assert "version 2" in history
    assert "by ed" in history
    assert "+  description: new" in history
    assert await baton(gateway, keys["ed"], "delete", "agent", "kept") == (0, "agent/kept deleted\n")
    async with open_store(gateway.env.worker_env) as store:
        assert [each.name for each in (await store.contents()).existing] == []
        assert {each.author for each in await store.versions(("Agent", "default", "kept"))} == {"ed"}


@pytest.mark.slow
async def test_no_secret_is_sent_over_a_gateway(remote: tuple[GatewayServer, dict[str, str]], tmp_path: Path) -> None:
    gateway, keys = remote
    secret: Json = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys"}, "stringData": {"k": "zqzq"}}
    code, said = await baton(gateway, keys["ed"], "apply", "-f", write(tmp_path, secret))
    assert code == 1
    assert "Secrets are not sent through a gateway" in said
    assert "zqzq" not in said
    code, said = await baton(gateway, keys["ed"], "diff", "-f", write(tmp_path, secret))
    assert (code, "Secrets are not sent through a gateway" in said, "zqzq" in said) == (1, True, False)


@pytest.mark.slow
async def test_what_apply_would_change_is_shown_over_a_gateway(
    remote: tuple[GatewayServer, dict[str, str]], tmp_path: Path
) -> None:
    """The files are compared with the store, also where runs use a worker's own file of the same name."""
    gateway, keys = remote
    assert (await baton(gateway, keys["ed"], "apply", "-f", write(tmp_path, labeled("kept", "shop"), agent("one"))))[
        0
    ] == 0
    same = write(tmp_path, labeled("kept", "shop"), agent("one"))
    assert await baton(gateway, keys["ed"], "diff", "-f", same) == (0, "")
    changed = write(tmp_path, labeled("kept", "shop", description="new"), agent("more"), agent("one", description="b"))
    code, shown = await baton(gateway, keys["ed"], "diff", "-f", changed)
    assert code == 1
    lines = shown.splitlines()
    assert [line for line in lines if line.startswith("--- ")] == [
        "--- store/agent/kept",
        "--- store/agent/more",
        "--- store/agent/one",
    ]
    assert "+  description: new" in lines and "+  description: b" in lines and "+  name: more" in lines
    assert [line for line in lines if line.startswith("-") and not line.startswith("---")] == []
    async with open_store(gateway.env.worker_env) as store:
        assert {each.version for each in (await store.contents()).existing} == {1}
    code, shown = await baton(gateway, keys["guest"], "diff", "-f", same)
    assert (code, "-" in shown.replace("---", "").replace("@@ -0,0", "")) == (1, False), "a guest sees nothing of it"


@pytest.mark.slow
async def test_a_manifest_is_described_over_a_gateway(
    remote: tuple[GatewayServer, dict[str, str]], tmp_path: Path
) -> None:
    gateway, keys = remote
    await baton(gateway, keys["ed"], "apply", "-f", write(tmp_path, labeled("kept", "shop")))
    code, shown = await baton(gateway, keys["ed"], "describe", "agent/kept")
    assert code == 0, shown
    for part in ("Name:", "kept", "store, version 1", "app=shop", "no other manifest", "1 ("):
        assert part in shown
    code, said = await baton(gateway, keys["guest"], "describe", "agent/kept")
    assert (code, "there is no Agent/default/kept here, or you may not use it" in said) == (1, True)


async def test_a_caller_sees_the_usage_of_its_own_tenant(remote: tuple[GatewayServer, dict[str, str]]) -> None:
    gateway, keys = remote
    theirs = manifest("Quota", "theirs", {"perDay": {"tokens": 5}})
    theirs = {**theirs, "metadata": {"name": "theirs", "namespace": "theirs"}}
    own = [
        manifest("Quota", "all", {"perDay": {"modelCalls": 7}}),
        manifest("Quota", "guests", {"serviceAccount": "nobody", "perDay": {"tokens": 9}}),
    ]
    async with open_store(gateway.env.worker_env) as store:
        await store.apply(load_documents([Document("q.yaml", each, {}) for each in (*own, theirs)]))
    code, shown = await baton(gateway, keys["ed"], "quotas", "-o", "json")
    assert code == 0, shown
    (usage,) = json.loads(shown)
    assert (usage["quota"], usage["tenant"], usage["limit"]) == ("default/all", "default", "modelCalls a day")
    assert (usage["used"], usage["most"], usage["left"], usage["waitingRuns"]) == (0, 7, 7, 0)
    assert "UTC" in usage["beginsAnew"]
    code, shown = await baton(gateway, keys["guest"], "quotas")
    assert ("default/all" in shown, "default/guests" in shown, "theirs" in shown) == (True, True, False)


async def test_nothing_is_pruned_without_a_selector_or_a_namespace(
    remote: tuple[GatewayServer, dict[str, str]], tmp_path: Path
) -> None:
    gateway, keys = remote
    code, said = await baton(gateway, keys["ed"], "apply", "--prune", "-f", write(tmp_path, agent("one")))
    assert (code, "--prune needs -l or -n" in said) == (1, True)
    sent = {"text": "kind: Agent", "prune": {}}
    refused = await gateway.post("/manifests/apply", sent, 400, key=keys["ed"])
    assert "name a namespace or labels" in refused["error"]["message"]


@pytest.mark.slow
async def test_manifests_of_others_are_neither_pruned_nor_named(
    remote: tuple[GatewayServer, dict[str, str]], tmp_path: Path
) -> None:
    """They may have the same labels, and need what a caller wants to delete."""
    gateway, keys = remote
    foreign = agent("hidden", modelRef={"name": "mine", "namespace": "default"})
    foreign = {**foreign, "metadata": {"name": "hidden", "namespace": "theirs", "labels": {"app": "shop"}}}
    _, role, _ = rights("owner", {"resources": ["agents"]})
    role = {**role, "metadata": {"name": "owner", "namespace": "theirs"}}
    model = manifest("Model", "mine", {"provider": "openai", "model": {"value": "m"}, "config": {"openai": {}}})
    async with open_store(gateway.env.worker_env) as store:
        await store.apply(load_documents([Document("m.yaml", each, {}) for each in (model, foreign, role)]))
    kept = write(tmp_path, labeled("kept", "shop"))
    pruned = await baton(gateway, keys["ed"], "apply", "--prune", "-l", "app=shop", "-f", kept)
    assert pruned == (0, "agent/kept created\n")
    code, said = await baton(gateway, keys["ed"], "delete", "model", "mine")
    assert (code, "manifests that you may not see need it" in said, "hidden" in said) == (1, True, False), said
    code, said = await baton(gateway, keys["ed"], "delete", "agent", "none")
    assert (code, "there is no Agent/default/none in the store" in said, "kept" in said) == (1, True, False), said
    async with open_store(gateway.env.worker_env) as store:
        assert [each.name for each in (await store.contents()).existing] == ["kept", "hidden", "mine", "owner"]
