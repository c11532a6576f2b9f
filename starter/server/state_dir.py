"""The folder of Baton's state on this machine, ``.baton``: databases, logs, and the locks of running processes."""

import fcntl
import hashlib
import json
import math
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any

from ...contracts.settings import STATE_DIR, private_file, private_folder
from ...temporal.client import EXTERNAL_STORAGE_URL
from ...temporal.encryption import KEYS, KEYS_FILE

ENVIRONMENT = ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_MODEL", KEYS, KEYS_FILE, EXTERNAL_STORAGE_URL)
"""The variables that a worker on this machine takes from the environment in which it was started."""

MAX_LOG_BYTES = 10_000_000
"""The size from which on a log is moved away; one older part of it is kept."""

LOGS = ("dev.log", "server.log")
"""The logs of the background worker, and of the embedded server."""

DATABASE = "temporal.db"
"""The file with the runs of the embedded server."""


@dataclass(frozen=True)
class DevServer:
    """A server and worker that run on this machine, as the file ``dev.json`` describes them.

    ``environment`` are hashes of the variables that they were started with, by their names. They are ``lingering`` if a
    client has started them: then they end when nobody needs them.
    """

    pid: int
    address: str
    ui: str
    environment: dict[str, str]
    lingering: bool

    def differing(self, environment: Mapping[str, str]) -> list[str]:
        """The names of the variables that have other values in an environment; none if it has none of them at all."""
        current = fingerprints(environment)
        if not current:
            return []
        return [name for name in ENVIRONMENT if current.get(name) != self.environment.get(name)]


class StateDir:
    """The folder and its locks. The operating system releases a lock when the process that holds it ends."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self._is_private = False

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> "StateDir":
        """The folder that BATON_HOME names, or ``.baton`` in the working directory."""
        return cls(Path(environment.get("BATON_HOME") or STATE_DIR))

    def file(self, name: str) -> Path:
        """A file in the folder, which exists afterwards."""
        if not self._is_private:
            private_folder(self.folder)
            self._is_private = True
        return self.folder / name

    def open(self, name: str, mode: str) -> IO[Any]:
        """Opens a file in the folder, which its owner alone can read and write."""
        return open(self.file(name), mode, opener=private_file)

    @property
    def was_used(self) -> bool:
        """Whether a server has run here, so that the folder has its runs."""
        return (self.folder / DATABASE).exists()

    @contextmanager
    def lock(self, name: str, *, shared: bool = False, timeout: float = math.inf) -> Iterator[IO[str] | None]:
        """Holds a lock while the block runs; gives None if others hold it for longer than ``timeout`` seconds."""
        kind = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB
        deadline = time.monotonic() + timeout
        with self.open(f"{name}.lock", "a") as file:
            while True:
                try:
                    fcntl.flock(file, kind)
                    break
                except BlockingIOError:
                    if time.monotonic() >= deadline:
                        yield None
                        return
                    time.sleep(0.02)
            if shared:
                os.utime(file.fileno())
            yield file

    def last_shared(self, name: str) -> float:
        """When a lock was last taken in shared mode, in seconds since the epoch; 0 if never."""
        with suppress(FileNotFoundError):
            return self.file(f"{name}.lock").stat().st_mtime
        return 0

    def is_held(self, name: str) -> bool:
        """Whether a lock is held for longer than a tenth of a second."""
        with self.lock(name, timeout=0.1) as lock:
            return lock is None

    def rotate_log(self, name: str, max_bytes: int = MAX_LOG_BYTES) -> None:
        """Moves what a log of more than ``max_bytes`` holds to ``NAME.1``. Whoever writes it has it open to append."""
        log = self.file(name)
        if log.exists() and log.stat().st_size > max_bytes:
            with log.open("rb") as old, self.open(f"{name}.1", "wb") as kept:
                shutil.copyfileobj(old, kept)
            os.truncate(log, 0)  # the processes that write it keep it open, so it can't be renamed

    def write_dev_server(self, dev: DevServer) -> None:
        """Writes where clients connect."""
        with self.open("dev.json.new", "w") as draft:
            draft.write(json.dumps(asdict(dev)))
        self.file("dev.json.new").replace(self.file("dev.json"))

    def read_dev_server(self) -> DevServer | None:
        """The server and worker that run here; None if none do."""
        try:
            dev = DevServer(**json.loads(self.file("dev.json").read_text()))
        except (OSError, ValueError, TypeError):
            return None
        if not isinstance(dev.environment, dict):  # of an older version, which has hashed them all together
            dev = replace(dev, environment={})
        return dev if self.is_held("up") else None

    def last_ports(self) -> list[tuple[int, int]]:
        """The ports of the server that ran here last; empty if unknown."""
        with suppress(OSError, ValueError, KeyError):
            last = json.loads(self.file("dev.json").read_text())
            return [(int(last["address"].rpartition(":")[2]), int(last["ui"].rpartition(":")[2]))]
        return []

    def write_sources(self, catalog: str, files: list[Path]) -> None:
        """Notes for the worker that its owner runs a catalog, and in which files it finds the Secrets of the run."""
        folder = self.file("sources")
        folder.mkdir(exist_ok=True, mode=0o700)
        if files or not (folder / f"{catalog}.json").exists():
            with self.open(f"sources/{catalog}.json", "w") as note:
                note.write(json.dumps([str(file.absolute()) for file in files]))


def fingerprints(environment: Mapping[str, str]) -> dict[str, str]:
    """Hashes of the environment's model and key settings, by the names of the variables that are set.

    Only 32 bits of each: enough to see that a value has changed, too little to find it by trying.
    """
    values = {name: environment.get(name) for name in ENVIRONMENT}
    return {name: hashlib.sha256(value.encode()).hexdigest()[:8] for name, value in values.items() if value}
