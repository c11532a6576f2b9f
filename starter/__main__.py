"""How is Baton run as a module? ``python -m starter`` is the command ``baton``."""

from starter.cli import main

main()
