"""Settings of the process that clients and workers share: the state folder, private files, and ``SettingsError``."""

import os
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path


class SettingsError(Exception):
    """A setting is missing or wrong. The message names the setting, and never contains a key."""


TASK_QUEUE = "baton"
"""The task queue of runs, unless BATON_TASK_QUEUE names another."""

STATE_DIR = Path(".baton")
"""The folder for files on this machine, unless BATON_HOME names another."""


OWN = ("*.db", "*.db-*", "*.lock", "*.log", "*.log.1", "dev.json", "dev.json.new", "sources", "spans")
"""The names of Baton's files in its folder."""


def private_folder(folder: Path) -> Path:
    """The folder, which exists afterwards; what is Baton's in it can be read and written by its owner alone.

    A folder that was there before, and in which other files are too, keeps its own mode.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    foreign = False
    for entry in folder.iterdir():
        if any(fnmatch(entry.name, name) for name in OWN):
            for each in _with_content(entry):
                _restrict(each)
        else:
            foreign = True
    if not foreign:
        _restrict(folder)
    return folder


def private_file(path: str | Path, flags: int) -> int:
    """An opener for ``open``: a file that it creates can be read and written by its owner alone."""
    return os.open(path, flags, 0o600)


def _with_content(entry: Path) -> Iterator[Path]:
    yield entry
    if entry.is_dir() and not entry.is_symlink():
        yield from entry.iterdir()


def _restrict(path: Path) -> None:
    """Takes the rights of all but the owner away; of a file that is another user's, or gone, nothing."""
    try:
        found = path.lstat()
        if hasattr(os, "getuid") and found.st_uid == os.getuid() and found.st_mode & 0o077 and not path.is_symlink():
            path.chmod(found.st_mode & 0o700)
    except OSError:
        return
