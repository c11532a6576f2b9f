"""The request and the result of each activity type whose calls the history reader decodes."""

from ...conversation.contracts.grants import GrantRequest
from ...conversation.contracts.memory_requests import RecallRequest, RecallResult, RememberRequest, RememberResult
from ...conversation.contracts.panel_requests import BriefRequest, PerformRequest, PerformResult
from ...conversation.contracts.replies import AskPersonRequest, AskPersonResult
from ...conversation.contracts.requests import (
    AppendRequest,
    AskModelRequest,
    AskModelResult,
    Pinned,
    SelectRequest,
    SelectResult,
)
from ...conversation.contracts.tool_requests import ReviewResult, UseToolRequest, UseToolResult
from ...conversation.messages.message import Head

CallRequest = (
    AskModelRequest
    | UseToolRequest
    | SelectRequest
    | BriefRequest
    | PerformRequest
    | AppendRequest
    | AskPersonRequest
    | RecallRequest
    | RememberRequest
    | GrantRequest
)
CallResult = (
    Pinned
    | AskModelResult
    | UseToolResult
    | ReviewResult
    | SelectResult
    | PerformResult
    | Head
    | AskPersonResult
    | RecallResult
    | RememberResult
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
    "recall": RecallRequest,
    "remember": RememberRequest,
    "grant": GrantRequest,
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
    "recall": RecallResult,
    "remember": RememberResult,
}
"""The type of the result, by activity type; the results of other activities are not decoded."""
