"""What can be checked of the manifests for Kubernetes without a cluster: they are built, and what they name exists.

The overlays are built by kustomize, the layouts of the chart by Helm: both have to make the same pods.
"""

import asyncio
import base64
import importlib
import ipaddress
import json
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
import tomllib
import uuid
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import jsonschema
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
from baton.contracts.identity import IDENTITY_KEY
from baton.contracts.message import Head, Message
from baton.journal.journal import Journal
from baton.resources.loader import load_files
from baton.starter.gateway.server import GRACE_SECONDS
from baton.starter.gateway.settings import GatewaySettings
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
CHART = ROOT / "deploy" / "helm" / "baton"
OVERLAYS = ["small", "production", "versions"]
LAYOUTS = ["helm/small", "helm/production", "helm/versions", "helm/team"]
"""The chart with its own values, and with those of each file in deploy/helm/layouts."""

BUILT = [*OVERLAYS, *LAYOUTS]
OLDEST, NEWEST = "1.33", "1.37"
"""The versions of Kubernetes whose schemas the manifests fit."""

OF_CONTROLLER = {"Connection", "WorkerDeployment"}
"""Kinds of the Temporal Worker Controller, which have no schema in any package."""

OPERATORS = {
    "ScaledObject": "cloudcoil.models.keda.v1alpha1",
    "TriggerAuthentication": "cloudcoil.models.keda.v1alpha1",
    "PodMonitor": "cloudcoil.models.prometheus_operator.v1",
    "PrometheusRule": "cloudcoil.models.prometheus_operator.v1",
}
"""Kinds of KEDA and of the Prometheus Operator, and the modules of their models."""


def kustomize(folder: Path) -> list[Resource]:
    command = [str(BATON.with_name("kubectl")), "kustomize", str(folder)]
    return [*yaml.safe_load_all(subprocess.run(command, check=True, capture_output=True, text=True).stdout)]


