"""Errors and hints shared by the commands, the Python interface and the local server."""

START_HINT = "start a server and a worker with 'baton run' or 'baton dev', or set TEMPORAL_ADDRESS to a running server"

WINDOWS_HINT = "set TEMPORAL_ADDRESS to a server that has a worker, or use WSL"


class UnreachableError(Exception):
    """No Temporal server is reachable; ``hint`` says how to start one, unless the text does."""

    def __init__(self, text: str, hint: str = "") -> None:
        self.text = text
        self.hint = hint
        super().__init__(f"{text}: {hint}" if hint else text)


class UsageError(Exception):
    """Incorrect usage of the command line; the text has the reason."""


class ConnectionLostError(Exception):
    """The connection to Temporal was lost while following runs."""
