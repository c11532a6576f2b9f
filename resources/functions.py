"""Python functions in manifests: the decorators `function` and `tool`, names, arguments, and the context of a call."""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Literal, TypeVar, get_type_hints, overload

from pydantic import BaseModel, ConfigDict, Field, create_model
from pydantic.errors import PydanticUserError

from .base import NAME, JsonObject

Function = Callable[..., Any]
F = TypeVar("F", bound=Function)
_MARK = "__baton_name__"
_TOOL = "__baton_tool__"


@dataclass(frozen=True)
class Context:
    """The place of a call, for a function with a parameter that is annotated with this class. Models don't see it.

    ``run`` is the id of the run, and ``speaker`` the agent that calls the tool, or the member that the function is.
    ``turn`` is the turn of its team, or the round of its panel; None for a tool that is the target of a query.
    ``session`` are the run's values, which ``Handle.session`` changes. ``dependencies`` is what the program has passed
    to ``connect``. ``idempotency_key`` is the same for every attempt of one call, and different for any other call.
    """

    run: str
    speaker: str
    idempotency_key: str
    turn: int | None = None
    session: Mapping[str, Any] = field(default_factory=dict)
    dependencies: Any = None


@dataclass(frozen=True)
class ToolOptions:
    """What ``@tool`` says about a function, as in the manifest of a Tool, and in the entry of an agent's tool."""

    description: str | None = None
    approval: bool | Mapping[str, Any] | None = None
    on_error: Literal["feed", "fail", "retry"] | None = None
    timeout: str | None = None


@overload
def function(target: F) -> F: ...
@overload
def function(target: str) -> Callable[[F], F]: ...
def function(target: Any) -> Any:
    """Marks a function that manifests may reference: ``@function``, or ``@function("another-name")``.

    The default name is that of the function, with ``-`` for ``_``. The function is called with a ``Briefing``, or with
    what the type of its first argument asks for, and with the manifest's parameters as keyword arguments; it may be
    async. An argument that is annotated with ``Context`` gets the place of the call.
    """
    if isinstance(target, str):
        name = target
        return lambda function: _marked(function, name)
    if not callable(target):
        raise TypeError(f"@function marks a function, not {type(target).__name__}")
    return _marked(target, name_of(target))


@overload
def tool(target: F) -> F: ...
@overload
def tool(
    target: str | None = None,
    *,
    name: str | None = None,
    description: str | None = None,
    approval: bool | Mapping[str, Any] | None = None,
    on_error: Literal["feed", "fail", "retry"] | None = None,
    timeout: str | None = None,
) -> Callable[[F], F]: ...
def tool(
    target: Any = None,
    *,
    name: str | None = None,
    description: str | None = None,
    approval: bool | Mapping[str, Any] | None = None,
    on_error: Literal["feed", "fail", "retry"] | None = None,
    timeout: str | None = None,
) -> Any:
    """Marks a function that is a tool: ``@tool``, ``@tool("another-name")``, or ``@tool(approval=True, …)``.

    A model calls it with the arguments of its signature, and reads its docstring, or the ``description``. It may be
    async. With ``approval`` a person decides about each call, or about those that match, as in
    ``{"timeout": "1h", "argument_matches": [{"argument": "amount", "pattern": "…"}]}``. ``on_error`` says what follows
    a failure: ``"feed"`` it to the model (the default), ``"fail"`` the turn, or ``"retry"`` the call. ``timeout`` is
    the time limit of one call, such as ``"30s"``. A function in ``tools=[f]`` needs no decorator.
    """
    named = target if isinstance(target, str) else name
    options = ToolOptions(description=description, approval=approval, on_error=on_error, timeout=timeout)
    if target is not None and not isinstance(target, str):
        if not callable(target):
            raise TypeError(f"@tool marks a function, not {type(target).__name__}")
        return _marked(target, named or name_of(target), options)
    return lambda function: _marked(function, named or name_of(function), options)


