"""How are histories recorded anew? ``make record-histories``, which is run on purpose alone: a change that asks for it
breaks the teams that run while it is rolled out."""

import asyncio
import json
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from baton.starter.server.embedded import TUNING, EmbeddedServer, free_ports
from baton.starter.server.state_dir import Home
from tests.harness.environment import Environment
from tests.harness.functions import ballot
from tests.replay.scenarios import SCENARIOS, SHORT_HISTORIES, WITH_SHORT_HISTORIES, play
from tests.replay.stored import STORED, stored

HISTORIES = Path(__file__).parent / "histories"


async def record() -> None:
    """Plays every scenario and keeps its history, child runs included, and all stored names."""
    STORED.write_text(json.dumps(stored(), indent=1, sort_keys=True) + "\n")
    HISTORIES.mkdir(exist_ok=True)
    for file in HISTORIES.iterdir():
        file.unlink()
    server_with_short_histories = [each.__name__ for each in WITH_SHORT_HISTORIES]
    await _record([name for name in SCENARIOS if name not in server_with_short_histories], TUNING)
    await _record(server_with_short_histories, (*TUNING, SHORT_HISTORIES))


async def _record(names: Iterable[str], tuning: Sequence[tuple[str, str]]) -> None:
    with tempfile.TemporaryDirectory() as folder, Home(Path(folder)).lock("dev") as lock:
        assert lock
        server = EmbeddedServer(Path(folder), lock, *free_ports((0, 0)), tuning=tuning)
        client = await server.start()
        for name in names:
            (place := Path(folder) / name).mkdir()
            async with Environment.running(client, place, functions=(ballot,)) as env:
                played = await play(env, name)
                while played.id not in [handle.id async for handle in env.closed_runs()]:
                    await asyncio.sleep(0.05)  # the server lists a run a moment after its end
                async for handle in env.closed_runs():
                    history = await handle.fetch_history()
                    kind = history.events[0].workflow_execution_started_event_attributes.workflow_type.name
                    number = len([*HISTORIES.glob(f"{name}.*")]) + 1
                    (HISTORIES / f"{name}.{number}.{kind}.json").write_text(history.to_json())
        await server.stop()


if __name__ == "__main__":
    asyncio.run(record())
