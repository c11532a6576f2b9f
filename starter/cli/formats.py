"""Writes values as JSON or YAML."""

import json

import yaml
from pydantic import JsonValue


class _BlockTextDumper(yaml.SafeDumper):
    """Writes texts of several lines as blocks."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_BlockTextDumper.add_representer(str, _represent_text)


def dump(value: JsonValue, form: str) -> str:
    """A value as YAML for ``yaml`` and ``ark``, or else as JSON."""
    if form in ("yaml", "ark"):
        return yaml.dump(value, Dumper=_BlockTextDumper, sort_keys=False, allow_unicode=True, width=120).rstrip()
    return json.dumps(value, indent=2, ensure_ascii=False)
