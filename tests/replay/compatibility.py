"""Compares stored names and shapes with earlier ones: names and optional fields may be added, nothing else."""

from collections.abc import Iterator
from typing import Any

BY_NAME = ("properties", "mapping")
"""Parts of a schema whose keys are names: more of them may be added."""

ALTERNATIVES = ("enum", "anyOf", "oneOf")
"""Parts of a schema that list what is allowed: more may be added at any place."""


def incompatible(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """What running workflows and stored values could miss in ``new``, one sentence each; empty if it only grows.

    Both are values of ``stored()`` in JSON: names of each kind, and a JSON schema for each shape.
    """
    return [problem for section, value in old.items() for problem in _section(section, value, new.get(section))]


def _section(name: str, old: Any, new: Any) -> Iterator[str]:
    if name == "shapes":
        yield from _names(name, old, new or {}, _schema)
    elif isinstance(old, dict):
        yield from _names(name, old, new or {}, _section)
    elif isinstance(old, list):
        yield from (f"{name}: '{each}' is gone" for each in old if each not in (new or []))
    elif old != new:
        yield f"{name}: was {old!r}, is {new!r}"


def _names(path: str, old: dict[str, Any], new: dict[str, Any], compare: Any) -> Iterator[str]:
    """Every old name is still there, with a compatible value; new names are allowed."""
    for name, value in old.items():
        if name in new:
            yield from compare(f"{path}.{name}", value, new[name])
        else:
            yield f"{path}: '{name}' is gone"


def _schema(path: str, old: Any, new: Any) -> Iterator[str]:
    """A schema allows what it allowed, asks for no more, and has the same defaults, but for new fields in them."""
    if not (isinstance(old, dict) and isinstance(new, dict)):
        if old != new:
            yield f"{path}: was {old!r}, is {new!r}"
        return
    old = _as_alternatives(old) if "enum" in new else old
    for key in (*old, *(each for each in new if each not in old)):
        before, after = old.get(key), new.get(key)
        if key in BY_NAME and isinstance(before or {}, dict) and isinstance(after or {}, dict):
            yield from _names(path if key == "properties" else f"{path}.{key}", before or {}, after or {}, _schema)
        elif key == "default" and isinstance(before, dict) and isinstance(after, dict):
            yield from _names(f"{path}.default", before, after, _schema)
        elif key == "required":
            yield from _required(path, set(before or ()), set(after or ()))
        elif key in ALTERNATIVES and key in old and key in new:
            lost = (each for each in old[key] if not any(_allows(each, other) for other in new[key]))
            yield from (f"{path}: no longer allows {each!r}" for each in lost)
        elif key in old and key in new:
            yield from _schema(f"{path}.{key}", before, after)
        else:
            yield f"{path}: '{key}' was {before!r}, is {after!r}"


def _as_alternatives(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema that allows a single value, as a list of what is allowed."""
    own = {"enum": [schema["const"]]} if "const" in schema else {}
    return {**{key: each for key, each in schema.items() if key != "const"}, **own}


def _allows(old: Any, new: Any) -> bool:
    """Whether an alternative is still there, perhaps with more in it."""
    return old == new or (isinstance(old, dict) and not [*_schema("", old, new)])


def _required(path: str, old: set[str], new: set[str]) -> Iterator[str]:
    yield from (f"{path}: '{each}' has become required" for each in sorted(new - old))
    yield from (f"{path}: '{each}' is no longer required" for each in sorted(old - new))
