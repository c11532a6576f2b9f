"""Python processes that import what this one can, with limits: for code that could block or exhaust this one."""

import os
import sys
from contextlib import suppress
from pathlib import Path

ENVIRONMENT = (
    "HOME",
    "LD_LIBRARY_PATH",
    "DYLD_LIBRARY_PATH",
    "PYTHONHOME",
    "PYTHONUSERBASE",
    "PYTHONNOUSERSITE",
    "SYSTEMROOT",
)
"""The environment variables of a process: paths of the interpreter and of installed libraries, and no secrets."""


def child_command(code: str) -> list[str]:
    """The command that runs ``code`` with the module path of this process. Raises OSError if there is no interpreter.

    Baton may be found by PYTHONPATH, by ``pip install --target`` or ``--user``, or by a path that a program has set.
    """
    if not sys.executable:
        raise FileNotFoundError("this Python has no executable")
    path = [folder or str(Path.cwd()) for folder in sys.path]
    return [sys.executable, "-P", "-c", f"import sys; sys.path[:] = {path!r}\n{code}"]


def child_environment() -> dict[str, str]:
    """The environment of a process."""
    return {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}


def limit(name: str, most: int) -> None:
    """Lowers a resource limit if the system supports it: Windows has none, and macOS can't limit the address space.

    An existing lower limit, as of ``ulimit -v``, is not raised.
    """
    with suppress(ImportError, AttributeError, ValueError, OSError):
        import resource  # noqa: PLC0415  # not on Windows

        number = getattr(resource, name)
        current = [value for value in resource.getrlimit(number) if value != resource.RLIM_INFINITY]
        lowest = min([most, *current])
        resource.setrlimit(number, (lowest, lowest))
