"""The profiles of ``temporal.toml``: addresses, namespaces, API keys and certificates."""

import asyncio
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
import yaml
from temporalio.api.workflowservice.v1 import RegisterNamespaceRequest
from temporalio.client import Client

from baton.starter.server.embedded import EmbeddedServer
from baton.testing import Reply, ScriptedModel
from tests.harness.environment import KEY, agent
from tests.harness.processes import PATIENCE, ROOT, WorkerProcess, baton, process_env
from tests.harness.tls import Certificates, tls_proxy

pytestmark = pytest.mark.full  # each test starts processes of its own

TEMPORAL_KEY = "temporal-key-0123456789"
NAMESPACE = "of-the-profile"


class Project:
    """A folder with a ``temporal.toml``, in which workers and commands are started."""

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self.folder, self.toml = folder, folder / "temporal.toml"
        self.manifest = folder / "one.yaml"
        self.manifest.write_text(yaml.safe_dump(agent("one")))
        own = {"BATON_HOME": str(folder / "home"), "TEMPORAL_CONFIG_FILE": str(self.toml)}
        # A worker would refuse a task queue on which another test has left a run with another journal.
        self.env = {**env, **own, "BATON_TASK_QUEUE": uuid.uuid4().hex}

    async def baton(self, *arguments: str | Path, **env: str) -> "subprocess.CompletedProcess[str]":
        """Runs a command to its end."""
        return await asyncio.to_thread(baton, *arguments, env={**self.env, **env}, cwd=self.folder)

    async def run(self, **env: str) -> "subprocess.CompletedProcess[str]":
        """Starts a worker, runs an agent, and stops the worker."""
        worker = WorkerProcess({**self.env, **env}, self.folder / "worker.log")
        worker.start()
        done = await self.baton("run", "-f", self.manifest, "agent/one", "Why?", **env)
        assert await worker.stop() == 0
        return done

    async def refused(self, **env: str) -> list["subprocess.CompletedProcess[str]"]:
        """A command and a worker that end at once with an error."""
        command = (sys.executable, str(ROOT / "worker.py"))
        given = {**self.env, **env}
        worker = asyncio.to_thread(
            subprocess.run, command, env=given, cwd=self.folder, capture_output=True, text=True, timeout=PATIENCE
        )
        both = await asyncio.gather(self.baton("status", "x", **env), worker)
        for each in both:
            assert "Traceback" not in each.stderr
            assert each.stdout == ""
        return [*both]


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    with ScriptedModel(lambda _: Reply(text="hello")).serve() as url:
        yield Project(tmp_path, process_env(OPENAI_BASE_URL=url, OPENAI_API_KEY=KEY))


@pytest_asyncio.fixture(loop_scope="session")
async def certificates(tmp_path: Path) -> Certificates:
    return Certificates.make(tmp_path)


@pytest_asyncio.fixture(loop_scope="session")
async def tls(server: EmbeddedServer, certificates: Certificates) -> AsyncIterator[str]:
    """The address of the session's server behind TLS."""
    async with tls_proxy(server.address, certificates) as address:
        yield address


async def test_the_default_profile_holds_the_servers_address(project: Project, server: EmbeddedServer) -> None:
    project.toml.write_text(f'[profile.default]\naddress = "{server.address}"\n')
    done = await project.run()
    assert (done.returncode, done.stdout) == (0, "hello\n"), done.stderr
    assert "of namespace default" in (project.folder / "worker.log").read_text()


async def test_a_profile_is_chosen_by_name_and_has_its_own_namespace(
    project: Project, server: EmbeddedServer, client: Client
) -> None:
    retention = RegisterNamespaceRequest(namespace=NAMESPACE)
    retention.workflow_execution_retention_period.FromSeconds(86_400)
    await client.workflow_service.register_namespace(retention, retry=True)
    nowhere = '[profile.default]\naddress = "127.0.0.1:1"\n'
    project.toml.write_text(f'{nowhere}[profile.team]\naddress = "{server.address}"\nnamespace = "{NAMESPACE}"\n')
    while "is not found" in (await project.baton("status", "x", TEMPORAL_PROFILE="team")).stderr:
        await asyncio.sleep(0.5)  # the server reads its list of namespaces periodically
    done = await project.run(TEMPORAL_PROFILE="team")
    assert (done.returncode, done.stdout) == (0, "hello\n"), done.stderr
    assert f"of namespace {NAMESPACE}" in (project.folder / "worker.log").read_text()


