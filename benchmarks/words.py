"""What does the model say in a benchmark? As many characters as its name asks for: ``words-1000``.

python -m benchmarks.words

It is a process of its own, so that it takes no time from what is measured; it ends when its standard input closes.
"""

import contextlib
import itertools
import random
import string
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from baton.starter.scripted_model.script import Reply, Request
from baton.starter.scripted_model.server import ScriptedModel

ROOT = Path(__file__).parents[1]


class Words:
    """Says something else each time: what is stored must not be small because it repeats itself."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self.model = ScriptedModel(self.answer)

    def answer(self, request: Request) -> Reply:
        """Random words; the request is forgotten at once."""
        self.model.asked.clear()
        size = int(request["model"].rpartition("-")[2])
        letters = random.Random(next(self._numbers)).choices(string.ascii_lowercase + "  ", k=size)
        return Reply(text="".join(letters))


@contextlib.contextmanager
def speaking() -> Iterator[str]:
    """Runs the model's server while the block does; gives its base URL."""
    command = [sys.executable, "-m", "benchmarks.words"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin and process.stdout
        yield process.stdout.readline().strip()
        process.stdin.close()


if __name__ == "__main__":
    with Words().model.serving() as url:
        print(url, flush=True)
        sys.stdin.read()
