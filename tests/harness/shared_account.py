"""An account to which calls are charged, and a worker that freezes while it charges one."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psutil  # type: ignore[import-untyped]
from sqlalchemy import Connection, select

from baton.journal import accounts, schema
from baton.journal.accounts import Account, Amount
from baton.journal.database import Database
from tests.harness.processes import FORKS


def charge(connection: Connection, call: str) -> None:
    """Charges a call to the account."""
    account = Account("run/shared", (("model_calls", 99),))
    assert accounts.reserve(connection, call, [account], Amount(model_calls=1)) is None


async def charged(database: Database) -> list[str]:
    """The calls that are charged to the account."""
    return sorted(row.call for row in await database.run(select(schema.charges.c.call)))


class FrozenWorker:
    """A process that is stopped in each transaction, right before it commits."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)

    @classmethod
    @asynccontextmanager
    async def charging(cls, url: str, call: str) -> AsyncIterator["FrozenWorker"]:
        """A worker that has charged the call, and is stopped."""
        process = FORKS.Process(target=_charge_and_stop, args=[url, call], daemon=True)
        process.start()
        assert process.pid
        worker = cls(process.pid)
        try:
            await worker._stopped()
            yield worker
        finally:
            process.kill()

    async def _stopped(self) -> None:
        while self._process.status() != psutil.STATUS_STOPPED:
            await asyncio.sleep(0.02)

    async def go_on(self) -> None:
        """Lets it go on until its work is done, whenever it stops."""
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended in between
            while self._process.is_running() and self._process.status() != psutil.STATUS_ZOMBIE:
                self._process.resume()
                await asyncio.sleep(0.02)


def _charge_and_stop(url: str, call: str) -> None:
    def execute(connection: Connection) -> None:
        charge(connection, call)
        os.kill(os.getpid(), signal.SIGSTOP)

    async def run() -> None:
        database = await Database.connect(url, "default", upgrade=True)
        await database.transact(execute)
        await database.close()

    asyncio.run(run())
