"""Runs some tests with the lowest and with the newest versions that pyproject.toml allows, on several Pythons.

``make test-versions PYTHONS="python3.11 python3.13"``. Each pair of a Python and a choice of versions has a virtual
environment in ``.baton/versions``. Needs the package index.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / ".baton" / "versions"
UV = Path(sys.executable).parent / "uv"

RESOLUTIONS = ("lowest-direct", "highest")
"""How uv chooses versions. The packages that Baton's own ones need are the newest in both."""

TESTS = (
    "tests/test_architecture.py::test_private_names_of_libraries_are_checked_when_a_worker_starts",
    "tests/manifests/test_manifests.py",
    "tests/replay/test_history.py",
    "tests/activities/test_a2a.py",
    "tests/activities/test_anthropic.py",
    "tests/activities/test_bedrock.py",
    "tests/activities/test_bounded_process.py",
    "tests/activities/test_conditions.py",
    "tests/activities/test_engine.py",
    "tests/activities/test_external_storage.py",
    "tests/activities/test_http_tool.py",
    "tests/activities/test_journal.py",
    "tests/activities/test_mcp.py",
    "tests/activities/test_metrics.py",
    "tests/activities/test_migrations.py",
    "tests/activities/test_model.py",
    "tests/activities/test_openapi.py",
    "tests/activities/test_output_schema.py",
    "tests/activities/test_tool_results.py",
    "tests/activities/test_traces.py",
    "tests/starter/test_cli.py",
    "tests/starter/test_encryption.py",
    "tests/starter/test_function_tools.py",
    "tests/workflows/test_early_queries.py",
    "tests/workflows/test_eviction.py",
    "tests/workflows/test_query.py",
)
"""Tests that use each library, and each private part of one."""


@dataclass(frozen=True)
class Versions:
    """An interpreter, and how the versions of packages are chosen."""

    python: str
    resolution: str

    @property
    def name(self) -> str:
        """The name of its folder."""
        code = "import sys; print('%d.%d' % sys.version_info[:2])"
        return f"{subprocess.check_output([self.python, '-c', code], text=True).strip()}-{self.resolution}"

    @property
    def folder(self) -> Path:
        """Its virtual environment."""
        return FOLDER / self.name

    def install(self) -> None:
        """Makes the virtual environment anew."""
        FOLDER.mkdir(parents=True, exist_ok=True)
        lock = FOLDER / f"{self.name}.txt"
        chosen = ["--group", "dev", "--resolution", self.resolution, "--python", self.python]
        _uv("pip", "compile", "pyproject.toml", "--extra", "all", *chosen, "--upgrade", "--output-file", lock)
        _uv("venv", "--clear", "--python", self.python, self.folder)
        python = self.folder / "bin" / "python"
        _uv("pip", "install", "--python", python, "--requirement", lock, "--no-deps")
        _uv("pip", "install", "--python", python, "--no-deps", "--no-build-isolation", "--editable", ".")

    def test(self, tests: Sequence[str]) -> bool:
        """Runs tests; whether all have passed."""
        path = f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
        command = [str(self.folder / "bin" / "python"), "-m", "pytest", *tests, "--numprocesses", "2"]
        return subprocess.run(command, cwd=ROOT, env={**os.environ, "PATH": path}, check=False).returncode == 0


def _uv(*arguments: str | Path) -> None:
    subprocess.run([UV, "--quiet", "--no-python-downloads", *arguments], cwd=ROOT, check=True)


def main() -> int:
    """The exit code: 1 if a test failed anywhere."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pythons", nargs="*", default=[sys.executable], help="interpreters, by default this one")
    parser.add_argument("--tests", nargs="+", default=TESTS, help="other tests")
    arguments = parser.parse_args()
    failed = []
    for python in arguments.pythons:
        for resolution in RESOLUTIONS:
            versions = Versions(python, resolution)
            print(f"{versions.name}: installing", flush=True)
            versions.install()
            if not versions.test(arguments.tests):
                failed.append(versions.name)
    print(f"failed: {', '.join(failed)}" if failed else "all passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
