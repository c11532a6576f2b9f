"""The folder for Baton's state on this machine, ``.baton``: databases, logs, and locks of running processes."""

import hashlib
import json
import math
import os
import shutil
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import IO, Any

from ...contracts.settings import CONVERTER, SCRIPTED_MODEL_URL, STATE_DIR, private_file, private_folder
from ...temporal.client import EXTERNAL_STORAGE_URL
from ...temporal.encryption import KEYS, KEYS_FILE
from ..errors import WINDOWS_HINT, UnreachableError

ENVIRONMENT = (
    *("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_MODEL", SCRIPTED_MODEL_URL),
    *(KEYS, KEYS_FILE, CONVERTER, EXTERNAL_STORAGE_URL),
)
"""The environment variables that a local worker uses."""

MAX_LOG_BYTES = 10_000_000
"""The size from which a log is rotated; one older file is retained."""

LOGS = ("dev.log", "server.log")
"""The logs of the background worker, and of the embedded server."""

DATABASE = "temporal.db"
"""The database file of the embedded server."""


@dataclass(frozen=True)
class DevServer:
    """A server and worker that run on this machine, as described in the file ``dev.json``.

    ``environment`` are hashes of the environment variables that they were started with, by name. They are ``lingering``
    if a client has started them: then they end when they are unused. ``gateway`` is the address at which they serve
    teams to other programs.
    """

    pid: int
    address: str
    ui: str
    environment: dict[str, str]
    lingering: bool
    gateway: str | None = None

    def differing(self, environment: Mapping[str, str]) -> list[str]:
        """The names of the variables with other values in an environment; empty if it has none of them at all."""
        current = fingerprints(environment)
        if not current:
            return []
        return [name for name in ENVIRONMENT if current.get(name) != self.environment.get(name)]


class StateDir:
    """The folder and its locks. The operating system releases the locks of a process when it ends."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self._is_private = False

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> "StateDir":
        """The folder named by BATON_HOME, or ``.baton`` in the working directory."""
        return cls(Path(environment.get("BATON_HOME") or STATE_DIR))

    def file(self, name: str) -> Path:
        """The path of a file in the folder, which is created if needed."""
        if not self._is_private:
            private_folder(self.folder)
            self._is_private = True
        return self.folder / name

    def open(self, name: str, mode: str) -> IO[Any]:
        """Opens a file in the folder, which is readable and writable by its owner only."""
        return open(self.file(name), mode, opener=private_file)

    @property
    def was_used(self) -> bool:
        """Whether a server has run here, so that the folder has its runs."""
        return (self.folder / DATABASE).exists()

    @contextmanager
    def lock(self, name: str, *, shared: bool = False, timeout: float = math.inf) -> Iterator[IO[str] | None]:
        """A context manager that holds a lock; yields None if others hold it for longer than ``timeout`` seconds.

        Raises UnreachableError on platforms without a local server.
        """
        try:
            import fcntl  # noqa: PLC0415  # not on Windows
        except ImportError:
            raise UnreachableError("on Windows Baton has no Temporal server of its own", WINDOWS_HINT) from None
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
        """When a lock was last acquired in shared mode, in seconds since the epoch; 0 if never."""
        with suppress(FileNotFoundError):
            return self.file(f"{name}.lock").stat().st_mtime
        return 0

    def is_held(self, name: str) -> bool:
        """Whether a lock is held for longer than a tenth of a second."""
        with self.lock(name, timeout=0.1) as lock:
            return lock is None

    def rotate_log(self, name: str, max_bytes: int = MAX_LOG_BYTES) -> None:
        """Moves the content of a log larger than ``max_bytes`` to ``NAME.1``. Its writers open it for appending."""
        log = self.file(name)
        if log.exists() and log.stat().st_size > max_bytes:
            with log.open("rb") as old, self.open(f"{name}.1", "wb") as rotated:
                shutil.copyfileobj(old, rotated)
            os.truncate(log, 0)  # the processes that write it keep it open, so it can't be renamed

    def write_dev_server(self, dev: DevServer) -> None:
        """Publishes the server to clients."""
        with self.open("dev.json.new", "w") as draft:
            draft.write(json.dumps(asdict(dev)))
        self.file("dev.json.new").replace(self.file("dev.json"))

    def read_dev_server(self) -> DevServer | None:
        """The server and worker that are running here, if any."""
        try:
            dev = DevServer(**json.loads(self.file("dev.json").read_text()))
        except (OSError, ValueError, TypeError):
            return None
        if not isinstance(dev.environment, dict):  # of an older release, which hashed them all together
            dev = replace(dev, environment={})
        # The server holds it exclusively, and those who ask hold it together: there is nothing to wait for.
        with self.lock("up", shared=True, timeout=0) as lock:
            return dev if lock is None else None

    def last_ports(self) -> list[tuple[int, int]]:
        """The ports of the last server that was running here; empty if unknown."""
        with suppress(OSError, ValueError, KeyError):
            last = json.loads(self.file("dev.json").read_text())
            return [(int(last["address"].rpartition(":")[2]), int(last["ui"].rpartition(":")[2]))]
        return []

    def write_sources(self, catalog: str, files: list[Path]) -> None:
        """Records for the worker that its owner runs a catalog, and which files have the Secrets of the run.

        Without a record, the worker trusts the catalog as little as that of any client.
        """
        folder = self.file("sources")
        folder.mkdir(exist_ok=True, mode=0o700)
        record = folder / f"{catalog}.json"
        if files or not record.exists():
            with self.open(f"sources/{catalog}.json", "w") as file:
                file.write(json.dumps([str(path.absolute()) for path in files]))
        os.utime(record)

    def remove_sources(self, before: datetime, needed: Collection[str]) -> None:
        """Removes the records that were last used before then, except those of ``needed`` catalogs."""
        for record in self.file("sources").glob("*.json"):
            with suppress(FileNotFoundError):  # another process has removed it
                if record.stem not in needed and record.stat().st_mtime < before.timestamp():
                    record.unlink()


def fingerprints(environment: Mapping[str, str]) -> dict[str, str]:
    """Hashes of the model and key settings that are set in the environment, by variable name.

    They have only 32 bits: enough to detect a change, too few to verify a guess of the value.
    """
    values = {name: environment.get(name) for name in ENVIRONMENT}
    return {name: hashlib.sha256(value.encode()).hexdigest()[:8] for name, value in values.items() if value}