def helm(*arguments: str | Path) -> str:
    """The output of the command; raises CalledProcessError with its error."""
    command = [BATON.with_name("helm"), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def rendered(*arguments: str | Path, chart: Path = CHART, release: str = "baton") -> list[Resource]:
    """The resources of the chart, as Helm renders them."""
    text = helm("template", release, chart, "--namespace", release, *arguments)
    return [each for each in yaml.safe_load_all(text) if each]


@cache
def built(overlay: str) -> list[Resource]:
    """The resources of an overlay, as kustomize builds them, or of a layout of the chart, as Helm does."""
    folder, _, layout = overlay.rpartition("/")
    if not folder:
        return kustomize(FOLDER / "overlays" / overlay)
    return rendered(*(() if layout == "small" else ("--values", CHART.parent / "layouts" / f"{layout}.yaml")))


def of_kind(overlay: str, *kinds: str) -> list[Resource]:
    return [each for each in built(overlay) if each["kind"] in kinds]


def workloads(overlay: str) -> Iterator[tuple[str, Resource]]:
    """The name and the pod template of everything that makes pods."""
    for each in of_kind(overlay, "Deployment", "WorkerDeployment", "Job"):
        yield each["metadata"]["name"], each["spec"]["template"]


def components(overlay: str, name: str) -> dict[str, Resource]:
    """The specs of the pods of a component, by the name of what makes them."""
    label = "app.kubernetes.io/component"
    return {key: pod["spec"] for key, pod in workloads(overlay) if pod["metadata"]["labels"][label] == name}


def workers(overlay: str) -> dict[str, Resource]:
    """The specs of the workers' pods, by name."""
    return components(overlay, "worker")


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


@cache
def operator_schema(kind: str) -> Resource:
    """The JSON Schema of a kind of an operator, which refuses unknown fields."""
    text = json.dumps(getattr(importlib.import_module(OPERATORS[kind]), kind).model_json_schema())
    schema: Resource = json.loads(text.replace("^(?i)", "(?i)^"))  # Go's form of the flag
    for each in (schema, *schema["$defs"].values()):
        if "properties" in each and each.get("title") != "ObjectMeta":
            each["additionalProperties"] = False
    return schema


@pytest.mark.parametrize("overlay", BUILT)
@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_every_resource_fits_the_schema_of_kubernetes_or_of_its_operator(overlay: str, version: str) -> None:
    for each in built(overlay):
        if each["kind"] in OPERATORS:
            jsonschema.validate(each, operator_schema(each["kind"]))
        elif each["kind"] not in OF_CONTROLLER:
            kubernetes_validate.validate(each, version, strict=True)
    for name, template in workloads(overlay):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": template["spec"]}
        kubernetes_validate.validate(pod, version, strict=True)


@pytest.mark.parametrize("overlay", BUILT)
def test_what_a_resource_refers_to_is_there_or_is_a_secret_of_the_documents(overlay: str) -> None:
    text = (ROOT / "docs" / "kubernetes.md").read_text()
    there = {each["metadata"]["name"] for each in of_kind(overlay, "ConfigMap", "ServiceAccount")}
    assert len({(each["kind"], each["metadata"]["name"]) for each in built(overlay)}) == len(built(overlay))
    for name, template in workloads(overlay):
        dumped = json.dumps(template)
        maps = re.findall(r'"configMap(?:Ref)?": \{"name": "([^"]+)"', dumped)
        assert {*maps, template["spec"]["serviceAccountName"]} <= there, name
        assert {each for each in secrets_of(template) if f"| `{each}` |" not in text} == set(), name
        mounted = {each["name"] for each in container(template["spec"]).get("volumeMounts", ())}
        assert mounted == {each["name"] for each in template["spec"].get("volumes", ())}
    assert not of_kind(overlay, "Secret")


@pytest.mark.parametrize("overlay", BUILT)
def test_every_variable_is_a_setting_that_is_known_and_none_that_is_secret_has_a_value(overlay: str) -> None:
    known = {str(field.validation_alias) for field in Settings.model_fields.values()} | {KEYS, IDENTITY_KEY}
    known |= {"TEMPORAL_ADDRESS", "TEMPORAL_NAMESPACE", "PGPASSWORD"}
    for pod in workers(overlay).values():
        given = environment(overlay, pod)
        from_secrets = {each["name"] for each in container(pod)["env"] if "secretKeyRef" in each.get("valueFrom", {})}
        assert given.keys() | from_secrets <= known
        assert not [name for name in given if re.search("KEY|PASSWORD|SECRET", name)]
        assert make_url(given["BATON_JOURNAL_URL"]).password is None
        check_journal_is_shared(Settings.of(given), given["TEMPORAL_ADDRESS"])


PRODUCTION = ["production", "helm/production"]


@pytest.mark.parametrize("overlay", PRODUCTION)
def test_the_workers_of_production_have_all_roles_and_each_is_scaled_by_its_own_queue(overlay: str) -> None:
    pods = workers(overlay)
    scaled = {each["spec"]["scaleTargetRef"]["name"]: each["spec"] for each in of_kind(overlay, "ScaledObject")}
    assert scaled.keys() == pods.keys()
    roles = set[str]()
    for name, pod in pods.items():
        given = environment(overlay, pod)
        (queue,) = Settings.of(given).worker_queues()
        roles |= queue.roles
        (trigger,) = scaled[name]["triggers"]
        metadata = trigger["metadata"]
        assert (trigger["type"], given[metadata["taskQueueFromEnv"]]) == ("temporal", queue.name)
        assert {given[metadata[key]] for key in ("endpointFromEnv", "namespaceFromEnv")} <= {*given.values()}
        assert ("workflow" in metadata["queueTypes"].split(",")) == ("workflows" in queue.roles)
        assert all(isinstance(each, str) for each in metadata.values()), "KEDA takes texts alone"
        assert scaled[name]["minReplicaCount"] >= 2
        assert not [each for each in of_kind(overlay, "Deployment") if "replicas" in each["spec"]]
    assert roles == {*ROLES}


@pytest.mark.parametrize("overlay", PRODUCTION)
def test_a_worker_of_production_has_the_secrets_of_its_role_and_of_no_other(overlay: str) -> None:
    of_all = {"baton-journal", "baton-encryption", "baton-temporal", "baton-storage"}
    variables = {"workflows": {"baton-identity"}, "models": {"baton-models"}, "tools": {"baton-tools"}}
    for pod in workers(overlay).values():
        role = next(each["value"] for each in container(pod)["env"] if each["name"] == "BATON_ROLES")
        assert secrets_of(pod) == of_all | variables[role] | {f"baton-team-secrets-{role}"}
    for pod in components(overlay, "gateway").values():
        assert secrets_of(pod) == of_all | {"baton-identity", "baton-gateway-keys"}


@pytest.mark.parametrize("overlay", ["small", "helm/small"])
def test_a_worker_with_all_roles_has_the_secrets_of_all_roles(overlay: str) -> None:
    for pod in workers(overlay).values():
        assert {"baton-models", "baton-tools", "baton-team-secrets"} < secrets_of(pod)


def secrets_of(template: Resource) -> set[str]:
    """The names of the Secrets that a pod reads."""
    return {*re.findall(r'"secret(?:KeyRef|Ref)?": \{[^}]*"(?:name|secretName)": "([^"]+)"', json.dumps(template))}


@pytest.mark.parametrize("overlay", BUILT)
def test_a_pod_gets_more_time_to_end_than_a_call_takes(overlay: str) -> None:
    for pod in workers(overlay).values():
        grace = Settings.of(environment(overlay, pod)).graceful_shutdown_seconds
        assert CALL["start_to_close_timeout"].total_seconds() <= grace
        assert grace + AFTER_GRACE < pod["terminationGracePeriodSeconds"]
        assert container(pod)["readinessProbe"]["timeoutSeconds"] > CHECK_TIMEOUT


@pytest.mark.parametrize("overlay", BUILT)
def test_images_users_ports_and_commands_are_those_of_the_dockerfile_and_of_compose(overlay: str) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    image = "\n".join(LINES)
    uid, port = (re.findall(pattern, image) for pattern in (r"--uid (\d+) baton", r"BATON_HEALTH_PORT=(\d+)"))
    for name, template in workloads(overlay):
        each, pod = container(template["spec"]), template["spec"]
        component = template["metadata"]["labels"]["app.kubernetes.io/component"]
        if component == "temporal":
            assert each["image"] == SERVICES["namespace"]["image"]
            assert (each["command"], each["args"]) == (SERVICES["namespace"]["entrypoint"], [script("namespace")])
            continue
        assert each["image"] == f"baton:{version}"
        assert [str(pod["securityContext"]["runAsUser"])] == uid
        if component == "gateway":
            assert each["command"][:4] == SERVICES["gateway"]["command"][:4]
        elif component == "worker":
            assert [str(found["containerPort"]) for found in each["ports"] if found["name"] == "health"] == port
            command = each["command"][-1].splitlines()[-1].removeprefix("exec ").split()
            command = command if command[0] == "baton" else each["command"]
            assert command in (json.loads(LINES[-1].removeprefix("CMD ")), ["baton", "worker"]), name


def comparable_workers(overlay: str) -> list[Resource]:
    """The specs of the workers' pods without the names that kustomize and Helm give, in the order of their roles."""
    text = json.dumps([*workers(overlay).values()])
    pods: list[Resource] = json.loads(re.sub(r"(baton-(?:settings|teams))-[a-z0-9]{10}", r"\1", text))
    for pod in pods:
        del pod["serviceAccountName"], pod["topologySpreadConstraints"][0]["labelSelector"]
        container(pod).pop("imagePullPolicy", None)
        container(pod)["envFrom"].sort(key=json.dumps)
    return sorted(pods, key=lambda pod: json.dumps(pod, sort_keys=True))


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_chart_and_the_overlay_make_the_same_workers(overlay: str) -> None:
    assert comparable_workers(f"helm/{overlay}") == comparable_workers(overlay)
    assert settings_of(f"helm/{overlay}") == settings_of(overlay)


def test_the_alerts_and_the_dashboard_of_the_chart_are_those_of_their_files() -> None:
    (rules,) = of_kind("helm/production", "PrometheusRule")
    assert rules["spec"] == yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.yaml").read_text())
    (dashboard,) = [each for each in of_kind("helm/production", "ConfigMap") if "grafana_dashboard" in labels_of(each)]
    assert dashboard["data"]["baton.json"] == (ROOT / "deploy" / "grafana" / "baton.json").read_text()
    (monitor,) = of_kind("helm/production", "PodMonitor")
    jobs = set[str]()
    for name, template in workloads("helm/production"):
        labels = template["metadata"]["labels"]
        if selects(monitor["spec"]["selector"], labels):
            assert "worker" in name
            jobs.add(labels[monitor["spec"]["jobLabel"]])
    assert jobs == {*re.findall(r'job="(\w+)"', json.dumps(rules["spec"]).replace("\\", ""))}


def labels_of(resource: Resource) -> dict[str, str]:
    return dict(resource["metadata"].get("labels", {}))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("settings.OPENAI_API_KEY=sk-1", "OPENAI_API_KEY"),
        ("settings.BATON_IDENTITY_KEY=00", "BATON_IDENTITY_KEY"),
        ("settings.BATON_GATEWAY_KEY=bk-1", "BATON_GATEWAY_KEY"),
        ("settings.BATON_JOURNAL_URL=postgresql://baton:password@db/baton", "BATON_JOURNAL_URL"),
        ("workers.all.roles={models}", "BATON_MODEL_TASK_QUEUE"),
        ("workers.all=null", "none has the role workflows"),
        ("worker.replicas=3", "worker"),
        ("workerDefaults.resources.limits.cpu=1", "limits"),
        ("gateway.enabled=true,gateway.keys.name=", "needs keys"),
        ("versions.enabled=true,workers.all.autoscaling.type=keda", "type none"),
        ("manifests.source=configMap", "the name of a ConfigMap"),
    ],
)
def test_the_chart_refuses_values_with_which_workers_would_fail_or_tell_keys(wrong: str, said: str) -> None:
    with pytest.raises(subprocess.CalledProcessError) as refused:
        rendered("--set", wrong)
    assert said in refused.value.stderr


