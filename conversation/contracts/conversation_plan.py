"""The plan of the conversation that a query goes on with."""

from typing import Literal

from ...resources.base import JsonModel


class ConversationPlan(JsonModel):
    """The conversation that a query goes on with.

    Without an ``id`` it is named like the run. ``memory`` is the name of the Memory in ``namespace`` that keeps it, and
    empty where none is named. If there is such a manifest (``remote``), the conversation is kept at its address, and
    ``on_error`` says what becomes of the query if it can't be read; otherwise the journal keeps it.
    """

    id: str
    namespace: str
    memory: str = ""
    remote: bool = False
    on_error: Literal["fail", "continue"] = "fail"

    @property
    def key(self) -> dict[str, str]:
        """The names under which the journal keeps it."""
        return {"namespace": self.namespace, "memory": self.memory, "id": self.id}
