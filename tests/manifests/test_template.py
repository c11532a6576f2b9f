"""``{{name}}`` in a text: found in the forms that people write, filled in once, refused where nothing stands for it."""

import pytest

from baton.resources.template import TemplateError, check_names, fill, names


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
def test_a_place_is_a_name_in_double_braces(template: str, found: list[str]) -> None:
    assert names(template) == found


@pytest.mark.parametrize("template", ["{{if .x}}", "{{range .x}}", "{{ city | upper }}", "{{}}", "{{a b}}"])
def test_what_is_no_name_is_refused_and_repeated(template: str) -> None:
    with pytest.raises(TemplateError, match="is not understood: only a name can stand there"):
        names(template)


def test_a_place_in_a_value_is_no_place() -> None:
    assert fill("{{a}}, {{b}}!", {"a": "{{b}}", "b": "end"}.__getitem__) == "{{b}}, end!"


def test_an_unknown_name_is_told_with_those_that_are_known() -> None:
    with pytest.raises(TemplateError, match="nothing is known by the name 'town'; known: city, country"):
        check_names("{{town}}", ["country", "city"])
