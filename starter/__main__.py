"""How is Baton run as a module? ``python -m baton.starter`` is the command ``baton``."""

from .cli.app import main

main()
