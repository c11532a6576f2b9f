"""Python functions that manifests may name: the decorator that marks one, and the name that it goes by."""

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

    Without a name of its own it goes by the function's name, with ``-`` for ``_``. It is called with a ``Briefing``
    and with the manifest's parameters as keyword arguments; it may be async.
    """
    if isinstance(given, str):

        def mark(target: F) -> F:
            setattr(target, _MARK, given)
            return target

        return mark
    setattr(given, _MARK, given.__name__.replace("_", "-"))
    return given


def is_marked(target: object) -> bool:
    """Whether ``@function`` has marked it."""
    return hasattr(target, _MARK)


def name_of(target: Function) -> str:
    """The name under which manifests know a function."""
    return str(getattr(target, _MARK, target.__name__.replace("_", "-")))
