"""What can be checked of the containers without a container engine: the commands and settings in their files."""

import asyncio
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from sqlalchemy import make_url
from temporalio.client import Client

from baton.activities.runtime.health import serve_health
from baton.activities.runtime.secrets import HEADER_LINES, HEADER_PAIRS, KEYS_OF_LIBRARIES
from baton.activities.runtime.settings import Settings
from baton.activities.runtime.start_checks import check_journal_is_shared
from baton.contracts.errors import JournalUnavailable
from baton.contracts.settings import SCRIPTED_MODEL_URL
from baton.installation import version
from baton.resources.loader import load_files
from baton.starter.gateway.settings import GatewaySettings
from baton.starter.server.embedded import TUNING, EmbeddedServer
from baton.starter.server.state_dir import StateDir
from baton.temporal import search_attributes
from baton.temporal.client import connect
from baton.temporal.encryption import KEYS, KEYS_FILE
from baton.testing import Reply, ScriptedModel
from tests.harness.environment import agent
from tests.harness.ports import own_port, own_ports
from tests.harness.postgres import PASSWORD, PostgresServer, execute
from tests.harness.processes import ROOT, baton, end_open_runs, process_env
from tests.test_architecture import FOLDERS

COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
LASTING = {name for name, service in SERVICES.items() if service["restart"] != "on-failure"}
LINES = (ROOT / "Dockerfile").read_text().replace("\\\n", " ").splitlines()
"""The lines of the Dockerfile, those that are continued as one."""


def script(service: str) -> str:
    """The shell script that a service runs, as the shell gets it."""
    assert SERVICES[service]["entrypoint"] == ["/bin/sh", "-euc"]
    (text,) = SERVICES[service]["command"]
    return str(text).replace("$$", "$")


async def test_the_service_that_makes_the_namespace_can_run_again_and_makes_what_runs_are_searched_by(
    tmp_path: Path,
) -> None:
    with StateDir(tmp_path).lock("dev") as lock:
        assert lock
        server = EmbeddedServer(tmp_path, lock, *own_ports())
        await server.start()
        given = {"TEMPORAL_ADDRESS": server.address, "TEMPORAL_NAMESPACE": "fresh"}
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        for _ in range(2):
            command = ["/bin/sh", "-euc", script("namespace")]
            await asyncio.to_thread(subprocess.run, command, env=process_env(**given, PATH=path), check=True)
        client = await connect(server.address)
        fresh = await Client.connect(server.address, namespace="fresh", data_converter=client.data_converter)
        while not await search_attributes.registered(fresh):
            await asyncio.sleep(0.1)
        await server.stop()


async def test_the_script_of_the_database_makes_what_the_other_services_connect_to(postgres: PostgresServer) -> None:
    text = COMPOSE["configs"]["databases"]["content"].replace("$$", "$")
    statements = text.partition("<<'SQL'\n")[2].partition("SQL\n")[0]
    assert "create role baton login password :'password'" in statements
    made = re.findall(r"create database (\w+)", statements)
    assert [*made, SERVICES["postgres"]["environment"]["POSTGRES_USER"]] == ["temporal_visibility", "baton", "temporal"]
    journal = make_url(SERVICES["worker"]["environment"]["BATON_JOURNAL_URL"])
    assert (journal.username, journal.database, journal.host) == ("baton", "baton", "postgres")
    assert journal.password is None, "it is in PGPASSWORD, where no address has to be escaped for it"


def install(folder: Path) -> None:
    """Copies what the image's build copies, and installs it as that does."""
    build = folder / "build"
    build.mkdir()
    stage = LINES[: LINES.index(next(line for line in LINES if line.startswith("RUN pip install --no-deps")))]
    for line in (line for line in stage if line.startswith("COPY")):
        *sources, target = line.split()[1:]
        for source in sources:
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, build / target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / source, build / source)
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "--target", folder / "site", build], check=True, capture_output=True)


