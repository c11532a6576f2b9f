"""Errors and hints that the commands, the Python interface and the server they use have in common."""

START_HINT = (
    "start a server and a worker with 'baton run' or 'baton dev', or set TEMPORAL_ADDRESS to a server that runs"
)


class UnreachableError(Exception):
    """No Temporal server can be reached; ``hint`` says how to start one, if the text doesn't."""

    def __init__(self, text: str, hint: str = "") -> None:
        self.text, self.hint = text, hint
        super().__init__(f"{text}: {hint}" if hint else text)


class UsageError(Exception):
    """The command line asks for something that is not possible; the text says what is wrong with it."""


class ConnectionLostError(Exception):
    """The connection to Temporal was lost while runs were followed."""
