"""Without the packages of an extra, what needs none of them can be imported; all else says which extra to install."""

import json
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import NamedTuple

import pytest
from packaging.utils import canonicalize_name

from tests.harness.processes import PATIENCE, ROOT
from tests.test_locks import OPTIONAL, PROJECT, reachable

CLIENT = (
    "installation",
    "resources",
    "contracts",
    "temporal",
    "journal/external_storage",
    "starter/account",
    "starter/errors",
    "starter/text",
    "starter/runs",
    "starter/history",
    "starter/diagram",
    "starter/report",
    "starter/api",
    "starter/server/connection",
    "starter/server/in_process_worker",
    "starter/server/state_dir",
    "workflow",
)
"""Modules and folders that clients import, and workflows of an application that run teams."""

COMMANDS = ("starter/cli", "starter/console", "starter/server/embedded")
WORKERS = (
    "activities",
    "observability",
    "workflows",
    "worker",
    "plugin",
    "starter/operations",
    "starter/server/dev",
    "testing",
)

ARK_EVALUATIONS = "baton.starter.api.ark_evaluations"
"""What `baton eval` imports once it is known that the extra is installed."""

IMPORTS = """
import importlib, json, sys

class Hidden:
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in HIDDEN:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden)
import baton
baton.connect, baton.Team
errors = {}
for name in MODULES:
    try:
        importlib.import_module(name)
    except ImportError as error:
        errors[name] = f"{type(error).__name__}: {error}"
print(json.dumps(errors))
"""
"""Imports modules, in a process where other packages can't be imported; prints the errors."""


class Imported(NamedTuple):
    """What was imported, and the errors by module."""

    modules: list[str]
    errors: dict[str, str]


def imported(places: Sequence[str], *extras: str) -> Imported:
    """Imports all modules in some files and folders, where nothing but these extras is installed."""
    wanted = [*PROJECT["project"]["dependencies"], *(each for extra in extras for each in OPTIONAL[extra])]
    installed = reachable(wanted)
    owners = packages_distributions().items()
    hidden = [name for name, names in owners if not {canonicalize_name(each) for each in names} & installed]
    files = [
        file for place in places for file in (ROOT / f"{place}.py", *(ROOT / place).rglob("*.py")) if file.exists()
    ]
    modules = [".".join(("baton", *file.relative_to(ROOT).with_suffix("").parts)) for file in files]
    modules = [name.removesuffix(".__init__") for name in modules]
    code = f"HIDDEN = {{*{hidden}}} - {{'baton'}}\nMODULES = {modules}\n{IMPORTS}"
    printed = subprocess.check_output([sys.executable, "-c", code], cwd="/", text=True, timeout=PATIENCE)
    return Imported(modules, json.loads(printed))


@pytest.mark.full
def test_a_client_needs_nothing_but_the_core() -> None:
    assert imported(CLIENT).errors.keys() == {ARK_EVALUATIONS}


@pytest.mark.full
def test_commands_need_the_core_and_the_extra_cli() -> None:
    errors = imported((*CLIENT, *COMMANDS), "cli").errors
    of_commands = {"baton.starter.cli.stored_rows", "baton.starter.cli.evaluate"}
    assert errors.keys() == {*of_commands, ARK_EVALUATIONS}, "which only single commands import"


@pytest.mark.full
def test_a_worker_needs_no_other_extra_until_it_uses_its_feature() -> None:
    optional = ("a2a", "anthropic", "bedrock", "connection", "access_tokens", "input", "request", "openai")
    of_extras = ("observability.metrics_export", "observability.span_export", "testing.pytest", ARK_EVALUATIONS)
    errors = imported((*CLIENT, *WORKERS), "worker").errors
    assert {
        name for name in errors if name.rpartition(".")[2] not in optional and not name.endswith(of_extras)
    } == set()


@pytest.mark.full
@pytest.mark.parametrize("place", [*WORKERS, "starter/cli"])
def test_what_needs_an_extra_says_so_in_one_sentence(place: str) -> None:
    extra = "cli" if place == "starter/cli" else "worker"
    modules, errors = imported((place,))
    assert errors.keys() == {*modules}
    for error in errors.values():
        assert error.startswith("MissingExtraError: ")
        assert error.endswith(f'needs packages that are not installed: pip install "baton-teams[{extra}]"')


def test_another_distribution_in_the_packages_folder_is_an_error(tmp_path: Path) -> None:
    """Pip has installed both: the files of the one that was installed last have overwritten those of the other."""
    (tmp_path / "baton").symlink_to(ROOT)
    (tmp_path / "baton_teams-1.0.0.dist-info").mkdir()
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import baton"

    def ended() -> "subprocess.CompletedProcess[str]":
        return subprocess.run([sys.executable, "-c", code], cwd="/", capture_output=True, text=True, check=False)

    assert ended().returncode == 0
    (tmp_path / "baton-1.0.2.dist-info").mkdir()
    last = ended().stderr.splitlines()[-1]
    assert last.startswith(f"ImportError: the package 'baton' in {tmp_path} is shared by 'baton-teams' and another")
    assert "pip uninstall baton" in last
