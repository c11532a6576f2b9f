"""What Baton asks of an MCP server: the list of its tools, and the use of one."""

from collections.abc import Awaitable, Callable
from contextvars import copy_context

from mcp import Client, MCPError
from mcp_types import (
    HEADER_MISMATCH,
    URL_ELICITATION_REQUIRED,
    CallToolRequest,
    CallToolRequestParams,
    CallToolResult,
    ElicitRequest,
    InputRequiredResult,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import TypeAdapter

from ....conversation.errors import ToolFailed
from ....resources.base import JsonObject
from ...runtime.heartbeat import on_text
from .input import Elicitation, needs_input
from .pinned_tools import ListedTool

MAX_TOOLS = 1_000
MAX_PAGES = 100

_RESULT: TypeAdapter[CallToolResult | InputRequiredResult] = TypeAdapter(CallToolResult | InputRequiredResult)


async def list_tools(client: Client) -> list[ListedTool]:
    """All tools of a server, page by page; raises ToolFailed for a list without an end."""
    tools, cursor = list[ListedTool](), None
    for _ in range(MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        if len(tools) + len(page.tools) > MAX_TOOLS:
            break
        for each in page.tools:
            hints = each.annotations.model_dump(by_alias=True, exclude_none=True) if each.annotations else None
            tools.append(ListedTool(each.name, each.description or each.title, each.input_schema, hints))
        cursor = page.next_cursor
        if not cursor:
            return tools
    raise ToolFailed(f"an MCP server lists more than {MAX_TOOLS:,} tools, or has more than {MAX_PAGES} pages of them")


def use_tool(
    name: str, arguments: JsonObject, label: str, elicitation: Elicitation | None = None
) -> Callable[[Client], Awaitable[CallToolResult]]:
    """Uses a tool; what the server reports of its progress is shown like the text of a model.

    With an ``elicitation`` it may ask a person: then AsksPerson is raised. McpRequest.send needs the same one.

    The SDK's own method would check the result against the tool's schema after the tool was used, on the event loop.
    """
    context = copy_context()  # the reports arrive in another task, which knows nothing of the activity

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        part = f"{progress:g}" + (f"/{total:g}" if total else "")
        context.copy().run(on_text, f"{message} ({part})\n" if message else f"{part}\n")

    async def ask(client: Client) -> CallToolResult:
        params = CallToolRequestParams(name=name, arguments=arguments)
        if elicitation and client.protocol_version in MODERN_PROTOCOL_VERSIONS:
            params.input_responses, params.request_state = {**elicitation.responses} or None, elicitation.state
        request = CallToolRequest(params=params)
        result = await client.session.send_request(request, _RESULT, progress_callback=on_progress)
        if elicitation:
            return elicitation.check(result)
        return _completed(result, label)

    async def use(client: Client) -> CallToolResult:
        try:
            return await ask(client)
        except MCPError as error:
            if error.code == URL_ELICITATION_REQUIRED and elicitation:
                raise elicitation.required(error.data) from None
            if error.code != HEADER_MISMATCH:
                raise
            await list_tools(client)  # the library learns from it which arguments are also headers (MCP 2026-07-28)
            return await ask(client)

    return use


def _completed(result: CallToolResult | InputRequiredResult, label: str) -> CallToolResult:
    """A result that is complete; raises ToolFailed for one that asks for input, where nobody is asked."""
    if isinstance(result, CallToolResult):
        return result
    requests = (result.input_requests or {}).values()
    asked = [str(each.params.message) if isinstance(each, ElicitRequest) else each.method for each in requests]
    raise needs_input(label, asked or ["(it does not say what)"])
