"""The account under which a client runs, which identifies the sender of requests to runs."""

import getpass
import platform


def account_name() -> str:
    """The name of the account; ``user`` if the system has no name for it, as in some containers."""
    try:
        return getpass.getuser()
    except (ImportError, KeyError, OSError):  # the first on Windows, before Python 3.13
        return "user"


def client_identity() -> str:
    """``NAME@HOST``, the client's identity in Temporal's histories."""
    return f"{account_name()}@{platform.node()}"
