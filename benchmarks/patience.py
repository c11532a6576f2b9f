"""What do thousands of waiting teams cost a worker?  ``python -m benchmarks.patience [--teams 1000] [--wait 30]``

The teams wait for a model that tells all of them to come back after so many seconds (429, Retry-After). When all wait,
some are told to end by ``terminate_team``, and the model answers the others when they come back.
"""

import asyncio
import time

from starter.script import Reply, Request
from tests.chaos.ground import Ground, batched
from tests.chaos.report import Report, arguments, percentiles
from tests.chaos.teams import LABEL
from tests.stage import Handle, Json, agent, team

AT_ONCE, SIGNALED = 50, 100
RESOURCES = [agent("one", modelRef={"name": "held"}), team("team", "one", maxTurns=1, onMaxTurns="complete")]


class Limited:
    """A model that sends everybody away for so long, until it is open."""

    def __init__(self, wait: int) -> None:
        self.open, self._wait = False, wait
        self.due: dict[str, float] = {}
        self.late: list[float] = []

    def answer(self, request: Request) -> Reply:
        """Notes who came how late, once it is open."""
        label = LABEL.findall(str(request["messages"]))[0]
        if self.open:
            self.late.append(time.time() - self.due[label])
            return Reply(text="Since KEY.")
        self.due[label] = time.time() + self._wait
        return Reply(status=429, headers={"retry-after": str(self._wait)}, text="KEY is busy")


async def begin(ground: Ground, teams: int) -> tuple[list[Handle], list[Json]]:
    """Starts all teams, and looks at the worker's memory ten times on the way."""
    handles, memory = list[Handle](), [{"waiting": 0, "worker_mb": round(ground.memory())}]
    for some in batched(range(teams), AT_ONCE):
        handles += await asyncio.gather(*(start(ground, f"run-{number}") for number in some))
        if len(handles) * 10 // teams >= len(memory):
            memory.append({"waiting": len(handles), "worker_mb": round(ground.memory())})
    return handles, memory


async def start(ground: Ground, label: str) -> Handle:
    """Starts a team."""
    return await ground.start("round-robin", {"team": "team", "input": f"{label}?", "resources": RESOURCES}, label)


async def ended_by_signal(handle: Handle) -> float:
    """Seconds from a person's signal to the end of a waiting team."""
    begun = time.time()
    await handle.signal("terminate_team", {"reason": "enough", "now": True})
    await handle.result()
    return time.time() - begun


async def main() -> None:
    """Starts, waits, wakes and keeps."""
    given = arguments(__doc__, teams=1000, wait=30)
    model, report = Limited(given["wait"]), Report("patience", given)
    async with Ground.laid(model.answer) as ground:
        begun = time.monotonic()
        handles, memory = await begin(ground, given["teams"])
        while len(model.due) < given["teams"]:
            await asyncio.sleep(0.2)
        waiting = {"all wait after s": round(time.monotonic() - begun, 1), "worker MB": round(ground.memory())}
        refused = len(ground.model.asked)
        signaled = [await ended_by_signal(handle) for handle in handles[:: max(1, len(handles) // SIGNALED)]]
        model.open = True
        rest = "WorkflowType='round-robin' AND ExecutionStatus='Running'"
        while (await ground.client.count_workflows(rest)).count:
            await asyncio.sleep(1)
        well = (await ground.client.count_workflows("ExecutionStatus='Completed'")).count
        counts = {"teams": given["teams"], "completed": well, "sent away": refused}
        report.row({**counts, **waiting, "wake by": "Retry-After", "woken": len(model.late), **percentiles(model.late)})
        report.row({**counts, **waiting, "wake by": "signal", "woken": len(signaled), **percentiles(signaled)})
        memory.append({"waiting": 0, "worker_mb": round(ground.memory())})
        report.leaks("all", await ground.search())
    report.keep(memory=memory)


if __name__ == "__main__":
    asyncio.run(main())
