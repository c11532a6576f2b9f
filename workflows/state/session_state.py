"""What does a session hold? Values that its conditions and functions read, and that others may change meanwhile."""

from ...resources.base import JsonObject


class Session:
    """A session's values."""

    def __init__(self) -> None:
        self.values: JsonObject = {}

    def put(self, changes: JsonObject) -> JsonObject:
        """Changes some values, takes those out that are changed to null, and gives all."""
        merged = {**self.values, **changes}
        self.values = {name: value for name, value in merged.items() if value is not None}
        return self.values