def test_what_is_installed_is_the_package_and_nothing_else(tmp_path: Path) -> None:
    install(tmp_path)
    site = tmp_path / "site"
    assert {path.name.partition("-")[0] for path in site.iterdir()} == {"baton", "baton_teams", "bin"}
    sources = {file.relative_to(ROOT) for folder in FOLDERS for file in (ROOT / folder).rglob("*.py")}
    installed = {file.relative_to(site / "baton") for file in (site / "baton").rglob("*") if file.is_file()}
    page = {file.relative_to(ROOT) for file in (ROOT / "starter/web_console/static").rglob("*") if file.is_file()}
    assert {each for each in installed if each.suffix != ".pyc"} == sources | page | {
        Path("starter/report/style.css"),
        *map(
            Path,
            ("__init__.py", "installation.py", "worker.py", "plugin.py", "workflow.py", "evaluation.py", "py.typed"),
        ),
    }


@pytest.mark.slow
async def test_a_worker_runs_as_in_its_container_is_healthy_there_and_ends_gracefully(
    client: Client, server: EmbeddedServer, postgres: PostgresServer, tmp_path: Path
) -> None:
    await end_open_runs(client)
    await asyncio.to_thread(install, tmp_path)
    service, port = SERVICES["worker"], str(own_port())
    given = {key: value for key, value in service["environment"].items() if value and "$" not in value}
    journal = make_url(await postgres.database())._replace(password=None).render_as_string()
    ours = {"TEMPORAL_ADDRESS": server.address, "BATON_JOURNAL_URL": journal, "PGPASSWORD": PASSWORD}
    env = process_env(**{**given, **ours, "BATON_HEALTH_PORT": port, "PYTHONPATH": str(tmp_path / "site")})
    assert service["command"] == json.loads(LINES[-1].removeprefix("CMD "))
    (manifests := tmp_path / "manifests").mkdir()
    assert service["command"][:2] == ["baton", "worker"]
    command = [sys.executable, str(tmp_path / "site" / "bin" / "baton"), "worker", str(manifests)]
    process = await asyncio.create_subprocess_exec(*command, env=env, cwd=manifests, stderr=asyncio.subprocess.PIPE)
    check = json.loads(next(line for line in LINES if "HEALTHCHECK" in line).partition("CMD ")[2])
    healthy = [sys.executable, *(part.replace("8000", port) for part in check[1:])]
    while (await asyncio.to_thread(subprocess.run, healthy, capture_output=True, check=False)).returncode:
        assert process.returncode is None, await process.communicate()
        await asyncio.sleep(0.2)
    process.terminate()
    _, log = await process.communicate()
    assert process.returncode == 0, log
    assert b"Worker started on task queue baton" in log


@dataclass
class Parts:
    """Services as processes: ``places`` are what stands on this machine for the file's addresses and folders.

    ``outside`` are the variables of the environment in which Docker would be called.
    """

    folder: Path
    places: Mapping[str, str]
    outside: Mapping[str, str]

    def here(self, text: str) -> str:
        """A value of the file as it is on this machine, with the variables in it."""
        for place, ours in self.places.items():
            text = text.replace(place, ours)
        return re.sub(r"\$\{(\w+):\?[^}]*\}", lambda found: self.outside[found[1]], text)

    def env_of(self, service: str) -> dict[str, str]:
        """What Docker would give to a service: its own values, and those from the environment that it names."""
        given = SERVICES[service]["environment"]
        values = {name: self.outside.get(name) if value is None else self.here(value) for name, value in given.items()}
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        return process_env(**{name: value for name, value in values.items() if value}, PATH=path)

    async def start(self, service: str, *more: str) -> asyncio.subprocess.Process:
        """Starts a process of a service, with ``more`` arguments."""
        command = [*map(self.here, SERVICES[service]["command"]), *more]
        with (self.folder / f"{service}.log").open("ab") as log:
            return await asyncio.create_subprocess_exec(*command, env=self.env_of(service), stdout=log, stderr=log)

    async def healthy(self, service: str, process: asyncio.subprocess.Process, port: tuple[str, str]) -> None:
        """Waits until the health check of a service succeeds, with the second ``port`` in place of the first."""
        kind, _, *check = SERVICES[service]["healthcheck"]["test"]
        assert kind == "CMD"
        command = [sys.executable, *(part.replace(*port) for part in check)]
        while (await asyncio.to_thread(subprocess.run, command, capture_output=True, check=False)).returncode:
            assert process.returncode is None, self.logs()
            await asyncio.sleep(0.2)

    def logs(self) -> str:
        """What the processes have logged."""
        return "\n".join(file.read_text() for file in self.folder.glob("*.log"))


