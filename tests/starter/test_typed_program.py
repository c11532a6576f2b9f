"""Type checkers accept a program that uses all of the Python interface, in their strictest mode."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import baton
from tests.harness.processes import ROOT

PROGRAM = ROOT / "tests" / "starter" / "typed_program.py"


def test_the_program_uses_every_name() -> None:
    used = set(re.findall(r"baton\.(\w+)", PROGRAM.read_text()))
    assert used == {*baton.__all__}


@pytest.mark.slow
def test_pyright_accepts_it(tmp_path: Path) -> None:
    """Mypy checks it with all files of the tests, strictly as well."""
    config = {
        "include": [str(PROGRAM)],
        "extraPaths": [str(ROOT / ".venv" / "types")],
        "typeCheckingMode": "strict",
        "pythonVersion": "3.11",
    }
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(config))
    command = [sys.executable, "-m", "basedpyright", "--project", str(tmp_path), "--pythonpath", sys.executable]
    checked = subprocess.run([*command, "--outputjson"], capture_output=True, text=True, check=False)
    problems = json.loads(checked.stdout)["generalDiagnostics"]
    assert [f"{each['range']['start']['line'] + 1}: {each['message']}" for each in problems] == []