def _marked(target: F, name: str, options: ToolOptions | None = None) -> F:
    if inspect.ismethod(target):
        raise TypeError(f"the bound method {target.__qualname__} can't be decorated: decorate it in its class")
    setattr(target, _MARK, name)
    if options:
        setattr(target, _TOOL, options)
    return target


def is_marked(target: object) -> bool:
    """Whether it is marked with ``@function``."""
    return hasattr(target, _MARK)


def name_of(target: Function) -> str:
    """The name of a function in manifests: that of its mark, or its own; of a partial that of its function.

    A class, and any other callable object, has the name of the class: ``LookUp()`` is ``look-up``.
    """
    if (mark := getattr(target, _MARK, None)) is not None:
        return str(mark)
    if isinstance(target, partial):
        return name_of(target.func)
    if inspect.isroutine(target):
        return target.__name__.replace("_", "-")
    named = target if isinstance(target, type) else type(target)
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", named.__name__).replace("_", "-").lower()


def tool_options(target: Function) -> ToolOptions:
    """What ``@tool`` says about a function; of a partial, about its function."""
    options = getattr(target, _TOOL, None)
    if options is None and isinstance(target, partial):
        return tool_options(target.func)
    return options if isinstance(options, ToolOptions) else ToolOptions()


def is_async(target: Function) -> bool:
    """Whether a call returns a coroutine: also of a partial, and of an object with an async ``__call__``."""
    code = _code_of(target)
    return inspect.iscoroutinefunction(code)


def _code_of(target: Function) -> Function:
    """The function or method that a callable executes."""
    while isinstance(target, partial):
        target = target.func
    if inspect.isroutine(target) or isinstance(target, type):
        return target
    return type(target).__call__


def parameters_of(function: Function) -> dict[str, inspect.Parameter]:
    """The parameters that a caller may pass by name or position: without ``self``, those that a partial has set, and
    the ``Context``. Raises TypeError if there is no signature."""
    try:
        parameters = inspect.signature(function).parameters
    except ValueError:
        raise TypeError(f"{_display_name(function)} has no signature, so it can't be called by a run") from None
    preset = function.keywords if isinstance(function, partial) else {}
    hidden = {"self", context_parameter(function), *preset}
    return {name: parameter for name, parameter in parameters.items() if name not in hidden}


def check_callable(function: Function, *, takes_value: bool) -> None:
    """Raises TypeError for a method without its object, and without parameters for a function that ``takes_value``."""
    if isinstance(function, type):
        raise TypeError(f"the class {function.__name__} is not a function")
    try:
        parameters = inspect.signature(function).parameters
    except ValueError:  # of a builtin function
        return
    if inspect.isfunction(function) and next(iter(parameters), None) == "self":
        raise TypeError(f"{_display_name(function)} is a method without its object: pass the method of an instance")
    if takes_value and not parameters:
        text = "must have a parameter, for what was said: a str, a pydantic model or a Briefing"
        raise TypeError(f"{_display_name(function)} {text}")


def check_resource_name(function: Function) -> None:
    """Raises TypeError for a function whose name can't be that of a tool or a member, such as a lambda."""
    try:
        NAME.check(name_of(function))
    except ValueError as error:
        hint = "give it another one with baton.function('name')(…)"
        raise TypeError(f"the name of {_display_name(function)} {error}; {hint}") from None


def context_parameter(function: Function) -> str | None:
    """The name of the parameter that is annotated with ``Context``."""
    try:
        hints = _hints(function)
    except TypeError:
        return None
    return next((name for name, hint in hints.items() if hint is Context and name != "return"), None)


def first_type(function: Function) -> object:
    """The type of a function's first argument; None if it has no annotation that can be read."""
    try:
        first = next(iter(parameters_of(function)))
        return _hints(function).get(first)
    except (StopIteration, TypeError):
        return None


def with_context(function: Function, arguments: tuple[object, ...], context: Callable[[], Context]) -> Function:
    """The function with its positional arguments, and with the context if it has a parameter for it."""
    name = context_parameter(function)
    if name is None:
        return partial(function, *arguments)
    # By name, as the context may be the first parameter. A function that needs only the context gets no more.
    named = dict(zip(parameters_of(function), arguments, strict=False))
    return partial(function, **named, **{name: context()})


