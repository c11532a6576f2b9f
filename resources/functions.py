"""The decorators `function` and `tool`: they mark Python functions that manifests can name."""

from collections.abc import Callable
from typing import Any, TypeVar, overload

Function = Callable[..., Any]
F = TypeVar("F", bound=Function)
_MARK = "__baton_name__"


@overload
def function(given: F) -> F: ...
@overload
def function(given: str) -> Callable[[F], F]: ...
def function(given: Any) -> Any:
    """Marks a function that manifests may name: ``@function``, or ``@function("another-name")``.

    The default name is that of the function, with ``-`` for ``_``. The function is called with a ``Briefing``, and with
    the manifest's parameters as keyword arguments; it may be async.
    """
    if isinstance(given, str):

        def mark(target: F) -> F:
            setattr(target, _MARK, given)
            return target

        return mark
    setattr(given, _MARK, given.__name__.replace("_", "-"))
    return given


@overload
def tool(given: F) -> F: ...
@overload
def tool(given: str) -> Callable[[F], F]: ...
def tool(given: Any) -> Any:
    """Marks a function that is a tool: ``@tool``, or ``@tool("another-name")``.

    A model calls it with the arguments of its signature, and reads its docstring. It may be async. In ``tools=[f]``, a
    function needs no mark.
    """
    return function(given)


def is_marked(target: object) -> bool:
    """Whether ``@function`` has marked it."""
    return hasattr(target, _MARK)


def name_of(target: Function) -> str:
    """The name of a function in manifests."""
    return str(getattr(target, _MARK, target.__name__.replace("_", "-")))
