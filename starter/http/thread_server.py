"""Serves an HTTP application from a thread, while a block of code runs."""

import contextlib
import socket
import threading
from collections.abc import Iterator

import uvicorn
from starlette.applications import Starlette


@contextlib.contextmanager
def serve_in_thread(app: Starlette, port: int = 0, host: str = "127.0.0.1") -> Iterator[str]:
    """Serves an application while the block runs, and yields its URL; port 0 takes a free port.

    Raises:
        OSError: if it can't listen on that address.
    """
    with socket.socket(
        proto=socket.IPPROTO_TCP
    ) as listener:  # asyncio switches off Nagle's algorithm only if the protocol is named
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen()  # clients can connect before the thread runs
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))
        server.config.timeout_graceful_shutdown = 1
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://{host}:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()
