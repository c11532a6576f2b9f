"""Templates: texts with placeholders ``{{name}}`` or ``{{.name}}``, as in Go and Jinja, and nothing else."""

import re
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

_PLACE = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)
_NAME = re.compile(r"\s*\.?([\w-]+(?:\.[\w-]+)*)\s*")


class TemplateError(ValueError):
    """A template is invalid; the message says why, or lists the known names."""


class TemplatePart(NamedTuple):
    """A part of a template: plain text, or a placeholder with its name."""

    text: str
    name: str | None = None


def parse_template(template: str) -> Iterator[TemplatePart]:
    """The parts of a template in order; ``{{city}}`` and ``{{.city}}`` have the name ``city``. Raises TemplateError."""
    end = 0
    for place in _PLACE.finditer(template):
        yield TemplatePart(template[end : place.start()])
        name = _NAME.fullmatch(place[1])
        if not name:
            raise TemplateError(f"'{place[0]}' is invalid: a placeholder has only a name, as in {{{{city}}}}")
        yield TemplatePart(place[0], name[1])
        end = place.end()
    yield TemplatePart(template[end:])


def names_in(template: str) -> list[str]:
    """The names in a template; raises TemplateError."""
    return [piece.name for piece in parse_template(template) if piece.name]


def fill(template: str, value: Callable[[str], str]) -> str:
    """The text with a value for each placeholder; values are not searched for placeholders. Raises TemplateError."""
    return "".join(value(piece.name) if piece.name else piece.text for piece in parse_template(template))


def check_names(template: str, known: Collection[str]) -> None:
    """Raises TemplateError for an unknown name."""
    for name in names_in(template):
        if name not in known:
            listed = ", ".join(sorted(known)) or "none"
            raise TemplateError(f"unknown name '{name}'; known: {listed}")
