"""Processes that evaluate schemas, conditions and filters: from where they import Baton, their limits and ends."""

import asyncio
import os
import resource
import subprocess
import sys
import sysconfig
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest

from baton.temporal.bounded_process import BoundedFunction, EvaluationFailed, LimitExceeded
from tests.harness import functions
from tests.harness.environment import Environment, agent, line
from tests.harness.processes import PATIENCE, ROOT, process_env

EVALUATES = """
import asyncio
from baton.activities.context.output_schema import schema_errors
from baton.temporal.bounded_process import check_processes, close_idle
from baton.activities.teams import holds
from baton.activities.tool.tools import _apply

async def main():
    await check_processes()
    print(await schema_errors("no", {"pattern": "^yes$"}))
    print(await holds('message.matches("a+")', {"message": "aa"}))
    print(await _apply.call({"text": '{"a": [1]}', "filters": [".a"]}))
    await close_idle()

asyncio.run(main())
"""
"""Uses each of the three functions once, with values that are never evaluated in the worker itself."""

EVALUATED = ["[\"$: 'no' does not match '^yes$'\"]", "True", "[1]"]


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A folder in which Baton can be imported, outside of the interpreter's own packages."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "baton").symlink_to(ROOT)
    return folder


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A program that evaluates."""
    file = tmp_path / "program.py"
    file.write_text(EVALUATES)
    return file


BASE = str(getattr(sys, "_base_executable", sys.executable))
"""The interpreter of which the virtual environment of the tests was made: no package of the tests is in it."""

PACKAGES = sysconfig.get_path("purelib")
"""What Baton imports. As an entry of a path it has no ``.pth`` files, and so not the editable Baton of the tests."""


def evaluated(*command: str | Path, **variables: str) -> list[str]:
    """The lines that a program prints, which must end well."""
    done = subprocess.run(
        command, env=process_env(**variables), capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.full
def test_a_process_imports_baton_from_pythonpath(elsewhere: Path, program: Path) -> None:
    """So does one of ``pip install --target``: it is a folder on PYTHONPATH."""
    assert evaluated(BASE, program, PYTHONPATH=os.pathsep.join((str(elsewhere), PACKAGES))) == EVALUATED


@pytest.mark.full
def test_a_process_imports_baton_from_the_folder_of_the_user(tmp_path: Path, program: Path) -> None:
    """``pip install --user``, here with ``--editable``: a ``.pth`` file names the folders."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = tmp_path / "user" / "lib" / version / "site-packages"
    packages.mkdir(parents=True)
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "baton").symlink_to(ROOT)
    (packages / "baton.pth").write_text(f"{tmp_path / 'source'}\n{PACKAGES}\n")
    assert evaluated(BASE, program, PYTHONUSERBASE=str(tmp_path / "user")) == EVALUATED


@pytest.mark.full
def test_a_process_imports_baton_from_a_path_that_the_program_has_set(elsewhere: Path, tmp_path: Path) -> None:
    """As of ``sys.path.append`` in a program, and of the working directory, which is an empty entry of the path."""
    program = f"import sys; sys.path[:0] = [''] ; sys.path.append({PACKAGES!r})\n{EVALUATES}"
    here = ["sh", "-c", f'cd "{elsewhere}" && exec "$@"', "sh"]
    assert evaluated(*here, BASE, "-c", program) == EVALUATED


@pytest.mark.full
def test_a_lower_limit_of_memory_from_outside_stays(elsewhere: Path, program: Path) -> None:
    """A machine of ``ulimit -v``: the limit of the process can't be raised to its own, and it starts all the same."""
    limits = resource.getrlimit(resource.RLIMIT_AS)
    assert limits[1] == resource.RLIM_INFINITY
    limited = ["sh", "-c", 'ulimit -v 450000 && exec "$@"', "sh"]
    quick = EVALUATES.replace("from baton.activities.teams import holds", "").replace("from baton.activities.tool", "#")
    lines = [each for each in quick.splitlines() if "holds(" not in each and "_apply" not in each]
    path = os.pathsep.join((str(elsewhere), PACKAGES))
    assert evaluated(*limited, BASE, "-c", "\n".join(lines), PYTHONPATH=path) == EVALUATED[:1]


BROKEN_FILTER = """
apiVersion: ark.mckinsey.com/v1alpha1
kind: Agent
metadata: {name: a}
spec: {prompt: You are a., tools: [{name: noop, functions: [{name: jq, value: ".items["}]}]}
"""


