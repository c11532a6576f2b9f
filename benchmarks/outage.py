"""Measures an outage of the model server: ``python -m benchmarks.outage [--teams 100] [--seconds 60]``.

Teams of two take 12 turns; the model takes half a second for each. In the fourth second the server starts to fail, in
one of several ways. For comparison, plain loops make the same calls and retry a second after each failure.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx

from baton.starter.scripted_model import Reply, Request, ScriptedModel
from tests.chaos.environment import ProcessEnvironment
from tests.chaos.report import Report, arguments
from tests.harness.environment import Json, agent, team

TURNS, THINKS, BEGINS = 12, 0.5, 4.0
RESOURCES = [agent("a"), agent("b"), team("team", "a", "b", maxTurns=TURNS // 2, onMaxTurns="complete")]
FAULTS: dict[str, Callable[[float], Reply]] = {
    "none": lambda left: Reply(text="Well.", delay=THINKS),
    "429 with Retry-After": lambda left: Reply(status=429, headers={"retry-after": "5"}, text="KEY is busy"),
    "500": lambda left: Reply(status=500, text="KEY is broken"),
    "no answer": lambda left: Reply(text="Well.", delay=left, cut=0),
}
"""The server's replies while it fails, ``left`` seconds before it recovers."""


class Failing:
    """A model server that fails for a while."""

    def __init__(self, fault: str, seconds: float) -> None:
        self._fault, self._seconds = fault, seconds
        self.begun, self.wasted = 0.0, 0

    def begin(self) -> None:
        """Starts the clock."""
        self.begun = time.time()

    @property
    def recovers(self) -> float:
        """When the server recovers."""
        return self.begun + BEGINS + self._seconds

    def answer(self, _request: Request) -> Reply:
        """A reply, or a failure, which is counted."""
        if self._fault == "none" or not self.begun + BEGINS <= time.time() < self.recovers:
            return FAULTS["none"](0)
        self.wasted += 1
        return FAULTS[self._fault](self.recovers - time.time())


Play = Callable[[int], Awaitable[bool]]
"""Runs the team of that number; whether it has completed."""


@contextlib.asynccontextmanager
async def baton(failing: Failing, report: Report, fault: str) -> AsyncIterator[Play]:
    """Runs teams with Baton, on a server and a worker of their own."""
    async with ProcessEnvironment.running(failing.answer) as env:

        async def play(number: int) -> bool:
            given = {"team": "team", "input": "Why?", "resources": RESOURCES}
            handle = await env.start("round-robin", given, f"team-{number}")
            turn = await handle.result()
            return bool(turn["turns"] == TURNS)

        yield play
        report.leaks(fault, await env.search())


@contextlib.asynccontextmanager
async def naive(failing: Failing, _report: Report, _fault: str) -> AsyncIterator[Play]:
    """Runs plain loops in this process, which store nothing."""
    model, limits = ScriptedModel(failing.answer), httpx.Limits(max_connections=None)
    with model.serve() as url:
        async with httpx.AsyncClient(base_url=url, timeout=None, limits=limits) as client:

            async def turn(said: list[Json]) -> Json:
                while True:
                    with contextlib.suppress(httpx.HTTPError, LookupError, ValueError):
                        body = {"model": "gpt", "messages": said, "stream": True}
                        answer = await client.post("/chat/completions", json=body)
                        if answer.is_success and "[DONE]" in answer.text:
                            return {"role": "assistant", "content": "Well."}
                    await asyncio.sleep(1)

            async def play(_number: int) -> bool:
                said: list[Json] = [{"role": "user", "content": "Why?"}]
                for _ in range(TURNS):
                    said.append(await turn(said))
                return True

            yield play


SYSTEMS = {"baton": baton, "plain loops": naive}


async def measure(system: str, fault: str, given: dict[str, int], report: Report) -> None:
    """Runs all teams through one outage."""
    failing = Failing(fault, given["seconds"])
    async with SYSTEMS[system](failing, report, fault) as play:
        failing.begin()
        ended = await asyncio.gather(*map(play, range(given["teams"])), return_exceptions=True)
        over = time.time()
    first = next((str(error.__cause__ or error) for error in ended if isinstance(error, BaseException)), None)
    row: dict[str, Any] = {"fault": fault, "system": system, "teams": len(ended), "completed": ended.count(True)}
    drain = round(over - (failing.begun if fault == "none" else failing.recovers), 1)
    report.row({**row, "calls wasted": failing.wasted, "s from the end of the outage": drain, "first failure": first})


async def main() -> None:
    """Measures and writes the results."""
    given = arguments(__doc__, teams=100, seconds=60)
    report = Report("outage", given)
    for fault in FAULTS:
        for system in SYSTEMS:
            await measure(system, fault, given, report)
    report.write()


if __name__ == "__main__":
    asyncio.run(main())
