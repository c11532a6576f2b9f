"""Commits what several callers write to SQLite at once in one transaction, which waits for the disk once."""

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from sqlalchemy import Connection

T = TypeVar("T")
Work = Callable[[Connection], T]
"""A function that uses a connection."""

MAX_GROUP = 200
"""How many writes are committed together at most."""


class GroupCommit:
    """Writes on a thread, each as one that succeeds or fails by itself; a caller goes on when its write is on the disk.

    ``begin`` makes a transaction that no other process can write beside, and commits or rolls back at its end.
    """

    def __init__(self, thread: Executor, begin: Callable[[], AbstractContextManager[Connection]]) -> None:
        self._thread, self._begin = thread, begin
        self._waiting = deque[tuple[Work[Any], Future[Any]]]()

    async def run(self, work: Work[T]) -> T:
        """Calls a function with a connection; all that waits when the thread is free is committed together."""
        future = Future[T]()
        self._waiting.append((work, future))
        self._thread.submit(self._commit)
        return await asyncio.wrap_future(future)

    def _commit(self) -> None:
        """On the thread: a group that an earlier call has taken leaves nothing to do."""
        group = [self._waiting.popleft() for _ in range(min(len(self._waiting), MAX_GROUP))]
        group = [(work, future) for work, future in group if future.set_running_or_notify_cancel()]
        if not group:
            return
        try:
            with self._begin() as connection:
                ended = [(future, *_attempt(connection, work, alone=len(group) == 1)) for work, future in group]
        except BaseException as failure:  # none is written: the error is that of them all
            for _, future in group:
                future.set_exception(failure)
            return
        for future, result, error in ended:
            future.set_exception(error) if error else future.set_result(result)


def _attempt(connection: Connection, work: Work[T], *, alone: bool) -> tuple[T | None, Exception | None]:
    """The result of a write, or its error, which takes back that write and no other of the transaction."""
    if alone:
        return work(connection), None
    result, failed = None, None
    connection.exec_driver_sql("SAVEPOINT one")
    try:
        result = work(connection)
    except Exception as error:
        if _is_rolled_back(connection):
            raise  # and with it the other writes: all fail with this error
        connection.exec_driver_sql("ROLLBACK TO one")
        failed = error
    connection.exec_driver_sql("RELEASE one")
    return result, failed


def _is_rolled_back(connection: Connection) -> bool:
    """Whether SQLite has ended the whole transaction by itself, as it does on a full disk and after an I/O error."""
    raw: Any = connection.connection.dbapi_connection
    return not raw.in_transaction
