"""Gives each test ports that no other process takes, also while nothing listens on them yet or any more."""

import fcntl
import os
import random
import socket
import tempfile
from pathlib import Path

PORTS = range(10_000, 30_000)
"""Below the ports that an operating system gives to whoever asks for any free one."""

_taken = set[int]()
_locks = (Path(tempfile.gettempdir()) / f"baton-test-ports-{os.getuid()}").open("a")


def own_port() -> int:
    """A free port that belongs to this process until it ends: it locks a byte for it in a file that all tests share."""
    while True:
        port = random.choice(PORTS)
        if port not in _taken and _is_locked_now(port) and _is_free(port):
            _taken.add(port)
            return port


def own_ports() -> tuple[int, int]:
    """Two of them, as for a server and its UI."""
    return own_port(), own_port()


def _is_locked_now(port: int) -> bool:
    try:
        fcntl.lockf(_locks, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except OSError:
        return False
    return True


def _is_free(port: int) -> bool:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
