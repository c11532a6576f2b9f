"""``python -m baton.starter`` is the command ``baton``."""

from .cli.app import main

main()
