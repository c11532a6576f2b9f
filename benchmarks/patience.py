"""What do thousands of waiting teams cost a worker?  ``python -m benchmarks.patience [--teams 10000]``

Every team is paused before its first call. When all wait, some are told to go on, one after the other.
"""

import asyncio
import time

from baton.starter.scripted_model.script import Reply, Request
from tests.chaos.ground import Ground, batched
from tests.chaos.report import Report, arguments, percentiles
from tests.chaos.teams import LABEL
from tests.harness.environment import Handle, Json, agent, team

AT_ONCE, WOKEN = 50, 100
RESOURCES = [agent("one", modelRef={"name": "held"}), team("team", "one", maxTurns=1, onMaxTurns="complete")]


class Model:
    """Answers, and notes when it was asked first by whom."""

    def __init__(self) -> None:
        self.asked: dict[str, float] = {}

    def answer(self, request: Request) -> Reply:
        """The answer to a team."""
        self.asked.setdefault(LABEL.findall(str(request["messages"]))[0], time.time())
        return Reply(text="Since KEY.")


async def start(ground: Ground, label: str) -> Handle:
    """Starts a team that is paused."""
    given = {"team": "team", "input": f"{label}?", "resources": RESOURCES}
    return await ground.start("round-robin", given, label, "pause")


async def all_wait(ground: Ground, teams: int) -> tuple[list[Handle], list[Json]]:
    """Starts all teams and waits until each has come to its first call; the memory that was used on the way."""
    handles, memory = list[Handle](), [looked_at(ground)]
    for some in batched(range(teams), AT_ONCE):
        handles += await asyncio.gather(*(start(ground, f"run-{number}") for number in some))
        while ground.count() < len(handles) - AT_ONCE:
            await asyncio.sleep(0.05)
        if ground.count() * 10 // teams >= len(memory):
            memory.append(looked_at(ground))
    while ground.count() < teams:
        await asyncio.sleep(0.2)
    return handles, [*memory, looked_at(ground)]


def looked_at(ground: Ground) -> Json:
    """How many teams wait, and what the worker and the server hold in memory."""
    server = round(ground.server_process.memory_info().rss / 1e6)
    return {"waiting": ground.count(), "worker_mb": round(ground.memory()), "server_mb": server}


async def woken(model: Model, handle: Handle) -> float:
    """Seconds from a signal to the call for which a team has waited; the team ends as it should."""
    begun = time.time()
    await handle.signal("resume")
    assert (await handle.result())["stopReason"] == "max_turns"
    return model.asked[handle.id] - begun


async def main() -> None:
    """Starts, waits, wakes and keeps."""
    given = arguments(__doc__, teams=10_000)
    model, report = Model(), Report("patience", given)
    async with Ground.laid(model.answer) as ground:
        begun = time.monotonic()
        handles, memory = await all_wait(ground, given["teams"])
        seconds, asked = round(time.monotonic() - begun, 1), len(model.asked)
        wakes = [await woken(model, handle) for handle in handles[:: max(1, len(handles) // WOKEN)]]
        counts = {"teams": len(handles), "all wait after s": seconds, "asked too early": asked}
        space = {"idle MB": memory[0]["worker_mb"], "waiting MB": memory[-1]["worker_mb"]}
        report.row({**counts, **space, "woken": len(wakes), **percentiles(wakes)})
        report.leaks("all", await ground.search())
    report.keep(memory=memory)


if __name__ == "__main__":
    asyncio.run(main())
