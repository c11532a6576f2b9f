"""Feeds the loader bytes that lead it to new code, guided by coverage.

``python -m tests.chaos.coverage_guided [-max_total_time=60]`` needs atheris, which is no dependency of Baton: ``pip
install atheris``. Options are those of libFuzzer.
"""

import importlib
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml


def main() -> None:
    """Feeds the loader until it raises an error other than ManifestError, or until time is over."""
    atheris: Any = importlib.import_module("atheris")
    with atheris.instrument_imports(include=["baton.resources", "yaml"]):
        load_files = importlib.import_module("baton.resources.loader").load_files
        refused = importlib.import_module("baton.resources.problems").ManifestError
    with tempfile.TemporaryDirectory() as name:
        file, corpus = Path(name) / "m.yaml", Path(name) / "corpus"
        _write_corpus(corpus)

        def feed(data: bytes) -> None:
            file.write_bytes(data)
            try:
                loaded = load_files([file])
                [str(each) for each in (*loaded.notices(), *loaded.unresolved(), *loaded.default_members())]
            except refused as error:
                assert all(line.isprintable() for line in str(error).splitlines())

        atheris.Setup([sys.argv[0], str(corpus), f"-artifact_prefix={name}/", *sys.argv[1:]], feed)
        atheris.Fuzz()


def _write_corpus(corpus: Path) -> None:
    """Writes the initial inputs; they are imported after the instrumented modules."""
    odd_values = importlib.import_module("tests.chaos.odd_values")
    corpus.mkdir()
    for number, document in enumerate([*odd_values.SAMPLES, *odd_values.RARE]):
        (corpus / str(number)).write_text(yaml.safe_dump(document))


def row(seconds: int) -> dict[str, Any]:
    """Runs for so many seconds; the findings as a row of the table."""
    row_start: dict[str, Any] = {"what": "manifests, read, guided by coverage", "examples": 0, "s": seconds}
    if not find_spec("atheris"):
        return {**row_start, "wrong": "not tried: atheris is missing"}
    command = [sys.executable, "-m", "tests.chaos.coverage_guided", f"-max_total_time={seconds}", "-timeout=20"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    counts = [line.split()[1] for line in done.stderr.splitlines() if line.startswith("Done ")]
    wrong = None if done.returncode == 0 else done.stderr[-2_000:]
    return {**row_start, "examples": int(counts[0]) if counts else 0, "wrong": wrong}


if __name__ == "__main__":
    main()
