"""Tools of ``type: built-in``: they need nothing but their arguments (ARK: queries, tool execution)."""

import ast
import decimal
import json
import textwrap
from collections.abc import Callable
from decimal import Decimal

from ...contracts.errors import BadArguments, InvalidManifest, ToolFailed
from ...resources.agent import Agent
from ...resources.base import JsonObject
from ...resources.catalog import Catalog
from ...resources.skill import LOAD_SKILL, Skill
from ..context.value_resolver import ValueResolver, skills_of
from ..runtime.secrets import SecretStore
from .tool import CallableTool, ToolContext, ToolDefinition

MAX_CHARACTERS = 500
"""Characters of an expression."""

DIGITS = 34
"""Significant digits of a number: as many as IEEE 754 decimal128 has."""

_CONTEXT = decimal.Context(
    prec=DIGITS,
    Emax=9_999,
    Emin=-9_999,
    traps=[decimal.InvalidOperation, decimal.DivisionByZero, decimal.Overflow],
)


def _floor_divide(a: Decimal, b: Decimal) -> Decimal:
    return _CONTEXT.divide(a, b).to_integral_value(decimal.ROUND_FLOOR)


_BINARY: dict[type[ast.operator], Callable[[Decimal, Decimal], Decimal]] = {
    ast.Add: _CONTEXT.add,
    ast.Sub: _CONTEXT.subtract,
    ast.Mult: _CONTEXT.multiply,
    ast.Div: _CONTEXT.divide,
    ast.Pow: _CONTEXT.power,
    ast.FloorDiv: _floor_divide,
    ast.Mod: lambda a, b: _CONTEXT.subtract(a, _CONTEXT.multiply(b, _floor_divide(a, b))),
}
_UNARY: dict[type[ast.unaryop], Callable[[Decimal], Decimal]] = {
    ast.UAdd: _CONTEXT.plus,
    ast.USub: _CONTEXT.minus,
}


def _round(value: Decimal, digits: Decimal = Decimal(0)) -> Decimal:
    return value.quantize(Decimal(1).scaleb(-int(digits)), decimal.ROUND_HALF_UP, _CONTEXT)


_FUNCTIONS: dict[str, Callable[..., Decimal]] = {
    "abs": _CONTEXT.abs,
    "sqrt": _CONTEXT.sqrt,
    "round": _round,
    "min": min,
    "max": max,
}


