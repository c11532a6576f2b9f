"""Rules of approvals: a pattern can only match an argument that the model chooses."""

from collections.abc import Iterator

from .agent import Agent
from .approval import Approval
from .base import Path
from .catalog import Catalog
from .manifest import Manifest
from .partial import PresetArguments
from .tool import Tool

PATH: Path = ("approval", "argumentMatches")
WHY = "people see only the arguments that a model chooses, so the pattern never matches"


def unmatched_patterns(catalog: Catalog) -> Iterator[tuple[Manifest, Path, str]]:
    """Patterns for preset arguments, in a Tool, in an agent's tool, or in a Tool whose argument an agent presets."""
    for owner in catalog.manifests:
        if isinstance(owner, Tool):
            preset = _names(owner.spec.partial)
            yield from ((owner, ("spec", *path), text) for path, text in _matches(owner.spec.approval, preset))
        if isinstance(owner, Agent):
            for number, (given, reference) in enumerate(owner.tools()):
                found = catalog.find(reference) if reference else None
                tool = found if isinstance(found, Tool) else None
                preset, at = _names(given.partial), ("spec", "tools", number)
                of_tool = _names(tool.spec.partial) if tool else set[str]()
                yield from ((owner, (*at, *path), text) for path, text in _matches(given.approval, preset | of_tool))
                for _, text in _matches(tool.spec.approval if tool else None, preset):
                    yield owner, (*at, "partial", "parameters"), f"{text}: the approval of {tool and tool.id} has it"


def _matches(rule: Approval | None, preset: set[str]) -> Iterator[tuple[Path, str]]:
    for index, match in enumerate(rule.argument_matches if rule else ()):
        if match.argument in preset:
            yield (*PATH, index, "argument"), f"'{match.argument}' is a preset argument: {WHY}"


def _names(presets: PresetArguments | None) -> set[str]:
    return {each.name for each in presets.parameters} if presets else set()
