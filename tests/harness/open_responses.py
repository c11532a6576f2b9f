"""A response as the schema of Open Responses (2026-04-24) has it: which fields are required, and which may be null."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class Strict(BaseModel):
    """A part of a response. Extensions are allowed; a value of another type is not converted."""

    model_config = ConfigDict(strict=True)


class TextPart(Strict):
    """A text that was said."""

    type: Literal["output_text"]
    text: str
    annotations: list[Any]


class SaidMessage(Strict):
    """A message of the model."""

    type: Literal["message"]
    id: str
    status: Literal["in_progress", "completed", "incomplete"]
    role: Literal["assistant"]
    content: list[TextPart]
    phase: Literal["commentary", "final_answer"] = "final_answer"


class FunctionCall(Strict):
    """A call of the client's function."""

    type: Literal["function_call"]
    id: str
    call_id: str
    name: str
    arguments: str
    status: Literal["in_progress", "completed", "incomplete"]


class IncompleteDetails(Strict):
    """Why a response is incomplete: the reasons of OpenAI's API."""

    reason: Literal["max_output_tokens", "content_filter"]


class ResponseError(Strict):
    """Why a response has failed."""

    code: str
    message: str


class FunctionTool(Strict):
    """A function of the client."""

    type: Literal["function"]
    name: str
    description: str | None
    parameters: dict[str, Any] | None
    strict: bool | None


class JsonSchemaFormat(Strict):
    """The format of an answer that matches a JSON Schema."""

    type: Literal["json_schema"]
    name: str
    description: str | None
    schema_: Any = Field(alias="schema")
    strict: bool


class PlainFormat(Strict):
    """The format of an answer without a schema."""

    type: Literal["text", "json_object"]


class TextField(Strict):
    """The format of the answer."""

    format: Annotated[PlainFormat | JsonSchemaFormat, Field(discriminator="type")]


class Reasoning(Strict):
    """How much the model thinks."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None
    summary: Literal["concise", "detailed", "auto"] | None


class CachedTokens(Strict):
    """The tokens of the input that were cached."""

    cached_tokens: int


class ReasoningTokens(Strict):
    """The tokens of the output that are reasoning."""

    reasoning_tokens: int


class Usage(Strict):
    """The token usage."""

    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_tokens_details: CachedTokens
    output_tokens_details: ReasoningTokens


class OpenResponse(Strict):
    """A response."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
    incomplete_details: IncompleteDetails | None
    model: str
    previous_response_id: str | None
    instructions: str | None
    output: list[Annotated[SaidMessage | FunctionCall, Field(discriminator="type")]]
    error: ResponseError | None
    tools: list[FunctionTool]
    tool_choice: Literal["none", "auto", "required"]
    truncation: Literal["auto", "disabled"]
    parallel_tool_calls: bool
    text: TextField
    top_p: float
    presence_penalty: float
    frequency_penalty: float
    top_logprobs: int
    temperature: float
    reasoning: Reasoning | None
    usage: Usage | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    store: bool
    background: bool
    service_tier: str
    metadata: dict[str, str]
    safety_identifier: str | None
    prompt_cache_key: str | None
