"""The account under which a client runs: who it says has asked something of a run."""

import getpass
import platform


def account_name() -> str:
    """The name of the account; ``user`` if the system has no name for it, as in some containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "user"


def client_identity() -> str:
    """``NAME@HOST``, which Temporal keeps in the history with everything that this client asks."""
    return f"{account_name()}@{platform.node()}"
