"""Records the histories and stored names that the tests compare with the code: ``make record-histories`` and its like.

Recording only adds. Replacing what is recorded is a separate command, which says what it breaks and asks first.
"""

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TextIO

import baton
from baton.starter.server.embedded import TUNING, EmbeddedServer
from baton.starter.server.state_dir import StateDir
from tests.harness.environment import Environment
from tests.harness.functions import ballot, in_order
from tests.harness.ports import own_ports
from tests.harness.processes import ROOT
from tests.replay.compatibility import incompatible
from tests.replay.recorded import HISTORIES, RecordedHistories, Run
from tests.replay.scenarios import (
    IN_ARKS_DIALECT,
    SCENARIOS,
    SETTINGS,
    SHORT_HISTORIES,
    WITH_SHORT_HISTORIES,
    Scenario,
    run_scenario,
)
from tests.replay.stored import STORED, stored

BREAKS_REPLAY = """\
Replacing the history of '{name}' deletes the evidence that teams of this shape, started by an earlier version, replay.
If today's code cannot replay the old history, teams of this shape that are running stop while a worker is rolled out:
their next workflow task fails until a worker of the earlier version is back. Keep the old order of commands behind
workflow.patched(), and add a history instead: make add-history NAME={name}
Files to be replaced, which stay in git:
{files}"""

BREAKS_STORED = """\
Names and shapes of stored values would vanish or change. Running teams, clients and stored results that use them break:
{problems}"""


def without_folders(text: str) -> str:
    """The text with the paths in its stack traces relative to the folders of the package and of its libraries."""
    for folder, shown in ((sys.prefix, ".venv"), (Path(baton.__file__).parent, ""), (ROOT, "")):
        text = text.replace(f"{folder}/", f"{shown}/" if shown else "")
    return text


async def record(name: str, scenario: Scenario) -> list[Run]:
    """Runs a scenario on a server of its own; its runs, child runs included."""
    tuning = (*TUNING, SHORT_HISTORIES) if scenario in WITH_SHORT_HISTORIES else TUNING
    with tempfile.TemporaryDirectory() as folder, StateDir(Path(folder)).lock("dev") as lock:
        assert lock
        server = EmbeddedServer(Path(folder), lock, *own_ports(), tuning=tuning)
        try:
            client, dialect = await server.start(), "ark" if scenario in IN_ARKS_DIALECT else "baton"
            async with Environment.running(
                client,
                Path(folder),
                functions=(ballot, in_order),
                dialect=dialect,
                variables=SETTINGS.get(scenario, {}),
            ) as env:
                root = await run_scenario(env, scenario)
                while root.id not in [handle.id async for handle in env.closed_runs()]:
                    await asyncio.sleep(0.05)  # the server lists a run a moment after its end
                histories = [await handle.fetch_history() async for handle in env.closed_runs()]
        finally:
            await server.stop()
    started = (history.events[0].workflow_execution_started_event_attributes for history in histories)
    texts = [without_folders(history.to_json()) for history in histories]
    return [(each.workflow_type.name, text) for each, text in zip(started, texts, strict=True)]


async def add_missing(recorded: RecordedHistories, scenarios: Mapping[str, Scenario] = SCENARIOS) -> list[str]:
    """Records every scenario that has no history yet; their names."""
    missing = [name for name in scenarios if name not in recorded.scenarios()]
    for name in missing:
        recorded.add(name, await record(name, scenarios[name]))
    return missing


def update_stored(file: Path, *, may_lose: Callable[[list[str]], bool] = lambda _: False) -> list[str]:
    """Writes today's names and shapes, unless one that is recorded would vanish or change; those that would."""
    new = json.loads(json.dumps(stored()))
    problems = incompatible(json.loads(file.read_text()), new) if file.exists() else []
    if not problems or may_lose(problems):
        file.write_text(json.dumps(new, indent=1, sort_keys=True) + "\n")
        return []
    return problems


def confirmed(warning: str, word: str, terminal: TextIO) -> bool:
    """Shows a warning; whether the user types the word."""
    print(warning, file=sys.stderr)
    print(f"Type {word} to continue: ", end="", file=sys.stderr, flush=True)
    return terminal.readline().strip() == word


async def replace(recorded: RecordedHistories, name: str, terminal: TextIO) -> str | None:
    """Replaces all histories of a scenario, if the user confirms it; why not, otherwise."""
    if lost := recorded.uncommitted(name):
        return f"{lost[0].name} is not committed: replaced, it could not be found in git"
    files = "\n".join(f"  {file.name}" for file in recorded.files(name))
    if not confirmed(BREAKS_REPLAY.format(name=name, files=files), name, terminal):
        return "nothing was replaced"
    recorded.replace(name, await record(name, SCENARIOS[name]))
    return None


def replace_stored(file: Path, terminal: TextIO) -> str | None:
    """Replaces the stored names and shapes, if the user confirms it; why not, otherwise."""

    def may_lose(problems: list[str]) -> bool:
        return confirmed(BREAKS_STORED.format(problems=_lines(problems)), "replace", terminal)

    return "nothing was replaced" if update_stored(file, may_lose=may_lose) else None


async def record_new(recorded: RecordedHistories, file: Path) -> str | None:
    """Records what is new: names and shapes, and scenarios without a history; why not, otherwise."""
    if problems := update_stored(file):
        return (
            f"stored names and shapes would vanish or change:\n{_lines(problems)}\n"
            "Keep them, or replace them on purpose: make replace-stored-names"
        )
    print("recorded: " + (", ".join(await add_missing(recorded)) or "nothing, every scenario has a history"))
    return None


def _lines(texts: Iterable[str]) -> str:
    return "\n".join(f"  {each}" for each in texts)


async def run(arguments: Sequence[str], terminal: TextIO) -> str | None:
    """Carries out one command; why it was refused, if it was."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--add", metavar="NAME", choices=SCENARIOS, help="adds one more history of a scenario")
    which.add_argument("--replace", metavar="NAME", choices=SCENARIOS, help="replaces the histories of a scenario")
    which.add_argument("--replace-stored-names", action="store_true", help="replaces stored names and shapes")
    parser.add_argument("--folder", type=Path, default=HISTORIES, help="where the histories are")
    parser.add_argument("--stored", type=Path, default=STORED, help="the file of the stored names and shapes")
    given = parser.parse_args(arguments)
    recorded = RecordedHistories(given.folder)
    if given.replace:
        return await replace(recorded, given.replace, terminal)
    if given.replace_stored_names:
        return replace_stored(given.stored, terminal)
    if given.add:
        recorded.add(given.add, await record(given.add, SCENARIOS[given.add]))
        return None
    return await record_new(recorded, given.stored)


if __name__ == "__main__":
    sys.exit(asyncio.run(run(sys.argv[1:], sys.stdin)))
