"""The architecture: imports run one way, workflow code is deterministic, and every file says what it does."""

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from temporalio import workflow

from baton.resources.strategies import STRATEGIES
from baton.workflows import registry
from tests.harness.processes import ROOT

LAYERS = (
    "resources",
    "contracts",
    "temporal",
    "observability",
    "journal",
    "workflows/state",
    "workflows/calls",
    "workflows/discussion",
    "workflows/run",
    "workflows/strategies",
    "workflows",
    "activities/runtime",
    "activities/context",
    "activities/tool",
    "activities/model",
    "activities/agent",
    "activities",
    "worker",
    "starter",
    "starter/runs",
    "starter/history",
    "starter/server",
    "starter/console",
    "starter/diagram",
    "starter/operations",
    "starter/api",
    "starter/cli",
)
"""The folders of the package: each imports its own modules, and modules of the folders above it in this list."""

FOLDERS = ("resources", "contracts", "temporal", "observability", "journal", "workflows", "activities", "starter")
FILES = [
    *sorted(file for each in FOLDERS for file in (ROOT / each).rglob("*.py") if not file.name.startswith("_")),
    ROOT / "__init__.py",
    ROOT / "worker.py",
]


def layer_of(parts: tuple[str, ...]) -> str:
    """The layer of a module, by its path in the package."""
    return next(("/".join(parts[:length]) for length in (2, 1) if "/".join(parts[:length]) in LAYERS), "")


