"""Are these manifests right? What checks them, here and in an editor."""

import json
from pathlib import Path
from typing import Annotated

import typer

from ...resources.problems import ManifestError
from ...resources.schema import manifest_schema
from . import targets
from .terminal import err, say

Files = Annotated[list[Path], typer.Option("-f", "--file", help="A file or folder of manifests; may be repeated.")]


def validate(
    file: Files,
    strict: Annotated[bool, typer.Option("--strict", help="Refuse references outside of the files.")] = False,
) -> None:
    """Checks the manifests in FILE and says everything that is wrong with them."""
    loaded = targets.load(file, err)
    outside = loaded.unresolved()
    if strict and outside:
        raise ManifestError(outside)
    for problem in outside:
        say(f"warning: {problem}")
    for problem in loaded.assumed():
        say(f"note: {problem}")
    print(f"{len(loaded.catalog.manifests)} manifests are valid")


def schema() -> None:
    """Prints a JSON Schema of all manifests, with which an editor completes and checks them."""
    print(json.dumps(manifest_schema(), indent=2))
