"""The command line. Command modules import Baton's libraries inside their functions, so that ``--help`` is fast."""

from ...installation import require

require("cli", "the command 'baton'")
