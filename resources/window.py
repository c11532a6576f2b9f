"""The context window: how much of a conversation a model reads."""

from typing import Self

from pydantic import Field, model_validator

from .base import FieldError, JsonModel, NameOrRef


class Summarize(JsonModel):
    """How messages that are older than a window become a summary."""

    model: NameOrRef | None = Field(None, description="the Model that sums up; by default the agent's own")
    after: int | None = Field(
        None, ge=1, description="how many tokens of history are read before a summary is made; by default 2 * maxTokens"
    )


class ContextWindow(JsonModel):
    """The latest messages, up to a number of messages or tokens; optionally also the first ones."""

    max_messages: int | None = Field(None, ge=1, description="how many messages of the history are read")
    max_tokens: int | None = Field(None, ge=1, description="how many tokens of it, counted as four bytes each")
    keep_first: int = Field(0, ge=0, description="how many of its first messages are read in any case")
    summarize: Summarize | None = Field(None, description="how older messages become a summary, {model, after}")

    @model_validator(mode="after")
    def _one_measure(self) -> Self:
        if (self.max_messages is None) == (self.max_tokens is None):
            raise ValueError("needs either maxMessages or maxTokens")
        if self.max_messages is not None and self.keep_first > self.max_messages:
            raise ValueError("keepFirst is more than maxMessages")
        if self.summarize and (self.max_tokens is None or self.keep_first):
            raise FieldError(("summarize",), "needs maxTokens, and can't be combined with keepFirst")
        if self.summarize and (self.summarize.after or self.summary_limit) < self.summary_limit // 2:
            raise FieldError(("summarize", "after"), "is less than maxTokens")
        return self

    @property
    def summary_limit(self) -> int:
        """The tokens of history above which a summary is made."""
        return (self.summarize and self.summarize.after) or 2 * (self.max_tokens or 0)

    def used_in(self, namespace: str) -> "ContextWindow":
        """The window with the namespace of its model, which is that of its owner unless it says otherwise."""
        summarize = self.summarize
        if summarize is None or summarize.model is None or summarize.model.namespace:
            return self
        model = summarize.model.model_copy(update={"namespace": namespace})
        return self.model_copy(update={"summarize": summarize.model_copy(update={"model": model})})
