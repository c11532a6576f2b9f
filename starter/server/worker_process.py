"""Runs a worker in the foreground, for the server that the settings name, or for this machine's own."""

import asyncio
import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path

from ... import worker
from ..errors import UnreachableError
from .connection import use_server, uses_remote_server


def run_worker_process(paths: Sequence[Path], *, recursive: bool) -> int:
    """Runs a worker with these manifests until SIGINT or SIGTERM; its exit code, as of ``worker.main``.

    Where no server is named and none runs here, it is that at localhost:7233.
    """
    importable_from_here()
    with contextlib.ExitStack() as stack:
        address = None
        if not uses_remote_server():
            with contextlib.suppress(UnreachableError):
                address = stack.enter_context(use_server(print, start=False)).address
        return asyncio.run(worker.main(paths, recursive=recursive, address=address))


def importable_from_here() -> None:
    """Lets BATON_FUNCTIONS name modules in the working directory, as ``python -m`` does."""
    if not sys.flags.safe_path and "" not in sys.path:
        sys.path.append("")
