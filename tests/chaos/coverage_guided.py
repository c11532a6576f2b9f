"""Feeds Baton bytes that lead it to new code, guided by coverage.

``python -m tests.chaos.coverage_guided loader|judges [-max_total_time=60]`` needs atheris, which is no dependency of
Baton: ``pip install atheris``. Options are those of libFuzzer. The loader must refuse what is no manifest; what judges
conditions, schemas and secrets must neither freeze nor let a secret pass.
"""

import contextlib
import importlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

SECRET = "s3cr€t+key/of=42"
Target = tuple[Callable[[bytes], None], Iterable[bytes]]
"""What takes the bytes, and the initial ones."""


def loader(folder: Path) -> Target:
    """Reads a file of manifests."""
    load_files = importlib.import_module("baton.resources.loader").load_files
    refused = importlib.import_module("baton.resources.problems").ManifestError
    odd_values = importlib.import_module("tests.chaos.odd_values")
    file = folder / "m.yaml"

    def feed(data: bytes) -> None:
        file.write_bytes(data)
        try:
            loaded = load_files([file])
            [str(each) for each in (*loaded.notices(), *loaded.unresolved(), *loaded.default_members())]
        except refused as error:
            assert all(line.isprintable() for line in str(error).splitlines())

    return feed, (yaml.safe_dump(each).encode() for each in (*odd_values.SAMPLES, *odd_values.RARE))


def judges(_: Path) -> Target:
    """Checks a text as a condition and as a schema, and searches it for a secret in its midst."""
    condition = importlib.import_module("baton.resources.conditions")
    check_schema = importlib.import_module("baton.resources.json_schema")._check_schema
    redactor = importlib.import_module("baton.activities.runtime.redaction").Redactor()
    redactor.add(SECRET)

    def feed(data: bytes) -> None:
        text = data.decode("utf-8", "replace")
        with contextlib.suppress(ValueError):
            condition.check_condition(text, condition.SAMPLE_PANEL_FACTS)
        with contextlib.suppress(ValueError, RecursionError):  # pydantic refuses JSON that is nested so deeply
            if isinstance(schema := json.loads(text), dict):
                check_schema(schema)
        middle = len(text) // 2
        for form in (SECRET, json.dumps(SECRET)[1:-1]):
            assert form not in redactor.redact(text[:middle] + form + text[middle:])
            assert form not in redactor.redact_partial(text[:middle] + form + text[middle:])

    hidden = "[0,1].all//\n(turn, " * 3 + "true" + ")" * 3
    schema = '{"$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}]}}, "pattern": "^([A-Za-z]+ ?)+$", "$ref": "#/$defs/a"}'
    return feed, (each.encode() for each in (hidden, schema, "message.matches('(a*)*b')", "\\u0073%73&#115;"))


TARGETS: dict[str, Callable[[Path], Target]] = {"loader": loader, "judges": judges}


def main() -> None:
    """Feeds a target until it fails, or until time is over."""
    atheris: Any = importlib.import_module("atheris")
    target = sys.argv.pop(1)
    with tempfile.TemporaryDirectory() as name:
        (corpus := Path(name) / "corpus").mkdir()
        with atheris.instrument_imports(include=["baton.resources", "baton.activities.runtime", "yaml"]):
            feed, initial = TARGETS[target](Path(name))
        for number, each in enumerate(initial):
            (corpus / str(number)).write_bytes(each)
        atheris.Setup([sys.argv[0], str(corpus), f"-artifact_prefix={name}/", *sys.argv[1:]], feed)
        atheris.Fuzz()


def row(target: str, seconds: int) -> dict[str, Any]:
    """Runs for so many seconds; how many inputs were tried, and what was wrong."""
    if not find_spec("atheris"):
        return {"examples": 0, "s": seconds, "wrong": "not tried: atheris is missing"}
    command = [sys.executable, "-m", "tests.chaos.coverage_guided", target, f"-max_total_time={seconds}", "-timeout=20"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    counts = [line.split()[1] for line in done.stderr.splitlines() if line.startswith("Done ")]
    wrong = None if done.returncode == 0 else done.stderr[-2_000:]
    return {"examples": int(counts[0]) if counts else 0, "s": seconds, "wrong": wrong}


if __name__ == "__main__":
    main()
