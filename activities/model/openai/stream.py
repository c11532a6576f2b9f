"""Reads a chat completion into an answer: the chunks of a stream, or the whole."""

from pydantic import BaseModel, ConfigDict

from ....conversation.messages.message import TokenUsage
from ..answer import End, StreamedAnswer

ENDS: dict[str, End] = {"length": "length", "content_filter": "filtered"}
"""Finish reasons that are no proper end of an answer."""


class _Part(BaseModel):
    """A part of what a server sends. A validation error does not repeat its content."""

    model_config = ConfigDict(hide_input_in_errors=True)


class _Function(_Part):
    name: str | None = None
    arguments: str | None = None


class _Call(_Part):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None
    extra_content: object = None


class _Delta(_Part):
    content: str | None = None
    refusal: str | None = None
    tool_calls: tuple[_Call, ...] | None = None


class _Choice(_Part):
    delta: _Delta | None = None
    message: _Delta | None = None
    finish_reason: str | None = None

    @property
    def said(self) -> _Delta:
        """A piece of a stream, or the whole message; nothing where the server leaves it out."""
        return self.delta or self.message or _Delta()


class _PromptDetails(_Part):
    cached_tokens: int | None = None


class _Usage(_Part):
    """Counts of tokens. Some servers leave some of them out, and count a model's thoughts in the total alone."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None

    def as_token_usage(self) -> TokenUsage:
        total, completion = self.total_tokens or 0, self.completion_tokens or 0
        prompt = max(total - completion, 0) if self.prompt_tokens is None else self.prompt_tokens
        completion = max(completion, total - prompt)
        return TokenUsage(
            prompt_tokens=prompt,
            completion_tokens=completion,
            total_tokens=prompt + completion,
            cached_tokens=(self.prompt_tokens_details and self.prompt_tokens_details.cached_tokens) or 0,
        )


class Chunk(_Part):
    """One event of a stream: what the model has written since the last one. Or the whole answer, without a stream."""

    id: str | None = None
    model: str | None = None
    choices: tuple[_Choice, ...] | None = None
    usage: _Usage | None = None

    def add_to(self, answer: StreamedAnswer) -> None:
        """Adds the chunk to an answer."""
        answer.model, answer.id = self.model or answer.model, self.id or answer.id
        if self.usage:
            answer.usage = self.usage.as_token_usage()
        for choice in (self.choices or ())[:1]:
            answer.begun = True
            if choice.finish_reason:
                answer.end = ENDS.get(choice.finish_reason, "complete")
            for text in (choice.said.content, choice.said.refusal):
                answer.add_text(text or "")
            for place, call in enumerate(choice.said.tool_calls or ()):
                function, index = call.function or _Function(), place if call.index is None else call.index
                answer.add_call(index, call.id, function.name or "", function.arguments or "")
                if isinstance(call.extra_content, dict):
                    answer.add_extra(index, call.extra_content)
