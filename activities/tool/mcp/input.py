"""What becomes of a call for which an MCP server needs the answer of a person: no run can put a question to one yet."""

from collections.abc import Sequence

from mcp_types import (
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    URL_ELICITATION_REQUIRED,
    CallToolResult,
    ElicitRequest,
    InputRequiredResult,
)

from ....conversation.errors import ToolFailed

NEEDS_INPUT = frozenset({MISSING_REQUIRED_CLIENT_CAPABILITY, URL_ELICITATION_REQUIRED})
"""The codes of errors by which a server says so."""


def needs_input(label: str, questions: Sequence[str]) -> ToolFailed:
    """The failure of a call that needs answers."""
    asked = "; ".join(each[:1_000] for each in questions[:10])
    return ToolFailed(f"{label} needs an answer before it goes on, and no run can ask a person yet: {asked}")


def completed(result: CallToolResult | InputRequiredResult, label: str) -> CallToolResult:
    """A result that is complete; raises ToolFailed for one that asks for input.

    Here a call that waits for a person begins: ``request_state`` and the answers go into the next request.
    """
    if isinstance(result, CallToolResult):
        return result
    requests = (result.input_requests or {}).values()
    asked = [str(each.params.message) if isinstance(each, ElicitRequest) else each.method for each in requests]
    raise needs_input(label, asked or ["(it does not say what)"])
