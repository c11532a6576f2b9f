"""Errors and hints shared by the commands, the Python interface and the local server."""

START_HINT = (
    "start a server and a worker with 'baton run' or 'baton dev', or set TEMPORAL_ADDRESS to a server that runs"
)


class UnreachableError(Exception):
    """No Temporal server can be reached; ``hint`` says how to start one, unless the text does."""

    def __init__(self, text: str, hint: str = "") -> None:
        self.text = text
        self.hint = hint
        super().__init__(f"{text}: {hint}" if hint else text)


class UsageError(Exception):
    """Wrong usage of the command line; the text says what is wrong."""


class ConnectionLostError(Exception):
    """The connection to Temporal was lost while runs were followed."""