async def make_databases(postgres: PostgresServer) -> None:
    """What the script of the database makes, but for the role: it is the owner of the test's server."""
    statements = COMPOSE["configs"]["databases"]["content"].partition("<<'SQL'\n")[2].partition("SQL\n")[0]
    for statement in statements.split(";"):
        if statement.strip() and "role baton" not in statement:
            await execute(postgres.url("postgres"), statement)


async def test_the_parts_work_together_with_the_commands_and_the_settings_of_the_file(tmp_path: Path) -> None:
    """PostgreSQL, Temporal, two workers and a gateway as processes; one of the workers is killed."""
    model = ScriptedModel(lambda request: Reply(text=f"to {request['messages'][-1]['content']}"))
    (tmp_path / "manifests.json").write_text(json.dumps(agent("one")))
    made = await asyncio.to_thread(baton, "gateway-key", "alice", "-f", tmp_path / "keys.yaml", env=process_env())
    (key,) = re.findall(r"bk-\S+", made.stdout)
    with (
        StateDir(tmp_path / "server").lock("dev") as lock,
        PostgresServer.running() as postgres,
        model.serve() as model_url,
    ):
        assert lock
        server = EmbeddedServer(tmp_path / "server", lock, *own_ports())
        await server.start()
        await make_databases(postgres)
        places = {
            "temporal:7233": server.address,
            "postgres:5432": f"127.0.0.1:{postgres.port}",
            "/keys/keys.yaml": str(tmp_path / "keys.yaml"),
            "/manifests": str(tmp_path / "manifests.json"),
        }
        outside = {"JOURNAL_PASSWORD": PASSWORD, "OPENAI_BASE_URL": model_url, "OPENAI_API_KEY": "k"}
        parts = Parts(tmp_path, places, outside)
        namespace = ["/bin/sh", "-euc", script("namespace")]
        await asyncio.to_thread(subprocess.run, namespace, env=parts.env_of("namespace"), check=True)
        port = str(own_port())
        workers = [await parts.start("worker") for _ in range(SERVICES["worker"]["deploy"]["replicas"])]
        gateway = await parts.start("gateway", "--port", port)
        await parts.healthy("gateway", gateway, ("8080", port))
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=200) as http:
            assert (await http.get("/v1/models")).status_code == 401
            http.headers["authorization"] = f"Bearer {key}"
            assert await answer(http, "the first") == "to the first"
            workers[0].kill()
            assert await answer(http, "the second") == "to the second"
        for process in (gateway, workers[1]):
            process.terminate()
            assert await process.wait() == 0, parts.logs()
        await workers[0].wait()
        await server.stop()


async def answer(http: httpx.AsyncClient, question: str) -> str:
    """The answer to a question, once the gateway knows the agent of the workers."""
    body = {"model": "agent/one", "messages": [{"role": "user", "content": question}]}
    while (response := await http.post("/v1/chat/completions", json=body)).status_code == 503:
        await asyncio.sleep(0.2)
    return str(response.json()["choices"][0]["message"]["content"])


def test_the_image_holds_the_packages_of_the_lock_and_no_rights() -> None:
    installs = [shlex.split(line.partition("pip install")[2]) for line in LINES if "pip install" in line]
    assert all("--require-hashes" in each or "--no-deps" in each for each in installs)
    last = LINES[LINES.index("FROM python:3.13-slim") :]
    assert "USER 10001" in last, "Kubernetes can't tell that a name is not root"
    assert not [line for line in last if line.startswith("COPY") and "--from=build /opt/baton" not in line]


