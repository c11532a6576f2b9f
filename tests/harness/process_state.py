"""What a test can change in its process for the tests after it."""

import asyncio
import contextlib
import logging
import os
import signal
import sys
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE, signal.SIGCHLD)


def process_state() -> Mapping[str, object]:
    """The working directory, variables, import path, hooks, handlers of signals, and all loggers, each by a name."""
    return {
        "working directory": Path.cwd(),
        "variables": {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"},
        "import path": [folder for folder in sys.path if folder],  # the working directory is appended for settings
        "hook of uncaught exceptions": sys.excepthook,
        "handlers of signals": tuple(signal.getsignal(number) for number in SIGNALS),
        "policy of event loops": type(asyncio.get_event_loop_policy()),
        "hook of warnings": warnings.showwarning,
        "disabled logging": logging.root.manager.disable,
        **{f"logger {name}": state_of(logger) for name, logger in loggers()},
    }


def loggers() -> list[tuple[str, logging.Logger]]:
    """The root logger and each other one that somebody has asked for; not uvicorn's, which each server sets anew."""
    known = logging.root.manager.loggerDict.items()
    named = [(name, logger) for name, logger in known if isinstance(logger, logging.Logger)]
    return [("root", logging.root), *(pair for pair in named if not pair[0].startswith("uvicorn"))]


@contextlib.contextmanager
def kept_loggers() -> Iterator[None]:
    """Gives all loggers their levels and handlers back at the end of the block."""
    before = [(logger, logger.level, logger.disabled, logger.handlers[:]) for _, logger in loggers()]
    try:
        yield
    finally:
        logging.captureWarnings(False)
        for logger, level, disabled, handlers in before:
            logger.setLevel(level)
            logger.disabled = disabled
            logger.handlers[:] = handlers


def state_of(logger: logging.Logger) -> object:
    """The level of a logger and its handlers, without those of pytest and those that write nothing."""
    handlers = [
        handler
        for handler in logger.handlers
        if not type(handler).__module__.startswith("_pytest.") and not isinstance(handler, logging.NullHandler)
    ]
    return logging.getLevelName(logger.level), logger.disabled, logger.propagate, handlers
