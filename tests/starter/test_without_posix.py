"""What works without the modules of POSIX, as on Windows: clients, the command line, and workers in programs."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.environment import KEY, Environment, agent, call, line
from tests.harness.manifests import Writer
from tests.harness.processes import PATIENCE, ROOT, process_env
from tests.test_architecture import FILES

pytestmark = pytest.mark.full  # each test starts processes of its own

WITHOUT_POSIX = """
import asyncio, builtins

MISSING = {"fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog"}
import_module = builtins.__import__

def refusing(name, globals=None, locals=None, fromlist=(), level=0):
    importer = (globals or {}).get("__name__", "").partition(".")[0]
    if name in MISSING and importer in ("baton", "getpass"):  # other libraries look at the name of the system
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    return import_module(name, globals, locals, fromlist, level)

builtins.__import__ = refusing

class Loop(asyncio.SelectorEventLoop):
    def add_signal_handler(self, *_):
        raise NotImplementedError

    def remove_signal_handler(self, *_):
        raise NotImplementedError

class Policy(asyncio.DefaultEventLoopPolicy):
    _loop_factory = Loop

asyncio.set_event_loop_policy(Policy())
"""
"""Begins a program: Baton can't import the modules, and event loops handle no signals."""


def without_posix(
    program: str, *arguments: str | Path, stdin: str = "", **env: str
) -> subprocess.CompletedProcess[str]:
    """Runs a program to its end."""
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_POSIX + program, *arguments],
        env=process_env(**env),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def baton(*arguments: str | Path, stdin: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end."""
    return without_posix("from baton.starter.cli.app import main; main()", *arguments, stdin=stdin, **env)


@pytest.mark.slow
def test_every_module_can_be_imported() -> None:
    names = [".".join(("baton", *file.relative_to(ROOT).with_suffix("").parts)) for file in FILES]
    modules = [name for name in names if not name.endswith(".__init__")]
    program = f"import importlib\nfor name in {modules}: importlib.import_module(name)"
    done = without_posix(program)
    assert done.returncode == 0, done.stderr


def test_manifests_are_validated_and_drawn(write: Writer) -> None:
    file = write.file(agent("one"))
    assert baton("validate", "-f", file).stdout == "1 manifest is valid\n"
    assert baton("version").returncode == 0


@pytest.mark.parametrize("command", [("run", "agent/one", "Why?"), ("dev",)])
def test_a_command_that_needs_the_embedded_server_says_that_there_is_none(
    tmp_path: Path, write: Writer, command: tuple[str, ...]
) -> None:
    done = baton(*command, "-f", write.file(agent("one")), BATON_HOME=str(tmp_path / "state"))
    assert done.returncode == 3
    assert " ".join(done.stderr.split()) == (
        "error: on Windows Baton has no Temporal server of its own: "
        "set TEMPORAL_ADDRESS to a server that has a worker, or use WSL"
    )


def where(env: Environment) -> dict[str, str]:
    """The environment of a client of the server and the worker of the tests."""
    return {"TEMPORAL_ADDRESS": env.client.service_client.config.target_host, "BATON_TASK_QUEUE": env.task_queue}


async def test_commands_use_the_worker_of_a_server(env: Environment, write: Writer) -> None:
    """A chat, too, in which Ctrl-C cancels an answer."""
    env.script(line("one", "Because."))
    file = write.file(agent("one"))
    done = await asyncio.to_thread(baton, "run", "agent/one", "-f", file, "Why?", **where(env))
    assert (done.returncode, done.stdout) == (0, "Because.\n"), done.stderr
    done = await asyncio.to_thread(baton, "chat", "agent/one", "-f", file, stdin="Why?\n", **where(env))
    assert (done.returncode, done.stdout) == (0, "Because.\n"), done.stderr
    listed = await asyncio.to_thread(baton, "list", **where(env))
    assert listed.returncode == 0, listed.stderr


PROGRAM = """
import asyncio, baton

@baton.function
def look_up(word: str) -> str:
    "Looks a word up."
    return f"the meaning of {word}"

schema = {"type": "object", "$defs": {"n": {"type": "integer"}}, "properties": {"n": {"$ref": "#/$defs/n"}}}
agent = baton.Agent("one", prompt="You are one.", tools=[look_up], output_schema=schema)
print(asyncio.run(baton.run(agent, input="Why?")).message)
"""


@pytest.mark.slow
async def test_a_program_executes_its_own_functions(env: Environment, tmp_path: Path) -> None:
    """Its worker evaluates in processes, and writes spans, neither of which can be locked or limited."""
    env.script(line("one", call("look_up", word="why"), '{"n": 1}'))
    state = {"BATON_HOME": str(tmp_path / "state"), "OPENAI_BASE_URL": env.model_url, "OPENAI_API_KEY": KEY}
    traces = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_TRACES_EXPORTER": "otlp"}
    done = await asyncio.to_thread(without_posix, PROGRAM, **where(env), **state, **traces)
    assert (done.returncode, done.stdout) == (0, '{"n": 1}\n'), done.stderr
