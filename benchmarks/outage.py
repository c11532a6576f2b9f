"""What does an outage of the model's server cost?  ``python -m benchmarks.outage [--teams 100] [--seconds 60]``

Teams of two take 12 turns, each of which takes the model half a second. In the fourth second the server fails, in one
of several ways. Beside Baton the same calls are made by plain loops, which try again a second after each failure.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx

from baton.starter.scripted_model.script import Reply, Request
from baton.starter.scripted_model.server import ScriptedModel
from tests.chaos.ground import Ground
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
"""What the server does while it fails, ``left`` seconds before it recovers. Then it breaks off what still hangs."""


class Failing:
    """A model's server that fails for a while."""

    def __init__(self, fault: str, seconds: float) -> None:
        self._fault, self._seconds = fault, seconds
        self.begun, self.wasted = 0.0, 0

    def begin(self) -> None:
        """Lets time run."""
        self.begun = time.time()

    @property
    def recovers(self) -> float:
        """When the server is well again."""
        return self.begun + BEGINS + self._seconds

    def answer(self, _request: Request) -> Reply:
        """Answers, or fails and counts."""
        if self._fault == "none" or not self.begun + BEGINS <= time.time() < self.recovers:
            return FAULTS["none"](0)
        self.wasted += 1
        return FAULTS[self._fault](self.recovers - time.time())


Play = Callable[[int], Awaitable[bool]]
"""Plays the team of a number; whether it has ended as it should."""


@contextlib.asynccontextmanager
async def baton(failing: Failing, report: Report, fault: str) -> AsyncIterator[Play]:
    """Baton, on a server and a worker of its own."""
    async with Ground.laid(failing.answer) as ground:

        async def play(number: int) -> bool:
            given = {"team": "team", "input": "Why?", "resources": RESOURCES}
            handle = await ground.start("round-robin", given, f"team-{number}")
            turn = await handle.result()
            return bool(turn["turns"] == TURNS)

        yield play
        report.leaks(fault, await ground.search())


@contextlib.asynccontextmanager
async def naive(failing: Failing, _report: Report, _fault: str) -> AsyncIterator[Play]:
    """Plain loops in this process, which keep nothing."""
    model, limits = ScriptedModel(failing.answer), httpx.Limits(max_connections=None)
    with model.serving() as url:
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
    """Plays all teams through one outage."""
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
    """Measures, prints and keeps."""
    given = arguments(__doc__, teams=100, seconds=60)
    report = Report("outage", given)
    for fault in FAULTS:
        for system in SYSTEMS:
            await measure(system, fault, given, report)
    report.keep()


if __name__ == "__main__":
    asyncio.run(main())
