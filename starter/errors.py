"""Errors and hints that the commands, the Python interface and the server they use have in common."""

START_HINT = (
    "start a server and a worker with 'baton run' or 'baton dev', or set TEMPORAL_ADDRESS to a server that runs"
)


class UnreachableError(Exception):
    """No Temporal server can be reached; the text says how to start one."""


class UsageError(Exception):
    """The command line asks for something that is not possible; the text says what is wrong with it."""


class ConnectionLostError(Exception):
    """The connection to Temporal was lost while runs were followed."""
