"""A model server for benchmarks: the model ``random-1000`` replies with 1,000 random characters.

``python -m benchmarks.random_model [SECONDS]`` is a process of its own, so that it takes no time from what is measured.
It waits so many seconds before each reply, and ends when its standard input closes.
"""

import contextlib
import itertools
import random
import string
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from baton.starter.scripted_model import Reply, Request, ScriptedModel

ROOT = Path(__file__).parents[1]


class RandomModel:
    """Replies with a new text each time, so that stored data cannot be small by repetition."""

    def __init__(self, delay: float) -> None:
        self._numbers, self._delay = itertools.count(), delay
        self.model = ScriptedModel(self.answer)

    def answer(self, request: Request) -> Reply:
        """A random text; the request is not kept."""
        self.model.requests.clear()
        size = int(request["model"].rpartition("-")[2])
        letters = random.Random(next(self._numbers)).choices(string.ascii_lowercase + "  ", k=size)
        return Reply(text="".join(letters), delay=self._delay)


@contextlib.contextmanager
def serving_random_model(delay: float = 0.0) -> Iterator[str]:
    """Runs the model server while the block runs; gives its base URL."""
    command = [sys.executable, "-m", "benchmarks.random_model", str(delay)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin and process.stdout
        yield process.stdout.readline().strip()
        process.stdin.close()


if __name__ == "__main__":
    with RandomModel(float(sys.argv[1]) if len(sys.argv) > 1 else 0.0).model.serve() as url:
        print(url, flush=True)
        sys.stdin.read()