def test_every_setting_of_a_worker_and_of_a_gateway_can_be_a_value_of_the_chart() -> None:
    fields = [*Settings.model_fields.values(), *GatewaySettings.model_fields.values()]
    values = {"settings": {str(field.validation_alias): "1" for field in fields} | {"OTEL_EXPORTER_OTLP_ENDPOINT": "1"}}
    del values["settings"]["BATON_JOURNAL_URL"]
    (found,) = [
        each
        for each in rendered("--set-json", f"settings={json.dumps(values['settings'])}")
        if each["metadata"]["name"] == "baton-settings"
    ]
    assert values["settings"].items() <= found["data"].items()


def test_a_large_number_among_the_values_reaches_the_pods_with_all_its_digits(tmp_path: Path) -> None:
    (values := tmp_path / "values.yaml").write_text(
        "settings: {BATON_GATEWAY_MAX_BODY: 64000000, BATON_GATEWAY_RATE: 0.5, BATON_AUDIT: true}\n"
        "workerDefaults: {autoscaling: {tasksPerReplica: 20000000}}\n"
    )
    found = rendered("--values", CHART.parent / "layouts" / "production.yaml", "--values", values)
    (settings,) = [each["data"] for each in found if each["metadata"]["name"] == "baton-settings"]
    expected = {"BATON_GATEWAY_MAX_BODY": "64000000", "BATON_GATEWAY_RATE": "0.5", "BATON_AUDIT": "true"}
    assert expected.items() <= settings.items()
    scaled = [each["spec"]["triggers"] for each in found if each["kind"] == "ScaledObject"]
    assert {each["metadata"]["targetQueueSize"] for triggers in scaled for each in triggers} == {"20000000"}


