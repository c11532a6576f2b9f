"""What does ``{{name}}`` stand for? Texts with places for values, in the one form that Go, Jinja and people share."""

import re
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

_PLACE = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)
_NAME = re.compile(r"\s*\.?([\w-]+(?:\.[\w-]+)*)\s*")


class TemplateError(ValueError):
    """A template can't be filled; the text says what is wrong, or which names are known."""


class TemplatePart(NamedTuple):
    """A part of a template: plain text, or the name that stands in a place."""

    text: str
    name: str | None = None


def parse_template(template: str) -> Iterator[TemplatePart]:
    """The parts of a template in their order, ``city`` for ``{{city}}`` and ``{{.city}}``; raises TemplateError."""
    end = 0
    for place in _PLACE.finditer(template):
        yield TemplatePart(template[end : place.start()])
        name = _NAME.fullmatch(place[1])
        if not name:
            raise TemplateError(f"'{place[0]}' is not understood: only a name can stand there, as in {{{{city}}}}")
        yield TemplatePart(place[0], name[1])
        end = place.end()
    yield TemplatePart(template[end:])


def names_in(template: str) -> list[str]:
    """The names in a template; raises TemplateError."""
    return [piece.name for piece in parse_template(template) if piece.name]


def fill(template: str, value: Callable[[str], str]) -> str:
    """The text with each place filled in; what looks like a place in a value stays as it is. Raises TemplateError."""
    return "".join(value(piece.name) if piece.name else piece.text for piece in parse_template(template))


def check_names(template: str, known: Collection[str]) -> None:
    """Raises TemplateError for a name that is not known."""
    for name in names_in(template):
        if name not in known:
            listed = ", ".join(sorted(known)) or "none"
            raise TemplateError(f"nothing is known by the name '{name}'; known: {listed}")
