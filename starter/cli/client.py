"""Connects a command to the Temporal server with its runs, and finds the run that it names."""

import asyncio
import os
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from temporalio.client import Client
from temporalio.runtime import Runtime, TelemetryConfig

from ..errors import UnreachableError
from ..server.connection import ServerLocation, use_server
from ..server.state_dir import StateDir
from .terminal import print_message

if TYPE_CHECKING:
    from ..runs.runs import RunHandle

T = TypeVar("T")


@cache
def silence_sdk() -> None:
    """Stops Temporal's SDK Core from logging to stdout, which is for results; its errors are reported anyway."""
    with suppress(RuntimeError):  # the embedding process has set its own runtime
        Runtime.set_default(Runtime(telemetry=TelemetryConfig(logging=None)))


def with_client(work: Callable[[Client], Coroutine[Any, Any, T]], *, typed: bool = True) -> T:
    """The result of work with a connected client; one that is not ``typed`` reads attributes and memos alone.

    This machine's local server and worker are started if they have ended, so that earlier runs are found and open ones
    continue. Raises UnreachableError if nothing has run here, or the configured server is unreachable.
    """

    async def connected(server: ServerLocation) -> T:
        return await work(await server.connect(typed=typed))

    silence_sdk()
    with use_server(print_message, start=StateDir.of(os.environ).was_used, own_settings=False) as server:
        return asyncio.run(connected(server))


def with_running_server(work: Callable[[Client | None], Coroutine[Any, Any, T]]) -> T:
    """The result of work with a client; without one if this machine's local server does not run, which is not started.

    One that is just starting is waited for. Raises ConnectionFailed if the configured server is unreachable.
    """

    async def connected(server: ServerLocation) -> T:
        return await work(await server.connect())

    async def alone() -> T:
        return await work(None)

    silence_sdk()
    try:
        starting = StateDir.of(os.environ).is_held("dev")
        with use_server(print_message, start=starting, own_settings=False) as server:
            return asyncio.run(connected(server))
    except UnreachableError:
        return asyncio.run(alone())


def with_run(name: str, namespace: str, work: Callable[[Client, "RunHandle"], Coroutine[Any, Any, T]]) -> T:
    """The result of work with a run, by its id or the name of its Query; raises NoSuchRunError."""

    from ..runs.runs import find_run

    async def with_found_run(client: Client) -> T:
        return await work(client, await find_run(client, name, namespace))

    return with_client(with_found_run)
