"""Is all well? Looks at what Baton stands on, and says what to do where something is not as it should be."""

import asyncio
import os
import platform
from collections.abc import Coroutine
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

from temporalio.client import Client

from ...activities.process.settings import Settings
from ...conversation.settings_error import SettingsError
from ...conversation.temporal.temporal_client import ConnectionFailed, connect
from ...resources.loader import Loaded
from ..cli.exit_codes import START
from ..cli.run import dumped
from ..cli.terminal import say
from ..server.connection import Place, UnreachableError, temporal
from . import checks
from .checks import Finding, gathered

Work = Coroutine[Any, Any, list[Finding]]


def examine(loaded: Loaded) -> list[Finding]:
    """All that was found, of the Models in ``loaded``, too."""
    try:
        settings = Settings.of(os.environ)
        with temporal(say, start=False) as place:
            return [_versions(), *asyncio.run(_look(place, settings, loaded))]
    except SettingsError as error:
        return [_versions(), Finding("settings", False, str(error), "mend it, and start what was started with it anew")]
    except UnreachableError as error:
        unreachable = Finding("server", False, str(error), START)
        return [_versions(), unreachable, *asyncio.run(_look(None, settings, loaded))]


def _versions() -> Finding:
    packages = ", ".join(f"{name} {version(name)}" for name in ("baton", "temporalio"))
    return Finding("versions", True, f"{packages}, Python {platform.python_version()}")


async def _look(place: Place | None, settings: Settings, loaded: Loaded) -> list[Finding]:
    """What is looked at at the same time; where there is no server, all but that."""
    works: list[Work] = [_temporal(place.address, settings)] if place else []
    works.append(gathered("journal", checks.journal(settings), "start its database, or mend BATON_JOURNAL_URL"))
    works.append(checks.models(loaded, os.environ))
    return [each for findings in await asyncio.gather(*works) for each in findings]


async def _temporal(address: str | None, settings: Settings) -> list[Finding]:
    try:
        client: Client = await asyncio.wait_for(connect(address), checks.PATIENCE)
    except (ConnectionFailed, TimeoutError) as error:
        return [Finding("server", False, str(error) or "Temporal gave no answer in time", START)]
    found = await asyncio.gather(
        gathered("server", checks.server(client), START),
        gathered("workers", checks.workers(client, settings), START),
        gathered("runs", checks.runs(client, settings), "look at them in Temporal's UI"),
    )
    return [each for findings in found for each in findings]


def told(findings: list[Finding], form: str) -> str:
    """Findings as JSON, YAML, or text: a line for each, and below one that is not well what to do."""
    if form != "text":
        return dumped([asdict(each) for each in findings], form)
    lines = []
    for each in findings:
        lines.append(f"{'ok   ' if each.well else 'WRONG'}  {each.what:<10}  {each.text}")
        if each.todo:
            lines.append(f"{'':19}→ {each.todo}")
    return "\n".join(lines)
