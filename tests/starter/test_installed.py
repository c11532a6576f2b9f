"""Baton installed from its wheel, in a project whose own modules have the names of Baton's folders."""

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
from pathlib import Path

import pytest

from baton.starter.server.embedded import EmbeddedServer
from tests.harness.environment import agent
from tests.harness.panels import panelist_line
from tests.harness.processes import PATIENCE, ROOT
from tests.harness.user_machine import UserMachine
from tests.test_architecture import FOLDERS

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
    assert {name.split("/")[0].partition("-")[0] for name in names} == {"baton"}
    folders = {name.split("/")[1] for name in names if name.startswith("baton/") and name.count("/") > 1}
    assert folders == {*FOLDERS}
    assert {"baton/__init__.py", "baton/worker.py", "baton/py.typed"} <= {*names}


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
    log = project.folder / "worker.log"
    with log.open("wb") as file:
        worker = subprocess.Popen([python, "-m", "baton.worker"], cwd=project.folder, env=env, stderr=file)
    while "Worker started on task queue" not in log.read_text():
        assert worker.poll() is None, log.read_text()
        time.sleep(0.05)
    os.kill(worker.pid, signal.SIGTERM)
    assert worker.wait(30) == 0
