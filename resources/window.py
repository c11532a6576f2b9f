"""The context window: how much of a conversation a model reads."""

from typing import Self

from pydantic import Field, model_validator

from .base import JsonModel


class ContextWindow(JsonModel):
    """The latest messages, up to a number of messages or tokens; optionally also the first ones."""

    max_messages: int | None = Field(None, ge=1, description="how many messages of the history are read")
    max_tokens: int | None = Field(None, ge=1, description="how many tokens of it, counted as four characters each")
    keep_first: int = Field(0, ge=0, description="how many of its first messages are read in any case")

    @model_validator(mode="after")
    def _one_measure(self) -> Self:
        if (self.max_messages is None) == (self.max_tokens is None):
            raise ValueError("needs either maxMessages or maxTokens")
        if self.max_messages is not None and self.keep_first > self.max_messages:
            raise ValueError("keepFirst is more than maxMessages")
        return self
