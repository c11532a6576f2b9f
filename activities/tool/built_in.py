"""Tools of ``type: built-in``, skills, and tools that delegate to agents and teams (ARK: queries, tool execution)."""

import ast
import decimal
import json
import textwrap
from collections.abc import Callable
from decimal import Decimal

from ...contracts.errors import BadArguments, InvalidManifest, ToolFailed
from ...contracts.message import Handoff
from ...contracts.plan import MemberPlace
from ...resources.agent import Agent
from ...resources.base import JsonObject
from ...resources.catalog import Catalog
from ...resources.provenance import Provenance
from ...resources.run_catalog import RunCatalog
from ...resources.skill import LOAD_SKILL, Skill
from ...resources.team import Team
from ..context.lookup import find_team
from ..context.value_resolver import ValueResolver, skills_of
from ..runtime.secrets import SecretStore
from .tool import CallableTool, ToolContext, ToolDefinition, without_effects

MAX_CHARACTERS = 500
"""Characters of an expression, at most."""

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
    """The value of ``expression`` with up to 34 digits. Raises ToolFailed if it is invalid or has no value."""
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
    """``text`` in one of STYLES. ``width`` (default: 70 columns) is only used by the style ``wrap``."""
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
        """The built-in tool with this name."""
        return [BUILT_IN_TOOLS[context.name]]

    async def pin(self, values: ValueResolver) -> RunCatalog:
        """The catalog unchanged: the manifests are complete."""
        return values.catalog

    async def close(self) -> None:
        """Does nothing: there are no connections."""


async def _terminate(arguments: JsonObject) -> str:
    """The final message; empty by default."""
    return str(arguments.get("response", ""))


async def repeat(arguments: JsonObject) -> str:
    """The ``message`` itself."""
    return str(arguments.get("message", ""))


def _schema(required: tuple[str, ...] = (), **properties: JsonObject) -> JsonObject:
    return {"type": "object", "properties": {**properties}, "required": [*required]}


def _text(description: str) -> JsonObject:
    return {"type": "string", "description": description}


def _terminating(name: str) -> CallableTool:
    definition = ToolDefinition(
        name,
        "Ends the discussion. Call it once the goal is reached, with your final words as the response.",
        _schema(response=_text("The final words: the result of the whole discussion.")),
    )
    return CallableTool(definition, without_effects(_terminate), Provenance.FILES, ends=True, inside=True)


_NOOP = ToolDefinition(
    "noop",
    "Does nothing and returns the message.",
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
    "noop": CallableTool(_NOOP, without_effects(repeat), Provenance.FILES, inside=True),
    "calculator": CallableTool(_CALCULATOR, without_effects(calculate), Provenance.FILES, inside=True),
    "format-text": CallableTool(_FORMAT_TEXT, without_effects(format_text), Provenance.FILES, inside=True),
}


def skill_tools(agent: Agent, catalog: Catalog) -> list[CallableTool]:
    """The tool that reads skills, if the agent has any. It reads the pinned skills of the run, not files."""
    skills = skills_of(agent, catalog)
    if not skills:
        return []

    async def load(arguments: JsonObject) -> str:
        name = str(arguments["skill"])
        file = arguments.get("file")
        return _main_text(skills[name]) if file is None else _file(skills[name], str(file))

    return [CallableTool(_definition([*skills]), without_effects(load), Provenance.FILES, inside=True)]


def _definition(names: list[str]) -> ToolDefinition:
    properties: JsonObject = {
        "skill": {"type": "string", "enum": [*names]},
        "file": {"type": "string", "description": "A file of the skill; without it, the skill's instructions."},
    }
    schema: JsonObject = {"type": "object", "properties": properties, "required": ["skill"]}
    return ToolDefinition(LOAD_SKILL, "Reads the instructions of a skill, or one of its files.", schema)


def _main_text(skill: Skill) -> str:
    """The instructions of a skill, and the list of its files."""
    files = "\n".join(f"- {name}" for name in skill.spec.files)
    return f"{skill.spec.instructions}\n\nFiles of this skill:\n{files}" if files else skill.spec.instructions or ""


def _file(skill: Skill, name: str) -> str:
    if (text := skill.spec.files.get(name.removeprefix("./"))) is None:
        files = ", ".join(skill.spec.files) or "none"
        raise BadArguments(f"the skill {skill.name} has no file '{name}'; its files: {files}")
    return text


def handoff_tools(place: MemberPlace | None, catalog: Catalog) -> list[CallableTool]:
    """The tools by which the member at a place transfers the conversation; none without a place."""
    if place is None:
        return []
    team = find_team(catalog, place.team)
    tools = team.spec.handoff_tools(place.index)
    return [_handoff_tool(name, team, receiver, catalog) for name, receiver in tools.items()]


def _handoff_tool(tool: str, team: Team, receiver: int, catalog: Catalog) -> CallableTool:
    name = team.spec.members[receiver].name_in_team

    async def transfer(arguments: JsonObject) -> str:
        message = str(arguments.get("message", ""))
        return f"Transferred to {name}: {message}" if message else f"Transferred to {name}."

    manifest = catalog.find([*team.members()][receiver])
    about = manifest.spec.description if isinstance(manifest, Agent | Team) else None
    text = f"Transfers the conversation to {name}, who continues it.{f' {name}: {about}' if about else ''}"
    message = _text("What the receiver needs to know besides the conversation.")
    definition = ToolDefinition(tool, text, _schema(message=message))
    handoff = Handoff(team=team.id, member=name)
    return CallableTool(definition, without_effects(transfer), Provenance.FILES, handoff=handoff, inside=True)


class DelegatingTools:
    """A ``ToolSource``. The workflow runs the agent or team as a child; the call here only returns its question."""

    def __init__(self, _secrets: SecretStore) -> None: ...

    async def discover(self, context: ToolContext) -> list[CallableTool]:
        """The single tool of a manifest."""
        tool = context.manifest
        if tool is None:
            raise InvalidManifest(f"the tool {context.name} names no agent or team")
        definition = ToolDefinition(context.name, tool.model_description, tool.input_schema)
        return [CallableTool(definition, without_effects(_question), context.provenance)]

    async def pin(self, values: ValueResolver) -> RunCatalog:
        """The catalog unchanged: the manifests are complete."""
        return values.catalog

    async def close(self) -> None:
        """Does nothing: there are no connections."""


async def _question(arguments: JsonObject) -> str:
    """The argument ``input`` if it is the only one, else all arguments as JSON."""
    if arguments.keys() == {"input"} and isinstance(text := arguments["input"], str):
        return text
    return json.dumps(arguments, ensure_ascii=False)
