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

ROOMS: dict[str, str] = {
    "resources": "",
    "conversation/text": "",
    "conversation/settings_error": "",
    "conversation/defaults": "",
    "conversation/private_files": "",
    "conversation/failure": "conversation/text",
    "conversation/errors": "conversation/failure",
    "conversation/messages": "conversation/text conversation/failure",
    "conversation/metrics": "",
    "conversation/contracts": "conversation/errors conversation/messages",
    "conversation/temporal": "conversation/contracts conversation/settings_error conversation/defaults",
    "workflows/state": "conversation",
    "workflows/calls": "workflows/state",
    "workflows/base": "workflows/calls",
    "workflows/discussion": "workflows/calls",
    "workflows/panel": "workflows/discussion",
    "workflows/strategies": "workflows/base workflows/panel",
    "workflows": "workflows/strategies",
    "activities/runtime": "conversation",
    "activities/process": "activities/runtime",
    "activities/journal": "activities/runtime",
    "activities/context": "activities/process activities/journal",
    "activities/tool": "activities/context",
    "activities/model": "activities/tool",
    "activities/agent": "activities/tool",
    "activities/memory": "activities/agent",
    "activities/panel": "activities/context",
    "activities/plan": "activities/panel",
    "activities": "activities/model activities/memory activities/plan",
    "worker": "workflows activities",
    "starter/errors": "",
    "starter/account": "",
    "starter/text": "conversation",
    "starter/http": "",
    "starter/journal": "activities",
    "starter/runs": "starter/text",
    "starter/history": "starter/runs",
    "starter/scripted_model": "starter/http",
    "starter/server": "starter/runs starter/http starter/errors starter/account worker",
    "starter/diagram": "starter/text",
    "starter/console": "starter/history starter/scripted_model",
    "starter/operations": "starter/server",
    "starter/api": "starter/history starter/journal starter/server",
    "starter/cli": "starter/console starter/operations starter/diagram starter/api",
    "starter": "starter/cli",
    "": "starter/api",
}
"""The rooms of the package, and which rooms each may import beside its own: those it names, and those below them."""

FOLDERS = ("resources", "conversation", "workflows", "activities", "starter")
FILES = [
    *sorted(file for each in FOLDERS for file in (ROOT / each).rglob("*.py") if not file.name.startswith("_")),
    ROOT / "__init__.py",
    ROOT / "worker.py",
]


def room_of(parts: tuple[str, ...]) -> str:
    """The room of a file, by its path in the package without its ending."""
    for length in (2, 1):
        if "/".join(parts[:length]) in ROOMS:
            return "/".join(parts[:length])
    return ""


def below(room: str) -> set[str]:
    """The rooms that a room may import."""
    named = ROOMS[room].split() + (["resources"] if room != "resources" else [])
    whole = [each for name in named for each in ROOMS if each == name or each.startswith(f"{name}/")]
    return {room, *whole}.union(*(below(each) for each in whole if each != room))


def imported(file: Path) -> Iterator[str]:
    """The rooms of the package that a file imports."""
    path = file.relative_to(ROOT).with_suffix("").parts
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = (*path[: len(path) - node.level], *(node.module or "").split("."))
            for name in node.names:
                full = tuple(part for part in (*base, name.name) if part)
                target = ROOT.joinpath(*full)
                yield room_of(full if target.is_dir() or target.with_suffix(".py").exists() else full[:-1])


def absolute(file: Path) -> set[str]:
    """The modules that a file imports by their whole names."""
    tree = ast.parse(file.read_text())
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    return names | {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and not node.level}


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_imports_run_one_way_between_the_rooms(file: Path) -> None:
    room = room_of(file.relative_to(ROOT).with_suffix("").parts)
    assert {*imported(file)} - below(room) == set()


def test_no_room_imports_one_that_imports_it() -> None:
    for room in ROOMS:
        assert not [each for each in below(room) - {room} if room in below(each)], room


SOURCES = sorted(file for each in (*FOLDERS, "tests", "samples", "benchmarks") for file in (ROOT / each).rglob("*.py"))


@pytest.mark.parametrize("file", [*SOURCES, ROOT / "worker.py"], ids=lambda file: str(file.relative_to(ROOT)))
def test_no_folder_of_the_package_is_imported_by_its_bare_name(file: Path) -> None:
    assert not {name.split(".")[0] for name in absolute(file)} & {*FOLDERS, "worker"}


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_every_file_states_in_its_first_line_what_it_does_and_is_short(file: Path) -> None:
    text = file.read_text()
    first = (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]
    assert first
    assert "?" not in first, "a statement, no question"
    assert text.count("\n") <= 200


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
    for verb in ("pin", "ask_model", "use_tool", "append"):
        assert f"async def {verb}(" in effects
        assert f'@activity.defn(name="{verb}")' in (ROOT / "activities" / f"{verb}.py").read_text()


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
    assert imported_by(command("--help"), *HEAVY, "pydantic", "yaml", "baton.resources", "baton.conversation") == []


def test_completion_loads_nothing_but_the_command_line() -> None:
    given = {"_BATON_COMPLETE": "complete_bash", "COMP_WORDS": "baton st", "COMP_CWORD": "1"}
    completing = f"import os; os.environ.update({given})\n{command()}"
    assert imported_by(completing, *HEAVY, "yaml", "baton.resources", "baton.conversation") == []


def test_validate_loads_the_resources_alone() -> None:
    file = ROOT / "samples" / "brainstorming.yaml"
    unneeded = "jsonschema", "rich", "uvicorn", "baton.conversation", "baton.activities", "baton.starter.server"
    assert imported_by(command("validate", "-f", file), *HEAVY, *unneeded) == []
    assert imported_by(command("validate", "-f", file), "baton.resources") == ["baton.resources"]


def test_a_worker_loads_the_exporter_of_spans_only_where_traces_are_asked_for() -> None:
    assert imported_by("import baton.worker", "baton.activities.process.span_exporter") == []


INSIDES = ("baton.activities", "baton.worker", "baton.workflows")


def test_a_client_loads_no_insides_of_the_worker() -> None:
    assert imported_by("import baton", *HEAVY, *INSIDES, "pydantic") == []
    unneeded = "openai", "anthropic", "aiobotocore", "sqlalchemy", "starlette"
    assert imported_by("import baton; baton.Agent, baton.connect", *INSIDES, *unneeded) == []


def test_only_the_local_server_and_what_operates_on_the_journal_may_import_the_worker() -> None:
    for room in ("api", "runs", "history", "console", "diagram", "cli"):
        for file in (ROOT / "starter" / room).rglob("*.py"):
            insides = {each for each in imported(file) if each.split("/")[0] in ("activities", "worker", "workflows")}
            assert not insides, file
