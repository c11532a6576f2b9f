"""What a person decided, or what was decided without one."""

from datetime import datetime
from typing import Literal

from ...resources.base import JsonModel
from ..text import Text


class PersonDecision(JsonModel):
    """A decision: whether a call is carried out, or what a person has replied to a question, by whom and when.

    ``how``: by a ``person``, by a ``timeout``, or as ``remembered`` from an earlier decision of ``by``. ``arguments``
    is JSON text, where the person has changed the arguments. ``remember``: it holds for all calls of that tool in the
    run from then on. ``text`` is a reply; a question that nobody has replied to in time is not ``approved``.
    """

    approved: bool
    at: datetime
    by: Text | None = None
    how: Literal["person", "timeout", "remembered"] = "person"
    reason: Text = ""
    arguments: Text | None = None
    remember: bool = False
    text: Text | None = None

    def to_remember(self) -> "PersonDecision":
        """Who has decided what and when, without what may be long; the text of a reply stands in its message."""
        text = None if self.text is None else ""
        return self.model_copy(update={"arguments": None, "text": text})

    def for_others(self) -> "PersonDecision":
        """The same decision about other calls, whose arguments nobody has changed."""
        return self.model_copy(update={"how": "remembered", "arguments": None})