def test_a_release_of_another_name_shares_no_name_and_selects_no_pod_of_the_first() -> None:
    layout = CHART.parent / "layouts" / "production.yaml"
    other = rendered("--values", layout, release="other")
    assert not [each for each in other if not each["metadata"]["name"].startswith("other")]
    pods = [template["metadata"]["labels"] for _, template in workloads("helm/production")]
    selectors = [each["spec"]["selector"] for each in other if each["kind"] in ("Deployment", "PodDisruptionBudget")]
    selectors += [each["spec"]["podSelector"] for each in other if each["kind"] == "NetworkPolicy"]
    assert selectors
    assert not [each for each in selectors for labels in pods if selects(each, labels)]


def test_the_chart_is_packaged_with_the_files_that_it_takes_from_elsewhere(tmp_path: Path) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    helm("lint", "--strict", CHART)
    helm("package", CHART, "--destination", tmp_path)
    packaged = tmp_path / f"baton-{version}.tgz"
    layout = CHART.parent / "layouts" / "production.yaml"
    assert rendered("--values", layout, chart=packaged) == built("helm/production")
    about = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (about["version"], about["appVersion"]) == (version, version)


@pytest.mark.parametrize("source", ["files", "configMap", "store"])
def test_workers_get_their_manifests_from_values_from_a_config_map_or_from_the_store(source: str) -> None:
    given = ["--set", f"manifests.source={source}", "--set", "manifests.configMap=mine"]
    found = rendered(*given, "--set-json", 'manifests.files={"team.yaml": "kind: Team"}')
    maps = {each["metadata"]["name"]: each["data"] for each in found if each["kind"] == "ConfigMap"}
    (deployment,) = [each for each in found if each["kind"] == "Deployment"]
    (manifests, _) = deployment["spec"]["template"]["spec"]["volumes"]
    mounted = [each["configMap"]["name"] for each in manifests["projected"]["sources"] if "configMap" in each]
    assert mounted == {"files": ["baton-teams"], "configMap": ["mine"], "store": []}[source]
    assert maps.get("baton-teams") == ({"team.yaml": "kind: Team"} if source == "files" else None)


