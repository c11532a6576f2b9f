"""What a person decided, or what was decided without one."""

from datetime import datetime
from typing import Literal

from ...resources.base import JsonModel
from ..text import Text


class PersonDecision(JsonModel):
    """A decision: whether a call is carried out, by whom and when.

    ``how``: by a ``person``, by a ``timeout``, or as ``remembered`` from an earlier decision of ``by``. ``arguments``
    is JSON text, where the person has changed the arguments. ``remember``: it holds for all calls of that tool in the
    run from then on.
    """

    approved: bool
    at: datetime
    by: Text | None = None
    how: Literal["person", "timeout", "remembered"] = "person"
    reason: Text = ""
    arguments: Text | None = None
    remember: bool = False

    def for_others(self) -> "PersonDecision":
        """The same decision about other calls, whose arguments nobody has changed."""
        return self.model_copy(update={"how": "remembered", "arguments": None})
