"""Baton installed from its wheel, in a project whose own modules have the names of Baton's folders."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
import uuid
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from baton.starter.server.embedded import EmbeddedServer
from tests.harness.environment import agent
from tests.harness.panels import panelist_line, prompt_line
from tests.harness.processes import PATIENCE, ROOT
from tests.harness.user_machine import UserMachine
from tests.test_architecture import FOLDERS
from tests.test_locks import DEVELOPERS, pins

pytestmark = pytest.mark.full  # each test starts processes of its own

MODULES = (*FOLDERS, "worker")
"""Modules of the project; Baton's folders have the same names."""

MAIN = f"""
import asyncio
import json
import {", ".join(MODULES)}

import baton
import uuid

def vote(briefing: baton.Briefing) -> str:
    return f"I vote for {{briefing.transcript[-1].text}}."

def panel(*members: object) -> baton.Team:
    roster = [{{"name": "writer", "role": "a writer"}}, *members]
    return baton.round_robin("panel", roster, max_rounds=1, synthesizer=False)

async def main() -> None:
    here = await baton.run(panel(vote), input="Why?")  # executed in this process
    there = await baton.run(panel(), input="Why?")  # executed by the worker of this machine
    texts = [[each.text for each in result.value.contributions] for result in (here, there)]
    own = [module.OWNER for module in ({", ".join(MODULES)})]
    print(json.dumps({{"texts": texts, "own": own, "baton": baton.__file__}}))

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of the checkout without anything that an earlier build has left."""
    folder = tmp_path_factory.mktemp("wheel")
    unwanted = shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "*.egg-info")
    shutil.copytree(ROOT, folder / "source", ignore=unwanted)
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, folder / "source")
    [built] = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a venv with Baton from the wheel, and its dependencies from the venv of the tests.

    A path in a ``.pth`` file adds the packages there, but not their own ``.pth`` files: so the checkout, which is
    installed there in editable mode, is not found.
    """
    venv = tmp_path_factory.mktemp("installed") / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", venv, cwd=venv.parent)
    [packages] = venv.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    (venv / "bin" / "temporal").symlink_to(Path(sys.executable).parent / "temporal")
    pip("--python", venv / "bin" / "python", "install", "--no-deps", "--no-index", wheel)
    return venv / "bin" / "python"


@pytest.fixture
def project(machine: UserMachine) -> UserMachine:
    """A folder with modules of these names."""
    for name in MODULES:
        (machine.folder / f"{name}.py").write_text('OWNER = "the project"\n')
    machine.script(panelist_line("writer", "w1", "w1"))
    return machine


def run(*command: str | Path, cwd: Path, env: dict[str, str] | None = None) -> str:
    """The output of a command, which must end well."""
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def pip(*arguments: str | Path) -> None:
    run(sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments, cwd=Path(sys.prefix))


def test_the_wheel_installs_the_package_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0].partition("-")[0] for name in names} == {"baton", "baton_teams"}
    folders = {name.split("/")[1] for name in names if name.startswith("baton/") and name.count("/") > 1}
    assert folders == {*FOLDERS}
    assert {"baton/__init__.py", "baton/worker.py", "baton/py.typed"} <= {*names}


@pytest.mark.slow
def test_a_team_runs_in_a_project_whose_modules_have_the_names_of_batons_folders(
    project: UserMachine, python: Path
) -> None:
    (project.folder / "main.py").write_text(MAIN)
    printed = json.loads(run(python, "main.py", cwd=project.folder, env=project.env))
    assert printed["texts"] == [["w1", "I vote for w1."], ["w1"]]
    assert printed["own"] == ["the project"] * len(MODULES)
    assert Path(printed["baton"]).is_relative_to(python.parent.parent)


def test_the_commands_run_in_such_a_project(project: UserMachine, python: Path) -> None:
    def installed(*command: str | Path) -> str:
        return run(*command, cwd=project.folder, env=project.env)

    assert "files and folders of manifests" in installed(python, "-m", "baton.worker", "--help")
    assert installed(python, "-m", "baton.starter", "version") == installed(python.parent / "baton", "version")
    project.script(panelist_line("writer", "w1"))
    file = project.write(agent("one"))
    assert installed(python.parent / "baton", "validate", "-f", file) == "1 manifest is valid\n"


def test_a_worker_starts_as_a_module_in_such_a_project(
    project: UserMachine, python: Path, server: EmbeddedServer
) -> None:
    where = {"TEMPORAL_ADDRESS": server.address, "BATON_TASK_QUEUE": uuid.uuid4().hex}
    env = {**project.env, **where, "BATON_HOME": str(project.state_dir.folder)}
    with worker_process(python, project, env):
        pass


@contextlib.contextmanager
def worker_process(python: str | Path, machine: UserMachine, env: dict[str, str], *files: Path) -> Iterator[None]:
    """A context manager that runs a worker in the machine's folder."""
    log = machine.folder / "worker.log"
    with log.open("wb") as output:
        command = [python, "-m", "baton.worker", *files]
        worker = subprocess.Popen(command, cwd=machine.folder, env=env, stderr=output)
    try:
        while "Worker started on task queue" not in log.read_text():
            assert worker.poll() is None, log.read_text()
            time.sleep(0.05)
        yield
    finally:
        os.kill(worker.pid, signal.SIGTERM)
        assert worker.wait(PATIENCE) == 0


