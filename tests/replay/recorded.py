"""The folder of recorded histories: which scenarios have one, and how its files are named.

A file is one run of a scenario: ``SCENARIO.NUMBER.WORKFLOW_TYPE.json``. A later recording of the same scenario stands
beside the first as ``SCENARIO@2.NUMBER.WORKFLOW_TYPE.json``, then ``SCENARIO@3…``: all of them are replayed.
"""

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HISTORIES = Path(__file__).parent / "histories"

Run = tuple[str, str]
"""A run of a scenario: its workflow type and its history as JSON."""


@dataclass(frozen=True)
class RecordedHistories:
    """A folder of recorded histories."""

    folder: Path = HISTORIES

    def scenarios(self) -> set[str]:
        """The scenarios that have at least one history."""
        return {_scenario(file) for file in self.folder.glob("*.json")}

    def files(self, scenario: str) -> list[Path]:
        """All files of a scenario, of every recording."""
        return sorted(file for file in self.folder.glob("*.json") if _scenario(file) == scenario)

    def add(self, scenario: str, runs: Sequence[Run]) -> None:
        """Writes a recording beside those that are there; never changes a file."""
        self.folder.mkdir(exist_ok=True)
        label = self._next_label(scenario)
        for number, (workflow_type, history) in enumerate(runs, 1):
            with (self.folder / f"{label}.{number}.{workflow_type}.json").open("x") as file:
                file.write(history)

    def replace(self, scenario: str, runs: Sequence[Run]) -> None:
        """Deletes all recordings of a scenario and writes one in their place."""
        for file in self.files(scenario):
            file.unlink()
        self.add(scenario, runs)

    def uncommitted(self, scenario: str) -> list[Path]:
        """The files of a scenario that git doesn't hold as they are, so that they would be lost if replaced."""
        return [file for file in self.files(scenario) if not _is_committed(file)]

    def _next_label(self, scenario: str) -> str:
        versions = [int(_label(file).partition("@")[2] or 1) for file in self.files(scenario)]
        return f"{scenario}@{max(versions) + 1}" if versions else scenario


def _label(file: Path) -> str:
    return file.name.split(".")[0]


def _scenario(file: Path) -> str:
    return _label(file).partition("@")[0]


def _is_committed(file: Path) -> bool:
    command = ("git", "-C", str(file.parent), "status", "--porcelain", "--ignored", "--", file.name)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode == 0 and not done.stdout
