"""``python -m baton.starter`` is the command ``baton``."""

import sys
from typing import NoReturn

from ..installation import MissingExtraError


def main() -> NoReturn:
    """Runs the command line and exits with the code of its result; without the extra `cli`, it says what is missing."""
    try:
        from .cli.app import main as run_app  # noqa: PLC0415  # of the extra `cli`
    except MissingExtraError as error:
        sys.exit(f"error: {error}")
    run_app()


if __name__ == "__main__":
    main()