def imported_modules(file: Path) -> Iterator[tuple[str, ...]]:
    """The modules of the package that a file imports when it runs, at its top or in a function, by their paths."""
    path = file.relative_to(ROOT).with_suffix("").parts
    tree = ast.parse(file.read_text())
    blocks = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    for_types = {node for block in blocks for each in block.body for node in ast.walk(each)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level and node not in for_types:
            base = (*path[: len(path) - node.level], *(node.module or "").split("."))
            for name in node.names:
                full = tuple(part for part in (*base, name.name) if part)
                target = ROOT.joinpath(*full)
                yield full if target.is_dir() or target.with_suffix(".py").exists() else full[:-1]


def imported(file: Path) -> set[str]:
    """The layers that a file imports."""
    return {layer_of(module) for module in imported_modules(file)}


def absolute(file: Path) -> set[str]:
    """The modules that a file imports by their whole names."""
    tree = ast.parse(file.read_text())
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    return names | {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and not node.level}


def test_imports_run_one_way_between_the_folders() -> None:
    wrong = []
    for file in FILES:
        layer = layer_of(file.relative_to(ROOT).with_suffix("").parts)
        if layer in LAYERS:
            wrong += [
                f"{file.relative_to(ROOT)}: {each}"
                for each in imported(file)
                if each not in LAYERS or LAYERS.index(each) > LAYERS.index(layer)
            ]
    assert wrong == []


def test_workflows_and_activities_do_not_import_each_other() -> None:
    for file in FILES:
        folder = file.relative_to(ROOT).parts[0]
        layers = {each.partition("/")[0] for each in imported(file)}
        assert folder != "workflows" or not layers & {"activities", "journal"}, file
        assert folder != "activities" or "workflows" not in layers, file


def test_no_modules_import_each_other_in_a_circle() -> None:
    modules = {file.relative_to(ROOT).with_suffix("").parts: file for file in FILES}
    imports = {module: {*imported_modules(file)} & {*modules} - {module} for module, file in modules.items()}
    while leaves := [module for module, others in imports.items() if not others]:
        for leaf in leaves:
            del imports[leaf]
        for others in imports.values():
            others.difference_update(leaves)
    assert not imports


SOURCES = sorted(file for each in (*FOLDERS, "tests", "samples", "benchmarks") for file in (ROOT / each).rglob("*.py"))


@pytest.mark.parametrize("file", [*SOURCES, ROOT / "worker.py"], ids=lambda file: str(file.relative_to(ROOT)))
def test_no_folder_of_the_package_is_imported_by_its_bare_name(file: Path) -> None:
    assert not {name.split(".")[0] for name in absolute(file)} & {*FOLDERS, "worker"}


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_every_file_states_in_its_first_line_what_it_does(file: Path) -> None:
    first = (ast.get_docstring(ast.parse(file.read_text())) or "").partition("\n")[0]
    assert first
    assert "?" not in first, "a statement, no question"


def test_no_two_classes_of_the_package_have_the_same_name() -> None:
    where: dict[str, list[str]] = {}
    for file in FILES:
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                where.setdefault(node.name, []).append(str(file.relative_to(ROOT)))
    assert {name: files for name, files in where.items() if len(files) > 1} == {}


BANNED = {"time", "random", "uuid", "threading", "os", "socket", "httpx", "httpx2", "sqlalchemy"}
BANNED |= {"openai", "anthropic", "botocore", "aiobotocore"}


@pytest.mark.parametrize("file", [f for f in FILES if "workflows" in f.parts], ids=lambda file: file.name)
def test_workflow_code_has_no_clock_no_chance_and_no_http(file: Path) -> None:
    assert not absolute(file) & BANNED
    nodes = [*ast.walk(ast.parse(file.read_text()))]
    assert not [node for node in nodes if isinstance(node, ast.Set | ast.SetComp)], "sets have no order"
    called = {ast.unparse(node.func) for node in nodes if isinstance(node, ast.Call)}
    assert not called & {"set", "frozenset", "hash", "id", "datetime.now", "datetime.utcnow", "print", "open"}


def test_all_that_there_is_is_installed() -> None:
    installed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    folders = {file.parent.relative_to(ROOT) for each in FOLDERS for file in (ROOT / each).rglob("*.py")}
    assert {*installed["packages"]} == {"baton", *(".".join(("baton", *folder.parts)) for folder in folders)}


def test_a_manifests_word_is_a_files_name() -> None:
    for strategy in STRATEGIES:
        assert (ROOT / "workflows" / "strategies" / f"{strategy.replace('-', '_')}.py").exists()
    for kind in ("Query", "Team", "Agent", "Model", "Tool", "Secret"):
        assert f'kind: Literal["{kind}"]' in (ROOT / "resources" / f"{kind.lower()}.py").read_text()


def test_each_strategy_has_a_workflow_of_its_name() -> None:
    assert {workflow._Definition.must_from_class(each).name for each in registry.STRATEGIES} == {*STRATEGIES}


def test_one_verb_names_an_effect_on_both_sides() -> None:
    effects = (ROOT / "workflows" / "calls" / "effects.py").read_text()
    activities = "".join(file.read_text() for file in (ROOT / "activities").glob("*.py"))
    for verb in ("pin", "ask_model", "use_tool", "select", "append"):
        assert f"async def {verb}(" in effects
        assert f'@activity.defn(name="{verb}")' in activities


HEAVY = (
    "temporalio",
    "openai",
    "anthropic",
    "aiobotocore",
    "botocore",
    "httpx",
    "httpx2",
    "sqlalchemy",
    "alembic",
    "asyncpg",
    "cryptography",
    "starlette",
    "a2a",
)
SLOW = ("pydantic", "yaml", "jsonschema", "rich", "uvicorn", "common_expression_language")


def imported_by(code: str, *names: str) -> list[str]:
    """Those of the modules that a Python program has imported at its end."""
    program = f"{code}\nimport sys; print('', *[name for name in {names} if name in sys.modules], sep='\\n')"
    printed = subprocess.check_output([sys.executable, "-c", program], cwd="/", text=True)
    return [line for line in printed.splitlines() if line in names]


def command(*arguments: str | Path) -> str:
    """A Python program that runs the command line."""
    given = ["baton", *map(str, arguments)]
    return (
        f"import sys; sys.argv = {given}\nfrom baton.starter.cli import app, exit_codes; exit_codes.exit_code(app.app)"
    )


def test_help_loads_nothing_but_the_command_line() -> None:
    assert imported_by("from baton.starter.cli import app", *HEAVY, *SLOW, "baton.resources", "asyncio") == []
    assert imported_by(command("--help"), *HEAVY, "pydantic", "yaml", "baton.resources", "baton.contracts") == []


def test_completion_loads_nothing_but_the_command_line() -> None:
    given = {"_BATON_COMPLETE": "complete_bash", "COMP_WORDS": "baton st", "COMP_CWORD": "1"}
    completing = f"import os; os.environ.update({given})\n{command()}"
    assert imported_by(completing, *HEAVY, "yaml", "baton.resources", "baton.contracts") == []


def test_validate_loads_the_resources_alone() -> None:
    file = ROOT / "samples" / "brainstorming.yaml"
    unneeded = "jsonschema", "rich", "uvicorn", "baton.contracts", "baton.activities", "baton.starter.server"
    assert imported_by(command("validate", "-f", file), *HEAVY, *unneeded) == []
    assert imported_by(command("validate", "-f", file), "baton.resources") == ["baton.resources"]


def test_a_worker_loads_the_exporter_of_spans_only_where_traces_are_asked_for() -> None:
    assert imported_by("import baton.worker", "baton.observability.span_export") == []


INSIDES = ("baton.activities", "baton.journal", "baton.worker", "baton.workflows")


def test_a_client_loads_no_insides_of_the_worker() -> None:
    assert imported_by("import baton", *HEAVY, *INSIDES, "pydantic") == []
    unneeded = "openai", "anthropic", "aiobotocore", "sqlalchemy", "starlette"
    assert imported_by("import baton; baton.Agent, baton.connect", *INSIDES, *unneeded) == []


def test_only_the_local_server_and_what_operates_on_the_journal_may_import_the_worker() -> None:
    for room in ("api", "runs", "history", "console", "diagram", "cli"):
        for file in (ROOT / "starter" / room).rglob("*.py"):
            folders = {each.partition("/")[0] for each in imported(file)}
            assert not folders & {"activities", "worker", "workflows"}, file
