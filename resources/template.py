"""Templates: texts with placeholders ``{{name}}`` or ``{{.name}}``, as in Go and Jinja, and nothing else."""

import re
from collections.abc import Callable, Collection, Iterator
from itertools import islice
from typing import NamedTuple

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
    for begin, after in _places(template):
        yield TemplatePart(template[end:begin])
        place = template[begin:after]
        end = after
        name = _NAME.fullmatch(place, 2, len(place) - 2)
        if not name:
            raise TemplateError(f"'{place}' is invalid: a placeholder has only a name, as in {{{{city}}}}")
        yield TemplatePart(place, name[1])
    yield TemplatePart(template[end:])


def with_places_as(text: str, template: str, count: int | None = None) -> str:
    """The template with a text instead of all placeholders, or of the first ``count``, valid or not."""
    parts: list[str] = []
    end = 0
    for begin, after in islice(_places(template), count):
        parts += (template[end:begin], text)
        end = after
    return "".join(parts) + template[end:]


def _places(template: str) -> Iterator[tuple[int, int]]:
    """Where placeholders begin and end. A regular expression would take quadratic time for unclosed ``{{``."""
    begin = template.find("{{")
    while begin >= 0 and (close := template.find("}}", begin + 2)) >= 0:
        yield begin, close + 2
        begin = template.find("{{", close + 2)


def names_in(template: str) -> list[str]:
    """The names in a template; raises TemplateError."""
    return [part.name for part in parse_template(template) if part.name]


def fill(template: str, value: Callable[[str], str]) -> str:
    """The text with values instead of placeholders; values are not expanded again. Raises TemplateError."""
    return "".join(value(part.name) if part.name else part.text for part in parse_template(template))


def check_names(template: str, known: Collection[str]) -> None:
    """Raises TemplateError for an unknown name."""
    for name in names_in(template):
        if name not in known:
            listed = ", ".join(sorted(known)) or "none"
            raise TemplateError(f"unknown name '{name}'; known: {listed}")
