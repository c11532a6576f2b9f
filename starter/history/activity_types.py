"""The request and the result of each activity type whose calls the history reader decodes."""

from ...conversation.contracts.panel_requests import BriefRequest, PerformRequest, PerformResult
from ...conversation.contracts.replies import AskPersonRequest, AskPersonResult
from ...conversation.contracts.requests import (
    AppendRequest,
    AskModelRequest,
    AskModelResult,
    Pinned,
    ReviewResult,
    SelectRequest,
    SelectResult,
    UseToolRequest,
    UseToolResult,
)
from ...conversation.messages.message import Head

CallRequest = (
    AskModelRequest | UseToolRequest | SelectRequest | BriefRequest | PerformRequest | AppendRequest | AskPersonRequest
)
CallResult = (
    Pinned | AskModelResult | UseToolResult | ReviewResult | SelectResult | PerformResult | Head | AskPersonResult
)

REQUEST_TYPES: dict[str, type[CallRequest]] = {
    "ask_model": AskModelRequest,
    "execute_agent": AskModelRequest,
    "use_tool": UseToolRequest,
    "review": UseToolRequest,
    "delegate": UseToolRequest,
    "select": SelectRequest,
    "brief": BriefRequest,
    "perform": PerformRequest,
    "append": AppendRequest,
    "ask_person": AskPersonRequest,
}
"""The type of the request, by activity type; the requests of other activities are not decoded."""

RESULT_TYPES: dict[str, type[CallResult]] = {
    "pin": Pinned,
    "ask_model": AskModelResult,
    "execute_agent": AskModelResult,
    "use_tool": UseToolResult,
    "review": ReviewResult,
    "select": SelectResult,
    "perform": PerformResult,
    "append": Head,
    "ask_person": AskPersonResult,
}
"""The type of the result, by activity type; the results of other activities are not decoded."""
