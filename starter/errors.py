"""Errors and hints that the commands share with the work behind them."""

START_HINT = "start a server and a worker with 'baton dev', or set TEMPORAL_ADDRESS to a server that runs"


class UsageError(Exception):
    """The command line asks for something that is not possible; the text says what is wrong with it."""


class ConnectionLostError(Exception):
    """The connection to Temporal was lost while runs were followed."""