def test_hadolint_has_nothing_against_the_dockerfile() -> None:
    command = [Path(sys.executable).with_name("hadolint"), ROOT / "Dockerfile"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_one_command_builds_the_image_which_says_its_version_and_its_commit() -> None:
    env = {key: value for key, value in os.environ.items() if not key.startswith(("MAKE", "MFLAGS"))}
    shown = subprocess.run(
        ["make", "--dry-run", "image", "IMAGE=registry.example.com/baton", "ENGINE=podman"],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    words = shlex.split(shown.replace("\\\n", " "))
    assert words[:2] == ["podman", "build"]
    assert words[-3:] == ["--tag", f"registry.example.com/baton:{version()}", "."]
    arguments = dict(word.split("=", 1) for word in words if re.match("[A-Z]+=", word))
    assert arguments["VERSION"] == version()
    assert re.fullmatch(r"[0-9a-f]{40}(-dirty)?", arguments["REVISION"])
    last = LINES[LINES.index("FROM python:3.13-slim") :]
    labels = shlex.split(next(line for line in last if line.startswith("LABEL")))
    assert {f"org.opencontainers.image.{name.lower()}=${name}" for name in arguments} <= {*labels}
    assert {f"ARG {name}" for name in arguments} <= {*last}, "an argument holds for one stage"


def test_workers_get_the_keys_of_models_and_the_variables_of_opentelemetry() -> None:
    documents = "".join((ROOT / "docs" / name).read_text() for name in ("traces.md", "metrics.md"))
    known = {*KEYS_OF_LIBRARIES, *HEADER_PAIRS, *HEADER_LINES, *re.findall(r"\bOTEL_[A-Z_]+[A-Z]\b", documents)}
    assert known - {"TEMPORAL_API_KEY"} <= SERVICES["worker"]["environment"].keys()
    assert known & SERVICES["gateway"]["environment"].keys() <= OF_BUCKET, "a gateway calls no models"


OF_BUCKET = {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_DEFAULT_REGION"}
"""The variables by which AWS' library reaches the bucket of long values."""


def test_every_service_is_pinned_restarted_bounded_and_waits_for_what_it_needs() -> None:
    images = {name: service.get("image", "") for name, service in SERVICES.items()}
    assert (images.pop("worker"), images.pop("gateway")) == ("", "")
    assert all(re.fullmatch(r"[\w/-]+:\d+\.\d+(\.\d+)?(-\w+)?", image) for image in images.values())
    assert {name for name, service in SERVICES.items() if "resources" in service.get("deploy", {})} == LASTING
    assert {service["restart"] for service in SERVICES.values()} == {"unless-stopped", "on-failure"}
    for service in SERVICES.values():
        for needed, how in service.get("depends_on", {}).items():
            lasting = needed in LASTING
            assert how["condition"] == ("service_healthy" if lasting else "service_completed_successfully")
            assert "healthcheck" in SERVICES[needed] or not lasting


def test_two_workers_have_time_to_end_and_no_rights_that_they_don_t_need() -> None:
    worker = SERVICES["worker"]
    settings = Settings.of({key: value for key, value in worker["environment"].items() if value})
    assert float(worker["stop_grace_period"].removesuffix("s")) > settings.graceful_shutdown_seconds
    assert worker["deploy"]["replicas"] == 2
    assert (worker["read_only"], worker["cap_drop"], worker["init"]) == (True, ["ALL"], True)


def test_a_gateway_that_others_can_reach_needs_keys_and_gets_every_setting() -> None:
    gateway = SERVICES["gateway"]
    assert gateway["profiles"] == ["gateway"], "without keys it would not start"
    settings = {str(field.validation_alias) for field in GatewaySettings.model_fields.values()}
    by_option = {"BATON_GATEWAY_NAMESPACES"}
    assert settings - by_option <= {*gateway["environment"]}
    assert (gateway["read_only"], gateway["cap_drop"], gateway["init"]) == (True, ["ALL"], True)
    shared = ("TEMPORAL_ADDRESS", "BATON_JOURNAL_URL", "PGPASSWORD", "BATON_TASK_QUEUE", "BATON_ENCRYPTION_KEYS")
    for name in shared:
        assert gateway["environment"][name] == SERVICES["worker"]["environment"][name]


def test_a_gateway_gets_every_variable_that_its_code_or_what_connects_it_to_temporal_reads() -> None:
    files = [*(ROOT / "starter" / "gateway").glob("*.py"), *(ROOT / "temporal").glob("*.py")]
    files += [ROOT / "observability" / "log.py", ROOT / "contracts" / "settings.py", ROOT / "contracts" / "identity.py"]
    read = {name for file in files for name in re.findall(r'"(BATON_[A-Z_]+[A-Z])"', file.read_text())}
    read = {name for name in read if not name.startswith("BATON_GATEWAY_")}
    elsewhere = {KEYS_FILE, SCRIPTED_MODEL_URL}  # a file in place of the keys; answers in place of models
    assert read - elsewhere | OF_BUCKET <= SERVICES["gateway"]["environment"].keys()


def test_workers_get_every_setting_and_begin_with_the_samples() -> None:
    settings = {str(field.validation_alias) for field in Settings.model_fields.values()}
    of_image = {
        "BATON_HOME",
        "BATON_HEALTH_PORT",
        "BATON_HEALTH_HOST",
    }  # no data, one health check
    assert settings - of_image <= SERVICES["worker"]["environment"].keys()
    assert {"BATON_EXTERNAL_STORAGE_URL", KEYS, "BATON_ALLOW_PRIVATE_HOSTS"} <= SERVICES["worker"]["environment"].keys()
    (mounted,) = SERVICES["worker"]["volumes"]
    assert load_files([ROOT / mounted.partition(":-")[2].partition("}")[0]]).catalog.manifests


async def test_health_and_readiness_are_two_answers() -> None:
    port = own_port()
    begun, down = asyncio.Event(), RuntimeError("postgresql://baton:secret@db")

    async def journal() -> None:
        if begun.is_set():
            raise down

    def ask(path: str) -> tuple[int, str]:
        answer = httpx.get(f"http://127.0.0.1:{port}/{path}")
        return answer.status_code, answer.text

    async with serve_health({("127.0.0.1", port): "BATON_HEALTH_PORT"}, {"journal": journal}):
        assert await asyncio.to_thread(ask, "healthz") == (200, "alive\n")
        assert await asyncio.to_thread(ask, "readyz") == (200, '{"journal":"ok"}')
        begun.set()
        while (await asyncio.to_thread(ask, "readyz"))[0] == 200:
            await asyncio.sleep(0.1)
        assert await asyncio.to_thread(ask, "readyz") == (503, '{"journal":"RuntimeError"}')
        assert await asyncio.to_thread(ask, "healthz") == (200, "alive\n")


def test_the_server_is_as_fair_as_the_embedded_one() -> None:
    dynamic = yaml.safe_load(COMPOSE["configs"]["dynamic"]["content"])
    embedded = {key: json.loads(value) for key, value in TUNING if key.startswith("matching.")}
    assert {key: value for key, [each] in dynamic.items() for value in each.values()} == embedded


def test_nothing_is_published_beyond_this_machine_and_no_key_stands_in_the_file() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert all(port.startswith("127.0.0.1:") for port in ports)
    given = {key: value for service in SERVICES.values() for key, value in service.get("environment", {}).items()}
    secret = {key: value for key, value in given.items() if re.search("PASSWORD|PWD|KEY", key)}
    assert secret.pop("BATON_GATEWAY_KEYS").endswith(".yaml"), "a file of hashes"
    assert not secret.pop("BATON_GATEWAY_KEYS_RELOAD"), "seconds"
    assert {re.sub(r"\$\{\w+:\?.*\}", "required", value or "the caller's") for value in secret.values()} == {
        "required",
        "the caller's",
    }


@pytest.mark.parametrize("address", ["temporal:7233", "10.0.0.5:7233", "example.com:7233", "[2001:db8::1]:7233"])
def test_a_worker_far_from_temporal_refuses_the_default_journal(address: str) -> None:
    with pytest.raises(JournalUnavailable, match="set BATON_JOURNAL_URL"):
        check_journal_is_shared(Settings.of({}), address)
    check_journal_is_shared(Settings.of({"BATON_JOURNAL_URL": "sqlite:////data/journal.db"}), address)


@pytest.mark.parametrize("address", ["localhost:7233", "127.0.0.1:7233", "[::1]:7233"])
def test_a_worker_on_the_machine_of_temporal_takes_the_default_journal(address: str) -> None:
    check_journal_is_shared(Settings.of({}), address)