def _hints(function: Function) -> dict[str, Any]:
    """The annotations of a function. Raises TypeError for one that can't be read, such as of a local class."""
    code = _code_of(function)
    outer = inspect.unwrap(code)
    names = getattr(getattr(outer, "__code__", None), "co_freevars", ())
    cells = getattr(outer, "__closure__", None) or ()
    local = {name: cell.cell_contents for name, cell in zip(names, cells, strict=True) if _is_set(cell)}
    try:
        return get_type_hints(code, localns=local, include_extras=True)
    except NameError as error:
        text = f"an annotation of {_display_name(function)} can't be read: {error}; define the type in its module"
        raise TypeError(text) from None
    except TypeError:  # a builtin function has no annotations
        return {}


def _is_set(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _display_name(function: object) -> str:
    if isinstance(function, partial):
        return f"the partial of {_display_name(function.func)}"
    name = getattr(function, "__qualname__", None)
    return f"the function {name}" if name else f"the callable {type(function).__qualname__}"


_SECTION = re.compile(r"^(Args|Arguments|Parameters|Returns|Raises|Yields|Examples?|Notes?):\s*$", re.MULTILINE)
_ARGUMENT = re.compile(r"^( {2,8})(\w+)(?: ?\([^)]*\))?: *(.*(?:\n\1 +\S.*)*)", re.MULTILINE)


def arguments_model(function: Function) -> type[BaseModel]:
    """A pydantic model of a function's arguments. Raises TypeError for arguments that can't be passed by name."""
    described = dict(_described_arguments(function))
    hints = _hints(function)
    fields: dict[str, Any] = {}
    for name, parameter in parameters_of(function).items():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise TypeError(
                f"the argument {parameter} of {_display_name(function)} can't be passed by name, "
                "as a tool's arguments are"
            )
        hint = hints.get(name, Any)
        if name in described:
            hint = Annotated[hint, Field(description=described[name])]
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[name] = (hint, default)
    return create_model(
        name_of(function), __config__=ConfigDict(extra="forbid", arbitrary_types_allowed=True), **fields
    )


def input_schema(function: Function) -> JsonObject:
    """The JSON Schema of a function's arguments. Raises TypeError for a type that JSON can't represent."""
    try:
        schema = arguments_model(function).model_json_schema()
    except PydanticUserError as error:
        text = f"the arguments of {_display_name(function)} have no JSON Schema: {error.message}"
        raise TypeError(text) from None
    return {key: value for key, value in schema.items() if key not in ("title", "additionalProperties")}


def description(function: Function) -> str | None:
    """What ``@tool`` says, or the function's docstring up to its first section."""
    return tool_options(function).description or _SECTION.split(_doc(function), maxsplit=1)[0].strip() or None


def _doc(function: Function) -> str:
    """The docstring; of a callable object that of its ``__call__``, or of its class."""
    while isinstance(function, partial):
        function = function.func
    if inspect.isroutine(function) or isinstance(function, type):
        return inspect.getdoc(function) or ""
    return inspect.getdoc(type(function).__call__) or inspect.getdoc(type(function)) or ""


def call_arguments(function: Function, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments, converted to the types of the signature. Raises pydantic's ValidationError."""
    typed = arguments_model(function).model_validate(arguments)
    return {name: getattr(typed, name) for name in type(typed).model_fields}


def _described_arguments(function: Function) -> Iterator[tuple[str, str]]:
    """The arguments described in the docstring's section ``Args`` (Google style)."""
    parts = _SECTION.split(_doc(function))
    for section, text in zip(parts[1::2], parts[2::2], strict=True):
        if section in ("Args", "Arguments", "Parameters"):
            yield from ((name, " ".join(words.split())) for _, name, words in _ARGUMENT.findall(text) if words.strip())
