"""What a model's server adds to a tool call, and wants back with it in later requests."""

from ...resources.base import JsonModel
from ..text import Text


class CallExtra(JsonModel):
    """The field ``extra_content`` of a tool call, such as Gemini's thought signature.

    ``model`` is the model that has added it, with its server: no other model gets it. ``content`` is a JSON object as
    text, as the server wrote it.
    """

    model: Text
    content: Text
