"""Checks the server, workers, journal and models that an installation uses."""

import asyncio
import os
import platform
from collections.abc import Callable, Coroutine
from importlib.metadata import version
from typing import Any

from temporalio.client import Client

from ...activities.model.providers import Providers, types_in
from ...activities.process.settings import Settings
from ...conversation.settings_error import SettingsError
from ...conversation.temporal.temporal_client import ConnectionFailed, connect
from ...resources.loader import Loaded
from ..errors import START_HINT, UnreachableError
from ..server.connection import ServerLocation, use_server
from . import checks
from .checks import CheckResult, collect

Check = Coroutine[Any, Any, list[CheckResult]]


def run_checks(loaded: Loaded, report: Callable[[str], None]) -> list[CheckResult]:
    """The results of all checks, those of the Models in ``loaded`` included; ``report`` is given warnings."""
    providers = Providers(types_in(loaded.catalog))  # before the event loop: loading takes the time of other checks
    try:
        settings = Settings.of(os.environ)
        with use_server(report, start=False) as server:
            return [_versions(), *asyncio.run(_check(server, settings, loaded, providers))]
    except SettingsError as error:
        return [
            _versions(),
            CheckResult("settings", False, str(error), "correct it, then restart the processes"),
        ]
    except UnreachableError as error:
        unreachable = CheckResult("server", False, error.text, error.hint)
        return [_versions(), unreachable, *asyncio.run(_check(None, settings, loaded, providers))]


def _versions() -> CheckResult:
    packages = ", ".join(f"{name} {version(name)}" for name in ("baton", "temporalio"))
    return CheckResult("versions", True, f"{packages}, Python {platform.python_version()}")


async def _check(
    server: ServerLocation | None, settings: Settings, loaded: Loaded, providers: Providers
) -> list[CheckResult]:
    """Runs the checks at the same time; without ``server`` all but those of the server."""
    checking: list[Check] = [_temporal(server.address, settings)] if server else []
    checking.append(collect("journal", checks.journal(settings), "start its database, or correct BATON_JOURNAL_URL"))
    checking.append(checks.models(loaded, os.environ, providers))
    return [each for results in await asyncio.gather(*checking) for each in results]


async def _temporal(address: str | None, settings: Settings) -> list[CheckResult]:
    try:
        client: Client = await asyncio.wait_for(connect(address), checks.CHECK_TIMEOUT)
    except (ConnectionFailed, TimeoutError) as error:
        return [CheckResult("server", False, str(error) or "Temporal did not answer in time", START_HINT)]
    found = await asyncio.gather(
        collect("server", checks.server(client), START_HINT),
        collect("workers", checks.workers(client, settings), START_HINT),
        collect("runs", checks.runs(client, settings), "look at the runs in Temporal's UI"),
    )
    return [each for results in found for each in results]


def as_text(results: list[CheckResult]) -> str:
    """Results as text: a line for each, and a hint below one that is not ok."""
    lines = []
    for each in results:
        lines.append(f"{'ok   ' if each.ok else 'WRONG'}  {each.what:<10}  {each.text}")
        if each.hint:
            lines.append(f"{'':19}→ {each.hint}")
    return "\n".join(lines)
