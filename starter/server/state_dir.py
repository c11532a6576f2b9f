"""What is kept on this machine? The folder ``.baton``: databases, logs, and the locks that tell who is alive."""

import fcntl
import hashlib
import json
import math
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from ...activities.journal.external_storage import PAYLOADS_URL
from ...conversation.temporal.encryption import KEYS, KEYS_FILE
from ...conversation.temporal.temporal_client import HOME

ENVIRONMENT = ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_MODEL", KEYS, KEYS_FILE, PAYLOADS_URL)
"""What a worker on this machine takes from the environment it was started in."""


@dataclass(frozen=True)
class Dev:
    """A server and worker that run on this machine. ``environment`` tells apart, but does not tell, what it was given;
    a ``lingering`` one was started by a client, and ends when nobody needs it."""

    pid: int
    address: str
    ui: str
    environment: str
    lingering: bool


class Home:
    """The folder, and who holds what in it. A lock is given back by the system when its process dies, however."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> "Home":
        """The folder that BATON_HOME names, or ``.baton`` in the working directory."""
        return cls(Path(environment.get("BATON_HOME") or HOME))

    def file(self, name: str) -> Path:
        """A file in the folder, which exists afterwards."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return self.folder / name

    @contextmanager
    def lock(self, name: str, *, shared: bool = False, patience: float = math.inf) -> Iterator[IO[str] | None]:
        """Holds a lock while the block runs; gives None where others hold it for longer than ``patience`` seconds."""
        kind = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB
        deadline = time.monotonic() + patience
        with self.file(f"{name}.lock").open("a") as file:
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
        """When somebody last began to share a lock, in seconds since the epoch; 0 where nobody ever has."""
        with suppress(FileNotFoundError):
            return self.file(f"{name}.lock").stat().st_mtime
        return 0

    def is_held(self, name: str) -> bool:
        """Whether anybody holds a lock for longer than a moment."""
        with self.lock(name, patience=0.1) as lock:
            return lock is None

    def write_dev(self, dev: Dev) -> None:
        """Tells clients where to connect."""
        draft = self.file("dev.json.new")
        draft.write_text(json.dumps(asdict(dev)))
        draft.replace(self.file("dev.json"))

    def read_dev(self) -> Dev | None:
        """The server and worker that run here, if they are up."""
        try:
            dev = Dev(**json.loads(self.file("dev.json").read_text()))
        except (OSError, ValueError, TypeError):
            return None
        return dev if self.is_held("up") else None

    def last_ports(self) -> list[tuple[int, int]]:
        """The ports of the server that ran here last."""
        with suppress(OSError, ValueError, KeyError):
            last = json.loads(self.file("dev.json").read_text())
            return [(int(last["address"].rpartition(":")[2]), int(last["ui"].rpartition(":")[2]))]
        return []

    def write_sources(self, catalog: str, files: list[Path]) -> None:
        """Tells the worker in which files a run's Secrets stand."""
        folder = self.file("sources")
        folder.mkdir(exist_ok=True)
        (folder / f"{catalog}.json").write_text(json.dumps([str(file.absolute()) for file in files]))


def fingerprint(environment: Mapping[str, str]) -> str:
    """Tells environments apart; empty for one that says nothing about models and keys."""
    values = [environment.get(name, "") for name in ENVIRONMENT]
    return hashlib.sha256("\0".join(values).encode()).hexdigest()[:16] if any(values) else ""
