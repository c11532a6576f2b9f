"""Runs the command line inside the test's process: its output, its exit code, and nothing that it leaves behind."""

import asyncio
import contextlib
import io
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

from baton.starter.cli.app import app
from baton.starter.cli.exit_codes import exit_code
from baton.starter.cli.terminal import stderr_console
from tests.harness.process_state import kept_loggers


def can_run_here() -> bool:
    """Whether a command can run in this thread: it changes the process's environment, and needs an event loop."""
    return threading.current_thread() is threading.main_thread() and asyncio._get_running_loop() is None


def run_here(
    arguments: list[str], env: dict[str, str], cwd: Path | None, stdin: str | None
) -> subprocess.CompletedProcess[str]:
    """Runs ``baton`` with these arguments as a process would: with this environment alone, and without a terminal."""
    out, err = _stream(""), _stream("")
    with (
        _process_state(env, ["baton", *arguments], _stream(stdin or "")),
        contextlib.chdir(cwd or Path.cwd()),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        warnings.catch_warnings(),
        kept_loggers(),
    ):
        warnings.simplefilter("ignore", ResourceWarning)  # a command leaves the server that it starts running
        stderr_console.cache_clear()  # it has read the environment of the command before
        code = exit_code(app)
    return subprocess.CompletedProcess(arguments, code, _text(out), _text(err))


def _stream(text: str) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(text.encode()), encoding="utf-8", write_through=True)


def _text(stream: io.TextIOWrapper) -> str:
    assert isinstance(stream.buffer, io.BytesIO)
    return stream.buffer.getvalue().decode()


@contextlib.contextmanager
def _process_state(env: dict[str, str], argv: list[str], stdin: io.TextIOWrapper) -> Iterator[None]:
    before = dict(os.environ), sys.argv, sys.stdin, sys.excepthook
    import_path = sys.path[:]
    os.environ.clear()
    os.environ.update(env)
    sys.argv, sys.stdin = argv, stdin
    try:
        yield
    finally:
        environment, sys.argv, sys.stdin, sys.excepthook = before
        sys.path[:] = import_path
        os.environ.clear()
        os.environ.update(environment)
        stderr_console.cache_clear()
