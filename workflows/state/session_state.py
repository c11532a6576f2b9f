"""The values of a session, which conditions and functions read and clients may change."""

from ...resources.base import JsonObject


class SessionState:
    """Named JSON values."""

    def __init__(self) -> None:
        self.values: JsonObject = {}

    def update(self, changes: JsonObject) -> JsonObject:
        """Changes some values, removes those that are changed to null, and returns all."""
        merged = {**self.values, **changes}
        self.values = {name: value for name, value in merged.items() if value is not None}
        return self.values
