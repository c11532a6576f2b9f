"""How does a small HTTP server run beside all else? In a thread of its own, as long as a block does."""

import contextlib
import socket
import threading
from collections.abc import Iterator

import uvicorn
from starlette.applications import Starlette


@contextlib.contextmanager
def serve_in_thread(app: Starlette, port: int = 0, host: str = "127.0.0.1") -> Iterator[str]:
    """Serves an app while the block runs, on a free port unless one is given; gives ``http://HOST:PORT``.

    Raises OSError where that can't be listened on.
    """
    with socket.socket(proto=socket.IPPROTO_TCP) as listener:  # named, or asyncio leaves Nagle's delay on
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen()  # so that whoever connects before the thread runs only waits
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))
        server.config.timeout_graceful_shutdown = 1
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://{host}:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()
