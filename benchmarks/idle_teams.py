"""Measures what thousands of paused teams cost a worker: ``python -m benchmarks.idle_teams [--teams 10000]``.

Every team is paused before its first call. When all are, some get the signal to resume, one after the other.
"""

import asyncio
import time

from baton.starter.scripted_model import Reply, Request
from tests.chaos.environment import ProcessEnvironment, batched
from tests.chaos.report import Report, arguments, percentiles
from tests.chaos.teams import LABEL
from tests.harness.environment import Handle, Json, agent, team

AT_ONCE, RESUMED = 50, 100
RESOURCES = [agent("one", modelRef={"name": "secret-model"}), team("team", "one", maxTurns=1, onMaxTurns="complete")]


class Model:
    """A model that notes the time of each team's first call."""

    def __init__(self) -> None:
        self.asked: dict[str, float] = {}

    def answer(self, request: Request) -> Reply:
        """The reply to a team."""
        self.asked.setdefault(LABEL.findall(str(request["messages"]))[0], time.time())
        return Reply(text="Since KEY.")


async def start(env: ProcessEnvironment, label: str) -> Handle:
    """Starts a team that is paused."""
    given = {"team": "team", "input": f"{label}?", "resources": RESOURCES}
    return await env.start("round-robin", given, label, "pause")


async def all_wait(env: ProcessEnvironment, teams: int) -> tuple[list[Handle], list[Json]]:
    """Starts all teams and waits until each is before its first call; their handles, and samples of the memory."""
    handles, memory = list[Handle](), [memory_sample(env)]
    for some in batched(range(teams), AT_ONCE):
        handles += await asyncio.gather(*(start(env, f"run-{number}") for number in some))
        while env.count() < len(handles) - AT_ONCE:
            await asyncio.sleep(0.05)
        if env.count() * 10 // teams >= len(memory):
            memory.append(memory_sample(env))
    while env.count() < teams:
        await asyncio.sleep(0.2)
    return handles, [*memory, memory_sample(env)]


def memory_sample(env: ProcessEnvironment) -> Json:
    """How many teams wait, and the memory of worker and server in MB."""
    server = round(env.server_process.memory_info().rss / 1e6)
    return {"waiting": env.count(), "worker_mb": round(env.memory()), "server_mb": server}


async def resume(model: Model, handle: Handle) -> float:
    """Resumes a team and waits for its end; seconds from the signal to its first model call."""
    begun = time.time()
    await handle.signal("resume")
    assert (await handle.result())["stopReason"] == "max_turns"
    return model.asked[handle.id] - begun


async def main() -> None:
    """Starts the teams, resumes some and writes the results."""
    given = arguments(__doc__, teams=10_000)
    model, report = Model(), Report("idle-teams", given)
    async with ProcessEnvironment.running(model.answer) as env:
        begun = time.monotonic()
        handles, memory = await all_wait(env, given["teams"])
        seconds, asked = round(time.monotonic() - begun, 1), len(model.asked)
        wakes = [await resume(model, handle) for handle in handles[:: max(1, len(handles) // RESUMED)]]
        counts = {"teams": len(handles), "all wait after s": seconds, "asked too early": asked}
        space = {"idle MB": memory[0]["worker_mb"], "waiting MB": memory[-1]["worker_mb"]}
        report.row({**counts, **space, "resumed": len(wakes), **percentiles(wakes)})
        report.leaks("all", await env.search())
    report.write(memory=memory)


if __name__ == "__main__":
    asyncio.run(main())
