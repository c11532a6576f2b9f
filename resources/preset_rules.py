"""Finds preset arguments that a tool does not have."""

from collections.abc import Iterator

from .agent import Agent
from .base import Path
from .catalog import Catalog
from .manifest import Manifest
from .partial import PresetArguments
from .tool import Tool
from .validation import Violation


def unknown_presets(catalog: Catalog) -> Iterator[Violation]:
    """Preset arguments that a tool does not have, as far as its manifest says what it has (ARK's samples have such)."""
    for owner in catalog.manifests:
        for path, presets, tool in _used(owner, catalog):
            known = tool.input_schema.get("properties") if isinstance(tool, Tool) else None
            for index, each in enumerate(presets.parameters if presets and known and isinstance(known, dict) else ()):
                if isinstance(known, dict) and tool and each.name not in known:
                    text = f"'{each.name}' is not a property of {tool.id}'s inputSchema; it is sent all the same"
                    place = ("spec", *path, "partial", "parameters", index, "name")
                    yield Violation(owner, place, f"{text}; its properties: {', '.join(known)}")


def _used(owner: Manifest, catalog: Catalog) -> Iterator[tuple[Path, PresetArguments | None, Manifest | None]]:
    if isinstance(owner, Tool):
        yield (), owner.spec.partial, owner
    elif isinstance(owner, Agent):
        for number, (given, reference) in enumerate(owner.tools()):
            yield ("tools", number), given.partial, catalog.find(reference) if reference else None
