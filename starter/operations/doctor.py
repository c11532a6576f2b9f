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
from .open_circuits import open_circuits

Check = Coroutine[Any, Any, list[CheckResult]]


def run_checks(loaded: Loaded, report: Callable[[str], None]) -> list[CheckResult]:
    """The results of all checks, those of the Models in ``loaded`` included; ``report`` is given warnings."""
    providers = Providers(types_in(loaded.catalog))  # before the event loop: loading takes the time of other checks
    try:
        settings = Settings.of(os.environ)
        with use_server(report, start=False) as server:
            return [_versions(), *_variables(server), *asyncio.run(_check(server, settings, loaded, providers))]
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


def _variables(server: ServerLocation) -> list[CheckResult]:
    """The variables that the worker of this machine was started with, if it runs, and those that differ from ours."""
    dev = server.state_dir.read_dev_server() if server.state_dir else None
    if dev is None:
        return []
    differing = " and ".join(dev.differing(os.environ))
    text = f"the worker here has {' and '.join(dev.environment) or 'none of the variables for models and keys'}"
    hint = "it is restarted by the next 'baton run' once no run is open; end a 'baton dev' yourself"
    text += f"; {differing} differs from the environment of this command" if differing else ""
    return [CheckResult("variables", not differing, text, hint if differing else "")]


async def _check(
    server: ServerLocation | None, settings: Settings, loaded: Loaded, providers: Providers
) -> list[CheckResult]:
    """Runs the checks at the same time; without ``server`` all but those of the server."""
    checking: list[Check] = [_temporal(server.address, settings)] if server else []
    checking.append(collect("journal", checks.journal(settings), "start its database, or correct BATON_JOURNAL_URL"))
    checking.append(checks.models(loaded, os.environ, providers))
    checking.append(checks.executors(loaded, os.environ))
    checking.append(collect("circuits", open_circuits(settings), "look whether the worker here runs"))
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
