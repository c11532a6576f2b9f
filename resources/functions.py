"""The decorators `function` and `tool`, which mark Python functions that manifests can reference."""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, TypeVar, get_type_hints, overload

from pydantic import BaseModel, ConfigDict, Field, create_model

from .base import JsonObject

Function = Callable[..., Any]
F = TypeVar("F", bound=Function)
_MARK = "__baton_name__"


@overload
def function(target: F) -> F: ...
@overload
def function(target: str) -> Callable[[F], F]: ...
def function(target: Any) -> Any:
    """Marks a function that manifests may reference: ``@function``, or ``@function("another-name")``.

    The default name is that of the function, with ``-`` for ``_``. The function is called with a ``Briefing``, and with
    the manifest's parameters as keyword arguments; it may be async.
    """
    if isinstance(target, str):
        name = target

        def mark(function: F) -> F:
            setattr(function, _MARK, name)
            return function

        return mark
    if not callable(target) or not hasattr(target, "__name__"):
        raise TypeError(f"@function marks a function, not {type(target).__name__}")
    setattr(target, _MARK, target.__name__.replace("_", "-"))
    return target


@overload
def tool(target: F) -> F: ...
@overload
def tool(target: str) -> Callable[[F], F]: ...
def tool(target: Any) -> Any:
    """Marks a function that is a tool: ``@tool``, or ``@tool("another-name")``.

    A model calls it with the arguments of its signature, and reads its docstring. It may be async. A function in
    ``tools=[f]`` needs no decorator.
    """
    return function(target)


def is_marked(target: object) -> bool:
    """Whether it is marked with ``@function``."""
    return hasattr(target, _MARK)


def name_of(target: Function) -> str:
    """The name of a function in manifests."""
    return str(getattr(target, _MARK, target.__name__.replace("_", "-")))


def first_type(function: Function) -> object:
    """The type of a function's first argument; None if it has no annotation that can be read."""
    try:
        first = next(iter(inspect.signature(function).parameters))
        return _hints(function).get(first)
    except (StopIteration, TypeError, ValueError):
        return None


def _hints(function: Function) -> dict[str, Any]:
    """The annotations of a function. Raises TypeError for one that can't be read, such as of a local class."""
    try:
        return get_type_hints(function, include_extras=True)
    except NameError as error:
        text = f"an annotation of {_display_name(function)} can't be read: {error}; define the type in its module"
        raise TypeError(text) from None


def _display_name(function: object) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


_SECTION = re.compile(r"^(Args|Arguments|Parameters|Returns|Raises|Yields|Examples?|Notes?):\s*$", re.MULTILINE)
_ARGUMENT = re.compile(r"^( {2,8})(\w+)(?: ?\([^)]*\))?: *(.*(?:\n\1 +\S.*)*)", re.MULTILINE)


def arguments_model(function: Function) -> type[BaseModel]:
    """A pydantic model of a function's arguments. Raises TypeError for arguments that can't be passed by name."""
    described = dict(_described_arguments(function))
    hints = _hints(function)
    fields: dict[str, Any] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise TypeError(
                f"the argument {parameter} of {function.__name__} can't be passed by name, as a tool's arguments are"
            )
        hint = hints.get(name, Any)
        if name in described:
            hint = Annotated[hint, Field(description=described[name])]
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[name] = (hint, default)
    return create_model(
        function.__name__, __config__=ConfigDict(extra="forbid", arbitrary_types_allowed=True), **fields
    )


def input_schema(function: Function) -> JsonObject:
    """The JSON Schema of a function's arguments."""
    schema = arguments_model(function).model_json_schema()
    return {key: value for key, value in schema.items() if key not in ("title", "additionalProperties")}


def description(function: Function) -> str | None:
    """A function's docstring up to its first section."""
    return _SECTION.split(inspect.getdoc(function) or "", maxsplit=1)[0].strip() or None


def call_arguments(function: Function, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments, converted to the types of the signature. Raises pydantic's ValidationError."""
    typed = arguments_model(function).model_validate(arguments)
    return {name: getattr(typed, name) for name in type(typed).model_fields}


def _described_arguments(function: Function) -> Iterator[tuple[str, str]]:
    """The arguments described in the docstring's section ``Args`` (Google style)."""
    parts = _SECTION.split(inspect.getdoc(function) or "")
    for section, text in zip(parts[1::2], parts[2::2], strict=True):
        if section in ("Args", "Arguments", "Parameters"):
            yield from ((name, " ".join(words.split())) for _, name, words in _ARGUMENT.findall(text) if words.strip())
