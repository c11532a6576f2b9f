"""Filters of a tool's result, in the language of jq: what the model gets is what they leave of it."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from ...conversation.errors import FilterFailed
from ...resources.values import Function
from ..process.bounded_process import BoundedFunction, LimitExceeded
from .tool import CallableTool

_apply = BoundedFunction(f"{__package__}.jq_filter:apply_filters")


class ResultFilters:
    """Applies filters. ``redact`` removes secrets before, of which a filter could leave a part."""

    def __init__(self, redact: Callable[[str], Awaitable[str]]) -> None:
        self._redact = redact

    def applied_to(self, tool: CallableTool, functions: Sequence[Function]) -> CallableTool:
        """The tool with filtered results. Raises FilterFailed where a filter fails: the tool was used then."""
        if not functions:
            return tool
        filters = [each.value for each in functions]

        async def filtered(answer: str) -> str:
            try:
                return str(await _apply.call({"text": await self._redact(answer), "filters": [*filters]}))
            except (ValueError, LimitExceeded) as error:
                raise FilterFailed(
                    f"{tool.definition.name} has answered, but its functions can't be applied: {error}"
                ) from None

        return replace(tool, finish=filtered)
