"""The certificates that HTTPS clients trust: read once in a process, and not for each client, since it takes 30 ms."""

import functools
import ssl
from collections.abc import Callable


@functools.cache
def read_once(create: Callable[[], ssl.SSLContext]) -> ssl.SSLContext:
    """What ``create`` makes at first: the ``create_ssl_context`` of the library whose clients share it."""
    return create()
