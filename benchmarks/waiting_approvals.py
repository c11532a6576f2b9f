"""Measures what thousands of calls that wait for approval cost a worker: ``python -m benchmarks.waiting_approvals``.

Every run has an agent that calls a tool that requires approval (``--runs 10000``). When all wait,
some are approved, one by one. Measured is the time until the next model call, before which the tool is called.
"""

import asyncio
import time

from baton.contracts.decisions import ApproveRequest
from baton.starter.runs.decisions import decide, pending_decisions
from baton.starter.scripted_model import Reply, Request, ScriptedToolCall
from benchmarks.idle_teams import AT_ONCE, memory_sample
from tests.chaos.environment import ProcessEnvironment, batched
from tests.chaos.report import Report, arguments, percentiles
from tests.chaos.teams import LABEL
from tests.harness.environment import Handle, Json, agent

DECIDED, ROWS = 100, 2
"""How many calls get their yes; the rows of a run that waits: its question, and the message that calls the tool."""

TOOL = {"name": "noop", "type": "built-in", "approval": {}}
RESOURCES = [agent("one", modelRef={"name": "secret-model"}, tools=[TOOL])]


class Model:
    """A model that calls the tool, and notes the time at which it reads the result."""

    def __init__(self) -> None:
        self.read: dict[str, float] = {}

    def answer(self, request: Request) -> Reply:
        """The call, or the end."""
        if not any(each["role"] == "tool" for each in request["messages"]):
            return Reply(calls=[ScriptedToolCall(name="noop", arguments={"message": "x"})])
        self.read.setdefault(LABEL.findall(str(request["messages"]))[0], time.time())
        return Reply(text="Since KEY.")


async def start(env: ProcessEnvironment, label: str) -> Handle:
    """Starts a run."""
    return await env.start("agent", {"agent": "one", "input": f"{label}?", "resources": RESOURCES}, label)


async def all_wait(env: ProcessEnvironment, runs: int) -> tuple[list[Handle], list[Json]]:
    """Starts all runs until each has called its tool; their handles, and samples of the memory."""
    handles, memory = list[Handle](), [memory_sample(env)]
    for some in batched(range(runs), AT_ONCE):
        handles += await asyncio.gather(*(start(env, f"run-{number}") for number in some))
        while env.count() < ROWS * (len(handles) - AT_ONCE):
            await asyncio.sleep(0.05)
    while env.count() < ROWS * runs:
        await asyncio.sleep(0.2)
    return handles, [*memory, memory_sample(env)]


async def approve(env: ProcessEnvironment, model: Model, handle: Handle) -> float:
    """Says yes to a run's call and waits for its end; seconds from the yes to the result that the model reads."""
    while not (waiting := await pending_decisions(env.client, handle.id)):
        await asyncio.sleep(0.05)
    assert handle.id not in model.read, "the call was made without approval"
    begun = time.time()
    await decide(env.client, handle, ApproveRequest(call=waiting[0].id, by="bench"))
    await handle.result()
    return model.read[handle.id] - begun


async def main() -> None:
    """Starts the runs, decides some of their calls and writes the results."""
    given = arguments(__doc__, runs=10_000)
    model, report = Model(), Report("waiting-approvals", given)
    async with ProcessEnvironment.running(model.answer) as env:
        begun = time.monotonic()
        handles, memory = await all_wait(env, given["runs"])
        seconds, early = round(time.monotonic() - begun, 1), len(model.read)
        waits = [await approve(env, model, handle) for handle in handles[:: max(1, len(handles) // DECIDED)]]
        counts = {"runs": len(handles), "all wait after s": seconds, "made without approval": early}
        space = {"idle MB": memory[0]["worker_mb"], "waiting MB": memory[-1]["worker_mb"]}
        report.row({**counts, **space, "decided": len(waits), **percentiles(waits)})
        report.leaks("all", await env.search())
    report.write(memory=memory)


if __name__ == "__main__":
    asyncio.run(main())
