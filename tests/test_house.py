"""The house: imports run one way, the sandbox stays closed, and every file says what it answers."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import get_args

import pytest

from resources.team import Strategy
from tests.processes import ROOT

LAYERS = ("resources", "conversation", "workflows", "activities", "worker", "starter", "baton")
MAY_IMPORT: dict[str, set[str]] = {
    "resources": set(),
    "conversation": {"resources"},
    "workflows": {"resources", "conversation"},
    "activities": {"resources", "conversation"},
    "worker": {"resources", "conversation", "workflows", "activities"},
    "starter": {"resources", "conversation", "workflows", "activities", "worker"},
    "baton": {"resources", "conversation", "activities", "starter"},
}
FILES = sorted(file for layer in LAYERS for file in [*(ROOT / layer).rglob("*.py"), *ROOT.glob(f"{layer}.py")])


def imports(file: Path) -> set[str]:
    tree = ast.parse(file.read_text())
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    return names | {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_imports_run_one_way(file: Path) -> None:
    layer = file.relative_to(ROOT).parts[0].removesuffix(".py")
    ours = {name.split(".")[0] for name in imports(file)} & set(LAYERS)
    assert ours - {layer} <= MAY_IMPORT[layer]


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_every_file_says_in_its_first_line_what_it_answers_and_is_short(file: Path) -> None:
    text = file.read_text()
    assert (ast.get_docstring(ast.parse(text)) or "").strip()
    assert text.count("\n") <= 200


BANNED = {"time", "random", "uuid", "threading", "os", "socket", "openai", "httpx", "httpx2", "sqlalchemy"}


@pytest.mark.parametrize("file", [f for f in FILES if "workflows" in f.parts], ids=lambda file: file.name)
def test_workflow_code_has_no_clock_no_chance_and_no_http(file: Path) -> None:
    assert not imports(file) & BANNED
    nodes = [*ast.walk(ast.parse(file.read_text()))]
    assert not [node for node in nodes if isinstance(node, ast.Set | ast.SetComp)], "sets have no order"
    called = {ast.unparse(node.func) for node in nodes if isinstance(node, ast.Call)}
    assert not called & {"set", "frozenset", "hash", "id", "datetime.now", "datetime.utcnow", "print", "open"}


def test_all_that_there_is_is_installed() -> None:
    installed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    folders = {str(file.parent.relative_to(ROOT)).replace("/", ".") for file in FILES if file.parent != ROOT}
    assert {*installed["packages"]} == folders
    assert {*installed["py-modules"]} == {file.stem for file in FILES if file.parent == ROOT}


def test_a_manifests_word_is_a_files_name() -> None:
    for strategy in get_args(Strategy):
        file = ROOT / "workflows" / "strategies" / f"{strategy.replace('-', '_')}.py"
        assert f'@workflow.defn(name="{strategy}")' in file.read_text()
    for kind in ("Query", "Team", "Agent", "Model", "Tool", "Secret"):
        assert f'kind: Literal["{kind}"]' in (ROOT / "resources" / f"{kind.lower()}.py").read_text()


def test_one_verb_names_an_effect_on_both_sides() -> None:
    effects = (ROOT / "workflows" / "effects.py").read_text()
    for verb in ("pin", "ask_model", "use_tool", "append"):
        assert f"async def {verb}(" in effects
        assert f'@activity.defn(name="{verb}")' in (ROOT / "activities" / f"{verb}.py").read_text()


def test_a_command_loads_no_database_before_it_needs_one() -> None:
    loaded = "import starter.cli, sys; print([name for name in sys.modules if name in ('sqlalchemy', 'openai')])"
    assert subprocess.check_output([sys.executable, "-c", loaded], cwd=ROOT, text=True) == "[]\n"
