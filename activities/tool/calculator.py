"""The built-in tool ``calculator``: parses arithmetic and calculates it in decimal numbers; nothing is run as code."""

import ast
import decimal
from collections.abc import Callable
from decimal import Decimal

from ...conversation.errors import ToolFailed
from ...resources.base import JsonObject

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
