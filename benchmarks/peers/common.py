"""What the programs share: their input and their output."""

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
class Params:
    """The input of a program, as JSON. ``teams`` is their number; their runs are ``run-0``, ``run-1`` and so on."""

    model: str
    temporal: str
    postgres: str
    folder: str
    run: str
    turns: int
    size: int
    teams: int

    @property
    def model_name(self) -> str:
        """The model's name, which says how long its replies are."""
        return f"random-{self.size}"

    @property
    def ids(self) -> list[str]:
        """The ids of the teams' runs."""
        return [f"{self.run}-{number}" for number in range(self.teams)]


def read_params() -> Params:
    """The input of this program."""
    return Params(**json.loads(sys.argv[1]))


async def timed(ids: list[str], play: Callable[[str], Awaitable[object]]) -> None:
    """Runs all teams at once, and prints the seconds it took and how many have completed."""
    began, busy = time.perf_counter(), time.process_time()
    results = await asyncio.gather(*map(play, ids), return_exceptions=True)
    errors = [f"{type(each).__name__}: {each}" for each in results if isinstance(each, BaseException)]
    took = {"seconds": time.perf_counter() - began, "busy": time.process_time() - busy}
    said = {**took, "ended": len(ids) - len(errors), "error": errors[0][:300] if errors else None}
    print(json.dumps(said), flush=True)
