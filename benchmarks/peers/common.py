"""What do the peers' programs share? What they are given, what they say, and the worker of those on Temporal."""

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

QUESTION = "How do we write a good report?"
MEMBERS = ("writer", "critic")
PROMPT = "You are the {}. Say what you think of it."


@dataclass(frozen=True)
class Given:
    """What a program is started with, as JSON: ``teams`` are named ``run-0``, ``run-1`` and so on."""

    model: str
    temporal: str
    postgres: str
    folder: str
    run: str
    turns: int
    size: int
    teams: int

    @property
    def words(self) -> str:
        """The model's name, which says how long its replies are."""
        return f"words-{self.size}"

    @property
    def ids(self) -> list[str]:
        """The ids of the teams' runs."""
        return [f"{self.run}-{number}" for number in range(self.teams)]


def given() -> Given:
    """What this program was started with."""
    return Given(**json.loads(sys.argv[1]))


async def timed(ids: list[str], play: Callable[[str], Awaitable[object]]) -> None:
    """Lets all teams discuss at once, and says how long that took and how many have come to their end."""
    began, busy = time.perf_counter(), time.process_time()
    results = await asyncio.gather(*map(play, ids), return_exceptions=True)
    errors = [f"{type(each).__name__}: {each}" for each in results if isinstance(each, BaseException)]
    took = {"seconds": time.perf_counter() - began, "busy": time.process_time() - busy}
    said = {**took, "ended": len(ids) - len(errors), "error": errors[0][:300] if errors else None}
    print(json.dumps(said), flush=True)