@pytest.mark.full
@pytest.mark.parametrize("limit", ["", "ulimit -v 450000 && "], ids=["without a limit", "below a limit of memory"])
def test_filters_are_checked_by_the_commands_wherever_baton_is_imported_from(
    elsewhere: Path, tmp_path: Path, limit: str
) -> None:
    (tmp_path / "agent.yaml").write_text(BROKEN_FILTER)
    done = subprocess.run(
        ["sh", "-c", f'{limit}exec "$@"', "sh", BASE, "-m", "baton.starter", "validate", "-f", tmp_path / "agent.yaml"],
        env=process_env(PYTHONPATH=os.pathsep.join((str(elsewhere), PACKAGES))),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 1
    assert "functions[0].value: is not a valid jq filter: syntax error" in done.stderr


@pytest.mark.full
def test_a_filter_that_can_not_be_checked_is_not_valid(elsewhere: Path, tmp_path: Path) -> None:
    (tmp_path / "agent.yaml").write_text(BROKEN_FILTER.replace(".items[", ".items"))
    load = f"load_files([Path({str(tmp_path / 'agent.yaml')!r})])"
    code = f"import sys; sys.path[:0] = {[str(elsewhere), PACKAGES]!r}; sys.executable = '/nowhere/python'\n"
    code += f"from pathlib import Path; from baton.resources.loader import load_files\n{load}"
    done = subprocess.run([BASE, "-c", code], env=process_env(), capture_output=True, text=True, check=False)
    assert "functions[0].value: can't be checked: [Errno 2] No such file or directory" in done.stderr


@pytest.mark.full
async def test_a_process_gets_nothing_of_the_environment() -> None:
    environment = BoundedFunction(f"{functions.__name__}:environment_of_process")
    assert await environment.call(None) == {}
    await environment.close()


async def test_a_process_that_cannot_start_fails_with_its_words() -> None:
    with pytest.raises(EvaluationFailed, match=r"exit code 1: ModuleNotFoundError: No module named 'no_such_module'"):
        await BoundedFunction("no_such_module:function").call(None)


@pytest.mark.full
async def test_a_process_that_ends_in_a_call_fails_with_its_words() -> None:
    ending = BoundedFunction(f"{functions.__name__}:end_process")
    with pytest.raises(EvaluationFailed, match=r"its process exited: exit code 3: it is enough"):
        await ending.call(3)
    assert await ending.call(0) == 0, "the next call starts another process"
    await ending.close()


async def test_a_process_that_crashes_has_exceeded_a_limit() -> None:
    """What it evaluates has made it crash, as a text that makes a library in C run out of stack."""
    with pytest.raises(LimitExceeded, match=r"its process exited: killed by SIG(SEGV|BUS)"):
        await BoundedFunction("ctypes:string_at").call(0)


@pytest.mark.full
async def test_a_process_that_has_ended_while_it_was_idle_is_replaced() -> None:
    own_id = BoundedFunction(f"{functions.__name__}:process_id")
    first = await own_id.call(None)
    assert isinstance(first, int)
    psutil.Process(first).kill()
    while own_id._pool().idle[0].returncode is None:  # the event loop has not seen its end
        await asyncio.sleep(0.01)
    assert await own_id.call(None) not in (None, first)
    await own_id.close()


NESTED = {
    "type": "object",
    "$defs": {"n": {"type": "integer"}},
    "properties": {"n": {"$ref": "#/$defs/n"}},
    "required": ["n"],
    "additionalProperties": False,
}


@pytest.mark.full
async def test_a_worker_that_can_run_no_process_says_so_when_it_starts(env: Environment, elsewhere: Path) -> None:
    """As where Python is embedded in another program, which is what ``sys.executable`` names then."""
    worker = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", RUNS_WORKER.format(executable="/nowhere/python", packages=elsewhere)],
        env=process_env(**variables(env)),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert worker.returncode == 1
    assert worker.stderr.strip() == (
        "this worker can't evaluate conditions, schemas and filters: /nowhere/python can't be started: "
        "[Errno 2] No such file or directory: '/nowhere/python'"
    )


RUNS_WORKER = """
import runpy, sys
sys.executable, sys.argv = "{executable}", ["worker"]
sys.path.append("{packages}")
runpy.run_module("baton.worker", run_name="__main__", alter_sys=True)
"""


def variables(env: Environment) -> dict[str, str]:
    """The environment of a worker process on a task queue of its own."""
    address = env.client.service_client.config.target_host
    return {**env.worker_env, "TEMPORAL_ADDRESS": address, "BATON_TASK_QUEUE": f"{env.task_queue}-own"}


@pytest.mark.full
async def test_an_answer_that_cannot_be_checked_fails_the_run_and_is_paid_once(
    env: Environment, tmp_path: Path, elsewhere: Path
) -> None:
    """An interpreter that is removed under a running worker, as by an upgrade: no process of it starts any more."""
    python = tmp_path / "python"
    python.symlink_to(BASE)
    env.script(line("one", '{"n": 1}'))
    worker = subprocess.Popen(  # noqa: ASYNC220  # it starts at once
        [sys.executable, "-c", RUNS_WORKER.format(executable=python, packages=elsewhere)],
        env=process_env(**variables(env)),
        stderr=subprocess.PIPE,
    )
    try:
        assert worker.stderr
        log = [worker.stderr.readline()]
        while b"Worker started" not in log[-1]:
            assert log[-1], log
            log.append(worker.stderr.readline())
        python.unlink()
        env.task_queue += "-own"
        handle = await env.start_query([agent("one", outputSchema=NESTED)], "agent/one")
        status = await env.status(handle)
    finally:
        worker.terminate()
        worker.communicate()
    assert status.failure
    assert status.failure.type == "SchemaNotChecked"
    assert f"{python} can't be started" in status.failure.message
    assert len(env.model.requests) == 1