@pytest.mark.parametrize(
    ("profile", "codes", "says"),
    [
        ("unknown", (1, 1), "Profile 'unknown' not found"),
        ("no-file", (1, 1), "No such file or directory: 'none.pem'"),
        ("no-namespace", (1, 3), "Namespace nowhere is not found"),
        ("no-tls", (3, 3), "it doesn't support TLS"),
    ],
)
async def test_an_unusable_profile_is_an_error_in_one_sentence(
    project: Project, server: EmbeddedServer, profile: str, codes: tuple[int, int], says: str
) -> None:
    at = f'address = "{server.address}"\n'
    pair = 'client_cert_path = "none.pem"\nclient_key_path = "none.key"\n'
    project.toml.write_text(
        f'[profile.no-file]\n{at}[profile.no-file.tls]\n{pair}[profile.no-namespace]\n{at}namespace = "nowhere"\n'
        f'[profile.no-tls]\n{at}api_key = "{TEMPORAL_KEY}"\n'
    )
    for code, ended in zip(codes, await project.refused(TEMPORAL_PROFILE=profile), strict=True):
        assert (ended.returncode, says in ended.stderr) == (code, True), ended.stderr
        assert TEMPORAL_KEY not in ended.stderr


@pytest.mark.parametrize("written", [TEMPORAL_KEY, f'"{TEMPORAL_KEY}'], ids=["unquoted", "unclosed"])
async def test_an_invalid_file_is_an_error_that_does_not_show_the_key(project: Project, written: str) -> None:
    project.toml.write_text(f"[profile.default]\napi_key = {written}\n")
    for ended in await project.refused():
        assert ended.returncode == 1
        assert "TOML parse error at line 2" in ended.stderr
        assert TEMPORAL_KEY not in ended.stderr


PRINT_CONFIG = """
import asyncio, atexit, os, time
from baton.temporal.client import connect
atexit.register(time.sleep, 0.02)
config = asyncio.run(connect()).service_client.config
print(config.api_key == os.environ["WANTED"], bool(config.tls))
"""


async def test_an_api_key_is_passed_to_temporals_client_and_stored_nowhere(
    project: Project, server: EmbeddedServer
) -> None:
    profile = f'[profile.default]\naddress = "{server.address}"\napi_key = "{TEMPORAL_KEY}"\ntls.disabled = true\n'
    project.toml.write_text(profile)
    env = {**project.env, "WANTED": TEMPORAL_KEY}
    command = (sys.executable, "-c", PRINT_CONFIG)
    printed = await asyncio.to_thread(subprocess.run, command, env=env, cwd=ROOT, capture_output=True, text=True)
    assert printed.stdout == "True False\n", printed.stderr
    done = await project.run()
    assert (done.returncode, done.stdout) == (0, "hello\n"), done.stderr
    assert TEMPORAL_KEY not in done.stderr
    kept = [file for file in project.folder.rglob("*") if file.is_file() and file != project.toml]
    assert not [file for file in kept if TEMPORAL_KEY.encode() in file.read_bytes()]


async def test_a_run_uses_tls_with_a_client_certificate(project: Project, tls: str, certificates: Certificates) -> None:
    project.toml.write_text(with_tls(tls, certificates))
    done = await project.run()
    assert (done.returncode, done.stdout) == (0, "hello\n"), done.stderr


async def test_a_missing_client_certificate_is_refused(project: Project, tls: str, certificates: Certificates) -> None:
    lines = with_tls(tls, certificates).splitlines()
    project.toml.write_text("\n".join(line for line in lines if not line.startswith("client_")))
    for ended in await project.refused():
        assert ended.returncode == 3
        assert "it may require TLS, or a client certificate" in ended.stderr


async def test_an_unknown_certificate_authority_is_refused(
    project: Project, tls: str, certificates: Certificates
) -> None:
    lines = with_tls(tls, certificates).splitlines()
    project.toml.write_text("\n".join(line for line in lines if not line.startswith("server_ca")))
    for ended in await project.refused():
        assert ended.returncode == 3
        assert "its certificate is signed by an unknown authority" in ended.stderr


def with_tls(address: str, certificates: Certificates) -> str:
    """A profile with the files of the certificates."""
    return (
        f'[profile.default]\naddress = "{address}"\n[profile.default.tls]\n'
        f'server_ca_cert_path = "{certificates.file("authority.pem")}"\n'
        f'client_cert_path = "{certificates.file("client.pem")}"\n'
        f'client_key_path = "{certificates.file("client.key")}"\n'
    )
