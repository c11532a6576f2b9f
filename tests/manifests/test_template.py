"""Templates: placeholders ``{{name}}`` are found, filled once, and refused if the name is unknown."""

import pytest

from baton.resources.template import TemplateError, check_names, fill, names_in
from baton.resources.tool import arguments_in


@pytest.mark.parametrize(
    ("template", "found"),
    [
        ("no places", []),
        ("{{city}} and {{.city}} and {{ city }} and {{ .city }}", ["city"] * 4),
        ("{{ .input.city }}", ["input.city"]),
        ("{{api-key}}{{snake_case}}", ["api-key", "snake_case"]),
        ('{"json": {"city": 1}}', []),
        ("{single} }} {{ without an end", []),
    ],
)
def test_a_placeholder_is_a_name_in_double_braces(template: str, found: list[str]) -> None:
    assert names_in(template) == found


@pytest.mark.parametrize("template", ["{{if .x}}", "{{range .x}}", "{{ city | upper }}", "{{}}", "{{a b}}"])
def test_an_invalid_placeholder_is_refused_and_repeated(template: str) -> None:
    with pytest.raises(TemplateError, match="is invalid: a placeholder has only a name"):
        names_in(template)


def test_braces_that_are_not_closed_are_read_once() -> None:
    assert names_in("{{" * 300_000) == arguments_in("{{" * 300_000) == []


def test_a_placeholder_in_a_value_is_plain_text() -> None:
    assert fill("{{a}}, {{b}}!", {"a": "{{b}}", "b": "end"}.__getitem__) == "{{b}}, end!"


def test_an_unknown_name_is_reported_with_the_known_names() -> None:
    with pytest.raises(TemplateError, match="unknown name 'town'; known: city, country"):
        check_names("{{town}}", ["country", "city"])
