"""What is a tool? A name and a schema for the model, and what is done when the model calls for it."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from ...resources.base import JsonObject


@dataclass(frozen=True)
class Tool:
    """A tool of an agent.

    ``use`` takes arguments that fit ``parameters`` (a JSON Schema) and returns the result as text, or raises
    ToolFailed. ``ends``: using it ends the turn and the team. ``retries``: Temporal tries again whenever it fails,
    not only where the tool itself says that this can help.
    """

    name: str
    description: str
    parameters: JsonObject
    use: Callable[[JsonObject], Awaitable[str]]
    ends: bool = False
    retries: bool = False
