"""What the processes of clients and workers share: ``SettingsError``, the state folder, private files, and signals."""

import asyncio
import importlib.metadata
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatch
from pathlib import Path


class SettingsError(Exception):
    """A setting is missing or wrong. The message names the setting, and never contains a key."""


def check_private_names(library: str, owner: object, names: Iterable[str]) -> None:
    """Raises SettingsError unless ``owner``, a class, an object or a module of ``library``, has all these names.

    Code that uses or overrides private names of a library has them checked when a worker starts. Without the check, a
    name that a newer version has renamed would fail in the middle of a run, or silently have no effect.
    """
    missing = [name for name in names if not hasattr(owner, name)]
    if missing:
        version = importlib.metadata.version(library)
        raise SettingsError(
            f"Baton can't be used with {library} {version}, which has no {' and no '.join(missing)}: "
            f"install the version of {library} that Baton's requirements.lock names"
        )


TASK_QUEUE = "baton"
"""The task queue of runs, unless BATON_TASK_QUEUE names another."""

STATE_DIR = Path(".baton")
"""The folder for files on this machine, unless BATON_HOME names another."""

REDACT = "BATON_REDACT"
"""The setting that names the hook for personal data: ``package.module:function``, ``presidio``, the path of a YAML file
of patterns by name, or these as a JSON object."""

CONVERTER = "BATON_DATA_CONVERTER"
"""The setting that names an application's data converter, as ``package.module:attribute``."""

PRIVATE_HOSTS = "BATON_ALLOW_PRIVATE_HOSTS"
"""The setting of workers and gateways that lets runs send requests to servers in their own network."""

SCRIPTED_MODEL_URL = "BATON_SCRIPTED_MODEL_URL"
"""The setting with the address of a scripted model, which answers in place of all models."""

AGENT_HEADER = "baton-agent"
"""The header of a request to a scripted model with the name of the agent that asks."""


OWN = ("*.db", "*.db-*", "*.lock", "*.log", "*.log.1", "dev.json", "dev.json.new", "sources", "spans")
"""Name patterns of Baton's files in its folder."""


def importable_from_here() -> None:
    """Makes modules in the working directory importable for settings that name some, as ``python -m`` does."""
    if not sys.flags.safe_path and "" not in sys.path:
        sys.path.append("")


def private_folder(folder: Path) -> Path:
    """Creates the folder if needed; Baton's files in it become readable and writable by their owner only.

    An existing folder that also has other files keeps its mode.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    foreign = False
    for entry in folder.iterdir():
        if any(fnmatch(entry.name, name) for name in OWN):
            for owned in _with_content(entry):
                _restrict(owned)
        else:
            foreign = True
    if not foreign:
        _restrict(folder)
    return folder


def private_file(path: str | Path, flags: int) -> int:
    """An opener for ``open``: a file that it creates is readable and writable by its owner only."""
    return os.open(path, flags, 0o600)


def _with_content(entry: Path) -> Iterator[Path]:
    yield entry
    if entry.is_dir() and not entry.is_symlink():
        yield from entry.iterdir()


def _restrict(path: Path) -> None:
    """Removes the permissions of everyone but the owner; skips files that belong to another user or are gone."""
    try:
        status = path.lstat()
        if hasattr(os, "getuid") and status.st_uid == os.getuid() and status.st_mode & 0o077 and not path.is_symlink():
            path.chmod(status.st_mode & 0o700)
    except OSError:
        return


def on_signal(number: signal.Signals, handler: Callable[[], object]) -> Callable[[], object]:
    """Installs ``handler`` for an OS signal in the running event loop; returns a function that removes it.

    Only for the main thread.
    """
    loop = asyncio.get_running_loop()
    try:
        loop.add_signal_handler(number, handler)
    except NotImplementedError:  # on Windows
        earlier = signal.signal(number, lambda *_: loop.call_soon_threadsafe(handler))
        return lambda: signal.signal(number, earlier)
    return lambda: loop.remove_signal_handler(number)
