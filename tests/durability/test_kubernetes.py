"""What can be checked of the manifests for Kubernetes without a cluster: they are built, and what they name exists."""

import asyncio
import base64
import ipaddress
import json
import re
import shlex
import subprocess
import sys
import tomllib
import uuid
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml
from sqlalchemy import make_url
from temporalio.api.workflowservice.v1 import DescribeWorkerDeploymentRequest
from temporalio.client import Client
from temporalio.service import RPCError

from baton.activities.runtime.health import CHECK_TIMEOUT
from baton.activities.runtime.settings import ROLES, Settings
from baton.activities.runtime.start_checks import check_journal_is_shared
from baton.activities.runtime.worker_process import AFTER_GRACE
from baton.contracts.message import Head, Message
from baton.journal.journal import Journal
from baton.resources.loader import load_files
from baton.starter.operations.journals import migrate_journal
from baton.starter.server.embedded import EmbeddedServer
from baton.temporal.encryption import KEYS
from baton.workflows.calls.activities import CALL
from tests.durability.test_deployment import LINES, SERVICES, script
from tests.harness.ports import own_port
from tests.harness.postgres import PASSWORD, PostgresServer, execute
from tests.harness.processes import BATON, ROOT, process_env

Resource = dict[str, Any]
FOLDER = ROOT / "deploy" / "kubernetes"
OVERLAYS = ["small", "production", "versions"]
OLDEST, NEWEST = "1.33", "1.37"
"""The versions of Kubernetes whose schemas the manifests fit."""

OF_OTHERS = {"ScaledObject", "Connection", "WorkerDeployment"}
"""Kinds of KEDA and of the Temporal Worker Controller, which have no schema in Kubernetes."""


def kustomize(folder: Path) -> list[Resource]:
    command = [str(BATON.with_name("kubectl")), "kustomize", str(folder)]
    return [*yaml.safe_load_all(subprocess.run(command, check=True, capture_output=True, text=True).stdout)]


@cache
def built(overlay: str) -> list[Resource]:
    """The resources of an overlay, as kustomize builds them."""
    return kustomize(FOLDER / "overlays" / overlay)


def of_kind(overlay: str, *kinds: str) -> list[Resource]:
    return [each for each in built(overlay) if each["kind"] in kinds]


def workloads(overlay: str) -> Iterator[tuple[str, Resource]]:
    """The name and the pod template of everything that makes pods."""
    for each in of_kind(overlay, "Deployment", "WorkerDeployment", "Job"):
        yield each["metadata"]["name"], each["spec"]["template"]


def workers(overlay: str) -> dict[str, Resource]:
    """The specs of the workers' pods, by name."""
    return {name: pod["spec"] for name, pod in workloads(overlay) if pod["spec"]["containers"][0]["name"] == "worker"}


def container(pod: Resource) -> Resource:
    (only,) = pod["containers"]
    assert isinstance(only, dict)
    return only


def settings_of(overlay: str) -> dict[str, str]:
    (found,) = [each for each in of_kind(overlay, "ConfigMap") if "baton-settings" in each["metadata"]["name"]]
    return dict(found["data"])


def environment(overlay: str, pod: Resource) -> dict[str, str]:
    """The variables of a container, without those that come from Secrets."""
    own = {each["name"]: each["value"] for each in container(pod)["env"] if "value" in each}
    return {**settings_of(overlay), **own}


@pytest.mark.parametrize("overlay", OVERLAYS)
@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_every_resource_fits_the_schema_of_kubernetes(overlay: str, version: str) -> None:
    for each in built(overlay):
        if each["kind"] not in OF_OTHERS:
            kubernetes_validate.validate(each, version, strict=True)
    for name, template in workloads(overlay):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": template["spec"]}
        kubernetes_validate.validate(pod, version, strict=True)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_what_a_resource_refers_to_is_there_or_is_a_secret_of_the_documents(overlay: str) -> None:
    text = (ROOT / "docs" / "kubernetes.md").read_text()
    there = {each["metadata"]["name"] for each in of_kind(overlay, "ConfigMap", "ServiceAccount")}
    for name, template in workloads(overlay):
        dumped = json.dumps(template)
        maps = re.findall(r'"configMap(?:Ref)?": \{"name": "([^"]+)"', dumped)
        assert {*maps, template["spec"]["serviceAccountName"]} <= there, name
        secrets = re.findall(r'"secret(?:KeyRef|Ref)?": \{[^}]*"name": "([^"]+)"', dumped)
        assert {each for each in secrets if f"| `{each}` |" not in text} == set(), name
        mounted = {each["name"] for each in container(template["spec"]).get("volumeMounts", ())}
        assert mounted == {each["name"] for each in template["spec"].get("volumes", ())}
    assert not of_kind(overlay, "Secret")


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_variable_is_a_setting_that_is_known_and_none_that_is_secret_has_a_value(overlay: str) -> None:
    known = {str(field.validation_alias) for field in Settings.model_fields.values()} | {KEYS}
    known |= {"TEMPORAL_ADDRESS", "TEMPORAL_NAMESPACE", "PGPASSWORD"}
    for pod in workers(overlay).values():
        given = environment(overlay, pod)
        from_secrets = {each["name"] for each in container(pod)["env"] if "secretKeyRef" in each.get("valueFrom", {})}
        assert given.keys() | from_secrets <= known
        assert not [name for name in given if re.search("KEY|PASSWORD|SECRET", name)]
        assert make_url(given["BATON_JOURNAL_URL"]).password is None
        check_journal_is_shared(Settings.of(given), given["TEMPORAL_ADDRESS"])


