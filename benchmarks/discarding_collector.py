"""A collector of traces for benchmarks: takes what OTLP exporters send, and drops it.

``python -m benchmarks.discarding_collector`` is a process of its own, so that it takes no time from what is measured.
It ends when its standard input closes.
"""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from baton.starter.scripted_model import serve_in_thread

ROOT = Path(__file__).parents[1]


async def take(request: Request) -> Response:
    """Answers with an empty ``ExportTraceServiceResponse``."""
    await request.body()
    return Response(media_type="application/x-protobuf")


@contextlib.contextmanager
def serving_collector() -> Iterator[str]:
    """Runs the collector while the block runs; gives its address."""
    command = [sys.executable, "-m", "benchmarks.discarding_collector"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin and process.stdout
        yield process.stdout.readline().strip()
        process.stdin.close()


if __name__ == "__main__":
    with serve_in_thread(Starlette(routes=[Route("/v1/traces", take, methods=["POST"])])) as url:
        print(url, flush=True)
        sys.stdin.read()
