"""Finds what should have been replaced before manifests are read: ``${NAME}`` by envsubst, ``{{ … }}`` by Helm."""

import re
from collections.abc import Iterator

from pydantic import JsonValue

from .base import Path

_VARIABLE = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*\}")
_HELM = re.compile(
    r"\{\{-|-\}\}|\{\{\s*(?:\$|\.(?:Values|Release|Chart|Capabilities|Files|Template)\b"
    r"|(?:include|template|define|if|with|range|toYaml|tpl|default|required)\s+[^\s}])"
)
"""What only charts have. A plain ``{{.name}}`` is a placeholder of a manifest's own templates (ARK: queries)."""

FREE_TEXT = {
    *("prompt", "input", "description", "goal", "role", "stance", "terminatePrompt", "selectorPrompt"),
    *("data", "outputSchema", "inputSchema", "annotations", "instructions", "files"),
}
"""Fields whose texts may have such signs of their own, because they are about them."""

RENDER_CHART = "looks like a template of Helm that was not rendered: run 'helm template CHART > FILE' first"


def unrendered(data: JsonValue) -> Iterator[tuple[Path, str]]:
    """The places in a manifest with something that was not replaced, outside of free text, each with a sentence."""
    for path, text in _texts(data):
        if FREE_TEXT.isdisjoint(path):
            if variable := _VARIABLE.search(text):
                how = "set the variable and run 'envsubst < FILE > RENDERED' first"
                yield path, f"'{variable[0]}' was not replaced: {how}, or write the value"
            elif _HELM.search(text) or (path[0] == "metadata" and "{{" in text):
                yield path, RENDER_CHART


def variables_in_free_text(data: JsonValue) -> Iterator[tuple[Path, str]]:
    """The places in free text with what looks like a variable, each with a sentence."""
    for path, text in _texts(data):
        if not FREE_TEXT.isdisjoint(path) and (variable := _VARIABLE.search(text)):
            yield path, f"'{variable[0]}' is read as it stands; if it is a variable, run 'envsubst' first"


def _texts(value: JsonValue, path: Path = ()) -> Iterator[tuple[Path, str]]:
    """All texts in a value, each with its path."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict | list):
        for step, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _texts(item, (*path, step))


def not_yaml(problem: str | None, text: str) -> str:
    """The sentence about a text that is not YAML."""
    return RENDER_CHART if _HELM.search(text) else f"is not YAML: {problem}"
