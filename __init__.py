"""What does a program see of Baton? Everything here: constructors, runs, and the shapes of what comes of them.

import asyncio
import baton

panel = baton.round_robin(
    name="editorial-review",
    roster=[
        {"name": "writer", "role": "the writer of the draft"},
        {"name": "fact-checker", "role": "a fact-checker who verifies every claim"},
    ],
    max_rounds=2,
)
print(asyncio.run(baton.run(panel, input="A paragraph on tides")).message)
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .starter.api import *  # noqa: F403
    from .starter.api import __all__ as __all__


def __getattr__(name: str) -> object:
    """Imports the Python interface when it is first used: a command or a worker does not need it."""
    if name.startswith("__") and name != "__all__":
        raise AttributeError(name)
    from .starter import api  # noqa: PLC0415

    try:
        return getattr(api, name)
    except AttributeError:
        raise AttributeError(f"module 'baton' has no attribute '{name}'") from None