async def calculate(arguments: JsonObject) -> str:
    """The value of ``expression`` with up to 34 digits. Raises ToolFailed where it has none."""
    text = str(arguments["expression"]).replace("^", "**").strip()
    if len(text) > MAX_CHARACTERS:
        raise ToolFailed(f"the expression is longer than {MAX_CHARACTERS} characters")
    try:
        value = _value(ast.parse(text, mode="eval").body, text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ToolFailed(f"'{text[:80]}' is not an arithmetic expression") from None
    except decimal.DivisionByZero:
        raise ToolFailed("division by zero") from None
    except decimal.Overflow:
        raise ToolFailed("the result is too large") from None
    except (decimal.InvalidOperation, TypeError):
        raise ToolFailed(f"'{text[:80]}' has no value") from None
    value = value.normalize(_CONTEXT)
    return f"{value:f}" if abs(value.adjusted()) < DIGITS else str(value)


def _value(node: ast.expr, text: str) -> Decimal:
    match node:
        case ast.Constant(value=int() | float()) if not isinstance(node.value, bool):
            return _CONTEXT.create_decimal((ast.get_source_segment(text, node) or "").replace("_", ""))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _BINARY[type(op)](_value(left, text), _value(right, text))
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _UNARY:
            return _UNARY[type(op)](_value(operand, text))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS and args:
            return _FUNCTIONS[name](*(_value(arg, text) for arg in args))
    raise ValueError("not arithmetic")


STYLES: dict[str, Callable[[str], str]] = {
    "upper": str.upper,
    "lower": str.lower,
    "title": str.title,
    "sentence": str.capitalize,
    "one-line": lambda text: " ".join(text.split()),
    "bullets": lambda text: "\n".join(f"- {line.strip()}" for line in text.splitlines() if line.strip()),
    "numbered": lambda text: "\n".join(
        f"{number}. {line}" for number, line in enumerate(filter(None, map(str.strip, text.splitlines())), start=1)
    ),
    "wrap": textwrap.fill,
}


async def format_text(arguments: JsonObject) -> str:
    """``text`` in the given ``style``. ``width`` (default: 70 columns) is only used by the style ``wrap``."""
    text = str(arguments["text"])
    style = str(arguments["style"])
    width = arguments.get("width")
    if style == "wrap" and isinstance(width, int):
        return textwrap.fill(text, width)
    return STYLES[style](text)


class BuiltInTools:
    """A ``ToolSource``."""

    def __init__(self, _secrets: SecretStore) -> None: ...

    async def discover(self, context: ToolContext) -> list[CallableTool]:
        """The built-in tool of that name."""
        return [BUILT_IN_TOOLS[context.name]]

    async def pin(self, values: ValueResolver) -> Catalog:
        """Their manifests say all."""
        return values.catalog

    async def close(self) -> None:
        """There is nothing to close."""


async def _terminate(arguments: JsonObject) -> str:
    """The final words, which may be left out."""
    return str(arguments.get("response", ""))


async def _noop(arguments: JsonObject) -> str:
    return str(arguments.get("message", ""))


def _schema(required: tuple[str, ...] = (), **properties: JsonObject) -> JsonObject:
    return {"type": "object", "properties": {**properties}, "required": [*required]}


def _text(description: str) -> JsonObject:
    return {"type": "string", "description": description}


def _terminating(name: str) -> CallableTool:
    definition = ToolDefinition(
        name,
        "Ends the discussion. Call it once the goal is reached, with your final words as the response.",
        _schema(response=_text("The final words: what the whole discussion has come to.")),
    )
    return CallableTool(definition, _terminate, ends=True)


_NOOP = ToolDefinition(
    "noop",
    "Does nothing and gives the message back.",
    _schema(message=_text("Any text.")),
)
_CALCULATOR = ToolDefinition(
    "calculator",
    "Calculates an arithmetic expression exactly, with + - * / // % ** and parentheses, abs, round, sqrt, min and max.",
    _schema(("expression",), expression=_text("For example: (19.99 * 3 + 4.50) * 1.21")),
)
_FORMAT_TEXT = ToolDefinition(
    "format-text",
    "Formats a text in one of several styles.",
    _schema(
        ("text", "style"),
        text=_text("The text to format."),
        style={"type": "string", "enum": [*STYLES]},
        width={"type": "integer", "minimum": 1, "maximum": 1000, "description": "Columns, for the style wrap."},
    ),
)

BUILT_IN_TOOLS: dict[str, CallableTool] = {
    "terminate": _terminating("terminate"),
    "terminate_team": _terminating("terminate_team"),
    "noop": CallableTool(_NOOP, _noop),
    "calculator": CallableTool(_CALCULATOR, calculate),
    "format-text": CallableTool(_FORMAT_TEXT, format_text),
}


def skill_tools(agent: Agent, catalog: Catalog) -> list[CallableTool]:
    """The tool that reads skills, if the agent has any. It reads what was pinned with the run, and no file."""
    skills = skills_of(agent, catalog)
    if not skills:
        return []

    async def load(arguments: JsonObject) -> str:
        name = str(arguments["skill"])
        file = arguments.get("file")
        return _main_text(skills[name]) if file is None else _file(skills[name], str(file))

    return [CallableTool(_definition([*skills]), load)]


def _definition(names: list[str]) -> ToolDefinition:
    properties: JsonObject = {
        "skill": {"type": "string", "enum": [*names]},
        "file": {"type": "string", "description": "A file of the skill; without it, the skill's instructions."},
    }
    schema: JsonObject = {"type": "object", "properties": properties, "required": ["skill"]}
    return ToolDefinition(LOAD_SKILL, "Reads the instructions of a skill, or one of its files.", schema)


def _main_text(skill: Skill) -> str:
    """The instructions, and which files there are."""
    files = "\n".join(f"- {name}" for name in skill.spec.files)
    return f"{skill.spec.instructions}\n\nFiles of this skill:\n{files}" if files else skill.spec.instructions or ""


def _file(skill: Skill, name: str) -> str:
    if (text := skill.spec.files.get(name.removeprefix("./"))) is None:
        known = ", ".join(skill.spec.files) or "none"
        raise BadArguments(f"the skill {skill.name} has no file '{name}'; its files: {known}")
    return text


class AskingTools:
    """A ``ToolSource``. The workflow runs the child; using the tool here only gives the question that is put to it."""

    def __init__(self, _secrets: SecretStore) -> None: ...

    async def discover(self, context: ToolContext) -> list[CallableTool]:
        """The one tool of a manifest."""
        tool = context.manifest
        if tool is None:
            raise InvalidManifest(f"the tool {context.name} asks nobody")
        return [CallableTool(ToolDefinition(context.name, tool.model_description, tool.input_schema), _question)]

    async def pin(self, values: ValueResolver) -> Catalog:
        """Their manifests say all."""
        return values.catalog

    async def close(self) -> None:
        """There is nothing to close."""


async def _question(arguments: JsonObject) -> str:
    """The argument ``input`` if it is the only one, else all arguments as JSON."""
    if arguments.keys() == {"input"} and isinstance(text := arguments["input"], str):
        return text
    return json.dumps(arguments, ensure_ascii=False)