@pytest.mark.parametrize("overlay", BUILT)
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
    for space in of_kind(overlay, "Namespace"):
        assert space["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


def selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    return bool(selector["matchLabels"].items() <= labels.items())


@pytest.mark.parametrize("overlay", BUILT)
def test_a_selector_finds_the_pods_of_its_own_deployment_alone(overlay: str) -> None:
    labels = {name: template["metadata"]["labels"] for name, template in workloads(overlay)}
    for each in of_kind(overlay, "Deployment", "PodDisruptionBudget"):
        found = [name for name, own in labels.items() if selects(each["spec"]["selector"], own)]
        assert found == [each["metadata"]["name"]] or overlay == "versions"
        assert len(found) == 1
    for each in of_kind(overlay, "Service"):
        found = [name for name, own in labels.items() if selects({"matchLabels": each["spec"]["selector"]}, own)]
        assert found == [each["metadata"]["name"]]
    (everything,) = [each for each in of_kind(overlay, "NetworkPolicy") if each["metadata"]["name"] == "baton"]
    assert all(selects(everything["spec"]["podSelector"], own) for own in labels.values())


@pytest.mark.parametrize("overlay", ["small", "helm/small"])
def test_workers_may_reach_temporal_the_journal_names_and_the_models_alone(overlay: str) -> None:
    policies = {each["metadata"]["name"]: each["spec"] for each in of_kind(overlay, "NetworkPolicy")}
    reached = {
        (peer["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"], port["port"])
        for rule in policies["baton"]["egress"]
        for peer in rule["to"]
        for port in rule["ports"]
    }
    given = settings_of(overlay)
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


@pytest.mark.parametrize("reaches", [True, False])
def test_a_gateway_may_reach_public_addresses_unless_its_value_forbids_that(reaches: bool) -> None:
    given = "gateway.enabled=true" + ("" if reaches else ",gateway.reachesInternet=false")
    found = rendered("--set", given)
    (gateway,) = [each for each in found if (each["kind"], each["metadata"]["name"]) == ("Deployment", "baton-gateway")]
    labels = gateway["spec"]["template"]["metadata"]["labels"]
    ports = {
        port["port"]
        for each in found
        if each["kind"] == "NetworkPolicy" and selects(each["spec"]["podSelector"], labels)
        for rule in each["spec"].get("egress", ())
        for port in rule["ports"]
    }
    assert (443 in ports) is reaches


def test_a_gateway_that_ends_takes_requests_until_no_node_sends_some_and_has_time_for_them() -> None:
    for pod in components("helm/production", "gateway").values():
        command, seconds = container(pod)["lifecycle"]["preStop"]["exec"]["command"]
        assert command == "sleep"
        assert int(seconds) + GRACE_SECONDS < pod["terminationGracePeriodSeconds"]


@pytest.mark.parametrize("layout", ["production", "versions", "team"])
def test_the_command_that_the_notes_of_the_chart_name_runs_in_a_worker_of_each_layout(
    layout: str, tmp_path: Path
) -> None:
    shutil.copytree(CHART, chart := tmp_path / "chart")
    notes = chart / "templates" / "NOTES.txt"
    # As a resource, because Helm shows notes only when it has reached a cluster.
    notes.with_name("notes.yaml").write_text("notes: |\n" + textwrap.indent(notes.read_text(), "  "))
    values = CHART.parent / "layouts" / f"{layout}.yaml"
    (rendered_notes,) = rendered("--values", values, "--show-only", "templates/notes.yaml", chart=chart)
    (command,) = [line for line in rendered_notes["notes"].splitlines() if line.endswith("-- baton doctor")]
    (selector,) = re.findall(r"--selector ([^\s)]+)", command)
    wanted = {"matchLabels": dict(each.split("=") for each in selector.split(","))}
    found = {name for name, pod in workloads(f"helm/{layout}") if selects(wanted, pod["metadata"]["labels"])}
    assert found == {*workers(f"helm/{layout}")}


def volume(folder: Path, files: Mapping[str, str]) -> Path:
    """A folder as the kubelet mounts one: each file is a link into a folder that is a link itself."""
    data = folder / "..2026_01_01"
    data.mkdir(parents=True)
    (folder / "..data").symlink_to(data.name)
    for name, text in files.items():
        (data / name).write_text(text)
        (folder / name).symlink_to(Path("..data", name))
    return folder


@pytest.mark.parametrize("overlay", [each for each in BUILT if each != "helm/team"])  # its manifests are in the store
def test_the_teams_of_the_config_map_are_loaded_from_the_volume_that_it_becomes(overlay: str, tmp_path: Path) -> None:
    (teams,) = [each for each in of_kind(overlay, "ConfigMap") if "baton-teams" in each["metadata"]["name"]]
    loaded = load_files([volume(tmp_path / "manifests", teams["data"])])
    assert [each.name for each in loaded.catalog.manifests if each.kind == "Team"] == ["review"]
    assert [*loaded.unresolved(), *loaded.notices()] == []


async def run(command: list[str], env: dict[str, str], log: Path) -> asyncio.subprocess.Process:
    with log.open("ab") as out:
        return await asyncio.create_subprocess_exec(*command, env=env, cwd=log.parent, stderr=out)


@pytest.mark.slow
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
    for name in ("keys", "key", "secrets.yaml"):
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
    assert {container(pod)["image"] for pod in pods} == {"registry.example.com/baton:1.1.0"}
    (settings,) = [each for each in found if "baton-settings" in each["metadata"]["name"]]
    given = dict(each.split("=", 1) for each in data["configMapGenerator"][0]["literals"])
    assert given.items() <= settings["data"].items()
    names = {
        each["configMapRef"]["name"] for pod in pods for each in container(pod)["envFrom"] if "configMapRef" in each
    }
    assert names == {settings["metadata"]["name"]}


def test_the_versions_of_the_documents_have_workers_of_their_own_and_share_the_rest(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "kubernetes.md").read_text()
    (sample,) = re.findall(r"^```yaml\n# v2/kustomization\.yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    up = "../" * len(tmp_path.parts[1:])
    source = "https://git.example.com/baton//deploy/kubernetes/worker"
    for name in ("v1", "v2"):
        (tmp_path / name).mkdir()
        written = sample.replace(source, f"../{up}{(FOLDER / 'worker').relative_to('/')}").replace("v2", name)
        (tmp_path / name / "kustomization.yaml").write_text(written)
    shared = {"namespace": "baton", "resources": [f"{up}{(FOLDER / 'base').relative_to('/')}", "v1", "v2"]}
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(shared))
    found = kustomize(tmp_path)
    pods = {each["metadata"]["name"]: each["spec"]["template"] for each in found if each["kind"] == "Deployment"}
    assert pods.keys() == {"baton-worker-v1", "baton-worker-v2"}
    for each in found:
        if each["kind"] in ("Deployment", "PodDisruptionBudget"):
            selected = [
                name for name, pod in pods.items() if selects(each["spec"]["selector"], pod["metadata"]["labels"])
            ]
            assert selected == [each["metadata"]["name"]]
    for name, pod in pods.items():
        own = {each["name"]: each["value"] for each in container(pod["spec"])["env"] if "value" in each}
        assert own == {"BATON_DEPLOYMENT": "baton", "BATON_BUILD_ID": name.removeprefix("baton-worker-")}
    made = {each["metadata"]["name"] for each in found if each["kind"] == "ConfigMap"}
    assert {*re.findall(r'"configMap(?:Ref)?": \{"name": "([^"]+)"', json.dumps([*pods.values()]))} == made
    base = [each for each in built("small") if each["kind"] == "NetworkPolicy"]
    assert [each for each in found if each["kind"] == "NetworkPolicy"] == base, "its DNS has no version"


def test_the_values_of_the_documents_are_rendered(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "kubernetes.md").read_text()
    samples = re.findall(r"^```yaml\n(# values.*?)^```", text, re.MULTILINE | re.DOTALL)
    options = list[str | Path]()
    for index, sample in enumerate(samples):
        (file := tmp_path / f"{index}.yaml").write_text(sample)
        options += ["--values", file]
    found = {(each["kind"], each["metadata"]["name"]): each for each in rendered(*options)}
    assert len(samples) == 2
    pod = found["Deployment", "baton-worker-all"]["spec"]["template"]["spec"]
    assert container(pod)["image"].startswith("registry.example.com/baton:")
    assert [rule["host"] for rule in found["Ingress", "baton-gateway"]["spec"]["rules"]] == ["baton.example.com"]
    written = tmp_path / "manifests"
    written.mkdir()
    for name, manifest in found["ConfigMap", "baton-teams"]["data"].items():
        (written / name).write_text(manifest)
    assert [each.id for each in load_files([written]).catalog.manifests] == ["Agent/default/writer"]
