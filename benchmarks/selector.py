"""Measures what a bad selector costs a team: completion, wrong picks and extra calls, compared with AutoGen's selector.

python -m benchmarks.selector [--teams 40] [--turns 8] [--seed 2026]

Both are asked in the same words of the same scripted server, each with its documented defaults. AutoGen takes part
where it is installed:  pip install -e '.[peers]'
"""

import argparse
import asyncio
import contextlib
import importlib.metadata
import importlib.util
import json
import logging
import platform
import tempfile
import uuid
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from baton import worker
from baton.resources.loader import Loaded
from baton.starter.scripted_model import ScriptedModel
from baton.starter.server.embedded import EmbeddedServer
from baton.starter.server.state_dir import StateDir
from baton.temporal.client import WORKFLOW_TASK_TIMEOUT
from benchmarks.faulty_selector import FAULTS, MEMBERS, Discussion
from tests.harness.ports import own_ports

RESULTS = Path(__file__).parent / "results" / "selector.json"
QUESTION = "How do we write a good report?"
Play = Callable[[int, str], Awaitable[bool]]
"""Runs one team for so many turns, with a selector of that fault; whether it has completed."""


@contextlib.asynccontextmanager
async def baton(url: str) -> AsyncIterator[Play]:
    """Runs teams with Baton, on a server and a worker of their own."""
    environment = {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": "scripted"}
    with tempfile.TemporaryDirectory() as folder, StateDir(Path(folder)).lock("dev") as lock:
        assert lock
        server = EmbeddedServer(Path(folder), lock, *own_ports())
        client, queue = await server.start(), uuid.uuid4().hex

        async def play(turns: int, fault: str) -> bool:
            given = {"team": "team", "input": QUESTION, "resources": manifests(turns, may_end=fault == "never ends")}
            options: dict[str, Any] = {"task_queue": queue, "task_timeout": WORKFLOW_TASK_TIMEOUT}
            turn = await client.execute_workflow("selector", given, id=uuid.uuid4().hex, **options)
            return bool(turn["stopReason"] == "max_turns" and turn["turns"] == turns)

        try:
            async with worker.run_worker(
                client, Loaded(), {**environment, "BATON_HOME": folder, "BATON_TASK_QUEUE": queue}
            ):
                yield play
        finally:
            await server.stop()


def manifests(turns: int, *, may_end: bool) -> list[dict[str, Any]]:
    """The team's manifests. Reaching ``maxTurns`` is a normal end; with ``may_end`` its selector may terminate it."""
    selector = {"selector": {"enableTerminateTool": True}} if may_end else {}
    bound = {"maxTurns": turns, "onMaxTurns": "complete"}
    team = {"strategy": "selector", "members": [{"name": name} for name in MEMBERS], **bound, **selector}
    specs = {("Team", "team"): team, **{("Agent", name): {"prompt": f"You are {name}."} for name in MEMBERS}}
    api = {"apiVersion": "ark.mckinsey.com/v1alpha1"}
    return [{**api, "kind": kind, "metadata": {"name": name}, "spec": spec} for (kind, name), spec in specs.items()]


@contextlib.asynccontextmanager
async def autogen(url: str) -> AsyncIterator[Play]:
    """Runs teams with AutoGen's SelectorGroupChat in this process. Its selector cannot end a team."""
    agents, teams = (importlib.import_module(f"autogen_agentchat.{name}") for name in ("agents", "teams"))
    models = importlib.import_module("autogen_ext.models.openai")
    model = models.OpenAIChatCompletionClient(model="gpt-4.1-mini", base_url=url, api_key="scripted")

    async def play(turns: int, fault: str) -> bool:
        members = [agents.AssistantAgent(name, model, system_message=f"You are {name}.") for name in MEMBERS]
        result = await teams.SelectorGroupChat(members, model, max_turns=turns).run(task=QUESTION)
        return len(result.messages) == turns + 1

    yield play
    await model.close()


SYSTEMS = {"baton": baton, "autogen-agentchat": autogen}


async def measure(teams: int, turns: int, seed: int) -> list[dict[str, Any]]:
    """A row for each fault and system."""
    found: list[dict[str, Any]] = []
    discussion = Discussion("", "none")
    model = ScriptedModel(lambda request: discussion.answer(request))
    with model.serve() as url:
        for system, env in SYSTEMS.items():
            if not importlib.util.find_spec(system.replace("-", "_")) and env is autogen:
                continue
            async with env(url) as play:
                for fault in FAULTS:
                    ended = list[tuple[Discussion, bool]]()
                    for number in range(teams):
                        discussion = Discussion(f"{seed} {number}", fault)
                        ended.append((discussion, await _ends(play, turns, fault)))
                    found.append({"fault": fault, "system": system, **summary(ended)})
    return sorted(found, key=lambda row: [*FAULTS].index(row["fault"]))


async def _ends(play: Play, turns: int, fault: str) -> bool:
    try:
        async with asyncio.timeout(60):
            return await play(turns, fault)
    except Exception as error:  # whatever it is, the team has not ended as it should
        logging.warning("%s: %s", fault, error)
        return False


def summary(ended: list[tuple[Discussion, bool]]) -> dict[str, Any]:
    """Counts of the model server, over all teams."""
    turns = sum(len(each.spoken) for each, _ in ended)
    return {
        "teams": len(ended),
        "completed": sum(well for _, well in ended),
        "turns": turns,
        "wrong_picks": sum(each.wrong for each, _ in ended),
        "twice_in_a_row": sum(each.repeated for each, _ in ended),
        "extra_calls_per_turn": round(sum(each.asked for each, _ in ended) / max(turns, 1) - 1, 3),
    }


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that are measured."""
    names = ("baton", "temporalio", "openai", "autogen-agentchat", "autogen-ext")
    found = {"python": platform.python_version()}
    for name in names:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def main() -> None:
    """Measures, prints and writes the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    for name, default in (("--teams", 40), ("--turns", 8), ("--seed", 2026)):
        parser.add_argument(name, type=int, default=default)
    given = vars(parser.parse_args())
    for noisy in ("autogen_core", "autogen_agentchat", "httpx"):
        logging.getLogger(noisy).setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", "Resolved model mismatch")  # the script's models say that they are scripted
    rows = asyncio.run(measure(**given))
    table = Table(*(name.replace("_", " ") for name in rows[0]))
    for row in rows:
        table.add_row(*map(str, row.values()))
    result = {"date": f"{datetime.now(UTC):%Y-%m-%d}", "versions": versions(), **given, "rows": rows}
    Console(stderr=True, width=140).print(table)
    print(json.dumps(result, indent=1))
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
