"""``python -m baton.starter`` is the command ``baton``."""

import gc
import os
import sys
from typing import NoReturn

from ..installation import MissingExtraError


def main() -> NoReturn:
    """Runs the command line and exits with the code of its result; without the extra `cli`, it says what is missing."""
    postpone_garbage_collection()
    try:
        if is_server_with_json_log():
            from ..observability.log import log_to_stderr  # noqa: PLC0415  # of the extra `worker`
            from .cli.terminal import log_messages  # noqa: PLC0415

            log_to_stderr(str, "json")  # the command itself knows secrets, and redacts them
            log_messages()
        from .cli.app import main as run_app  # noqa: PLC0415  # of the extra `cli`
    except MissingExtraError as error:
        sys.exit(f"error: {error}")
    run_app()


SERVERS = ("worker", "serve", "dev")
"""The commands with a log."""


def is_server_with_json_log() -> bool:
    """Whether the command line runs a server each of whose lines is to be JSON, from the first one on."""
    command = next((word for word in sys.argv[1:] if not word.startswith("-")), None)
    return command in SERVERS and os.environ.get("BATON_LOG_FORMAT") == "json"


OBJECTS = 200_000
"""More than any command creates when it loads its libraries."""


def postpone_garbage_collection() -> None:
    """Lets the first garbage collection wait for so many new objects; all later ones are as usual.

    Those of libraries live as long as the process: collections while they are loaded took a tenth of the CPU time of
    ``baton list``. Processes that run on, such as ``baton dev``, soon reach that number.
    """
    usual = gc.get_threshold()

    def restore(_phase: str, _info: dict[str, int]) -> None:
        gc.callbacks.remove(restore)
        gc.set_threshold(*usual)

    gc.callbacks.append(restore)
    gc.set_threshold(OBJECTS)


if __name__ == "__main__":
    main()