def test_the_workers_of_production_have_all_roles_and_each_is_scaled_by_its_own_queue() -> None:
    pods = workers("production")
    scaled = {each["spec"]["scaleTargetRef"]["name"]: each["spec"] for each in of_kind("production", "ScaledObject")}
    assert scaled.keys() == pods.keys()
    roles = set[str]()
    for name, pod in pods.items():
        given = environment("production", pod)
        (queue,) = Settings.of(given).worker_queues()
        roles |= queue.roles
        (trigger,) = scaled[name]["triggers"]
        metadata = trigger["metadata"]
        assert (trigger["type"], given[metadata["taskQueueFromEnv"]]) == ("temporal", queue.name)
        assert {given[metadata[key]] for key in ("endpointFromEnv", "namespaceFromEnv")} <= {*given.values()}
        assert ("workflow" in metadata["queueTypes"].split(",")) == ("workflows" in queue.roles)
        assert all(isinstance(each, str) for each in metadata.values()), "KEDA takes texts alone"
        assert scaled[name]["minReplicaCount"] >= 2
        assert not [each for each in of_kind("production", "Deployment") if "replicas" in each["spec"]]
    assert roles == {*ROLES}


def test_of_the_workers_of_production_only_those_that_call_models_have_the_keys_of_models() -> None:
    with_keys = {
        name for name, pod in workers("production").items() if "baton-models" in json.dumps(container(pod)["envFrom"])
    }
    assert with_keys == {"baton-worker-models"}
    assert all("baton-temporal" in json.dumps(container(pod)["envFrom"]) for pod in workers("production").values())


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_pod_gets_more_time_to_end_than_a_call_takes(overlay: str) -> None:
    for pod in workers(overlay).values():
        grace = Settings.of(environment(overlay, pod)).graceful_shutdown_seconds
        assert CALL["start_to_close_timeout"].total_seconds() <= grace
        assert grace + AFTER_GRACE < pod["terminationGracePeriodSeconds"]
        assert container(pod)["readinessProbe"]["timeoutSeconds"] > CHECK_TIMEOUT


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_images_users_ports_and_commands_are_those_of_the_dockerfile_and_of_compose(overlay: str) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    image = "\n".join(LINES)
    uid, port = (re.findall(pattern, image) for pattern in (r"--uid (\d+) baton", r"BATON_HEALTH_PORT=(\d+)"))
    for name, template in workloads(overlay):
        each, pod = container(template["spec"]), template["spec"]
        if name == "baton-temporal":
            assert each["image"] == SERVICES["namespace"]["image"]
            assert (each["command"], each["args"]) == (SERVICES["namespace"]["entrypoint"], [script("namespace")])
            continue
        assert each["image"] == f"baton:{version}"
        assert [str(pod["securityContext"]["runAsUser"])] == uid
        if name != "baton-journal":
            assert [str(found["containerPort"]) for found in each["ports"] if found["name"] == "health"] == port
            assert each["command"][-1].splitlines()[-1].removeprefix("exec ").split()[-2:] == [
                "worker",
                "/manifests",
            ] or (each["command"] == json.loads(LINES[-1].removeprefix("CMD ")))


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_containers_have_no_rights_that_they_do_not_need(overlay: str) -> None:
    for _, template in workloads(overlay):
        pod, each = template["spec"], container(template["spec"])
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        own = each["securityContext"]
        assert own == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert "cpu" not in each["resources"]["limits"], "a worker that is held back sends no heartbeats"
    (space,) = of_kind(overlay, "Namespace")
    assert space["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


def selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    return bool(selector["matchLabels"].items() <= labels.items())


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_selector_finds_the_pods_of_its_own_deployment_alone(overlay: str) -> None:
    labels = {name: template["metadata"]["labels"] for name, template in workloads(overlay)}
    for each in of_kind(overlay, "Deployment", "PodDisruptionBudget"):
        found = [name for name, own in labels.items() if selects(each["spec"]["selector"], own)]
        assert found == [each["metadata"]["name"]] or overlay == "versions"
        assert len(found) == 1
    (everything,) = [each for each in of_kind(overlay, "NetworkPolicy") if each["metadata"]["name"] == "baton"]
    assert all(selects(everything["spec"]["podSelector"], own) for own in labels.values())


def test_workers_may_reach_temporal_the_journal_names_and_the_models_alone() -> None:
    policies = {each["metadata"]["name"]: each["spec"] for each in of_kind("small", "NetworkPolicy")}
    reached = {
        (peer["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"], port["port"])
        for rule in policies["baton"]["egress"]
        for peer in rule["to"]
        for port in rule["ports"]
    }
    given = settings_of("small")
    temporal, journal = given["TEMPORAL_ADDRESS"].split(":"), make_url(given["BATON_JOURNAL_URL"])
    services = {(temporal[0].split(".")[1], int(temporal[1])), (str(journal.host).split(".")[1], journal.port)}
    assert reached == {("kube-system", 53), *services}
    (telemetry,) = policies["baton-telemetry"]["egress"]
    (metrics,) = policies["baton-metrics"]["ingress"]
    assert (telemetry["to"], telemetry["ports"]) == (metrics["from"], [{"port": 4318}])
    (rule,) = policies["baton-models"]["egress"]
    assert [each["port"] for each in rule["ports"]] == [443]
    blocks = [each["ipBlock"] for each in rule["to"]]

    def allowed(text: str) -> bool:
        address = ipaddress.ip_address(text)
        inside = [each for each in blocks if address in ipaddress.ip_network(each["cidr"])]
        return any(not any(address in ipaddress.ip_network(net) for net in each["except"]) for each in inside)

    assert allowed("1.1.1.1")
    assert allowed("2606:4700::1")
    assert not any(map(allowed, ("10.0.0.1", "172.20.0.1", "192.168.1.1", "169.254.169.254", "fd00::1", "fe80::1")))


def volume(folder: Path, files: Mapping[str, str]) -> Path:
    """A folder as the kubelet mounts one: each file is a link into a folder that is a link itself."""
    data = folder / "..2026_01_01"
    data.mkdir(parents=True)
    (folder / "..data").symlink_to(data.name)
    for name, text in files.items():
        (data / name).write_text(text)
        (folder / name).symlink_to(Path("..data", name))
    return folder


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_teams_of_the_config_map_are_loaded_from_the_volume_that_it_becomes(overlay: str, tmp_path: Path) -> None:
    (teams,) = [each for each in of_kind(overlay, "ConfigMap") if "baton-teams" in each["metadata"]["name"]]
    loaded = load_files([volume(tmp_path / "manifests", teams["data"])])
    assert [each.name for each in loaded.catalog.manifests if each.kind == "Team"] == ["review"]
    assert [*loaded.unresolved(), *loaded.notices()] == []


async def run(command: list[str], env: dict[str, str], log: Path) -> asyncio.subprocess.Process:
    with log.open("ab") as out:
        return await asyncio.create_subprocess_exec(*command, env=env, cwd=log.parent, stderr=out)


async def test_the_commands_and_probes_of_the_pods_are_answered_by_a_real_worker_with_a_version(
    client: Client, server: EmbeddedServer, postgres: PostgresServer, tmp_path: Path
) -> None:
    pods = {name: template["spec"] for name, template in workloads("versions")}
    pod, job = pods["baton"], pods["baton-journal"]
    port, name = own_port(), f"baton/{tmp_path.name.replace('.', '-')}"
    journal = make_url(await postgres.database())._replace(password=None).render_as_string()
    ours = {"TEMPORAL_ADDRESS": server.address, "BATON_JOURNAL_URL": journal, "PGPASSWORD": PASSWORD}
    ours |= {"BATON_TASK_QUEUE": name, "BATON_HEALTH_PORT": str(port)}
    of_controller = {"TEMPORAL_DEPLOYMENT_NAME": name, "TEMPORAL_WORKER_BUILD_ID": "1.0.0-ab12"}
    path = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    env = process_env(**{**environment("versions", pod), **ours, **of_controller, **path})
    migrating = await run([str(BATON), *container(job)["command"][1:]], env, tmp_path / "log")
    assert await migrating.wait() == 0, (tmp_path / "log").read_text()
    assert "have version" in (tmp_path / "log").read_text()
    (teams,) = [each for each in of_kind("versions", "ConfigMap") if "baton-teams" in each["metadata"]["name"]]
    mounted = volume(tmp_path / "manifests", teams["data"])
    command = [part.replace("/manifests", str(mounted)) for part in container(pod)["command"]]
    process = await run(command, env, tmp_path / "log")
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        asked = container(pod)[probe]["httpGet"]
        assert asked["port"] == "health"
        while not await answers(f"http://127.0.0.1:{port}{asked['path']}"):
            assert process.returncode is None, (tmp_path / "log").read_text()
            await asyncio.sleep(0.1)
    request = DescribeWorkerDeploymentRequest(namespace="default", deployment_name=name)
    while "1.0.0-ab12" not in await known_builds(client, request):
        await asyncio.sleep(0.1)
    process.terminate()
    assert await process.wait() == 0, (tmp_path / "log").read_text()


async def answers(url: str) -> bool:
    async with httpx.AsyncClient() as http:
        try:
            return (await http.get(url)).status_code == 200
        except httpx.TransportError:
            return False


async def known_builds(client: Client, request: DescribeWorkerDeploymentRequest) -> str:
    """What the server knows of a deployment; nothing before its first worker has polled."""
    try:
        return str(await client.workflow_service.describe_worker_deployment(request))
    except RPCError:
        return ""


def of_documents(language: str) -> str:
    """The first block of a language in the documents."""
    return (ROOT / "docs" / "kubernetes.md").read_text().partition(f"```{language}\n")[2].partition("```")[0]


def test_the_commands_of_the_documents_make_the_secrets_that_the_pods_read(tmp_path: Path) -> None:
    (tmp_path / "journal.env").write_text("password=of the journal\n")
    (tmp_path / "models.env").write_text("OPENAI_API_KEY=a key\n")
    for name in ("keys", "secrets.yaml"):
        (tmp_path / name).write_text("…")
    made = {}
    for line in of_documents("sh").splitlines():
        command = [str(BATON.with_name("kubectl")), *shlex.split(line, comments=True)[1:]]
        options = ["--dry-run=client", "--output=json"]
        found = json.loads(subprocess.check_output([*command, *options], cwd=tmp_path, env=process_env(), text=True))
        if found["kind"] == "Secret":
            made[found["metadata"]["name"]] = found["data"]
    assert base64.b64decode(made["baton-journal"]["password"]) == b"of the journal"
    for pod in workers("small").values():
        for each in container(pod)["env"]:
            wanted = each["valueFrom"]["secretKeyRef"]
            assert wanted["key"] in made[wanted["name"]]


async def test_workers_need_no_right_to_make_tables_where_the_journal_was_migrated_for_them(
    postgres: PostgresServer,
) -> None:
    url, role = await postgres.database(), f"role_{uuid.uuid4().hex}"
    await execute(url, f"create role {role} login password '{role}'")
    await execute(url, of_documents("sql").partition(";")[0].replace("to baton", f"to {role}"))
    await migrate_journal({"BATON_JOURNAL_URL": url})
    theirs = make_url(url).set(username=role, password=role).render_as_string(hide_password=False)
    journal = await Journal.open(theirs, "default")
    head = await journal.append(Head(), [Message(role="assistant", content="a")], "call")
    assert [row.message.content for row in await journal.read(head)] == ["a"]
    await journal.close()
    for statement in ("update baton_messages set depth = depth", "delete from baton_messages"):
        await execute(theirs, statement)


SAMPLE = re.compile(r"^```yaml\n# (kustomization\.yaml.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_overlay_of_the_documents_can_be_built_on_each_overlay(overlay: str, tmp_path: Path) -> None:
    (text,) = SAMPLE.findall((ROOT / "docs" / "kubernetes.md").read_text())
    site = FOLDER / "overlays" / overlay
    data = yaml.safe_load(text.partition("\n")[2])
    data["resources"] = [f"{'../' * len(tmp_path.parts[1:])}{site.relative_to('/')}"]
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(data))
    (tmp_path / "teams").mkdir()
    for each in data["configMapGenerator"]:
        for file in each.get("files", ()):
            (tmp_path / file).write_text((FOLDER / "base" / "teams" / "review.yaml").read_text())
    found = kustomize(tmp_path)
    pods = [each["spec"]["template"]["spec"] for each in found if each["kind"] in ("Deployment", "WorkerDeployment")]
    assert {container(pod)["image"] for pod in pods} == {"registry.example.com/baton:1.0.0"}
    (settings,) = [each for each in found if "baton-settings" in each["metadata"]["name"]]
    given = dict(each.split("=", 1) for each in data["configMapGenerator"][0]["literals"])
    assert given.items() <= settings["data"].items()
    names = {
        each["configMapRef"]["name"] for pod in pods for each in container(pod)["envFrom"] if "configMapRef" in each
    }
    assert names == {settings["metadata"]["name"]}
