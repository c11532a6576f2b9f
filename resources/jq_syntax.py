"""The rule that filters in jq can be compiled: checked in a process that sees no files, within limits."""

import json
import subprocess
import sys
from collections.abc import Iterable, Iterator

from .base import Path
from .catalog import Catalog
from .manifest import Manifest
from .values import Function

SECONDS, MEMORY = 5, 512_000_000
"""The limits of the process: even compiling a filter may take any time and memory."""

_PROGRAM = f"""
import json, resource, sys, jq
programs = json.load(sys.stdin)
resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))
resource.setrlimit(resource.RLIMIT_AS, ({MEMORY}, {MEMORY}))
resource.setrlimit(resource.RLIMIT_CPU, ({SECONDS}, {SECONDS}))
print("ready", flush=True)
for each in programs:
    try:
        jq.compile(each or ".")
        print("null", flush=True)
    except ValueError as error:
        print(json.dumps(str(error)), flush=True)
"""

_known: dict[str, str | None] = {}
"""What was found about filters before: a program loads the same manifest often."""


def broken_filters(catalog: Catalog) -> Iterator[tuple[Manifest, Path, str]]:
    """The filters that jq does not understand, each with its manifest, the path and what is wrong."""
    found = [(each, path, item) for each in catalog.manifests for path, item in each.parts]
    filters = [(each, path, item.value) for each, path, item in found if isinstance(item, Function)]
    if new := dict.fromkeys(text for *_, text in filters if text not in _known):
        _known.update(zip(new, _errors(new), strict=True))
    for manifest, path, text in filters:
        if wrong := _known[text]:
            yield manifest, (*path, "value"), wrong


def _errors(programs: Iterable[str]) -> Iterator[str | None]:
    """For each program what is wrong with it; None for one that can be compiled."""
    left = [*programs]
    while left:
        said = _compiled(left)
        yield from (_sentence(each) for each in said)
        if len(said) < len(left):  # the process has ended over this one
            yield f"can't be compiled by jq within {SECONDS} s and {MEMORY // 1_000_000} MB"
        left = left[len(said) + 1 :]


def _compiled(programs: list[str]) -> list[str | None]:
    """What jq says of the first programs: of all, unless the process exceeds its limits. Nothing, if it can't start."""
    command, given = [sys.executable, "-I", "-c", _PROGRAM], json.dumps(programs).encode()
    try:
        printed = subprocess.run(
            command, input=given, capture_output=True, timeout=2 * SECONDS, check=False, env={}
        ).stdout
    except subprocess.TimeoutExpired as late:
        printed = late.stdout or b""
    ready, *lines = printed.splitlines() or [b""]
    return [json.loads(line) for line in lines] if ready else [None] * len(programs)


def _sentence(error: str | None) -> str | None:
    first = error.removeprefix("jq: error: ").splitlines()[0].strip() if error else ""
    return f"is no filter that jq understands: {first}" if error else None
