"""Teams of language-model agents as durable Temporal workflows: the Python interface.

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

from . import installation  # noqa: F401  # raises ImportError if another distribution shares the folder

if TYPE_CHECKING:
    from .starter.api import *  # noqa: F403
    from .starter.api import __all__ as __all__
else:  # type checkers know the names from above, and report unknown ones

    def __getattr__(name: str) -> object:
        """Imports the interface when it is first used: a command or a worker does not need it."""
        from importlib.util import find_spec  # noqa: PLC0415

        is_special = name.startswith("__") and name != "__all__"
        if not is_special and find_spec(f"{__name__}.{name}") is None:
            from .starter import api  # noqa: PLC0415

            if hasattr(api, name):
                return getattr(api, name)
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")

    def __dir__() -> list[str]:
        """The names of the interface."""
        from .starter import api  # noqa: PLC0415

        return sorted({*globals(), *api.__all__})