@pytest.fixture(scope="module")
def sdist(wheel: Path) -> Path:
    """The source distribution."""
    build = "from setuptools.build_meta import build_sdist; print(build_sdist('..'))"
    run(sys.executable, "-c", build, cwd=wheel.parent / "source")
    [built] = wheel.parent.glob("*.tar.gz")
    return built


@pytest.fixture(scope="module")
def core(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a venv with what ``pip install baton-teams`` installs, in the versions of the lock."""
    folder = tmp_path_factory.mktemp("core")
    run(sys.executable, "-m", "venv", "--without-pip", folder / "venv", cwd=folder)
    constraints = folder / "constraints.txt"
    constraints.write_text("".join(f"{name}=={pin.version}\n" for name, pin in pins(DEVELOPERS).items()))
    pip("--python", folder / "venv" / "bin" / "python", "install", "--constraint", constraints, wheel)
    return folder / "venv" / "bin" / "python"


CLAIM = """
from temporalio import workflow
import baton.workflow

@workflow.defn
class Claim:
    @workflow.run
    async def run(self, text: str) -> str:
        return await baton.workflow.run_agent("greeter", text, task_queue="QUEUE")
"""
"""An application's workflow that runs an agent as its child."""

CLIENT = """
import asyncio, json, os
from temporalio.client import Client
from temporalio.worker import Worker
import baton
from application import Claim

async def main() -> None:
    address = os.environ["TEMPORAL_ADDRESS"]
    async with baton.connect(address) as connection:
        guest = baton.Agent("guest", prompt="You are guest.", output_schema={"type": "object"})
        host = baton.Agent("host", prompt="You are host.")
        pair = baton.Team("pair", strategy="round-robin", members=[host], terminate_when="turn > 0", max_turns=3)
        run = await connection.start(pair, "Hello?")
        attached = await connection.attach(run.id)
        texts = [event.text async for event in attached]
        answers = [(await run.result()).message, (await connection.run(guest, "Hello?")).message]
    client = await Client.connect(address)
    async with Worker(client, task_queue="application", workflows=[Claim]):
        claim = await client.execute_workflow(Claim.run, "Hello?", id="claim", task_queue="application")
    print(json.dumps([texts, answers, claim]))

asyncio.run(main())
"""
"""A program that starts, watches and attaches runs, and serves an application's workflow."""


@pytest.mark.slow
def test_a_client_without_extras_starts_and_watches_runs_and_serves_workflows_that_run_agents(
    machine: UserMachine, core: Path, server: EmbeddedServer
) -> None:
    queue = uuid.uuid4().hex
    answers = [prompt_line(f"You are {name}.", text) for name, text in SAID.items()]
    machine.script(*answers)
    env = {**machine.env, "TEMPORAL_ADDRESS": server.address, "BATON_TASK_QUEUE": queue}
    (machine.folder / "application.py").write_text(CLAIM.replace("QUEUE", queue))
    (machine.folder / "client.py").write_text(CLIENT)
    with worker_process(sys.executable, machine, env, machine.write(agent("greeter"))):
        printed = json.loads(run(core, "client.py", cwd=machine.folder, env=env))
    assert printed == [["Good day."], ["Good day.", '{"a":1}'], "Welcome."]


SAID = {"host": "Good day.", "guest": '{"a":1}', "greeter": "Welcome."}


def test_the_command_of_a_client_without_extras_says_what_is_missing(core: Path, tmp_path: Path) -> None:
    done = subprocess.run([core.parent / "baton", "list"], cwd=tmp_path, capture_output=True, text=True, check=False)
    hint = 'pip install "baton-teams[cli]"'
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"error: the command 'baton' needs packages that are not installed: {hint}\n"


@pytest.mark.parametrize("order", [("wheel", "other"), ("other", "wheel"), ("other", "sdist")], ids="-".join)
def test_the_other_distribution_of_the_same_import_name_is_an_error(
    order: tuple[str, str], wheel: Path, sdist: Path, core: Path, tmp_path: Path
) -> None:
    """The ``baton`` of the package index: both install ``baton/__init__.py``, and pip says nothing."""
    python = tmp_path / "venv" / "bin" / "python"
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv", cwd=tmp_path)
    [packages] = python.parent.parent.glob("lib/python*/site-packages")
    [of_core] = core.parent.parent.glob("lib/python*/site-packages")
    distributions: dict[str, str | Path] = {"other": "baton==1.0.2", "wheel": wheel, "sdist": sdist}
    for each in order:
        pip("--python", python, "install", "--no-deps", distributions[each])
    for package in of_core.iterdir():
        if not package.name.startswith("baton") and not (packages / package.name).exists():
            (packages / package.name).symlink_to(package)
    imports = ["baton.workflow", "baton.plugin", *(["baton"] if order[0] == "other" else [])]
    programs: list[list[str | Path]] = [[python, "-c", f"import {name}"] for name in imports]
    programs.append([python.parent / "baton", "list"])
    for command in programs:
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert "is shared by 'baton-teams' and another distribution" in done.stderr.splitlines()[-1]
